// Vector words of the AVX2 table (with FMA and F16C): 8 fp32 lanes. Same names as simd_avx512.inl.h.

inline constexpr int L = 8;          // fp32 lanes
inline constexpr int kTileRows = 3;  // 3·4 sums, 3 x and one weight fill the 16 registers
using F = __m256;
using I = __m256i;

inline F zero() {
  return _mm256_setzero_ps();
}
inline F set1(float v) {
  return _mm256_set1_ps(v);
}
inline F load(const float* p) {
  return _mm256_loadu_ps(p);
}
inline F load_unaligned(const void* p) {
  return _mm256_loadu_ps(static_cast<const float*>(p));
}
inline void store(float* p, F v) {
  _mm256_storeu_ps(p, v);
}
inline F add(F a, F b) {
  return _mm256_add_ps(a, b);
}
inline F sub(F a, F b) {
  return _mm256_sub_ps(a, b);
}
inline F mul(F a, F b) {
  return _mm256_mul_ps(a, b);
}
inline F div(F a, F b) {
  return _mm256_div_ps(a, b);
}
inline F fma(F a, F b, F c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline F fnma(F a, F b, F c) {
  return _mm256_fnmadd_ps(a, b, c);
}
inline F max(F a, F b) {
  return _mm256_max_ps(a, b);
}
inline F min(F a, F b) {
  return _mm256_min_ps(a, b);
}
inline F abs(F a) {
  return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
}
inline F round_even(F a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// a·2^n for integral n in about [-150, 128]: two factors, so that neither leaves the exponent range.
inline F scale_by_power(F a, F n) {
  const I e = _mm256_cvtps_epi32(n);
  const I half = _mm256_srai_epi32(e, 1);
  const I bias = _mm256_set1_epi32(127);
  const F first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const F second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(e, half), bias), 23));
  return mul(mul(a, first), second);
}

inline F load_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}

// Round to nearest even on the bits, NaN kept quiet: the same result as di::to_bf16.
inline void store_bf16(uint16_t* p, F v) {
  const I u = _mm256_castps_si256(v);
  const I even = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const I r = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), even), 16);
  const I quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  const I nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const I words = _mm256_blendv_epi8(r, quiet, nan);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

inline F round_bf16(F v) {
  const I u = _mm256_castps_si256(v);
  const I even = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const I r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), even);
  return _mm256_castsi256_ps(_mm256_and_si256(r, _mm256_set1_epi32(-65536)));
}

// The four sums over the lanes of a, b, c and d, each by the same tree. The tree is part of the definition of a result.
inline __m128 sum4(F a, F b, F c, F d) {
  const F ab = add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const F cd = add(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  const F s = add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

inline float max_lane(F a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// v rounded to nearest even on a grid with kMantissa bits whose steps stop shrinking below 2^(kSmallest - 127).
template <int kMantissa, int kSmallest>
inline F round_grid(F v) {
  I e = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7f800000));
  e = _mm256_max_epi32(e, _mm256_set1_epi32(kSmallest << 23));
  const I bits =
      _mm256_or_si256(_mm256_add_epi32(e, _mm256_set1_epi32((23 - kMantissa) << 23)), _mm256_set1_epi32(0x400000));
  const F magic = _mm256_castsi256_ps(bits);                                     // 1.5·2^23 steps: adding it rounds
  return _mm256_or_ps(sub(add(v, magic), magic), _mm256_and_ps(v, set1(-0.F)));  // zero keeps its sign
}

// Sum of squares in fp64.
inline double sum_squares(const float* x, int64_t n) {
  __m256d a = _mm256_setzero_pd();
  __m256d b = _mm256_setzero_pd();
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256d low = _mm256_cvtps_pd(_mm_loadu_ps(x + i));
    const __m256d high = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4));
    a = _mm256_fmadd_pd(low, low, a);
    b = _mm256_fmadd_pd(high, high, b);
  }
  alignas(32) double lanes[4];
  _mm256_store_pd(lanes, _mm256_add_pd(a, b));
  double sum = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

// Rows and columns of 8 × 8 words of 32 bits: out[c] = column c of the rows.
inline void transpose(const void* const* rows, int64_t offset, void* out, int64_t out_stride) {
  F r[8];
  for (int i = 0; i < 8; ++i) r[i] = load_unaligned(static_cast<const uint8_t*>(rows[i]) + offset);
  F t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 4) {
    const F a = _mm256_unpacklo_ps(r[i], r[i + 1]);
    const F b = _mm256_unpackhi_ps(r[i], r[i + 1]);
    const F c = _mm256_unpacklo_ps(r[i + 2], r[i + 3]);
    const F d = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
    t[i] = _mm256_shuffle_ps(a, c, 0x44);
    t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
    t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
    t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
  }
  // t[4q + j], half p, holds column 4p + j of rows 4q … 4q + 3.
  float* to = static_cast<float*>(out);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    _mm256_storeu_ps(to + j * out_stride / 4, _mm256_permute2f128_ps(t[j], t[4 + j], 0x20));
    _mm256_storeu_ps(to + (4 + j) * out_stride / 4, _mm256_permute2f128_ps(t[j], t[4 + j], 0x31));
  }
}

// Bit i is set where a[i] > b[i].
inline uint32_t greater_mask(F a, F b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
}

// ---- weights to fp32
// ------------------------------------------------------------------------------------------------------

struct WideKind {
  using X = float;
  using V = F;
  static constexpr int kLanes = L;
  static V load(const X* p) { return _mm256_loadu_ps(p); }
  static void store(X* p, V v) { _mm256_storeu_ps(p, v); }
  static F dot(V x, V w, F acc) { return _mm256_fmadd_ps(x, w, acc); }
  static X from_float(float v) { return v; }
  static void store_floats(X* p, F v) { _mm256_storeu_ps(p, v); }
  static V broadcast_word(const X* p) { return _mm256_set1_ps(*p); }
  static F load_floats(const X* p) { return _mm256_loadu_ps(p); }
};

// 8 E4M3 bytes. Shifted into fp16 a byte reads as its value times 2^-8, subnormals included.
inline F load_e4m3(const uint8_t* p) {
  const __m128i b = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(b, 7), _mm_set1_epi16(static_cast<short>(0xbf80))));
}

// The signed bytes 8·part … 8·part+7.
inline F load_int8(__m128i v, int part) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(part == 0 ? v : _mm_unpackhi_epi64(v, v)));
}

struct WideF32 {
  using Kind = WideKind;
  static constexpr int kBits = 32;
  static constexpr int kCols = 8;
  static constexpr int kVecs = 1;
  static constexpr int column(int p) { return p; }
  struct Scale {};
  static Scale scale(const uint8_t*, int) { return {}; }
  using Raw = const uint8_t*;
  static Raw fetch(const uint8_t* data) { return data; }
  static F vector(Raw data, Scale, int) { return load_unaligned(data); }
};

struct WideBf16 {
  using Kind = WideKind;
  static constexpr int kBits = 16;
  static constexpr int kCols = 16;
  static constexpr int kVecs = 2;
  static constexpr int column(int p) { return p < 8 ? 2 * p : 2 * p - 15; }
  struct Scale {};
  static Scale scale(const uint8_t*, int) { return {}; }
  using Raw = I;
  static Raw fetch(const uint8_t* data) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data)); }
  static F vector(Raw v, Scale, int j) {
    return _mm256_castsi256_ps(j == 0 ? _mm256_slli_epi32(v, 16) : _mm256_and_si256(v, _mm256_set1_epi32(-65536)));
  }
};

struct WideFp8 {
  using Kind = WideKind;
  static constexpr int kBits = 8;
  static constexpr int kCols = 32;
  static constexpr int kVecs = 4;
  static constexpr int column(int p) { return p; }
  using Scale = F;
  static Scale scale(const uint8_t* s, int) { return set1(fp8_multiplier(s[0])); }
  using Raw = const uint8_t*;
  static Raw fetch(const uint8_t* data) { return data; }
  static F vector(Raw data, Scale s, int j) { return mul(load_e4m3(data + 8 * j), s); }
};

struct WideFp4 {
  using Kind = WideKind;
  static constexpr int kBits = 4;
  static constexpr int kCols = 32;
  static constexpr int kVecs = 4;
  // Vector 2·half + odd holds every second column of 16.
  static constexpr int column(int p) { return 16 * (p / 16) + p / 8 % 2 + 2 * (p % 8); }
  using Scale = F;
  static Scale scale(const uint8_t* s, int) { return set1(ue8m0(s[0])); }
  struct Raw {
    __m128i even;
    __m128i odd;
  };
  static Raw fetch(const uint8_t* data) {
    // The low byte of every E2M1 value in fp16 is zero; the table holds the high bytes.
    const __m128i table =
        _mm_setr_epi8(0, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46, -128, -72, -68, -66, -64, -62, -60, -58);
    const __m128i nibble = _mm_set1_epi8(15);
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
    return {_mm_shuffle_epi8(table, _mm_and_si128(v, nibble)),
            _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(v, 4), nibble))};
  }
  static F vector(const Raw& r, Scale s, int j) {
    const __m128i bytes = j % 2 == 0 ? r.even : r.odd;
    const __m128i none = _mm_setzero_si128();
    return mul(_mm256_cvtph_ps(j < 2 ? _mm_unpacklo_epi8(none, bytes) : _mm_unpackhi_epi8(none, bytes)), s);
  }
};
