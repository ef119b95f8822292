// Matrix products y = x·Wᵀ over stored weights, the core of linear.cu and moe.cu. Two forms:
//   tensor   bf16 x, weights BF16, FP8 or MXFP4. Both operands are taken to bf16, which holds e4m3·2^k and e2m1·2^k
//            exactly (performance.md §5.2), and multiplied by mma.m16n8k16 with fp32 accumulation: the product of the
//            formats is exact up to the order of the sum, whatever the scales of a tile are.
//   exact    fp32 x or fp32 weights: fp32 fused multiply-adds on the CUDA cores.
// Activation quantisation (model.md §4.2) happens while x is read.
//
// Order of the sum of an output, the same for every number of rows: chunks of kChunk columns are summed from zero, and
// the chunks' sums are added in ascending order. Split-K writes one partial per chunk and adds them in that order.
#pragma once

#include "kernels/cuda/common/block.cuh"

namespace di::kernels::cuda {

inline constexpr int kDepth = 128;         // columns of a tile in shared memory; a multiple of every activation group
inline constexpr int kChunk = 4 * kDepth;  // columns summed from zero
inline constexpr int kOutputs = 64;        // weight rows of a tile
inline constexpr int kPitch = kDepth + 8;  // bf16 values per row in shared memory: fragment reads hit all banks once
inline constexpr int kGemmThreads = 128;

// Where the rows of x come from.
struct GemmInput {
  const void* data = nullptr;
  DType dtype = DType::kBf16;
  int64_t stride = 0;                // elements
  const uint8_t* scale = nullptr;    // not null: data is E4M3 with ue8m0 scales [row, ceil(cols/32)]
  const int32_t* row_map = nullptr;  // row r of the product is row row_map[r] of data
  int32_t row_divide = 1;            // … divided by this
  int group = 0;                     // channels per activation scale, 0 = not quantised
  bool wide = false;                 // rows start at multiples of 16 bytes, and so do their chunks
};

__device__ __forceinline__ int64_t input_row(const GemmInput& x, int64_t row) {
  return x.row_map != nullptr ? x.row_map[row] / x.row_divide : row;
}

// Eight neighbouring columns of a row of x as fp32; zero beyond `cols`.
__device__ __forceinline__ void load_input(const GemmInput& x, int64_t row, int64_t column, int64_t cols,
                                           float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = 0.F;
  if (column >= cols) return;
  if (x.scale != nullptr) {
    const auto* data = static_cast<const uint8_t*>(x.data) + row * x.stride + column;
    const float s = e8m0_to_float(x.scale[row * ((cols + 31) / 32) + column / 32]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (column + i < cols) v[i] = e4m3_to_float(data[i]) * s;
    }
  } else if (x.dtype == DType::kF32) {
    const auto* data = static_cast<const float*>(x.data) + row * x.stride + column;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (column + i < cols) v[i] = data[i];
    }
  } else {
    const auto* data = static_cast<const uint16_t*>(x.data) + row * x.stride + column;
    if (x.wide && column + 8 <= cols) {
      const uint4 raw = *reinterpret_cast<const uint4*>(data);
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[2 * i] = bits_float(words[i] << 16);
        v[2 * i + 1] = bits_float(words[i] & 0xffff0000U);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (column + i < cols) v[i] = bf16_to_float(data[i]);
      }
    }
  }
}

// Replaces the eight values of each lane by what the GEMM sees of them; the lanes of a group of 32 (128) channels are 4
// (16) neighbours. All lanes of the warp take part.
__device__ __forceinline__ void requantise_lanes(int group, float (&v)[8]) {
  if (group == 0) return;
  float amax = 0.F;
#pragma unroll
  for (int i = 0; i < 8; ++i) amax = fmaxf(amax, fabsf(v[i]));
  amax = fmaxf(amax, shuffle_xor(amax, 1));
  amax = fmaxf(amax, shuffle_xor(amax, 2));
  if (group == 128) {
    amax = fmaxf(amax, shuffle_xor(amax, 4));
    amax = fmaxf(amax, shuffle_xor(amax, 8));
  }
  const int e = e4m3_group_exponent(amax);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = requantise_e4m3(v[i], e);
}

// kRows rows of x, columns [column, column + kDepth), as bf16 in shared memory.
template <int kRows>
__device__ __forceinline__ void load_input_tile(const GemmInput& x, int64_t first, int64_t rows, int64_t column,
                                                int64_t cols, uint16_t* tile) {
#pragma unroll 2
  for (int at = static_cast<int>(threadIdx.x); at < kRows * (kDepth / 8); at += kGemmThreads) {
    const int r = at / (kDepth / 8);
    const int c = at % (kDepth / 8) * 8;
    float v[8];
    if (first + r < rows) {
      load_input(x, input_row(x, first + r), column + c, cols, v);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = 0.F;
    }
    requantise_lanes(x.group, v);
    uint4 packed;
    packed.x = pack_bf16(v[0], v[1]);
    packed.y = pack_bf16(v[2], v[3]);
    packed.z = pack_bf16(v[4], v[5]);
    packed.w = pack_bf16(v[6], v[7]);
    *reinterpret_cast<uint4*>(tile + r * kPitch + c) = packed;
  }
}

// A weight tile on its way: the stored bytes of one stage, read ahead of their use. A thread holds whole 16-byte
// pieces: 8 bf16, 16 FP8 or 32 MXFP4 values.
template <WeightFormat kFormat>
struct WeightStage {
  static constexpr int kValues = kFormat == WeightFormat::kBf16 ? 8 : kFormat == WeightFormat::kFp4Row ? 32 : 16;
  static constexpr int kPieces = kOutputs * kDepth / kValues / kGemmThreads;
  uint4 raw[kPieces];
  uint8_t scale[kPieces];
};

// Weight row of tile row n, or -1 when there is none. `pair`: tile rows alternate by eights between two matrices (gate
// and up), so that both values of a hidden channel meet in one thread.
struct TileRows {
  int64_t first = 0;
  int64_t rows = 0;  // of one matrix
  bool pair = false;
  __device__ __forceinline__ int64_t row(int n) const {
    const int64_t r = pair ? first + n / 16 * 8 + n % 8 : first + n;
    return r < rows ? r : -1;
  }
  __device__ __forceinline__ bool second(int n) const { return pair && n / 8 % 2 != 0; }
};

template <WeightFormat kFormat>
__device__ __forceinline__ void fetch_weights(const Weight& w, const Weight& other, const TileRows& tile,
                                              int64_t column, bool wide, WeightStage<kFormat>& stage) {
  constexpr int kValues = WeightStage<kFormat>::kValues;
  constexpr int kPerRow = kDepth / kValues;
#pragma unroll
  for (int p = 0; p < WeightStage<kFormat>::kPieces; ++p) {
    const int at = p * kGemmThreads + static_cast<int>(threadIdx.x);
    const int n = at / kPerRow;
    const int64_t c = column + at % kPerRow * kValues;
    const int64_t r = tile.row(n);
    const Weight& m = tile.second(n) ? other : w;
    stage.raw[p] = uint4{0, 0, 0, 0};
    stage.scale[p] = 127;
    if (r < 0 || c >= m.cols) continue;
    const int64_t row_bytes = kFormat == WeightFormat::kBf16     ? m.cols * 2
                              : kFormat == WeightFormat::kFp4Row ? m.cols / 2
                                                                 : m.cols;
    const int64_t offset = kFormat == WeightFormat::kBf16 ? c * 2 : kFormat == WeightFormat::kFp4Row ? c / 2 : c;
    const uint8_t* from = static_cast<const uint8_t*>(m.data) + r * row_bytes + offset;
    if (wide && offset + 16 <= row_bytes) {
      stage.raw[p] = *reinterpret_cast<const uint4*>(from);
    } else {
      uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if (offset + i < row_bytes) words[i / 4] |= static_cast<uint32_t>(from[i]) << (i % 4 * 8);
      }
      stage.raw[p] = uint4{words[0], words[1], words[2], words[3]};
    }
    if constexpr (kFormat != WeightFormat::kBf16) stage.scale[p] = weight_scale(m, r, c);
  }
}

// The stage as bf16 in shared memory; exact, as a bf16 significand has room for those of the formats and the scales are
// powers of two.
template <WeightFormat kFormat>
__device__ __forceinline__ void store_weights(const WeightStage<kFormat>& stage, uint16_t* tile) {
  constexpr int kValues = WeightStage<kFormat>::kValues;
  constexpr int kPerRow = kDepth / kValues;
#pragma unroll
  for (int p = 0; p < WeightStage<kFormat>::kPieces; ++p) {
    const int at = p * kGemmThreads + static_cast<int>(threadIdx.x);
    uint16_t* to = tile + at / kPerRow * kPitch + at % kPerRow * kValues;
    const uint32_t words[4] = {stage.raw[p].x, stage.raw[p].y, stage.raw[p].z, stage.raw[p].w};
    if constexpr (kFormat == WeightFormat::kBf16) {
      *reinterpret_cast<uint4*>(to) = stage.raw[p];
    } else {
      const float s = e8m0_to_float(stage.scale[p]);
#pragma unroll
      for (int i = 0; i < kValues / 8; ++i) {  // eight values, 16 bytes of bf16 at a time
        float v[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          if constexpr (kFormat == WeightFormat::kFp4Row) {
            v[k] = e2m1_to_float(words[i] >> (4 * k)) * s;
          } else {
            v[k] = e4m3_to_float(static_cast<uint8_t>(words[2 * i + k / 4] >> (8 * (k % 4)))) * s;
          }
        }
        *reinterpret_cast<uint4*>(to + 8 * i) = uint4{pack_exact_bf16(v[0], v[1]), pack_exact_bf16(v[2], v[3]),
                                                      pack_exact_bf16(v[4], v[5]), pack_exact_bf16(v[6], v[7])};
      }
    }
  }
}

// The warp's part of a tile: kRows = 16: all rows, 16 outputs; kRows = 64: 32 rows, 32 outputs.
template <int kRows>
struct WarpTile {
  static constexpr int kRowTiles = kRows == 16 ? 1 : 2;
  static constexpr int kColumnTiles = kRows == 16 ? 2 : 4;
  float sum[kRowTiles][kColumnTiles][4];

  __device__ static int row(int warp) { return kRows == 16 ? 0 : warp / 2 * 32; }
  __device__ static int column(int warp) { return kRows == 16 ? warp * 16 : warp % 2 * 32; }
};

template <int kRows>
__device__ __forceinline__ void clear(WarpTile<kRows>& t) {
#pragma unroll
  for (auto& row : t.sum) {
#pragma unroll
    for (auto& column : row) {
#pragma unroll
      for (float& v : column) v = 0.F;
    }
  }
}

template <int kRows>
__device__ __forceinline__ void multiply_tile(const uint16_t* x, const uint16_t* w, WarpTile<kRows>& t) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int group = static_cast<int>(threadIdx.x % 32 / 4);
  const int quad = static_cast<int>(threadIdx.x % 4);
  const auto pair = [](const uint16_t* p) { return *reinterpret_cast<const uint32_t*>(p); };
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    uint32_t a[WarpTile<kRows>::kRowTiles][4];
#pragma unroll
    for (int i = 0; i < WarpTile<kRows>::kRowTiles; ++i) {
      const uint16_t* from = x + (WarpTile<kRows>::row(warp) + i * 16 + group) * kPitch + k + 2 * quad;
      a[i][0] = pair(from);
      a[i][1] = pair(from + 8 * kPitch);
      a[i][2] = pair(from + 8);
      a[i][3] = pair(from + 8 * kPitch + 8);
    }
#pragma unroll
    for (int j = 0; j < WarpTile<kRows>::kColumnTiles; ++j) {
      const uint16_t* from = w + (WarpTile<kRows>::column(warp) + j * 8 + group) * kPitch + k + 2 * quad;
      const uint32_t b0 = pair(from);
      const uint32_t b1 = pair(from + 8);
#pragma unroll
      for (int i = 0; i < WarpTile<kRows>::kRowTiles; ++i) mma_bf16(t.sum[i][j], a[i], b0, b1);
    }
  }
}

template <int kRows>
inline constexpr size_t kGemmShared = static_cast<size_t>(kRows + kOutputs) * kPitch * 2;

// total ← the tile's product over columns [begin, end) (begin a multiple of kChunk), chunk by chunk. Shared memory:
// kGemmShared<kRows> bytes at `shared`; free again after the caller's next barrier.
template <int kRows, WeightFormat kFormat>
__device__ __forceinline__ void tensor_product(const GemmInput& x, int64_t first, int64_t rows, const Weight& w,
                                               const Weight& other, const TileRows& tile, int64_t begin, int64_t end,
                                               bool wide, uint16_t* shared, WarpTile<kRows>& total) {
  uint16_t* x_tile = shared;
  uint16_t* w_tile = shared + kRows * kPitch;
  WarpTile<kRows> chunk;
  clear(total);
  clear(chunk);
  WeightStage<kFormat> stage;
  fetch_weights<kFormat>(w, other, tile, begin, wide, stage);
  for (int64_t c = begin; c < end; c += kDepth) {
    __syncthreads();  // the tile before has been read
    store_weights<kFormat>(stage, w_tile);
    load_input_tile<kRows>(x, first, rows, c, w.cols, x_tile);
    if (c + kDepth < end) fetch_weights<kFormat>(w, other, tile, c + kDepth, wide, stage);
    __syncthreads();
    multiply_tile<kRows>(x_tile, w_tile, chunk);
    if ((c + kDepth - begin) % kChunk == 0 || c + kDepth >= end) {
#pragma unroll
      for (int i = 0; i < WarpTile<kRows>::kRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < WarpTile<kRows>::kColumnTiles; ++j) {
#pragma unroll
          for (int v = 0; v < 4; ++v) total.sum[i][j][v] += chunk.sum[i][j][v];
        }
      }
      clear(chunk);
    }
  }
}

// ---- exact ----

inline constexpr int kExactRows = 16;
inline constexpr int kExactDepth = 128;
inline constexpr int kExactPitch = kExactDepth + 1;
inline constexpr int kExactThreads = 256;
inline constexpr size_t kExactShared = static_cast<size_t>(kExactRows + kOutputs) * kExactPitch * 4;

// sum[j] ← product of row threadIdx/16 of the tile with tile columns threadIdx%16 + 16·j, columns ascending.
__device__ __forceinline__ void exact_product(const GemmInput& x, int64_t first, int64_t rows, const Weight& w,
                                              const Weight& other, const TileRows& tile, float* shared,
                                              float (&sum)[kOutputs / 16]) {
  float* x_tile = shared;
  float* w_tile = shared + kExactRows * kExactPitch;
  const int row = static_cast<int>(threadIdx.x / 16);
  const int column = static_cast<int>(threadIdx.x % 16);
#pragma unroll
  for (float& v : sum) v = 0.F;
  for (int64_t c = 0; c < w.cols; c += kExactDepth) {
    __syncthreads();
    {  // 16 rows × 16 pieces of 8: one per thread
      float v[8];
      const int at = column * 8;
      if (first + row < rows) {
        load_input(x, input_row(x, first + row), c + at, w.cols, v);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = 0.F;
      }
      requantise_lanes(x.group, v);
#pragma unroll
      for (int i = 0; i < 8; ++i) x_tile[row * kExactPitch + at + i] = v[i];
    }
    for (int at = static_cast<int>(threadIdx.x); at < kOutputs * kExactDepth; at += kExactThreads) {
      const int n = at / kExactDepth;
      const int64_t k = c + at % kExactDepth;
      const int64_t r = tile.row(n);
      const Weight& m = tile.second(n) ? other : w;
      w_tile[n * kExactPitch + at % kExactDepth] = r >= 0 && k < m.cols ? weight_value(m, r, k) : 0.F;
    }
    __syncthreads();
    const int64_t left = w.cols - c;
    const int depth = static_cast<int>(left < kExactDepth ? left : kExactDepth);
    for (int k = 0; k < depth; ++k) {
      const float v = x_tile[row * kExactPitch + k];
#pragma unroll
      for (int j = 0; j < kOutputs / 16; ++j) sum[j] = fmaf(v, w_tile[(column + 16 * j) * kExactPitch + k], sum[j]);
    }
  }
}

inline bool wide_rows(const Weight& w) {
  const int64_t bytes = w.format == WeightFormat::kBf16     ? w.cols * 2
                        : w.format == WeightFormat::kFp4Row ? w.cols / 2
                                                            : w.cols;
  return is_aligned(w.data, 16) && bytes % 16 == 0;
}
inline bool wide_input(const Tensor& x) {
  return x.dtype == DType::kBf16 && is_aligned(x.data, 16) && x.stride % 8 == 0;
}

}  // namespace di::kernels::cuda
