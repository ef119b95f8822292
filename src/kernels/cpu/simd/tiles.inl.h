// y = x·Wᵀ of bf16 operands in matrix tiles. The weights are the left operand: 16 rows of W as they lie in memory
// (bf16) or as the decoders of the pair kind give them, 32 columns a step; no weight is transposed. x is the right one,
// brought once into tiles of column pairs: block b of 16 rows, step s, pair k, row r at ((b·steps + s)·16 + k)·16 + r.
// So every number of rows takes the same instructions on the same operands in the same order, and the bits of a row are
// those of tile_unit.inl.h's formula over the steps: they depend on nothing else.

inline constexpr int64_t kStepCols = 32;
inline constexpr int64_t kTileElements = 512;  // of bf16
inline constexpr int64_t kTileSums = 256;
inline constexpr int64_t kFewRows = 32;    // up to here no decoded weight is read twice
inline constexpr int64_t kManyRows = 512;  // of x share a decoded panel: their sums stay in the second cache
inline constexpr int64_t kFewSteps = 16;   // steps decoded at a time: two blocks of outputs in the first cache,
inline constexpr int64_t kManySteps = 32;  // or a panel in the second

template <class D>
inline constexpr bool kTiled = std::is_same_v<typename D::Kind, PairKind>;

// Packed rows of x in tiles. A sum moves on by whole blocks of 16 rows.
struct TileInput {
  const uint16_t* tiles;
  int64_t steps;
  TileInput operator+(int64_t rows) const { return {tiles + rows / 16 * steps * kTileElements, steps}; }
};

template <class D>
inline int64_t tile_steps(int64_t cols) {
  return packed_cols<D>(cols) / kStepCols;
}

// At most 16 packed rows → the tiles of one block. What lies in the columns of missing rows has no meaning.
inline void build_block(const void* const* rows, int64_t count, int64_t steps, uint16_t* out) {
  if (count <= 4) {
    for (int64_t row = 0; row < count; ++row) {
      const uint16_t* in = static_cast<const uint16_t*>(rows[row]);
      for (int64_t pair = 0; pair < steps * 16; ++pair) {
        std::memcpy(out + (pair * 16 + row) * 2, in + pair * 2, 2 * sizeof(uint16_t));
      }
    }
    return;
  }
  const void* all[16];
  for (int64_t row = 0; row < 16; ++row) all[row] = rows[std::min(row, count - 1)];
  for (int64_t s = 0; s < steps; ++s) transpose(all, s * kTileRowBytes, out + s * kTileElements, kTileRowBytes);
}

inline int64_t tile_elements(int64_t rows, int64_t steps) {
  return divide_up(rows, 16) * steps * kTileElements;
}

// The tiles of all rows, in memory of the operator.
inline TileInput tile_input(CpuStream& s, const void* const* rows, int64_t count, int64_t steps) {
  uint16_t* tiles = s.shared.take<uint16_t>(tile_elements(count, steps));
  run_tasks(s, divide_up(count, 16), count * steps * kStepCols >= kSerialValues, [&](Arena&, int64_t block) {
    build_block(rows + block * 16, std::min<int64_t>(16, count - block * 16), steps,
                tiles + block * steps * kTileElements);
  });
  return {tiles, steps};
}

// `panel` and `partial` of what multiply_tiles needs, for up to so many rows and outputs.
inline Workspace tile_workspace(Arena& scratch, int64_t rows, int64_t outputs) {
  const int64_t blocks = divide_up(outputs, 16);
  if (rows <= kFewRows) {
    return {scratch.take<uint16_t>(2 * kFewSteps * kTileElements), scratch.take<float>(4 * kTileSums)};
  }
  return {scratch.take<uint16_t>(blocks * kManySteps * kTileElements),
          scratch.take<float>(divide_up(std::min(rows, kManyRows), 16) * blocks * kTileSums)};
}

// Rows [n0, n1) of W, steps [s0, s1), decoded into tiles: block b, step s at (b·(s1 - s0) + s - s0)·512. What lies
// `ahead` bytes further is fetched into the second cache, unless 0.
template <class D>
inline void decode_tiles(const MatView& m, int64_t n0, int64_t n1, int64_t s0, int64_t s1, int64_t ahead,
                         uint16_t* out) {
  const int64_t full = m.cols / D::kCols;
  for (int64_t n = n0; n < n1; ++n) {
    const RowRef r = m.row(n);
    uint16_t* row = out + (n - n0) / 16 * (s1 - s0) * kTileElements + (n - n0) % 16 * kStepCols;
    for (int64_t c = s0 / D::kVecs; c < s1 / D::kVecs; ++c) {
      I v[D::kVecs];
      if (c < full) {
        const uint8_t* data = chunk_data<D>(r, c);
        if (ahead > 0) _mm_prefetch(reinterpret_cast<const char*>(data + ahead), _MM_HINT_T1);
        decode<D>(data, scale_of<D>(m, r, c), v);
      } else {
        decode_tail<D>(m, r, c, v);
      }
#pragma GCC unroll 8
      for (int j = 0; j < D::kVecs; ++j) PairKind::store(row + (c * D::kVecs + j - s0) * kTileElements, v[j]);
    }
  }
}

// Where the tiles of 16 rows of W lie: `step` bytes from one step to the next, `row` bytes from one row to the next.
struct TileRows {
  const uint8_t* data;
  int64_t step;
  int64_t row;
  int64_t ahead;  // as in decode_tiles
};

// kA blocks of 16 outputs (`block` bytes apart) times kB blocks of rows over `steps` steps, added to the sums.
template <int kA, int kB>
inline void multiply_blocks(Tiles& tiles, const TileRows& w, int64_t block, const uint16_t* x, int64_t x_block,
                            int64_t steps, bool first, float* sums, int64_t sums_block) {
  float* const c[4] = {sums, sums + sums_block, sums + kTileSums,
                       sums + sums_block + kTileSums};  // [output][row] block
  if (first) {
    tiles.zero<0>();
    if constexpr (kB > 1) tiles.zero<1>();
    if constexpr (kA > 1) tiles.zero<2>();
    if constexpr (kA > 1 && kB > 1) tiles.zero<3>();
  } else {
    tiles.load<0>(c[0], kTileRowBytes);
    if constexpr (kB > 1) tiles.load<1>(c[1], kTileRowBytes);
    if constexpr (kA > 1) tiles.load<2>(c[2], kTileRowBytes);
    if constexpr (kA > 1 && kB > 1) tiles.load<3>(c[3], kTileRowBytes);
  }
  const uint8_t* a = w.data;
  for (int64_t s = 0; s < steps; ++s, a += w.step, x += kTileElements) {
    if (w.ahead > 0) {
      for (int64_t row = 0; row < 16; ++row) {
        _mm_prefetch(reinterpret_cast<const char*>(a + row * w.row + w.ahead), _MM_HINT_T1);
        if constexpr (kA > 1)
          _mm_prefetch(reinterpret_cast<const char*>(a + block + row * w.row + w.ahead), _MM_HINT_T1);
      }
    }
    tiles.load<4>(a, w.row);
    tiles.load<6>(x, kTileRowBytes);
    tiles.multiply<0, 4, 6>();
    if constexpr (kB > 1) {
      tiles.load<7>(x + x_block, kTileRowBytes);
      tiles.multiply<1, 4, 7>();
    }
    if constexpr (kA > 1) {
      tiles.load<5>(a + block, w.row);
      tiles.multiply<2, 5, 6>();
      if constexpr (kB > 1) tiles.multiply<3, 5, 7>();
    }
  }
  tiles.store<0>(c[0], kTileRowBytes);
  if constexpr (kB > 1) tiles.store<1>(c[1], kTileRowBytes);
  if constexpr (kA > 1) tiles.store<2>(c[2], kTileRowBytes);
  if constexpr (kA > 1 && kB > 1) tiles.store<3>(c[3], kTileRowBytes);
}

template <class D, class Sink>
inline void multiply_row_blocks(Tiles& tiles, const MatView& m, int64_t n0, int64_t n1, TileInput x, int64_t rows,
                                const Workspace& work, const Sink& sink) {
  const bool few = rows <= kFewRows;
  const int64_t slab = few ? kFewSteps : kManySteps;
  const int64_t row_blocks = divide_up(rows, 16);
  const int64_t x_block = x.steps * kTileElements;
  uint16_t* const panel = static_cast<uint16_t*>(work.panel);
  for (int64_t g0 = n0, g1 = 0; g0 < n1; g0 = g1) {
    g1 = few ? std::min(g0 + 32, n1) : n1;
    const int64_t blocks = divide_up(g1 - g0, 16);
    const int64_t sums_block = blocks * kTileSums;
    const bool direct = D::kBits == 16 && few && m.cols % kStepCols == 0 && (g1 - g0) % 16 == 0;
    for (int64_t s0 = 0; s0 < x.steps; s0 += slab) {
      const int64_t s1 = std::min(s0 + slab, x.steps);
      // Few rows wait for memory: the next slab of these weight rows, or the first of the next 32.
      const int64_t ahead = !few           ? 0
                            : s1 < x.steps ? slab * kStepCols * D::kBits / 8
                                           : 32 * m.row_bytes - s0 * kStepCols * D::kBits / 8;
      TileRows w{reinterpret_cast<const uint8_t*>(panel), kTileBytes, kTileRowBytes, 0};
      int64_t block = (s1 - s0) * kTileBytes;
      if (direct) {
        w = {m.data + g0 * m.row_bytes + s0 * kTileRowBytes, kTileRowBytes, m.row_bytes, ahead};
        block = 16 * m.row_bytes;
      } else {
        decode_tiles<D>(m, g0, g1, s0, s1, ahead, panel);
      }
      for (int64_t r = 0; r < row_blocks; r += 2) {
        const uint16_t* in = x.tiles + r * x_block + s0 * kTileElements;
        for (int64_t b = 0; b < blocks; b += 2) {
          float* sums = work.partial + r * sums_block + b * kTileSums;
          TileRows at = w;
          at.data += b * block;
          if (b + 1 < blocks && r + 1 < row_blocks) {
            multiply_blocks<2, 2>(tiles, at, block, in, x_block, s1 - s0, s0 == 0, sums, sums_block);
          } else if (b + 1 < blocks) {
            multiply_blocks<2, 1>(tiles, at, block, in, x_block, s1 - s0, s0 == 0, sums, sums_block);
          } else if (r + 1 < row_blocks) {
            multiply_blocks<1, 2>(tiles, at, block, in, x_block, s1 - s0, s0 == 0, sums, sums_block);
          } else {
            multiply_blocks<1, 1>(tiles, at, block, in, x_block, s1 - s0, s0 == 0, sums, sums_block);
          }
        }
      }
    }
    for (int64_t r = 0; r < row_blocks; ++r) {
      for (int64_t b = 0; b < blocks; ++b) {
        const float* sums = work.partial + r * sums_block + b * kTileSums;
        const void* outputs[16];
        for (int64_t i = 0; i < 16; ++i) outputs[i] = sums + i * 16;
        alignas(64) float of_row[kTileSums];
        transpose(outputs, 0, of_row, kTileRowBytes);
        const int64_t count = std::min<int64_t>(16, rows - r * 16);
        const int64_t n = g0 + b * 16;
        for (int64_t i = 0; i < count; ++i) sink(r * 16 + i, n, std::min<int64_t>(16, g1 - n), load(of_row + i * 16));
      }
    }
  }
}

// Outputs [n0, n1) of W for `rows` rows of x: sink(row, n, count ≤ 16, vector of sums).
template <class D, class Sink>
inline void multiply_tiles(const MatView& m, int64_t n0, int64_t n1, TileInput x, int64_t rows, const Workspace& work,
                           const Sink& sink) {
  Tiles tiles;
  for (int64_t r0 = 0; r0 < rows; r0 += kManyRows) {
    multiply_row_blocks<D>(tiles, m, n0, n1, x + r0, std::min(kManyRows, rows - r0), work,
                           [&](int64_t row, int64_t n, int64_t count, F v) { sink(r0 + row, n, count, v); });
  }
}
