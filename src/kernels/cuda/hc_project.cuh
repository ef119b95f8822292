// hc_pre of four bf16 streams (model.md §5.2) in two launches. The first reads the streams once: their projection on
// fn, their squares, and the collapse with the previous site's mix, which goes to y unnormed. The second makes the
// coefficients of a row and norms its y.
//
// The projection runs on the matrix units and is exact up to the order of its sums: every fn value is three bf16
// numbers that add up to it. A unit is 32 columns of each stream, summed in the accumulators of one warp; four units
// make a group, the groups of an eighth of the columns a part, eight parts the sum, each in ascending order whatever
// the number of rows: with few rows every group has a block, with many a block goes through a part of 128 rows.
#pragma once

#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/eight.cuh"
#include "kernels/cuda/ops.h"

namespace di::kernels::cuda {

constexpr int kHcStreams = 4;
constexpr int kHcOutputs = (2 + kHcStreams) * kHcStreams;
constexpr int kOutputTiles = kHcOutputs / 8;
constexpr int kUnitColumns = 32;
constexpr int kGroupUnits = 4;
constexpr int kParts = 8;
constexpr int kPieces = 3;  // bf16 numbers of an fn value
// Of one row and group or part: the outputs, Σ x², Σ of the collapse's squares.
constexpr int kRecord = 28;
constexpr int kSquareAt = kHcOutputs;
constexpr int kValueSquareAt = kHcOutputs + 1;
constexpr int kRecordUsed = kHcOutputs + 2;

struct ProjectArgs {
  HcPreArgs a;
  float* records;    // [T, slots, kRecord]
  int64_t units;     // of a row
  int64_t groups;    // of a row
  int64_t per_part;  // groups of a part
  int64_t slots;     // groups, or kParts where the first launch adds the groups of a part
};

// Rows first + 16·tile + 8·half + lane/4; columns 8·(lane mod 4) … + 7 of a unit.
template <int kTiles>
struct UnitSum {
  float dot[kTiles][kOutputTiles][4] = {};
  float square[kTiles][2] = {};
  float value_square[kTiles][2] = {};
};

// The three pieces of two values as halves of a register. Cutting mantissas off leaves exact differences.
__device__ __forceinline__ void split_pair(float low, float high, uint32_t (&piece)[kPieces]) {
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    piece[p] = pack_exact_bf16(low, high);
    low -= bits_float(float_bits(low) & 0xffff0000U);
    high -= bits_float(float_bits(high) & 0xffff0000U);
  }
}

// fn of eight columns of one output, as the B fragments of both products of 16 columns (steps) that a unit's stream is:
// the columns of a lane's A fragment are neighbours in memory, in both operands alike.
__device__ __forceinline__ void split_eight(const uint4 (&w)[2], uint2 (&b)[2][kPieces]) {
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    uint32_t low[kPieces];
    uint32_t high[kPieces];
    split_pair(bits_float(w[step].x), bits_float(w[step].y), low);
    split_pair(bits_float(w[step].z), bits_float(w[step].w), high);
#pragma unroll
    for (int p = 0; p < kPieces; ++p) b[step][p] = {low[p], high[p]};
  }
}

__device__ __forceinline__ const float* fn_at(const HcPreArgs& a, int output, int64_t column) {
  return a.fn + output * kHcStreams * a.y.cols + column;
}

template <int kTiles>
__device__ __forceinline__ void load_unit_rows(const Tensor& streams, int64_t first, int64_t column,
                                               uint4 (&x)[kTiles][2]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first + tile * 16 + half * 8 + lane / 4;
      x[tile][half] = {0, 0, 0, 0};
      if (row < streams.rows) x[tile][half] = load_ahead(eight_at(streams, row, column + lane % 4 * 8));
    }
  }
}

// One stream of a unit: squares and collapse.
template <int kTiles>
__device__ __forceinline__ void add_values(const uint4 (&x)[kTiles][2], const float (&mix)[kTiles][2],
                                           UnitSum<kTiles>& sum, float (&value)[kTiles][2][8]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float v[8];
      unpack_eight(x[tile][half], v);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sum.square[tile][half] = fmaf(v[i], v[i], sum.square[tile][half]);
        value[tile][half][i] += mix[tile][half] * v[i];
      }
    }
  }
}

// One step of it: the products of 16 columns.
template <int kTiles>
__device__ __forceinline__ void add_products(const uint4 (&x)[kTiles][2], int step,
                                             const uint2 (&b)[kOutputTiles][kPieces], UnitSum<kTiles>& sum) {
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
#pragma unroll
    for (int n = 0; n < kOutputTiles; ++n) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4& low = x[tile][0];
        const uint4& high = x[tile][1];
        const uint32_t rows[4] = {step == 0 ? low.x : low.z, step == 0 ? high.x : high.z, step == 0 ? low.y : low.w,
                                  step == 0 ? high.y : high.w};
        mma_bf16(sum.dot[tile][n], rows, b[n][p].x, b[n][p].y);
      }
    }
  }
}

// The collapse of a unit, rounded, to y.
template <int kTiles>
__device__ __forceinline__ void store_values(const HcPreArgs& a, int64_t first, int64_t column,
                                             const float (&value)[kTiles][2][8], UnitSum<kTiles>& sum) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first + tile * 16 + half * 8 + lane / 4;
      const uint4 packed = pack_eight(value[tile][half]);
      if (row < a.y.rows) store_sixteen(eight_at(a.y, row, column + lane % 4 * 8), packed);
      float v[8];
      unpack_eight(packed, v);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum.value_square[tile][half] = fmaf(v[i], v[i], sum.value_square[tile][half]);
    }
  }
}

template <int kTiles>
__device__ __forceinline__ void load_mix(const HcPreArgs& a, int64_t first, float (&mix)[kHcStreams][kTiles][2]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first + tile * 16 + half * 8 + threadIdx.x % 32 / 4;
      const bool there = !a.use_own_pre && row < a.y.rows;
      float of_row[kHcStreams] = {};
      if (there) load_four(a.mix_in + row * kHcStreams, of_row);
#pragma unroll
      for (int i = 0; i < kHcStreams; ++i) mix[i][tile][half] = of_row[i];
    }
  }
}

// Few rows: one block per group and 16 rows, one warp per unit. Everything that a warp needs is on its way at once: a
// thread copies its shares of fn and of the rows to shared memory and reads them back when a stream is there.
constexpr int kFewThreads = kGroupUnits * 32;
struct FewShared {
  uint4 fn[kHcStreams][kOutputTiles][2][kFewThreads];
  uint4 x[kHcStreams][2][kFewThreads];
  float dots[kGroupUnits][16][kHcOutputs];
  float squares[kGroupUnits][2][16][4];  // of the streams and of the collapse, per quad of columns
};

__device__ __forceinline__ void copy_few(const HcPreArgs& a, int64_t first, int64_t column, FewShared& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < kHcStreams; ++i) {
    const int64_t at = i * a.y.cols + column + lane % 4 * 8;
#pragma unroll
    for (int n = 0; n < kOutputTiles; ++n) {
      const float* from = fn_at(a, n * 8 + lane / 4, at);
      copy_async<16>(&shared.fn[i][n][0][threadIdx.x], from, true);
      copy_async<16>(&shared.fn[i][n][1][threadIdx.x], from + 4, true);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first + half * 8 + lane / 4;
      const bool there = row < a.streams.rows;
      copy_async<16>(&shared.x[i][half][threadIdx.x], eight_at(a.streams, there ? row : first, at), there);
    }
    commit_copies();
  }
}

template <int kStream>
__device__ __forceinline__ void add_few(const FewShared& shared, const float (&mix)[kHcStreams][1][2], UnitSum<1>& sum,
                                        float (&value)[1][2][8]) {
  wait_copies<kHcStreams - 1 - kStream>();
  const uint4 x[1][2] = {{shared.x[kStream][0][threadIdx.x], shared.x[kStream][1][threadIdx.x]}};
  uint2 b[2][kOutputTiles][kPieces];
#pragma unroll
  for (int n = 0; n < kOutputTiles; ++n) {
    const uint4 w[2] = {shared.fn[kStream][n][0][threadIdx.x], shared.fn[kStream][n][1][threadIdx.x]};
    uint2 split[2][kPieces];
    split_eight(w, split);
#pragma unroll
    for (int q = 0; q < kPieces; ++q) {
      b[0][n][q] = split[0][q];
      b[1][n][q] = split[1][q];
    }
  }
  add_values<1>(x, mix[kStream], sum, value);
  add_products<1>(x, 0, b[0], sum);
  add_products<1>(x, 1, b[1], sum);
}

__global__ void __launch_bounds__(kFewThreads) hc_project_few_kernel(const __grid_constant__ ProjectArgs p) {
  FewShared& shared = *dynamic_shared<FewShared>();
  const HcPreArgs& a = p.a;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int64_t group = blockIdx.x;
  const int64_t unit = group * kGroupUnits + warp;
  const int64_t first = int64_t{blockIdx.y} * 16;
  join_chain();
  UnitSum<1> sum;  // zeros where the last group has no unit
  if (unit < p.units) {
    copy_few(a, first, unit * kUnitColumns, shared);
    float mix[kHcStreams][1][2];
    load_mix<1>(a, first, mix);
    float value[1][2][8] = {};
    add_few<0>(shared, mix, sum, value);
    add_few<1>(shared, mix, sum, value);
    add_few<2>(shared, mix, sum, value);
    add_few<3>(shared, mix, sum, value);
    if (!a.use_own_pre) store_values<1>(a, first, unit * kUnitColumns, value, sum);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + lane / 4;
#pragma unroll
    for (int n = 0; n < kOutputTiles; ++n) {
      shared.dots[warp][row][n * 8 + lane % 4 * 2] = sum.dot[0][n][2 * half];
      shared.dots[warp][row][n * 8 + lane % 4 * 2 + 1] = sum.dot[0][n][2 * half + 1];
    }
    shared.squares[warp][0][row][lane % 4] = sum.square[0][half];
    shared.squares[warp][1][row][lane % 4] = sum.value_square[0][half];
  }
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < 16 * kRecordUsed; at += kFewThreads) {
    const int row = at / kRecordUsed;
    const int k = at % kRecordUsed;
    if (first + row >= a.y.rows) return;
    float total = 0.F;
    if (k < kHcOutputs) {
#pragma unroll
      for (int u = 0; u < kGroupUnits; ++u) total += shared.dots[u][row][k];
    } else {
      float quads[4] = {};
#pragma unroll
      for (int q = 0; q < 4; ++q) {
#pragma unroll
        for (int u = 0; u < kGroupUnits; ++u) quads[q] += shared.squares[u][k - kHcOutputs][row][q];
      }
      total = (quads[0] + quads[1]) + (quads[2] + quads[3]);
    }
    p.records[((first + row) * p.slots + group) * kRecord + k] = total;
  }
}

// Many rows: one block per 128 rows and part, 32 rows a warp. The block cuts fn into its pieces once per unit for all
// of its rows; a stream's rows of the next unit are on their way while this one's are multiplied.
constexpr int kManyWarps = 4;
constexpr int kManyThreads = kManyWarps * 32;
constexpr int kManyTiles = 2;
constexpr int kManyBlockRows = kManyWarps * kManyTiles * 16;
constexpr int kUnitFragments = kHcStreams * kOutputTiles * 32;  // lanes' shares of fn of a unit
constexpr int kShares = kUnitFragments / kManyThreads;

struct ManyShared {
  uint4 fn[2][kShares][2][kManyThreads];  // of a unit as it comes: a thread reads what it has copied
  uint2 pieces[2][kHcStreams][2][kOutputTiles][kPieces][32];  // of two units, per stream and step
  float part[kManyTiles * kOutputTiles * 4][kManyThreads];    // a thread's sums of the groups
};

__device__ __forceinline__ void copy_shares(const HcPreArgs& a, int64_t unit, ManyShared& shared) {
#pragma unroll
  for (int s = 0; s < kShares; ++s) {
    const int at = static_cast<int>(threadIdx.x) + s * kManyThreads;
    const int lane = at % 32;
    const int stream = at / 32 / kOutputTiles;
    const int output = at / 32 % kOutputTiles * 8 + lane / 4;
    const float* from = fn_at(a, output, stream * a.y.cols + unit * kUnitColumns + lane % 4 * 8);
    copy_async<16>(&shared.fn[unit % 2][s][0][threadIdx.x], from, true);
    copy_async<16>(&shared.fn[unit % 2][s][1][threadIdx.x], from + 4, true);
  }
  commit_copies();
}

__global__ void __launch_bounds__(kManyThreads, 2) hc_project_many_kernel(const __grid_constant__ ProjectArgs p) {
  constexpr int kLaneSums = kManyTiles * kOutputTiles * 4;
  ManyShared& shared = *dynamic_shared<ManyShared>();
  const HcPreArgs& a = p.a;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int64_t first = int64_t{blockIdx.x} * kManyBlockRows + warp * kManyTiles * 16;
  const int64_t first_unit = int64_t{blockIdx.y} * p.per_part * kGroupUnits;
  const int64_t last = first_unit + p.per_part * kGroupUnits;
  const int64_t end_unit = last < p.units ? last : p.units;
  join_chain();

  float mix[kHcStreams][kManyTiles][2];
  load_mix<kManyTiles>(a, first, mix);
  uint4 x[kHcStreams][kManyTiles][2] = {};
  if (first_unit < end_unit) {
    copy_shares(a, first_unit, shared);
#pragma unroll
    for (int i = 0; i < kHcStreams; ++i) {
      load_unit_rows<kManyTiles>(a.streams, first, i * a.y.cols + first_unit * kUnitColumns, x[i]);
    }
  }
  for (int k = 0; k < kLaneSums; ++k) shared.part[k][threadIdx.x] = 0.F;
  float part_square[kManyTiles][2] = {};
  float part_value_square[kManyTiles][2] = {};
  UnitSum<kManyTiles> group;
  for (int64_t unit = first_unit; unit < end_unit; ++unit) {
    auto& pieces = shared.pieces[unit % 2];
    wait_copies<0>();
#pragma unroll
    for (int s = 0; s < kShares; ++s) {
      const int at = static_cast<int>(threadIdx.x) + s * kManyThreads;
      const uint4 w[2] = {shared.fn[unit % 2][s][0][threadIdx.x], shared.fn[unit % 2][s][1][threadIdx.x]};
      uint2 split[2][kPieces];
      split_eight(w, split);
#pragma unroll
      for (int q = 0; q < kPieces; ++q) {
        pieces[at / 32 / kOutputTiles][0][at / 32 % kOutputTiles][q][at % 32] = split[0][q];
        pieces[at / 32 / kOutputTiles][1][at / 32 % kOutputTiles][q][at % 32] = split[1][q];
      }
    }
    __syncthreads();
    const bool more = unit + 1 < end_unit;
    if (more) copy_shares(a, unit + 1, shared);
    UnitSum<kManyTiles> sum;
    float value[kManyTiles][2][8] = {};
#pragma unroll
    for (int i = 0; i < kHcStreams; ++i) {
      add_values<kManyTiles>(x[i], mix[i], sum, value);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint2 b[kOutputTiles][kPieces];
#pragma unroll
        for (int n = 0; n < kOutputTiles; ++n) {
#pragma unroll
          for (int q = 0; q < kPieces; ++q) b[n][q] = pieces[i][step][n][q][lane];
        }
        add_products<kManyTiles>(x[i], step, b, sum);
      }
      if (more) load_unit_rows<kManyTiles>(a.streams, first, i * a.y.cols + (unit + 1) * kUnitColumns, x[i]);
    }
    if (!a.use_own_pre) store_values<kManyTiles>(a, first, unit * kUnitColumns, value, sum);

    const bool closes = (unit + 1) % kGroupUnits == 0 || !more;
#pragma unroll
    for (int tile = 0; tile < kManyTiles; ++tile) {
#pragma unroll
      for (int n = 0; n < kOutputTiles; ++n) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          float& g = group.dot[tile][n][v];
          g += sum.dot[tile][n][v];
          if (closes) {
            shared.part[(tile * kOutputTiles + n) * 4 + v][threadIdx.x] += g;
            g = 0.F;
          }
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& g = group.square[tile][half];
        float& v = group.value_square[tile][half];
        g += sum.square[tile][half];
        v += sum.value_square[tile][half];
        if (closes) {
          g += shuffle_xor(g, 1);
          part_square[tile][half] += g + shuffle_xor(g, 2);
          v += shuffle_xor(v, 1);
          part_value_square[tile][half] += v + shuffle_xor(v, 2);
          g = 0.F;
          v = 0.F;
        }
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < kManyTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first + tile * 16 + half * 8 + lane / 4;
      if (row >= a.y.rows) continue;
      float* record = p.records + (row * p.slots + blockIdx.y) * kRecord;
#pragma unroll
      for (int n = 0; n < kOutputTiles; ++n) {
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          record[n * 8 + lane % 4 * 2 + v] = shared.part[(tile * kOutputTiles + n) * 4 + 2 * half + v][threadIdx.x];
        }
      }
      if (lane % 4 == 0) {
        record[kSquareAt] = part_square[tile][half];
        record[kValueSquareAt] = part_value_square[tile][half];
      }
    }
  }
}

}  // namespace di::kernels::cuda
