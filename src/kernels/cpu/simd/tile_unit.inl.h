// The eight matrix tiles of AMX, each 16 rows of 64 bytes, behind one class: the instructions, or with
// DI_CPU_TILES_EMULATED the same arithmetic written in AVX-512 (bit for bit; for tests on other processors).
//
// What tdpbf16ps computes (Intel SDM, "TDPBF16PS", Operation): for every row m of A and column n of B
//   even = Σ_k a[m][2k]·b[k][2n],  odd = Σ_k a[m][2k+1]·b[k][2n+1]      k = 0 … 15 in order, from zero, one rounding
//   each c[m][n] += even + odd                                               two more roundings
// all to nearest even with subnormals read and written as zero, whatever MXCSR says. Element (m, n) depends on row m
// and column n alone: rows that are not in use may hold anything.

inline constexpr int64_t kTileRowBytes = 64;
inline constexpr int64_t kTileBytes = 16 * kTileRowBytes;

#if !DI_CPU_TILES_EMULATED

// Configures the tiles of this thread for its lifetime. The `memory` clobbers keep the compiler from moving stores
// across the tile loads; the registers themselves are unknown to it.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) Config {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    const Config config;
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  ~Tiles() { asm volatile("tilerelease" : : : "memory"); }

  template <int kTile>
  void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  void load(const void* p, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  void store(void* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
  }
  // c += a·b
  template <int kC, int kA, int kB>
  void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

#else

class Tiles {
 public:
  template <int kTile>
  void zero() {
    std::memset(tile_[kTile], 0, kTileBytes);
  }
  template <int kTile>
  void load(const void* p, int64_t stride) {
    for (int64_t row = 0; row < 16; ++row) {
      std::memcpy(tile_[kTile] + row * kTileRowBytes, static_cast<const uint8_t*>(p) + row * stride, kTileRowBytes);
    }
  }
  template <int kTile>
  void store(void* p, int64_t stride) const {
    for (int64_t row = 0; row < 16; ++row) {
      std::memcpy(static_cast<uint8_t*>(p) + row * stride, tile_[kTile] + row * kTileRowBytes, kTileRowBytes);
    }
  }
  template <int kC, int kA, int kB>
  void multiply() {
    for (int64_t m = 0; m < 16; ++m) {
      F even = ::di::kernels::cpu::DI_CPU_ISA::zero();
      F odd = even;
      for (int64_t k = 0; k < 16; ++k) {
        uint32_t pair;
        std::memcpy(&pair, tile_[kA] + m * kTileRowBytes + 4 * k, sizeof pair);
        const I a = _mm512_set1_epi32(static_cast<int>(pair));
        const I b = _mm512_load_si512(tile_[kB] + k * kTileRowBytes);
        even = flush(fma(low(a), low(b), even));
        odd = flush(fma(high(a), high(b), odd));
      }
      float* c = reinterpret_cast<float*>(tile_[kC] + m * kTileRowBytes);
      ::di::kernels::cpu::DI_CPU_ISA::store(
          c, flush(add(flush(::di::kernels::cpu::DI_CPU_ISA::load(c)), flush(add(even, odd)))));
    }
  }

 private:
  // A subnormal becomes zero of its sign.
  static F flush(F v) {
    const I bits = _mm512_castps_si512(v);
    const __mmask16 small = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
    return _mm512_castsi512_ps(_mm512_mask_and_epi32(bits, small, bits, _mm512_set1_epi32(INT32_MIN)));
  }
  static F low(I pairs) { return flush(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))); }
  static F high(I pairs) { return flush(_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)))); }

  alignas(64) uint8_t tile_[8][kTileBytes];
};

#endif
