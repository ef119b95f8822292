// y = x·Wᵀ for stored weights. One structure of summation serves every number of rows: the columns of a weight row are
// taken in chunks that its format decodes to a few vectors (simd_*.inl.h), each output element has one vector of
// partial sums, the vectors of the chunks are added to it in order, and sum4 adds its lanes at the end. Hence
//   * few rows: `direct_tile` decodes in registers, a few weight rows for all rows of x before the next;
//   * many rows: a panel of weight rows is decoded once into scratch (cache-resident) and `panel_tile` multiplies it;
// and both give the same bits. x is packed in the chunk order of the format, zero beyond the last column.

struct RowRef {
  const uint8_t* data;
  const uint8_t* scale;
};

struct MatView {
  const uint8_t* data;
  const uint8_t* scale;
  int64_t rows;
  int64_t cols;
  int64_t row_bytes;
  int64_t scale_stride;  // scale bytes from one row (of blocks) to the next
  int row_shift;         // log2 of the rows that share a scale
  int group_shift;       // log2 of the 32-column groups that share a scale

  RowRef row(int64_t n) const {
    return {data + n * row_bytes, scale == nullptr ? nullptr : scale + (n >> row_shift) * scale_stride};
  }
};

inline MatView view_of(const Weight& w) {
  MatView m{};
  m.data = static_cast<const uint8_t*>(w.data);
  m.scale = w.scale;
  m.rows = w.rows;
  m.cols = w.cols;
  int bits = 0;
  switch (w.format) {
    case WeightFormat::kF32:
      bits = 32;
      break;
    case WeightFormat::kBf16:
      bits = 16;
      break;
    case WeightFormat::kFp8Block:
      DI_CHECK(w.block >= 32 && (w.block & (w.block - 1)) == 0, "scale blocks of {}", w.block);
      bits = 8;
      m.row_shift = std::countr_zero(static_cast<uint32_t>(w.block));
      m.group_shift = m.row_shift - 5;
      m.scale_stride = (w.cols + w.block - 1) / w.block;
      break;
    case WeightFormat::kFp8Row:
      bits = 8;
      m.scale_stride = (w.cols + 31) / 32;
      break;
    case WeightFormat::kFp4Row:
      DI_CHECK(w.cols % 2 == 0, "{} columns of 4 bits", w.cols);
      bits = 4;
      m.scale_stride = (w.cols + 31) / 32;
      break;
  }
  DI_CHECK(bits > 8 || m.scale != nullptr, "a weight of {} bits without scales", bits);
  m.row_bytes = w.cols * bits / 8;
  return m;
}

// Calls f with the decoder of a format. `pairs`: x holds bf16 values and the processor multiplies pairs of them.
template <class Function>
inline void with_decoder(WeightFormat format, [[maybe_unused]] bool pairs, const Function& f) {
#if DI_CPU_BF16_DOT
  if (pairs) {
    switch (format) {
      case WeightFormat::kF32:
        break;
      case WeightFormat::kBf16:
        return f(PairBf16{});
      case WeightFormat::kFp8Block:
      case WeightFormat::kFp8Row:
        return f(PairFp8{});
      case WeightFormat::kFp4Row:
        return f(PairFp4{});
    }
  }
#endif
  switch (format) {
    case WeightFormat::kF32:
      return f(WideF32{});
    case WeightFormat::kBf16:
      return f(WideBf16{});
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Row:
      return f(WideFp8{});
    case WeightFormat::kFp4Row:
      return f(WideFp4{});
  }
}

// True when the operands of this product are bf16 values on both sides: the pair instruction is exact then but for its
// sums.
inline bool pair_products(DType x, WeightFormat w, int64_t quantised_group) {
  return DI_CPU_BF16_DOT && w != WeightFormat::kF32 && (x == DType::kBf16 || quantised_group > 0);
}

// Elements of packed x (or of a decoded panel row) for `cols` columns, without and with the padding that keeps rows of
// a power-of-two width out of the same cache sets.
template <class D>
inline int64_t packed_cols(int64_t cols) {
  return (cols + D::kCols - 1) / D::kCols * D::kCols;
}
template <class D>
inline int64_t packed_stride(int64_t cols) {
  return packed_cols<D>(cols) + D::Kind::kLanes;
}

// How many columns in a row keep their order in a packed chunk. 1: the vectors of a chunk interleave all its columns
// (column(1) = kVecs), or parts of them.
template <class D>
constexpr int pack_run() {
  int run = 1;
  while (run < D::kCols && D::column(run) == run) ++run;
  return run;
}

// x (natural order, fp32) → packed. x is readable up to packed_cols; values beyond cols become zero.
template <class D>
inline void pack_row(float* x, int64_t cols, typename D::Kind::X* out) {
  using X = typename D::Kind::X;
  const int64_t padded = packed_cols<D>(cols);
  for (int64_t i = cols; i < padded; ++i) x[i] = 0.F;
  constexpr int kRun = pack_run<D>();
  if constexpr (kRun == D::kCols) {
    for (int64_t c = 0; c < padded; c += L) D::Kind::store_floats(out + c, load(x + c));
  } else if constexpr (kRun == 1 && D::column(1) != D::kVecs) {
    for (int64_t c = 0; c < padded; c += D::kCols) {
      for (int p = 0; p < D::kCols; ++p) out[c + p] = D::Kind::from_float(x[c + D::column(p)]);
    }
  } else if constexpr (kRun == 1) {
    for (int64_t c = 0; c < padded; c += D::kCols) {
      for (int v = 0; v < D::kVecs; ++v) {
        for (int l = 0; l < D::Kind::kLanes; ++l)
          out[c + v * D::Kind::kLanes + l] = D::Kind::from_float(x[c + v + D::kVecs * l]);
      }
    }
  } else {
    for (int64_t c = 0; c < padded; c += D::kCols) {
      X natural[D::kCols];
      for (int i = 0; i < D::kCols; i += L) D::Kind::store_floats(natural + i, load(x + c + i));
      for (int p = 0; p < D::kCols; p += kRun) std::memcpy(out + c + p, natural + D::column(p), kRun * sizeof(X));
    }
  }
}

// The scale of chunk c of a row, and the vectors of a whole chunk.
template <class D>
inline typename D::Scale scale_of(const MatView& m, RowRef r, int64_t c) {
  const uint8_t* scale = nullptr;
  if constexpr (D::kBits <= 8) scale = r.scale + (c * D::kCols / 32 >> m.group_shift);
  return D::scale(scale, m.group_shift);
}

template <class D>
inline const uint8_t* chunk_data(RowRef r, int64_t c) {
  return r.data + c * D::kCols * D::kBits / 8;
}

template <class D>
inline void decode(const uint8_t* data, const typename D::Scale& scale, typename D::Kind::V* w) {
  const typename D::Raw raw = D::fetch(data);
#pragma GCC unroll 8
  for (int j = 0; j < D::kVecs; ++j) w[j] = D::vector(raw, scale, j);
}

// The last chunk of a row when it is short: the columns beyond the end decode to zero.
template <class D>
inline void decode_tail(const MatView& m, RowRef r, int64_t c, typename D::Kind::V* w) {
  alignas(64) uint8_t data[D::kCols * D::kBits / 8] = {};
  alignas(64) uint8_t scale[8] = {127, 127, 127, 127, 127, 127, 127, 127};
  const int64_t rest = m.cols - c * D::kCols;
  std::memcpy(data, chunk_data<D>(r, c), static_cast<size_t>(rest * D::kBits / 8));
  if constexpr (D::kBits <= 8) {
    const int64_t first = c * D::kCols / 32;
    for (int64_t g = 0; g < (rest + 31) / 32; ++g) scale[g] = r.scale[(first + g) >> m.group_shift];
  }
  decode<D>(data, D::scale(scale, 0), w);
}

inline constexpr int64_t kDirectTile = L == 16 ? 6 : 3;  // rows of x of one register tile

// Up to so many rows of x are multiplied without a decoded panel: decoding again for every tile costs less than a panel
// is written and read, as long as x stays in the second cache. Where decoding is most of the work (few registers, low
// formats to bf16) the panel pays sooner.
inline constexpr int64_t kDirectLeast = L == 16 ? 12 : 6;
inline constexpr int64_t kDirectBytes = 256 * 1024;  // of x
template <class D>
inline int64_t direct_limit(int64_t cols) {
  if (L == 8 || (D::Kind::kLanes > L && D::kBits <= 8)) return kDirectLeast;
  return std::clamp<int64_t>(kDirectBytes / (cols * static_cast<int64_t>(sizeof(typename D::Kind::X))), 24, 64);
}

inline constexpr int64_t kPrefetchTile = 128 * 1024;
inline constexpr int64_t kPrefetchRow = 2048;

// MR rows of x times NR (a multiple of 4) rows of W, decoded in registers. sums[m·NR/4 + n/4] holds 4 outputs.
// kOneScale: the rows lie in one block of scales.
template <class D, int MR, int NR, bool kOneScale>
inline void direct_tile(const MatView& m, const typename D::Kind::X* const* x, const RowRef* w, __m128* sums) {
  using V = typename D::Kind::V;
  using X = typename D::Kind::X;
  F acc[MR][NR];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
    for (int n = 0; n < NR; ++n) acc[i][n] = zero();
  }
  const X* in[MR];
  for (int i = 0; i < MR; ++i) in[i] = x[i];
  RowRef row[NR];
  for (int n = 0; n < NR; ++n) row[n] = w[n];
  const int64_t full = m.cols / D::kCols;
  // Rows of a tile are short streams, which a hardware prefetcher picks up late: ask for the next tile's, or further on
  // in a long row.
  const int64_t ahead = NR * m.row_bytes <= kPrefetchTile ? NR * m.row_bytes : kPrefetchRow;
  for (int64_t c = 0; c < full; ++c) {
    // Vector by vector through all rows: the sums of one row form a chain, those of several rows overlap.
    typename D::Scale scale[kOneScale ? 1 : NR];
    typename D::Raw raw[NR];
    scale[0] = scale_of<D>(m, row[0], c);
#pragma GCC unroll 8
    for (int n = 0; n < NR; ++n) {
      if (!kOneScale && n > 0) scale[n] = scale_of<D>(m, row[n], c);
      const uint8_t* data = chunk_data<D>(row[n], c);
      _mm_prefetch(reinterpret_cast<const char*>(data + ahead), _MM_HINT_T1);
      raw[n] = D::fetch(data);
    }
#pragma GCC unroll 8
    for (int j = 0; j < D::kVecs; ++j) {
      const int64_t at = c * D::kCols + j * D::Kind::kLanes;
      if constexpr (MR < 6) {
        V v[MR];
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i) v[i] = D::Kind::load(in[i] + at);
#pragma GCC unroll 8
        for (int n = 0; n < NR; ++n) {
          const V w_n = D::vector(raw[n], scale[kOneScale ? 0 : n], j);
#pragma GCC unroll 8
          for (int i = 0; i < MR; ++i) acc[i][n] = D::Kind::dot(v[i], w_n, acc[i][n]);
        }
      } else {  // the sums leave room for one vector of x at a time
        V w_j[NR];
#pragma GCC unroll 8
        for (int n = 0; n < NR; ++n) w_j[n] = D::vector(raw[n], scale[kOneScale ? 0 : n], j);
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i) {
          const V v = D::Kind::load(in[i] + at);
#pragma GCC unroll 8
          for (int n = 0; n < NR; ++n) acc[i][n] = D::Kind::dot(v, w_j[n], acc[i][n]);
        }
      }
    }
  }
  if (full * D::kCols < m.cols) {
#pragma GCC unroll 8
    for (int n = 0; n < NR; ++n) {
      V v[D::kVecs];
      decode_tail<D>(m, row[n], full, v);
#pragma GCC unroll 8
      for (int j = 0; j < D::kVecs; ++j) {
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i)
          acc[i][n] = D::Kind::dot(D::Kind::load(in[i] + full * D::kCols + j * D::Kind::kLanes), v[j], acc[i][n]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 8
    for (int n = 0; n < NR; n += 4)
      sums[(i * NR + n) / 4] = sum4(acc[i][n], acc[i][n + 1], acc[i][n + 2], acc[i][n + 3]);
  }
}

template <class D, int MR, int NR, class Sink>
inline void direct_block(const MatView& m, const RowRef* w, int64_t n, int64_t n1, const typename D::Kind::X* const* x,
                         int64_t m0, const Sink& sink) {
  __m128 sums[MR * NR / 4];
  if (D::kBits == 8 && w[0].scale == w[NR - 1].scale) {
    direct_tile<D, MR, NR, true>(m, x + m0, w, sums);
  } else {
    direct_tile<D, MR, NR, false>(m, x + m0, w, sums);
  }
  for (int64_t i = 0; i < MR; ++i) {
    for (int64_t j = 0; j < NR && n + j < n1; j += 4)
      sink(m0 + i, n + j, std::min<int64_t>(4, n1 - n - j), sums[(i * NR + j) / 4]);
  }
}

// NR rows of W at a time: they are read from memory for the first rows of x and from the first cache for the others.
template <class D, int NR, class Sink>
inline void direct_rows(const MatView& m, int64_t n0, int64_t n1, const typename D::Kind::X* const* x, int64_t rows,
                        const Sink& sink) {
  const int64_t blocks = divide_up(rows, kDirectTile);
  for (int64_t n = n0; n < n1; n += NR) {
    RowRef w[NR];
    for (int64_t i = 0; i < NR; ++i) w[i] = m.row(std::min(n + i, n1 - 1));
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t m0 = rows * b / blocks;
      switch (rows * (b + 1) / blocks - m0) {
        case 2:
          direct_block<D, 2, NR>(m, w, n, n1, x, m0, sink);
          break;
        case 3:
          direct_block<D, 3, NR>(m, w, n, n1, x, m0, sink);
          break;
#if DI_CPU_AVX512
        case 4:
          direct_block<D, 4, NR>(m, w, n, n1, x, m0, sink);
          break;
        case 5:
          direct_block<D, 5, NR>(m, w, n, n1, x, m0, sink);
          break;
        case 6:
          direct_block<D, 6, NR>(m, w, n, n1, x, m0, sink);
          break;
#endif
        default:
          __builtin_unreachable();
      }
    }
  }
}

// Decoded rows [n0, n1) of W; rows up to a multiple of 4 repeat the last one.
template <class D>
inline void decode_panel(const MatView& m, int64_t n0, int64_t n1, typename D::Kind::X* panel, int64_t stride) {
  const int64_t full = m.cols / D::kCols;
  const int64_t rows = (n1 - n0 + 3) / 4 * 4;
  for (int64_t n = 0; n < rows; ++n) {
    const RowRef r = m.row(std::min(n0 + n, n1 - 1));
    typename D::Kind::X* out = panel + n * stride;
    for (int64_t c = 0; c <= full; ++c) {
      typename D::Kind::V v[D::kVecs];
      if (c < full) {
        decode<D>(chunk_data<D>(r, c), scale_of<D>(m, r, c), v);
      } else if (full * D::kCols < m.cols) {
        decode_tail<D>(m, r, c, v);
      } else {
        break;
      }
      for (int j = 0; j < D::kVecs; ++j) D::Kind::store(out + c * D::kCols + j * D::Kind::kLanes, v[j]);
    }
  }
}

// MR rows of x times 4 panel rows over the elements [begin, end); `partial` carries the sums from one part to the next.
template <class Kind, int MR>
inline void panel_tile(const typename Kind::X* const* x, const typename Kind::X* panel, int64_t stride, int64_t begin,
                       int64_t end, bool first, float* partial) {
  F acc[MR][4];
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) acc[i][n] = first ? zero() : load(partial + (i * 4 + n) * L);
  }
  for (int64_t k = begin; k < end; k += Kind::kLanes) {
    if constexpr (MR <= 4 && L == 8) {
      typename Kind::V v[MR];
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) v[i] = Kind::load(x[i] + k);
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        const typename Kind::V w = Kind::load(panel + n * stride + k);
#pragma GCC unroll 8
        for (int i = 0; i < MR; ++i) acc[i][n] = Kind::dot(v[i], w, acc[i][n]);
      }
    } else {
      typename Kind::V w[4];
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) w[n] = Kind::load(panel + n * stride + k);
#pragma GCC unroll 8
      for (int i = 0; i < MR; ++i) {
        const typename Kind::V v = Kind::load(x[i] + k);
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) acc[i][n] = Kind::dot(v, w[n], acc[i][n]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) store(partial + (i * 4 + n) * L, acc[i][n]);
  }
}

template <class Kind>
inline void panel_tile_rows(int64_t rows, const typename Kind::X* const* x, const typename Kind::X* panel,
                            int64_t stride, int64_t begin, int64_t end, bool first, float* partial) {
  switch (rows) {
    case 1:
      return panel_tile<Kind, 1>(x, panel, stride, begin, end, first, partial);
    case 2:
      return panel_tile<Kind, 2>(x, panel, stride, begin, end, first, partial);
    case 3:
      return panel_tile<Kind, 3>(x, panel, stride, begin, end, first, partial);
#if DI_CPU_AVX512
    case 4:
      return panel_tile<Kind, 4>(x, panel, stride, begin, end, first, partial);
    case 5:
      return panel_tile<Kind, 5>(x, panel, stride, begin, end, first, partial);
    case 6:
      return panel_tile<Kind, 6>(x, panel, stride, begin, end, first, partial);
#endif
    default:
      __builtin_unreachable();
  }
}

// x rows (pointers, packed) times a decoded panel of `outputs` rows. Blocks: kRowsPerBlock rows of x share the partial
// sums in scratch, kDepth elements of a register tile's x rows stay in the first cache.
inline constexpr int64_t kRowsPerBlock = 48;
inline constexpr int64_t kDepthBytes = 2048;

inline int64_t partial_floats(int64_t rows, int64_t outputs) {
  return std::min(rows, kRowsPerBlock) * ((outputs + 3) / 4) * 4 * L;
}

template <class Kind, class Sink>
inline void multiply_panel(const typename Kind::X* const* x, int64_t rows, const typename Kind::X* panel,
                           int64_t stride, int64_t depth, int64_t outputs, float* partial, const Sink& sink) {
  constexpr int64_t kDepth = kDepthBytes / static_cast<int64_t>(sizeof(typename Kind::X));
  const int64_t quads = (outputs + 3) / 4;
  for (int64_t m0 = 0; m0 < rows; m0 += kRowsPerBlock) {
    const int64_t block = std::min(kRowsPerBlock, rows - m0);
    for (int64_t k0 = 0; k0 < depth;) {
      // The last part takes what would be less than half a part alone.
      const int64_t k1 = depth - k0 < kDepth + kDepth / 2 ? depth : k0 + kDepth;
      for (int64_t m = 0; m < block; m += kTileRows) {
        const int64_t count = std::min<int64_t>(kTileRows, block - m);
        for (int64_t q = 0; q < quads; ++q) {
          float* sums = partial + (m * quads + q * count) * 4 * L;
          panel_tile_rows<Kind>(count, x + m0 + m, panel + q * 4 * stride, stride, k0, k1, k0 == 0, sums);
          if (k1 < depth) continue;
          for (int64_t i = 0; i < count; ++i) {
            const float* s = sums + i * 4 * L;
            sink(m0 + m + i, q * 4, std::min<int64_t>(4, outputs - q * 4),
                 sum4(load(s), load(s + L), load(s + 2 * L), load(s + 3 * L)));
          }
        }
      }
      k0 = k1;
    }
  }
}

// What `multiply_rows` needs beside its operands, for up to so many rows and outputs.
struct Workspace {
  void* panel = nullptr;
  float* partial = nullptr;
};
template <class D>
inline Workspace row_workspace(Arena& scratch, int64_t rows, int64_t outputs, int64_t cols) {
  if (rows <= kDirectLeast) return {};
  return {scratch.take<typename D::Kind::X>((outputs + 3) / 4 * 4 * packed_stride<D>(cols)),
          scratch.take<float>(partial_floats(rows, outputs))};
}

// Outputs [n0, n1) of W for `rows` packed rows: sink(row, n, count ≤ 4, four sums).
template <class D, class Sink>
inline void multiply_rows(const MatView& m, int64_t n0, int64_t n1, const typename D::Kind::X* const* x, int64_t rows,
                          const Workspace& work, const Sink& sink) {
  if (rows == 0) return;
  if (rows == 1) {
    constexpr int kOutputs = L == 16 ? 8 : 4;
    for (int64_t n = n0; n < n1; n += kOutputs) {
      RowRef w[kOutputs];
      for (int64_t i = 0; i < kOutputs; ++i) w[i] = m.row(std::min(n + i, n1 - 1));
      direct_block<D, 1, kOutputs>(m, w, n, n1, x, 0, sink);
    }
    return;
  }
  if (rows <= direct_limit<D>(m.cols)) return direct_rows<D, 4>(m, n0, n1, x, rows, sink);
  using Kind = typename D::Kind;
  const int64_t stride = packed_stride<D>(m.cols);
  typename Kind::X* panel = static_cast<typename Kind::X*>(work.panel);
  decode_panel<D>(m, n0, n1, panel, stride);
  multiply_panel<Kind>(x, rows, panel, stride, packed_cols<D>(m.cols), n1 - n0, work.partial,
                       [&](int64_t row, int64_t n, int64_t count, __m128 v) { sink(row, n0 + n, count, v); });
}
