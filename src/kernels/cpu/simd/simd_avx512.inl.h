// Vector words of the AVX-512 tables (F, BW, DQ, VL, VBMI): 16 fp32 lanes. Same names as simd_avx2.inl.h; kernels are
// written against these names only. Included inside the target region of one translation unit (isa_*.cc), never on its
// own.

inline constexpr int L = 16;  // fp32 lanes
inline constexpr int kTileRows =
    6;  // rows of x in a register tile: 6·4 sums, 4 weights and one x fill the 32 registers
using F = __m512;
using I = __m512i;

inline F zero() {
  return _mm512_setzero_ps();
}
inline F set1(float v) {
  return _mm512_set1_ps(v);
}
inline F load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline F load_unaligned(const void* p) {
  return _mm512_loadu_ps(p);
}
inline void store(float* p, F v) {
  _mm512_storeu_ps(p, v);
}
inline F add(F a, F b) {
  return _mm512_add_ps(a, b);
}
inline F sub(F a, F b) {
  return _mm512_sub_ps(a, b);
}
inline F mul(F a, F b) {
  return _mm512_mul_ps(a, b);
}
inline F div(F a, F b) {
  return _mm512_div_ps(a, b);
}
inline F fma(F a, F b, F c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline F fnma(F a, F b, F c) {
  return _mm512_fnmadd_ps(a, b, c);
}
inline F max(F a, F b) {
  return _mm512_max_ps(a, b);
}
inline F min(F a, F b) {
  return _mm512_min_ps(a, b);
}
inline F abs(F a) {
  return _mm512_abs_ps(a);
}
inline F round_even(F a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// a·2^n for integral n in about [-150, 128].
inline F scale_by_power(F a, F n) {
  return _mm512_scalef_ps(a, n);
}

inline F load_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}

// Round to nearest even on the bits, NaN kept quiet: the same result as di::to_bf16 (vcvtneps2bf16 would flush
// subnormals).
inline void store_bf16(uint16_t* p, F v) {
  const I u = _mm512_castps_si512(v);
  const I even = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  I r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), even), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
}

inline F round_bf16(F v) {
  const I u = _mm512_castps_si512(v);
  const I even = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const I r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), even);
  return _mm512_castsi512_ps(_mm512_and_si512(r, _mm512_set1_epi32(-65536)));
}

// The four sums over the lanes of a, b, c and d, each by the same tree. The tree is part of the definition of a result.
inline __m128 sum4(F a, F b, F c, F d) {
  const F ab = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const F cd = add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const F s = add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
  return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

inline float max_lane(F a) {
  return _mm512_reduce_max_ps(a);
}

// v rounded to nearest even on a grid with kMantissa bits whose steps stop shrinking below 2^(kSmallest - 127).
template <int kMantissa, int kSmallest>
inline F round_grid(F v) {
  I e = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7f800000));
  e = _mm512_max_epi32(e, _mm512_set1_epi32(kSmallest << 23));
  const I bits =
      _mm512_or_si512(_mm512_add_epi32(e, _mm512_set1_epi32((23 - kMantissa) << 23)), _mm512_set1_epi32(0x400000));
  const F magic = _mm512_castsi512_ps(bits);                                     // 1.5·2^23 steps: adding it rounds
  return _mm512_or_ps(sub(add(v, magic), magic), _mm512_and_ps(v, set1(-0.F)));  // zero keeps its sign
}

// Sum of squares in fp64.
inline double sum_squares(const float* x, int64_t n) {
  __m512d a = _mm512_setzero_pd();
  __m512d b = _mm512_setzero_pd();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512d low = _mm512_cvtps_pd(_mm256_loadu_ps(x + i));
    const __m512d high = _mm512_cvtps_pd(_mm256_loadu_ps(x + i + 8));
    a = _mm512_fmadd_pd(low, low, a);
    b = _mm512_fmadd_pd(high, high, b);
  }
  double sum = _mm512_reduce_add_pd(_mm512_add_pd(a, b));
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

// Rows and columns of 16 × 16 words of 32 bits: out[c] = column c of the rows.
inline void transpose(const void* const* rows, int64_t offset, void* out, int64_t out_stride) {
  I r[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(static_cast<const uint8_t*>(rows[i]) + offset);
  I t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 4) {
    const I a = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    const I b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    const I c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]);
    const I d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
  // t[4q + j], quarter p, holds column 4p + j of rows 4q … 4q + 3.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const I a = _mm512_shuffle_i32x4(t[j], t[4 + j], 0x44);
    const I b = _mm512_shuffle_i32x4(t[j], t[4 + j], 0xee);
    const I c = _mm512_shuffle_i32x4(t[8 + j], t[12 + j], 0x44);
    const I d = _mm512_shuffle_i32x4(t[8 + j], t[12 + j], 0xee);
    uint8_t* to = static_cast<uint8_t*>(out);
    _mm512_storeu_si512(to + j * out_stride, _mm512_shuffle_i32x4(a, c, 0x88));
    _mm512_storeu_si512(to + (4 + j) * out_stride, _mm512_shuffle_i32x4(a, c, 0xdd));
    _mm512_storeu_si512(to + (8 + j) * out_stride, _mm512_shuffle_i32x4(b, d, 0x88));
    _mm512_storeu_si512(to + (12 + j) * out_stride, _mm512_shuffle_i32x4(b, d, 0xdd));
  }
}

// Bit i is set where a[i] > b[i].
inline uint32_t greater_mask(F a, F b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

// ---- weights to fp32
// ------------------------------------------------------------------------------------------------------

struct WideKind {
  using X = float;
  using V = F;
  static constexpr int kLanes = L;
  static V load(const X* p) { return _mm512_loadu_ps(p); }
  static void store(X* p, V v) { _mm512_storeu_ps(p, v); }
  static F dot(V x, V w, F acc) { return _mm512_fmadd_ps(x, w, acc); }
  static X from_float(float v) { return v; }
  static void store_floats(X* p, F v) { _mm512_storeu_ps(p, v); }
  static V broadcast_word(const X* p) { return _mm512_set1_ps(*p); }
  static F load_floats(const X* p) { return _mm512_loadu_ps(p); }
};

// 16 E4M3 bytes. Shifted into fp16 a byte reads as its value times 2^-8, subnormals included.
inline F load_e4m3(const uint8_t* p) {
  const __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(b, 7), _mm256_set1_epi16(static_cast<short>(0xbf80))));
}

// 16 signed bytes.
inline F load_int8(__m128i v, int) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v));
}

// Four ue8m0 scale bytes of 32 columns each, as they lie behind a chunk of 128 columns.
inline F lane_scales(const uint8_t* s) {
  const __m128i bytes = _mm_cvtsi32_si128(static_cast<int>(four_scales(s)));
  const __m128 four = _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu8_epi32(bytes), 23));
  const I lane = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutexvar_ps(lane, _mm512_castps128_ps512(four));
}

struct WideF32 {
  using Kind = WideKind;
  static constexpr int kBits = 32;
  static constexpr int kCols = 16;
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
  static constexpr int kCols = 32;
  static constexpr int kVecs = 2;
  static constexpr int column(int p) { return p < 16 ? 2 * p : 2 * p - 31; }
  struct Scale {};
  static Scale scale(const uint8_t*, int) { return {}; }
  using Raw = I;
  static Raw fetch(const uint8_t* data) { return _mm512_loadu_si512(data); }
  static F vector(Raw v, Scale, int j) {
    return _mm512_castsi512_ps(j == 0 ? _mm512_slli_epi32(v, 16) : _mm512_and_si512(v, _mm512_set1_epi32(-65536)));
  }
};

struct WideFp8 {
  using Kind = WideKind;
  static constexpr int kBits = 8;
  static constexpr int kCols = 64;
  static constexpr int kVecs = 4;
  static constexpr int column(int p) { return p; }
  struct Scale {
    F first;
    F second;
  };
  static Scale scale(const uint8_t* s, int group_shift) {
    return {set1(fp8_multiplier(s[0])), set1(fp8_multiplier(s[1 >> group_shift]))};
  }
  using Raw = const uint8_t*;
  static Raw fetch(const uint8_t* data) { return data; }
  static F vector(Raw data, const Scale& s, int j) { return mul(load_e4m3(data + 16 * j), j < 2 ? s.first : s.second); }
};

struct WideFp4 {
  using Kind = WideKind;
  static constexpr int kBits = 4;
  static constexpr int kCols = 128;
  static constexpr int kVecs = 8;
  static constexpr int column(int p) { return 8 * (p % 16) + p / 16; }
  using Scale = F;
  static Scale scale(const uint8_t* s, int) { return lane_scales(s); }
  using Raw = I;
  static Raw fetch(const uint8_t* data) { return _mm512_loadu_si512(data); }
  static F vector(Raw v, Scale s, int j) {
    const F table =
        _mm512_setr_ps(0.F, .5F, 1.F, 1.5F, 2.F, 3.F, 4.F, 6.F, -0.F, -.5F, -1.F, -1.5F, -2.F, -3.F, -4.F, -6.F);
    return mul(_mm512_permutexvar_ps(_mm512_srli_epi32(v, static_cast<unsigned>(4 * j)), table), s);
  }
};

#if DI_CPU_BF16_DOT
// ---- weights to bf16
// ------------------------------------------------------------------------------------------------------ vdpbf16ps adds
// two products a lane. Values are exact in bf16 on both sides wherever these decoders are chosen. A scale is added to
// the exponent bits; ue8m0 bytes are taken within [32, 222], far beyond any stored weight.

struct PairKind {
  using X = uint16_t;
  using V = I;
  static constexpr int kLanes = 32;
  static V load(const X* p) { return _mm512_loadu_si512(p); }
  static void store(X* p, V v) { _mm512_storeu_si512(p, v); }
  static F dot(V x, V w, F acc) { return _mm512_dpbf16_ps(acc, as_bf16(x), as_bf16(w)); }
  static X from_float(float v) { return static_cast<X>(std::bit_cast<uint32_t>(v) >> 16); }  // v is a bf16 value
  static void store_floats(X* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(v), 16)));
  }
  static F load_floats(const X* p) { return load_bf16(p); }
  static V broadcast_word(const X* p) {
    uint32_t word;
    std::memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(static_cast<int>(word));
  }
  static __m512bh as_bf16(V v) { return reinterpret_cast<__m512bh>(v); }
};

// Adds to the exponents of w; zeros stay zero.
inline I shift_exponents(I w, I offset) {
  return _mm512_maskz_add_epi16(_mm512_test_epi16_mask(w, _mm512_set1_epi16(0x7fff)), w, offset);
}

// (s - 127)·2^7 of each scale byte.
struct ExponentOffsets {
  short of[256];
};
constexpr ExponentOffsets make_exponent_offsets() {
  ExponentOffsets t{};
  for (int s = 0; s < 256; ++s) t.of[s] = static_cast<short>(((s < 32 ? 32 : s > 222 ? 222 : s) - 127) * 128);
  return t;
}
inline constexpr ExponentOffsets kExponentOffsets = make_exponent_offsets();

struct PairBf16 {
  using Kind = PairKind;
  static constexpr int kBits = 16;
  static constexpr int kCols = 32;
  static constexpr int kVecs = 1;
  static constexpr int column(int p) { return p; }
  struct Scale {};
  static Scale scale(const uint8_t*, int) { return {}; }
  using Raw = const uint8_t*;
  static Raw fetch(const uint8_t* data) { return data; }
  static I vector(Raw data, Scale, int) { return _mm512_loadu_si512(data); }
};

// High and low bytes of the bf16 form of the 128 magnitudes of E4M3.
struct E4m3Bytes {
  alignas(64) uint8_t high[128];
  alignas(64) uint8_t low[128];
};
constexpr E4m3Bytes make_e4m3_bytes() {
  E4m3Bytes t{};
  for (int b = 0; b < 128; ++b) {
    const int e = b >> 3;
    const int m = b & 7;
    uint32_t bits = 0;
    if (e != 0) {
      bits = static_cast<uint32_t>(((e + 120) << 7) | (m << 4));
    } else if (m != 0) {  // m·2^-9
      const int top = m >= 4 ? 2 : m >= 2 ? 1 : 0;
      bits = static_cast<uint32_t>(((127 - 9 + top) << 7) | ((m << (7 - top)) & 0x7f));
    }
    t.high[b] = static_cast<uint8_t>(bits >> 8);
    t.low[b] = static_cast<uint8_t>(bits);
  }
  return t;
}
inline constexpr E4m3Bytes kE4m3Bytes = make_e4m3_bytes();

struct PairFp8 {
  using Kind = PairKind;
  static constexpr int kBits = 8;
  static constexpr int kCols = 64;
  static constexpr int kVecs = 2;
  static constexpr int column(int p) { return 16 * (p % 32 / 8) + 8 * (p / 32) + p % 8; }
  using Scale = I;
  static Scale scale(const uint8_t* s, int group_shift) {
    const I first = _mm512_set1_epi16(kExponentOffsets.of[s[0]]);
    return _mm512_mask_set1_epi16(first, 0xffff0000U, kExponentOffsets.of[s[1 >> group_shift]]);
  }
  struct Raw {
    I low;
    I high;
  };
  static Raw fetch(const uint8_t* data) {
    const I v = _mm512_loadu_si512(data);
    I for_high = v;  // the permutation destroys its index: give it copies in registers
    I for_low = v;
    asm("" : "+v"(for_high), "+v"(for_low));
    const I high =
        _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3Bytes.high), for_high, _mm512_load_si512(kE4m3Bytes.high + 64));
    const I low =
        _mm512_permutex2var_epi8(_mm512_load_si512(kE4m3Bytes.low), for_low, _mm512_load_si512(kE4m3Bytes.low + 64));
    return {low,
            _mm512_ternarylogic_epi32(high, v, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8)};  // high | (v & 0x80)
  }
  static I vector(const Raw& r, Scale offset, int j) {
    return shift_exponents(j == 0 ? _mm512_unpacklo_epi8(r.low, r.high) : _mm512_unpackhi_epi8(r.low, r.high), offset);
  }
};

struct PairFp4 {
  using Kind = PairKind;
  static constexpr int kBits = 4;
  static constexpr int kCols = 128;
  static constexpr int kVecs = 4;
  static constexpr int column(int p) { return 4 * (p % 32) + p / 32; }
  using Scale = I;
  // (s - 32)·2^7 for the words of each 32 columns; the other 95 binades are in the table below.
  static Scale scale(const uint8_t* s, int) {
    const __m128i above = _mm_subs_epu8(_mm_cvtsi32_si128(static_cast<int>(four_scales(s))), _mm_set1_epi8(32));
    const I word = _mm512_setr_epi64(0, 0, 0x0001000100010001, 0x0001000100010001, 0x0002000200020002,
                                     0x0002000200020002, 0x0003000300030003, 0x0003000300030003);
    return _mm512_permutexvar_epi16(word, _mm512_castsi128_si512(_mm_slli_epi16(_mm_cvtepu8_epi16(above), 7)));
  }
  static constexpr short entry(int bits) { return static_cast<short>(bits == 0 ? 0 : bits - 95 * 128); }
  static constexpr short negative(int bits) { return static_cast<short>((bits == 0 ? 0 : bits - 95 * 128) | 0x8000); }
  using Raw = I;
  static Raw fetch(const uint8_t* data) { return _mm512_loadu_si512(data); }
  static I vector(Raw v, Scale offset, int j) {
    // vpermw reads the low 5 bits of an index: both halves of the table are equal, so the fifth bit does not matter.
    const I table = _mm512_broadcast_i64x4(
        _mm256_setr_epi16(entry(0), entry(0x3f00), entry(0x3f80), entry(0x3fc0), entry(0x4000), entry(0x4040),
                          entry(0x4080), entry(0x40c0), negative(0), negative(0x3f00), negative(0x3f80),
                          negative(0x3fc0), negative(0x4000), negative(0x4040), negative(0x4080), negative(0x40c0)));
    return shift_exponents(_mm512_permutexvar_epi16(_mm512_srli_epi16(v, static_cast<unsigned>(4 * j)), table), offset);
  }
};
#endif  // DI_CPU_BF16_DOT
