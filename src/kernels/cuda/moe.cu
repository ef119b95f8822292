// Routed and shared experts (model.md §5.9): the pairs (row, expert) sorted by expert on the device; gate and up with
// SwiGLU and the quantisation of the result in one epilogue; down; beside these the same two for the shared expert;
// and the sum of a row's parts in the order of k. The host reads nothing back: grids are as large as the rows can make
// them, blocks beyond the last tile return at once.
//
// This file is long because both products stand here in three forms, beside what they share.
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/streamed.cuh"

namespace di::kernels::cuda {
namespace {

constexpr int kHidden = kOutputs / 2;  // hidden channels of a tile: a quantisation group
constexpr int kMaxExperts = 1024;
constexpr int64_t kRowsPerPass = 4096;  // bounds the parts in scratch

// Pairs sorted by expert, in tiles of equal expert.
struct TileMap {
  int32_t* pair;    // [pairs] t·k + j, by expert, ascending
  int32_t* expert;  // [tiles] or -1 behind the last
  int32_t* first;   // [tiles] index into `pair`
  int32_t* last;    // [tiles] one past
};

// Block e lists the pairs of expert e. Every block counts all pairs: no order between blocks is needed.
__global__ void __launch_bounds__(kThreads)
    sort_pairs_kernel(const int32_t* __restrict__ ids, int pairs, int experts, int tile_rows, int tiles, TileMap map) {
  join_chain();
  __shared__ int count[kMaxExperts];
  __shared__ int warp_total[kThreads / 32];
  const int e = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  for (int i = static_cast<int>(threadIdx.x); i < experts; i += kThreads) count[i] = 0;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += kThreads) {
    const int id = ids[i];
    if (id >= 0 && id < experts) atomicAdd(&count[id], 1);
  }
  __syncthreads();
  int offset = 0;  // of this expert's pairs
  int tile = 0;
  int all_tiles = 0;
  for (int i = 0; i < experts; ++i) {
    const int n = (count[i] + tile_rows - 1) / tile_rows;
    if (i < e) {
      offset += count[i];
      tile += n;
    }
    all_tiles += n;
  }
  const int mine = count[e];
  for (int i = static_cast<int>(threadIdx.x); i * tile_rows < mine; i += kThreads) {
    map.expert[tile + i] = e;
    map.first[tile + i] = offset + i * tile_rows;
    map.last[tile + i] = offset + mine < offset + (i + 1) * tile_rows ? offset + mine : offset + (i + 1) * tile_rows;
  }
  if (e == 0) {
    for (int i = all_tiles + static_cast<int>(threadIdx.x); i < tiles; i += kThreads) map.expert[i] = -1;
  }
  int base = offset;
  for (int from = 0; from < pairs; from += kThreads) {
    const int i = from + static_cast<int>(threadIdx.x);
    const bool take = i < pairs && ids[i] == e;
    const uint32_t taken = ballot(take);
    if (lane == 0) warp_total[warp] = count_bits(taken);
    __syncthreads();
    int before = base;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) before += warp_total[w];
      base += warp_total[w];
    }
    if (take) map.pair[before + count_bits(taken & ((1U << lane) - 1U))] = i;
    __syncthreads();
  }
}

// What the up product leaves for the down product: E4M3 with ue8m0 per 32, bf16 or fp32.
struct Hidden {
  void* data;
  uint8_t* scale;  // not null: E4M3
  DType dtype;
};

struct MoeKernelArgs {
  GemmInput x;                   // of the up product: y; of the down product: the hidden rows
  StreamInput streamed;          // the same, arranged
  ExpertWeights one;             // the shared expert
  const ExpertWeights* experts;  // [n] or null: `one`
  TileMap map;                   // used with experts
  int64_t rows;                  // without experts
  int64_t width;                 // H
  int64_t inner;                 // I
  int k;
  int places;            // parts per row: k and the shared expert
  const float* weights;  // [rows·k]; null: 1
  bool weight_before;
  bool round_bf16;
  float limit;
  Hidden hidden;
  float* parts;  // [rows, places, H]
};

// The rows of a block's tile and whose weights they meet.
struct BlockTile {
  int64_t first;
  int64_t last;
  ExpertWeights weights;
};

template <int kRows>
__device__ __forceinline__ bool find_tile(const MoeKernelArgs& a, int64_t index, BlockTile& tile) {
  if (a.experts == nullptr) {
    tile.first = index * kRows;
    tile.last = a.rows;
    tile.weights = a.one;
    return tile.first < tile.last;
  }
  const int expert = a.map.expert[index];
  if (expert < 0) return false;
  tile.first = a.map.first[index];
  tile.last = a.map.last[index];
  tile.weights = a.experts[expert];
  return true;
}

// What the hidden values of a row are multiplied by.
__device__ __forceinline__ float hidden_weight(const MoeKernelArgs& a, int64_t row) {
  return a.weight_before && a.weights != nullptr ? a.weights[a.map.pair[row]] : 1.F;
}

__device__ __forceinline__ float swiglu(const MoeKernelArgs& a, float gate, float up, float weight) {
  if (a.round_bf16) {
    gate = round_bf16(gate);
    up = round_bf16(up);
  }
  const float g = fminf(gate, a.limit);
  const float u = fminf(fmaxf(up, -a.limit), a.limit);
  return g * sigmoid(g) * u * weight;
}

// Hidden rows [first, …) of `rows` rows of kHidden channels in shared memory, to memory; one warp per row.
__device__ __forceinline__ void write_hidden(const MoeKernelArgs& a, const BlockTile& tile, int rows, int64_t channel,
                                             const float* values) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t c = channel + lane;
  for (int r = static_cast<int>(threadIdx.x / 32); r < rows; r += static_cast<int>(blockDim.x / 32)) {
    const int64_t row = tile.first + r;
    if (row >= tile.last) continue;  // the whole warp
    const float v = c < a.inner ? values[r * (kHidden + 1) + lane] : 0.F;
    if (a.hidden.scale != nullptr) {
      const int e = e4m3_group_exponent(warp_max(fabsf(v)));
      if (c < a.inner) static_cast<uint8_t*>(a.hidden.data)[row * a.inner + c] = float_to_e4m3(v * exp2_int(-e));
      if (lane == 0) a.hidden.scale[row * ((a.inner + 31) / 32) + channel / 32] = static_cast<uint8_t>(e + 127);
    } else if (c < a.inner) {
      if (a.hidden.dtype == DType::kF32) {
        static_cast<float*>(a.hidden.data)[row * a.inner + c] = v;
      } else {
        static_cast<uint16_t*>(a.hidden.data)[row * a.inner + c] = float_to_bf16(v);
      }
    }
  }
}

template <int kRows, WeightFormat kFormat>
__global__ void __launch_bounds__(kGemmThreads) moe_up_kernel(const __grid_constant__ MoeKernelArgs a, bool wide) {
  BlockTile tile;
  if (!find_tile<kRows>(a, blockIdx.y, tile)) return;
  const int64_t channel = int64_t{blockIdx.x} * kHidden;
  const TileRows rows{channel, a.inner, true};
  auto* shared = dynamic_shared<uint16_t>();
  WarpTile<kRows> total;
  tensor_product<kRows, kFormat>(a.x, tile.first, tile.last, tile.weights.w1, tile.weights.w3, rows, 0, a.width, wide,
                                 shared, total);
  __syncthreads();                                  // the operands' tiles have been read
  auto* values = reinterpret_cast<float*>(shared);  // [kRows, kHidden + 1]
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < WarpTile<kRows>::kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < WarpTile<kRows>::kColumnTiles; j += 2) {  // gate tile, then the up tile of the same channels
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const int r = WarpTile<kRows>::row(warp) + i * 16 + lane / 4 + v / 2 * 8;
        const int c = (WarpTile<kRows>::column(warp) + j * 8) / 2 + lane % 4 * 2 + v % 2;
        const int64_t row = tile.first + r;
        values[r * (kHidden + 1) + c] =
            row < tile.last ? swiglu(a, total.sum[i][j][v], total.sum[i][j + 1][v], hidden_weight(a, row)) : 0.F;
      }
    }
  }
  __syncthreads();
  write_hidden(a, tile, kRows, channel, values);
}

// Where the part of a row of the product belongs, and what it is multiplied by.
__device__ __forceinline__ int64_t part_place(const MoeKernelArgs& a, int64_t row) {
  if (a.experts == nullptr) return row * a.places + a.k;  // the shared expert's
  const int32_t pair = a.map.pair[row];
  return pair / a.k * int64_t{a.places} + pair % a.k;
}
__device__ __forceinline__ float part_weight(const MoeKernelArgs& a, int64_t row) {
  return a.experts != nullptr && !a.weight_before ? a.weights[a.map.pair[row]] : 1.F;
}
__device__ __forceinline__ void write_part(const MoeKernelArgs& a, int64_t row, int64_t output, float v) {
  a.parts[part_place(a, row) * a.width + output] = v * part_weight(a, row);
}

template <int kRows, WeightFormat kFormat>
__global__ void __launch_bounds__(kGemmThreads) moe_down_kernel(const __grid_constant__ MoeKernelArgs a, bool wide) {
  BlockTile tile;
  if (!find_tile<kRows>(a, blockIdx.y, tile)) return;
  const TileRows rows{int64_t{blockIdx.x} * kOutputs, a.width, false};
  WarpTile<kRows> total;
  tensor_product<kRows, kFormat>(a.x, tile.first, tile.last, tile.weights.w2, tile.weights.w2, rows, 0, a.inner, wide,
                                 dynamic_shared<uint16_t>(), total);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < WarpTile<kRows>::kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < WarpTile<kRows>::kColumnTiles; ++j) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const int64_t row = tile.first + WarpTile<kRows>::row(warp) + i * 16 + lane / 4 + v / 2 * 8;
        const int64_t output = rows.first + WarpTile<kRows>::column(warp) + j * 8 + lane % 4 * 2 + v % 2;
        if (row < tile.last && output < a.width) write_part(a, row, output, total.sum[i][j][v]);
      }
    }
  }
}

// The hidden rows of a tile. Gate and up rows alternate by eights: the lane that has a channel's gate has its up two
// sums further.
template <class Shape>
__device__ __forceinline__ void up_tile(const MoeKernelArgs& a, const BlockTile& tile, int64_t channel) {
  constexpr int kChannels = Shape::kRows / 2;
  constexpr int kPitch = kChannels + 1;
  auto* shared = dynamic_shared<uint8_t>();
  StreamSum<Shape> total;
  streamed_product<Shape>(a.streamed, tile.first, tile.last, tile.weights.w1, tile.weights.w3, {channel, a.inner, true},
                          0, a.width, shared, total);
  __syncthreads();                                  // the stages have been read
  auto* values = reinterpret_cast<float*>(shared);  // [kTokens, kPitch]: channels, then the row's weight
  static_assert(Shape::kTokens * kPitch * 4 <= Shape::kShared);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int r = static_cast<int>(threadIdx.x); r < Shape::kTokens; r += Shape::kThreads) {
    values[r * kPitch + kChannels] = tile.first + r < tile.last ? hidden_weight(a, tile.first + r) : 0.F;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < Shape::kTokenTiles; ++j) {
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const int c = warp * 8 + lane / 4;
      float* row = values + (j * 8 + lane % 4 * 2 + v) * kPitch;
      row[c] = swiglu(a, total.at[j][v], total.at[j][v + 2], row[kChannels]);
    }
  }
  __syncthreads();
  // As the down product reads them: a warp has a quantisation group of a row.
  const WeightFormat down = tile.weights.w2.format;
  for (int at = warp; at < Shape::kTokens * (kChannels / 32); at += Shape::kWarps) {
    const int r = at / (kChannels / 32);
    const int64_t row = tile.first + r;
    if (row >= tile.last) continue;  // the whole warp
    const int in_tile = at % (kChannels / 32) * 32 + lane;
    const int64_t c = channel + in_tile;
    float v = c < a.inner ? values[r * kPitch + in_tile] : 0.F;
    if (a.x.group == 32) v = requantise_e4m3(v, e4m3_group_exponent(warp_max(fabsf(v))));
    if (c < a.inner) {
      static_cast<uint16_t*>(a.hidden.data)[row * a.inner + c / kBlockDepth * kBlockDepth +
                                            operand_column(down, static_cast<int>(c % kBlockDepth))] = float_to_bf16(v);
    }
  }
}

// The parts of a tile, in pieces of 16 bytes by way of shared memory.
template <class Shape>
__device__ __forceinline__ void down_tile(const MoeKernelArgs& a, const BlockTile& tile, int64_t output) {
  constexpr int kPitch = Shape::kRows + 4;
  static_assert(Shape::kTokens * kPitch * 4 <= Shape::kShared);
  auto* shared = dynamic_shared<uint8_t>();
  StreamSum<Shape> total;
  streamed_product<Shape>(a.streamed, tile.first, tile.last, tile.weights.w2, tile.weights.w2, {output, a.width, false},
                          0, a.inner, shared, total);
  __syncthreads();  // the stages have been read
  auto* values = reinterpret_cast<float*>(shared);
  for_each_sum<Shape>(total, [&](int o, int row, float v) { values[row * kPitch + o] = v; });
  __syncthreads();
  constexpr int kPieces = Shape::kRows / 4;
  for (int at = static_cast<int>(threadIdx.x); at < Shape::kTokens * kPieces; at += Shape::kThreads) {
    const int64_t row = tile.first + at / kPieces;
    const int o = at % kPieces * 4;
    if (row >= tile.last || output + o >= a.width) continue;
    float4 v = *reinterpret_cast<const float4*>(values + at / kPieces * kPitch + o);
    const float weight = part_weight(a, row);
    v.x *= weight;
    v.y *= weight;
    v.z *= weight;
    v.w *= weight;
    *reinterpret_cast<float4*>(a.parts + part_place(a, row) * a.width + output + o) = v;
  }
}

// What a tile of a full shape leaves over is mostly less than half of it.
template <class Shape>
inline constexpr bool kHasHalf = Shape::kTokens == 128;
template <class Shape>
using HalfShape = StreamShape<Shape::kFormat, Shape::kWarps / 4, Shape::kTokenTiles / 2>;

// Both streamed products start early: what they read before wait_for_previous (weights, the tile map) is older than the
// kernel before them, since that one (arranging, or the up product after it) was not started before the map was whole.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    moe_up_streamed_kernel(const __grid_constant__ MoeKernelArgs a) {
  let_next_start();
  BlockTile tile;
  const TilePlace place = tile_place();
  if (!find_tile<Shape::kTokens>(a, place.rows, tile)) {
    wait_for_previous();  // who waits for this kernel waits for those before it
    return;
  }
  const int64_t channel = place.outputs * (Shape::kRows / 2);
  if constexpr (kHasHalf<Shape>) {
    if (tile.last - tile.first <= Shape::kTokens / 2) return up_tile<HalfShape<Shape>>(a, tile, channel);
  }
  up_tile<Shape>(a, tile, channel);
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    moe_down_streamed_kernel(const __grid_constant__ MoeKernelArgs a) {
  let_next_start();
  BlockTile tile;
  const TilePlace place = tile_place();
  if (!find_tile<Shape::kTokens>(a, place.rows, tile)) {
    wait_for_previous();  // who waits for this kernel waits for those before it
    return;
  }
  const int64_t output = place.outputs * Shape::kRows;
  if constexpr (kHasHalf<Shape>) {
    if (tile.last - tile.first <= Shape::kTokens / 2) return down_tile<HalfShape<Shape>>(a, tile, output);
  }
  down_tile<Shape>(a, tile, output);
}

__global__ void __launch_bounds__(kExactThreads) moe_up_exact_kernel(const __grid_constant__ MoeKernelArgs a) {
  BlockTile tile;
  if (!find_tile<kExactRows>(a, blockIdx.y, tile)) return;
  const int64_t channel = int64_t{blockIdx.x} * kHidden;
  auto* shared = dynamic_shared<float>();
  float sum[kOutputs / 16];
  exact_product(a.x, tile.first, tile.last, tile.weights.w1, tile.weights.w3, {channel, a.inner, true}, shared, sum);
  __syncthreads();
  // Tile column n is gate or up by eights: the partner of a thread's column sits eight lanes away.
  const int r = static_cast<int>(threadIdx.x / 16);
  const int n = static_cast<int>(threadIdx.x % 16);
  const int64_t row = tile.first + r;
#pragma unroll
  for (int j = 0; j < kOutputs / 16; ++j) {
    const float up = shuffle_xor(sum[j], 8);
    if (n < 8)
      shared[r * (kHidden + 1) + j * 8 + n] = row < tile.last ? swiglu(a, sum[j], up, hidden_weight(a, row)) : 0.F;
  }
  __syncthreads();
  write_hidden(a, tile, kExactRows, channel, shared);
}

__global__ void __launch_bounds__(kExactThreads) moe_down_exact_kernel(const __grid_constant__ MoeKernelArgs a) {
  BlockTile tile;
  if (!find_tile<kExactRows>(a, blockIdx.y, tile)) return;
  const int64_t first = int64_t{blockIdx.x} * kOutputs;
  float sum[kOutputs / 16];
  exact_product(a.x, tile.first, tile.last, tile.weights.w2, tile.weights.w2, {first, a.width, false},
                dynamic_shared<float>(), sum);
  const int64_t row = tile.first + threadIdx.x / 16;
#pragma unroll
  for (int j = 0; j < kOutputs / 16; ++j) {
    const int64_t output = first + threadIdx.x % 16 + 16 * j;
    if (row < tile.last && output < a.width) write_part(a, row, output, sum[j]);
  }
}

__global__ void __launch_bounds__(kThreads) add_parts_kernel(const float* __restrict__ parts, int places, Tensor out) {
  join_chain();
  constexpr int kAtOnce = 8;
  const int64_t t = blockIdx.x;
  for (int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x; c < out.cols; c += int64_t{gridDim.y} * kThreads) {
    float sum = 0.F;
    for (int first = 0; first < places; first += kAtOnce) {
      float part[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        part[k] = first + k < places ? parts[(t * places + first + k) * out.cols + c] : 0.F;
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (first + k < places) sum += part[k];
      }
    }
    store_value(out, t, c, sum);
  }
}

template <int kRows>
void launch_tensor(const MoeKernelArgs& a, bool up, WeightFormat format, bool wide, dim3 blocks, Stream& stream) {
  const dim3 threads(kGemmThreads);
  constexpr size_t kShared = kGemmShared<kRows>;
  switch (format) {
    case WeightFormat::kBf16:
      if (up) {
        DI_LAUNCH(stream, (moe_up_kernel<kRows, WeightFormat::kBf16>), blocks, threads, kShared, a, wide);
      } else {
        DI_LAUNCH(stream, (moe_down_kernel<kRows, WeightFormat::kBf16>), blocks, threads, kShared, a, wide);
      }
      break;
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Row:
      if (up) {
        DI_LAUNCH(stream, (moe_up_kernel<kRows, WeightFormat::kFp8Block>), blocks, threads, kShared, a, wide);
      } else {
        DI_LAUNCH(stream, (moe_down_kernel<kRows, WeightFormat::kFp8Block>), blocks, threads, kShared, a, wide);
      }
      break;
    case WeightFormat::kFp4Row:
      if (up) {
        DI_LAUNCH(stream, (moe_up_kernel<kRows, WeightFormat::kFp4Row>), blocks, threads, kShared, a, wide);
      } else {
        DI_LAUNCH(stream, (moe_down_kernel<kRows, WeightFormat::kFp4Row>), blocks, threads, kShared, a, wide);
      }
      break;
    case WeightFormat::kF32:
      DI_KERNEL_CHECK(false, "fp32 weights in the bf16 form");
  }
}

// Both products of the routed experts or of the shared one, over `tiles` row tiles.
struct Form {
  WeightFormat format;
  bool wide;               // weight rows in pieces of 16 bytes
  bool tensor;             // bf16 operands on the matrix units, else fp32
  bool streamed;           // of these, the fast form (streamed.cuh)
  int64_t tile_share;      // rows that a tile can expect
  int tile_rows() const {  // of the routed experts, and where the form is not streamed
    if (!streamed) return tensor && tile_share > 16 ? 64 : 16;
    return tile_share <= 12 ? 16 : tile_share <= 24 ? 32 : tile_share < 96 ? 64 : 128;
  }
};

template <class Shape>
void launch_streamed(const MoeKernelArgs& a, bool up, int64_t tiles, Stream& stream) {
  const dim3 threads(Shape::kThreads);
  constexpr size_t kShared = Shape::kShared;
  if (up) {
    DI_LAUNCH_EARLY(stream, moe_up_streamed_kernel<Shape>, grid(divide_up(a.inner, Shape::kRows / 2), tiles), threads,
                    kShared, a);
  } else {
    DI_LAUNCH_EARLY(stream, moe_down_streamed_kernel<Shape>, grid(divide_up(a.width, Shape::kRows), tiles), threads,
                    kShared, a);
  }
}

template <WeightFormat kFormat>
void launch_streamed(const MoeKernelArgs& a, bool up, int tile_rows, int64_t tiles, Stream& stream) {
  if (tile_rows == 16) {
    launch_streamed<StreamShape<kFormat, 1, 2>>(a, up, tiles, stream);
  } else if (tile_rows == 32) {
    launch_streamed<StreamShape<kFormat, 1, 4>>(a, up, tiles, stream);
  } else if (tile_rows == 64) {
    launch_streamed<StreamShape<kFormat, 2, 8>>(a, up, tiles, stream);
  } else {
    launch_streamed<StreamShape<kFormat, 2, 16>>(a, up, tiles, stream);
  }
}

// y arranged, then both products; the hidden rows lie arranged between them.
void run_streamed(MoeKernelArgs a, const MoeArgs& m, const Form& form, int64_t tiles, uint16_t* hidden,
                  uint16_t* arranged, Stream& stream) {
  a.x.group = activation_group(form.format, m.numerics);
  arrange_input(m.y, form.format, a.x.group, arranged, false, stream);
  a.hidden.data = hidden;
  a.streamed = {arranged, m.y.cols, a.experts != nullptr ? a.map.pair : nullptr, m.k};
  const StreamInput rows{hidden, a.inner, nullptr, 1};
  for (const bool up : {true, false}) {
    int tile_rows = form.tile_rows();
    if (a.experts == nullptr) {  // no row can be elsewhere: both products as the device is best filled
      tile_rows = stream_tile(a.rows, up ? 2 * a.inner : a.width, 1, false).tokens;
      tiles = divide_up(a.rows, tile_rows);
    }
    if (!up) a.streamed = rows;
    if (form.format == WeightFormat::kFp4Row) {
      launch_streamed<WeightFormat::kFp4Row>(a, up, tile_rows, tiles, stream);
    } else {
      launch_streamed<WeightFormat::kFp8Block>(a, up, tile_rows, tiles, stream);
    }
  }
}

void run_products(MoeKernelArgs a, const MoeArgs& m, const Form& form, int64_t tiles, void* hidden,
                  uint8_t* hidden_scale, uint16_t* arranged, Stream& stream) {
  if (form.streamed) return run_streamed(a, m, form, tiles, static_cast<uint16_t*>(hidden), arranged, stream);
  const WeightFormat format = form.format;
  const int group = activation_group(format, m.numerics);
  a.x.data = m.y.data;
  a.x.dtype = m.y.dtype;
  a.x.stride = m.y.stride;
  a.x.group = group;
  a.x.wide = wide_input(m.y);
  a.x.row_map = a.experts != nullptr ? a.map.pair : nullptr;
  a.x.row_divide = m.k;
  // The tensor form stores what the down product multiplies: E4M3 of groups of 32, or bf16.
  const bool e4m3 = form.tensor && group == 32;
  a.hidden = {hidden, e4m3 ? hidden_scale : nullptr, form.tensor ? DType::kBf16 : DType::kF32};
  const dim3 up = grid(divide_up(a.inner, kHidden), tiles);
  const dim3 down = grid(divide_up(a.width, kOutputs), tiles);
  GemmInput rows;
  rows.data = hidden;
  rows.dtype = a.hidden.dtype;
  rows.stride = a.inner;
  rows.scale = a.hidden.scale;
  rows.group = e4m3 ? 0 : group;
  rows.wide = a.inner % 8 == 0;
  if (!form.tensor) {
    // A bf16 GEMM's operand (moe.cc of the reference): rounded while it is stored.
    if (group == 0 && m.numerics.round_bf16) {
      a.hidden.dtype = DType::kBf16;
      rows.dtype = DType::kBf16;
    }
    DI_LAUNCH(stream, moe_up_exact_kernel, up, dim3(kExactThreads), kExactShared, a);
    a.x = rows;
    DI_LAUNCH(stream, moe_down_exact_kernel, down, dim3(kExactThreads), kExactShared, a);
    return;
  }
  if (form.tile_rows() == 64) {
    launch_tensor<64>(a, true, format, form.wide, up, stream);
    a.x = rows;
    launch_tensor<64>(a, false, format, form.wide, down, stream);
  } else {
    launch_tensor<16>(a, true, format, form.wide, up, stream);
    a.x = rows;
    launch_tensor<16>(a, false, format, form.wide, down, stream);
  }
}

bool row_pieces(WeightFormat format, int64_t cols) {
  return (format == WeightFormat::kBf16 ? cols * 2 : format == WeightFormat::kFp4Row ? cols / 2 : cols) % 16 == 0;
}

// The fp32 form for fp32 operands, and where the hidden rows could not be kept as the product wants them. `aligned`:
// values at multiples of 16 bytes, scales of 4; `block`: of FP8 tiles.
Form make_form(const MoeArgs& m, WeightFormat format, int32_t block, bool aligned, int64_t inner, int64_t tile_share) {
  const int group = activation_group(format, m.numerics);
  Form form{};
  form.format = format;
  form.wide = aligned && row_pieces(format, m.y.cols) && row_pieces(format, inner);
  form.tensor =
      m.y.dtype == DType::kBf16 && format != WeightFormat::kF32 && m.numerics.round_bf16 && (group == 0 || group == 32);
  form.streamed = form.tensor && aligned && m.y.cols % kBlockDepth == 0 && inner % kBlockDepth == 0 &&
                  (format == WeightFormat::kFp4Row || (format == WeightFormat::kFp8Block && block == 32));
  form.tile_share = tile_share;
  return form;
}

void run_pass(const MoeArgs& m, float* parts, Stream& stream) {
  const int64_t rows = m.y.rows;
  const int64_t h = m.y.cols;
  const bool shared = m.shared.w1.data != nullptr;
  const int places = m.k + (shared ? 1 : 0);
  const int64_t shared_inner = shared ? m.shared.w1.rows : 0;
  const int64_t pairs = rows * m.k;
  // All experts have the form of the first (form_of); rows spread evenly in expectation.
  const Form routed = make_form(m, m.form.format, m.form.block, m.form.aligned, m.form.inner,
                                divide_up(pairs, m.n_experts > 0 ? m.n_experts : 1));
  const ExpertForm one = form_of(&m.shared, 1);
  const Form dense = make_form(m, m.shared.w1.format, m.shared.w1.block, one.aligned, shared_inner, rows);
  const int64_t tiles = divide_up(pairs, routed.tile_rows()) + (pairs < m.n_experts ? pairs : m.n_experts);
  DI_KERNEL_CHECK(tiles <= kMaxGridY, "%lld row tiles", static_cast<long long>(tiles));
  // The shared expert runs beside the routed ones: it has memory of its own.
  const auto buffers = [&](int64_t products, int64_t inner) {
    return scratch_size(products * inner * 4) + scratch_size(products * divide_up(inner, 32)) +
           scratch_size(rows * h * 2);
  };
  reserve_scratch(stream, scratch_size(pairs * 4) + 3 * scratch_size(tiles * 4) + buffers(pairs, m.form.inner) +
                              buffers(rows, shared_inner) +
                              (parts == nullptr ? scratch_size(rows * places * h * 4) : 0));
  MoeKernelArgs a{};
  a.map.pair = take_scratch<int32_t>(stream, pairs);
  a.map.expert = take_scratch<int32_t>(stream, tiles);
  a.map.first = take_scratch<int32_t>(stream, tiles);
  a.map.last = take_scratch<int32_t>(stream, tiles);
  a.parts = parts != nullptr ? parts : take_scratch<float>(stream, rows * places * h);
  a.width = h;
  a.k = m.k;
  a.places = places;
  a.weight_before = m.numerics.quantise_activations;
  a.round_bf16 = m.numerics.round_bf16;
  a.limit = m.swiglu_limit;
  const auto run = [&](const Form& form, int64_t products, int64_t row_tiles) {
    auto* hidden = take_scratch<float>(stream, products * a.inner);
    auto* hidden_scale = take_scratch<uint8_t>(stream, products * divide_up(a.inner, 32));
    auto* arranged = take_scratch<uint16_t>(stream, rows * h);
    run_products(a, m, form, row_tiles, hidden, hidden_scale, arranged, stream);
  };
  if (shared) {
    a.one = m.shared;
    a.rows = rows;
    a.inner = shared_inner;
    start_beside(stream);
    run(dense, rows, divide_up(rows, dense.tile_rows()));
    stop_beside(stream);
  }
  if (pairs > 0) {
    DI_LAUNCH_EARLY(stream, sort_pairs_kernel, grid(m.n_experts), dim3(kThreads), 0, m.ids, static_cast<int>(pairs),
                    m.n_experts, routed.tile_rows(), static_cast<int>(tiles), a.map);
    a.experts = m.experts;
    a.weights = m.weights;
    a.inner = m.form.inner;
    run(routed, pairs, tiles);
  }
  if (shared) join_beside(stream);
  if (parts != nullptr) return;
  DI_LAUNCH_EARLY(stream, add_parts_kernel,
                  grid(rows, rows >= 1024  ? 1
                             : rows >= 128 ? 4
                                           : divide_up(h, kThreads)),
                  dim3(kThreads), 0, static_cast<const float*>(a.parts), places, m.out);
}

Tensor rows_of(const Tensor& t, int64_t first, int64_t n) {
  Tensor part = t;
  part.data = static_cast<uint8_t*>(t.data) + first * t.stride * size_of(t.dtype);
  part.rows = n;
  return part;
}

}  // namespace

void run_moe(const MoeArgs& a, float* parts, Stream& stream) {
  for (int64_t first = 0; first < a.y.rows; first += kRowsPerPass) {
    MoeArgs pass = a;
    const int64_t n = a.y.rows - first < kRowsPerPass ? a.y.rows - first : kRowsPerPass;
    pass.y = rows_of(a.y, first, n);
    pass.out = rows_of(a.out, first, n);
    pass.ids = a.ids + first * a.k;
    pass.weights = a.weights + first * a.k;
    run_pass(pass, parts == nullptr ? nullptr : parts + first * a.k * a.y.cols, stream);
  }
}

void moe(const MoeArgs& a, Stream& stream) {
  const int64_t h = a.y.cols;
  const bool shared = a.shared.w1.data != nullptr;
  DI_KERNEL_CHECK(
      a.out.cols == h && a.out.rows == a.y.rows && a.n_experts <= kMaxExperts && a.k >= 0 && a.form.inner > 0,
      "y [%lld, %lld], out [%lld, %lld], %d experts of width %lld, top %d", static_cast<long long>(a.y.rows),
      static_cast<long long>(h), static_cast<long long>(a.out.rows), static_cast<long long>(a.out.cols), a.n_experts,
      static_cast<long long>(a.form.inner), a.k);
  DI_KERNEL_CHECK(!shared || (a.shared.w1.cols == h && a.shared.w3.rows == a.shared.w1.rows && a.shared.w2.rows == h &&
                              a.shared.w2.cols == a.shared.w1.rows),
                  "shared expert w1 [%lld, %lld], w2 [%lld, %lld]", static_cast<long long>(a.shared.w1.rows),
                  static_cast<long long>(a.shared.w1.cols), static_cast<long long>(a.shared.w2.rows),
                  static_cast<long long>(a.shared.w2.cols));
  run_moe(a, nullptr, stream);
}

}  // namespace di::kernels::cuda
