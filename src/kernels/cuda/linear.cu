// Dense products over BF16, FP8 (32×32 or 128×128 tile scales, or row scales) and MXFP4 weights as stored; gemm.cuh
// says how the scales are handled (exactly, on the bf16 path), streamed.cuh the fast form.
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/streamed.cuh"

namespace di::kernels::cuda {
namespace {

struct LinearKernelArgs {
  GemmInput x;
  StreamInput streamed;
  Weight w;  // of all groups
  Tensor y;
  int64_t rows;
  int64_t group_outputs;
  int64_t splits;
  float* partials;  // [splits, rows, groups·group_outputs], null = y is written
  bool accumulate;
  bool wide;
  bool packed;  // rows of y are bf16 in pieces of 16 bytes, nothing is added to them
};

__device__ __forceinline__ void write_output(const LinearKernelArgs& a, int64_t row, int64_t output, int64_t split,
                                             float v) {
  if (a.partials != nullptr) {
    a.partials[(split * a.rows + row) * a.y.cols + output] = v;
  } else {
    store_value(a.y, row, output, a.accumulate ? v + load_value(a.y, row, output) : v);
  }
}

// x and w of the block's group.
__device__ __forceinline__ GemmInput group_input(const LinearKernelArgs& a, int64_t group) {
  GemmInput x = a.x;
  const int64_t column = group * a.w.cols;
  x.data = static_cast<const uint8_t*>(x.data) + column * (x.dtype == DType::kF32 ? 4 : 2);
  return x;
}

template <int kRows, WeightFormat kFormat>
__global__ void __launch_bounds__(kGemmThreads) linear_tensor_kernel(const __grid_constant__ LinearKernelArgs a) {
  const int64_t group = blockIdx.z / a.splits;
  const int64_t split = blockIdx.z % a.splits;
  const int64_t first = int64_t{blockIdx.y} * kRows;
  const int64_t column = a.splits > 1 ? split * kChunk : 0;
  const int64_t end = a.splits > 1 && column + kChunk < a.w.cols ? column + kChunk : a.w.cols;
  const int64_t group_end = (group + 1) * a.group_outputs;
  const TileRows tile{group * a.group_outputs + int64_t{blockIdx.x} * kOutputs, group_end, false};
  WarpTile<kRows> total;
  tensor_product<kRows, kFormat>(group_input(a, group), first, a.rows, a.w, a.w, tile, column, end, a.wide,
                                 dynamic_shared<uint16_t>(), total);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < WarpTile<kRows>::kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < WarpTile<kRows>::kColumnTiles; ++j) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const int64_t row = first + WarpTile<kRows>::row(warp) + i * 16 + lane / 4 + v / 2 * 8;
        const int64_t output = tile.first + WarpTile<kRows>::column(warp) + j * 8 + lane % 4 * 2 + v % 2;
        if (row < a.rows && output < group_end) write_output(a, row, output, split, total.sum[i][j][v]);
      }
    }
  }
}

// The tile's sums as rows of bf16 in pieces of 16 bytes, by way of shared memory.
template <class Shape>
__device__ __forceinline__ void store_rows(const LinearKernelArgs& a, const StreamSum<Shape>& sum, int64_t first,
                                           int64_t output, int64_t output_end, uint8_t* shared) {
  constexpr int kPitch = Shape::kRows + 8;
  static_assert(Shape::kTokens * kPitch * 2 <= Shape::kShared);
  __syncthreads();  // the stages have been read
  auto* values = reinterpret_cast<uint16_t*>(shared);
  for_each_sum<Shape>(sum, [&](int o, int row, float v) { values[row * kPitch + o] = float_to_bf16(v); });
  __syncthreads();
  constexpr int kPieces = Shape::kRows / 8;
  for (int at = static_cast<int>(threadIdx.x); at < Shape::kTokens * kPieces; at += Shape::kThreads) {
    const int row = at / kPieces;
    const int o = at % kPieces * 8;
    if (first + row >= a.rows || output + o >= output_end) continue;
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(a.y.data) + (first + row) * a.y.stride + output + o) =
        *reinterpret_cast<const uint4*>(values + row * kPitch + o);
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    linear_streamed_kernel(const __grid_constant__ LinearKernelArgs a) {
  let_next_start();
  const int64_t group = blockIdx.z / a.splits;
  const int64_t split = blockIdx.z % a.splits;
  const TilePlace place = tile_place();
  const int64_t first = place.rows * Shape::kTokens;
  const int64_t column = a.splits > 1 ? split * kChunk : 0;
  const int64_t end = a.splits > 1 && column + kChunk < a.w.cols ? column + kChunk : a.w.cols;
  const int64_t group_end = (group + 1) * a.group_outputs;
  const TileRows tile{group * a.group_outputs + place.outputs * Shape::kRows, group_end, false};
  StreamInput x = a.streamed;
  x.data += group * a.w.cols;
  StreamSum<Shape> total;
  auto* shared = dynamic_shared<uint8_t>();
  streamed_product<Shape>(x, first, a.rows, a.w, a.w, tile, column, end, shared, total);
  if (a.packed) {
    store_rows(a, total, first, tile.first, group_end, shared);
  } else {
    for_each_sum<Shape>(total, [&](int output, int row, float v) {
      if (first + row < a.rows && tile.first + output < group_end) {
        write_output(a, first + row, tile.first + output, split, v);
      }
    });
  }
}

// One warp per row and depth block of x: quantised as the GEMM sees it, in the order in which it is read.
constexpr int kArrangeWarps = 8;
template <WeightFormat kFormat>
__global__ void __launch_bounds__(32 * kArrangeWarps)
    arrange_kernel(Tensor x, int group, bool wide, uint16_t* __restrict__ out) {
  join_chain();
  __shared__ uint16_t places[kArrangeWarps][kBlockDepth];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t blocks = x.cols / kBlockDepth;
  const int64_t at = int64_t{blockIdx.x} * kArrangeWarps + warp;
  if (at >= x.rows * blocks) return;  // the whole warp
  const int64_t row = at / blocks;
  const int64_t column = at % blocks * kBlockDepth + lane * 4;
  float v[4];
  if (wide) {  // bf16, rows from multiples of 16 bytes
    const uint2 raw = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(x.data) + row * x.stride + column);
    v[0] = bits_float(raw.x << 16);
    v[1] = bits_float(raw.x & 0xffff0000U);
    v[2] = bits_float(raw.y << 16);
    v[3] = bits_float(raw.y & 0xffff0000U);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = load_value(x, row, column + i);
  }
  if (group != 0) {  // 32 columns are 8 lanes, 128 the warp
    float amax = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) {
      if (mask < 8 || group == kBlockDepth) amax = fmaxf(amax, shuffle_xor(amax, mask));
    }
    const int e = e4m3_group_exponent(amax);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = requantise_e4m3(v[i], e);
  }
  uint16_t* place = places[warp];
#pragma unroll
  for (int i = 0; i < 4; ++i) place[operand_column(kFormat, lane * 4 + i)] = float_to_bf16(v[i]);
  __syncwarp();
  *reinterpret_cast<uint2*>(out + at * kBlockDepth + lane * 4) = *reinterpret_cast<const uint2*>(place + lane * 4);
}

__global__ void __launch_bounds__(kExactThreads) linear_exact_kernel(const __grid_constant__ LinearKernelArgs a) {
  const int64_t group = blockIdx.z;
  const int64_t first = int64_t{blockIdx.y} * kExactRows;
  const int64_t group_end = (group + 1) * a.group_outputs;
  const TileRows tile{group * a.group_outputs + int64_t{blockIdx.x} * kOutputs, group_end, false};
  float sum[kOutputs / 16];
  exact_product(group_input(a, group), first, a.rows, a.w, a.w, tile, dynamic_shared<float>(), sum);
  const int64_t row = first + threadIdx.x / 16;
#pragma unroll
  for (int j = 0; j < kOutputs / 16; ++j) {
    const int64_t output = tile.first + threadIdx.x % 16 + 16 * j;
    if (row < a.rows && output < group_end) write_output(a, row, output, 0, sum[j]);
  }
}

// y = Σ partials in ascending order of the chunks; kWide neighbouring outputs a thread.
template <int kWide>
__global__ void __launch_bounds__(kThreads) add_partials_kernel(const __grid_constant__ LinearKernelArgs a) {
  wait_for_previous();
  const int64_t n = a.rows * a.y.cols;
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWide;
  if (at >= n) return;
  float sum[kWide] = {};
#pragma unroll 8
  for (int64_t s = 0; s < a.splits; ++s) {
    if constexpr (kWide == 4) {
      const float4 v = *reinterpret_cast<const float4*>(a.partials + s * n + at);
      sum[0] += v.x;
      sum[1] += v.y;
      sum[2] += v.z;
      sum[3] += v.w;
    } else {
      sum[0] += a.partials[s * n + at];
    }
  }
  const int64_t row = at / a.y.cols;
  const int64_t output = at % a.y.cols;
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    store_value(a.y, row, output + i, a.accumulate ? sum[i] + load_value(a.y, row, output + i) : sum[i]);
  }
}

template <int kRows>
void launch_tensor(const LinearKernelArgs& a, int64_t groups, Stream& stream) {
  const dim3 blocks = grid(divide_up(a.group_outputs, kOutputs), divide_up(a.rows, kRows), groups * a.splits);
  const dim3 threads(kGemmThreads);
  switch (a.w.format) {
    case WeightFormat::kBf16:
      DI_LAUNCH(stream, (linear_tensor_kernel<kRows, WeightFormat::kBf16>), blocks, threads, kGemmShared<kRows>, a);
      break;
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Row:
      DI_LAUNCH(stream, (linear_tensor_kernel<kRows, WeightFormat::kFp8Block>), blocks, threads, kGemmShared<kRows>, a);
      break;
    case WeightFormat::kFp4Row:
      DI_LAUNCH(stream, (linear_tensor_kernel<kRows, WeightFormat::kFp4Row>), blocks, threads, kGemmShared<kRows>, a);
      break;
    case WeightFormat::kF32:
      DI_KERNEL_CHECK(false, "fp32 weights in the bf16 form");
  }
}

template <class Shape>
void launch_streamed(const LinearKernelArgs& a, int64_t groups, Stream& stream) {
  DI_LAUNCH_EARLY(stream, linear_streamed_kernel<Shape>,
                  grid(divide_up(a.group_outputs, Shape::kRows), divide_up(a.rows, Shape::kTokens), groups * a.splits),
                  dim3(Shape::kThreads), static_cast<size_t>(Shape::kShared), a);
}

template <WeightFormat kFormat>
void launch_streamed(const LinearKernelArgs& a, int tile_rows, int64_t groups, Stream& stream) {
  if (tile_rows == 16) {
    launch_streamed<StreamShape<kFormat, 1, 2>>(a, groups, stream);
  } else if (tile_rows == 32) {
    launch_streamed<StreamShape<kFormat, 1, 4>>(a, groups, stream);
  } else if (tile_rows == 64) {
    launch_streamed<StreamShape<kFormat, 2, 8>>(a, groups, stream);
  } else {
    launch_streamed<StreamShape<kFormat, 2, 16>>(a, groups, stream);
  }
}

constexpr int64_t kEnoughBlocks = 264;  // two per multiprocessor of an H200

}  // namespace

void arrange_input(const Tensor& x, WeightFormat format, int group, uint16_t* out, bool early, Stream& stream) {
  const dim3 blocks = grid(divide_up(x.rows * (x.cols / kBlockDepth), kArrangeWarps));
  const dim3 threads(32 * kArrangeWarps);
  const auto kernel =
      format == WeightFormat::kFp4Row ? arrange_kernel<WeightFormat::kFp4Row> : arrange_kernel<WeightFormat::kFp8Block>;
  if (early) {
    DI_LAUNCH_EARLY(stream, kernel, blocks, threads, 0, x, group, wide_input(x), out);
  } else {
    DI_LAUNCH(stream, kernel, blocks, threads, 0, x, group, wide_input(x), out);
  }
}

LinearPlan plan_linear(const Tensor& x, const Weight& w, int64_t groups) {
  LinearPlan plan;
  plan.x_columns = x.cols;
  if (x.dtype != DType::kBf16 || w.format == WeightFormat::kF32) return plan;
  const int64_t outputs = w.rows / groups;
  plan.arranged = w.format != WeightFormat::kBf16;
  if (streams(w) && (plan.arranged || wide_input(x))) {
    plan.form = LinearPlan::Form::kStreamed;
    const StreamTile tile = stream_tile(x.rows, outputs, groups, true);
    plan.tile_rows = tile.tokens;
    if (!tile.enough) plan.splits = divide_up(w.cols, kChunk);
    return plan;
  }
  plan.form = LinearPlan::Form::kTensor;
  plan.arranged = false;
  plan.tile_rows = x.rows > 16 ? 64 : 16;
  const int64_t blocks = divide_up(outputs, kOutputs) * groups * divide_up(x.rows, plan.tile_rows);
  if (blocks < kEnoughBlocks) plan.splits = divide_up(w.cols, kChunk);
  return plan;
}

namespace {

int64_t partial_floats(const LinearPlan& plan, int64_t rows, int64_t outputs) {
  return plan.splits > 1 ? plan.splits * rows * outputs : 0;
}

int64_t arranged_values(const LinearPlan& plan, int64_t rows) {
  return plan.arranged ? rows * plan.x_columns : 0;
}

}  // namespace

int64_t linear_scratch_bytes(const LinearPlan& plan, int64_t rows, int64_t outputs) {
  return scratch_size(partial_floats(plan, rows, outputs) * 4) + scratch_size(arranged_values(plan, rows) * 2);
}

LinearScratch take_linear_scratch(const LinearPlan& plan, int64_t rows, int64_t outputs, Stream& stream) {
  LinearScratch scratch;
  scratch.partials = take_scratch<float>(stream, partial_floats(plan, rows, outputs));
  scratch.arranged = take_scratch<uint16_t>(stream, arranged_values(plan, rows));
  return scratch;
}

void run_linear(const LinearPlan& plan, const Tensor& x, const Weight& w, int64_t groups, const Numerics& numerics,
                bool accumulate, const Tensor& y, const LinearScratch& scratch, Stream& stream) {
  using Form = LinearPlan::Form;
  LinearKernelArgs a{};
  a.x.data = x.data;
  a.x.dtype = x.dtype;
  a.x.stride = x.stride;
  a.x.group = activation_group(w.format, numerics);
  a.x.wide = wide_input(x) && (groups == 1 || w.cols % 8 == 0);
  a.w = w;
  a.y = y;
  a.rows = x.rows;
  a.group_outputs = w.rows / groups;
  a.splits = plan.splits;
  a.partials = plan.splits > 1 ? scratch.partials : nullptr;
  a.accumulate = accumulate;
  a.wide = wide_rows(w);
  a.packed = a.partials == nullptr && !accumulate && wide_input(y) && a.group_outputs % 8 == 0;
  DI_KERNEL_CHECK(a.x.group == 0 || a.x.group == 32 || a.x.group == 128, "activation group %d, wanted 32 or 128",
                  a.x.group);
  DI_KERNEL_CHECK(divide_up(a.rows, plan.tile_rows) <= kMaxGridY && groups * a.splits <= kMaxGridY,
                  "%lld rows, %lld groups", static_cast<long long>(a.rows), static_cast<long long>(groups));
  switch (plan.form) {
    case Form::kExact:
      DI_LAUNCH(stream, linear_exact_kernel,
                grid(divide_up(a.group_outputs, kOutputs), divide_up(a.rows, kExactRows), groups), dim3(kExactThreads),
                kExactShared, a);
      return;
    case Form::kTensor:
      if (plan.tile_rows == 64) {
        launch_tensor<64>(a, groups, stream);
      } else {
        launch_tensor<16>(a, groups, stream);
      }
      break;
    case Form::kStreamed:
      a.streamed.data = plan.arranged ? scratch.arranged : static_cast<const uint16_t*>(x.data);
      a.streamed.stride = plan.arranged ? x.cols : x.stride;
      if (plan.arranged) arrange_input(x, w.format, a.x.group, scratch.arranged, true, stream);
      if (w.format == WeightFormat::kBf16) {
        launch_streamed<WeightFormat::kBf16>(a, plan.tile_rows, groups, stream);
      } else if (w.format == WeightFormat::kFp4Row) {
        launch_streamed<WeightFormat::kFp4Row>(a, plan.tile_rows, groups, stream);
      } else {
        launch_streamed<WeightFormat::kFp8Block>(a, plan.tile_rows, groups, stream);
      }
      break;
  }
  if (a.partials != nullptr) {
    if (y.cols % 4 == 0) {
      DI_LAUNCH_EARLY(stream, add_partials_kernel<4>, grid(divide_up(a.rows * y.cols, 4 * kThreads)), dim3(kThreads), 0,
                      a);
    } else {
      DI_LAUNCH_EARLY(stream, add_partials_kernel<1>, grid(divide_up(a.rows * y.cols, kThreads)), dim3(kThreads), 0, a);
    }
  }
}

namespace {

void reserve_and_run(const Tensor& x, const Weight& w, int64_t groups, const Numerics& numerics, bool accumulate,
                     const Tensor& y, Stream& stream) {
  if (x.rows == 0) return;
  const LinearPlan plan = plan_linear(x, w, groups);
  reserve_scratch(stream, linear_scratch_bytes(plan, x.rows, w.rows));
  run_linear(plan, x, w, groups, numerics, accumulate, y, take_linear_scratch(plan, x.rows, w.rows, stream), stream);
}

}  // namespace

void linear(const LinearArgs& a, Stream& stream) {
  DI_KERNEL_CHECK(a.x.cols == a.w.cols && a.y.cols == a.w.rows && a.y.rows == a.x.rows,
                  "x [%lld, %lld], w [%lld, %lld], y [%lld, %lld]", static_cast<long long>(a.x.rows),
                  static_cast<long long>(a.x.cols), static_cast<long long>(a.w.rows), static_cast<long long>(a.w.cols),
                  static_cast<long long>(a.y.rows), static_cast<long long>(a.y.cols));
  reserve_and_run(a.x, a.w, 1, a.numerics, a.accumulate, a.y, stream);
}

void grouped_linear(const GroupedLinearArgs& a, Stream& stream) {
  DI_KERNEL_CHECK(a.groups > 0 && a.x.cols == a.groups * a.w.cols && a.w.rows % a.groups == 0 && a.y.cols == a.w.rows &&
                      a.y.rows == a.x.rows,
                  "x [%lld, %lld], w [%lld, %lld] in %d groups, y [%lld, %lld]", static_cast<long long>(a.x.rows),
                  static_cast<long long>(a.x.cols), static_cast<long long>(a.w.rows), static_cast<long long>(a.w.cols),
                  a.groups, static_cast<long long>(a.y.rows), static_cast<long long>(a.y.cols));
  reserve_and_run(a.x, a.w, a.groups, a.numerics, false, a.y, stream);
}

}  // namespace di::kernels::cuda
