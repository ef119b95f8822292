// Dense products over BF16, FP8 (32×32 or 128×128 tile scales, or row scales) and MXFP4 weights as stored; gemm.cuh
// says how the scales are handled (exactly, on the bf16 path).
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ops.h"

namespace di::kernels::cuda {
namespace {

struct LinearKernelArgs {
  GemmInput x;
  Weight w;  // of all groups
  Tensor y;
  int64_t rows;
  int64_t group_outputs;
  int64_t splits;
  float* partials;  // [splits, rows, groups·group_outputs], null = y is written
  bool accumulate;
  bool wide;
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

// y = Σ partials in ascending order of the chunks.
__global__ void __launch_bounds__(kThreads) add_partials_kernel(const __grid_constant__ LinearKernelArgs a) {
  const int64_t n = a.rows * a.y.cols;
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= n) return;
  float sum = 0.F;
  for (int64_t s = 0; s < a.splits; ++s) sum += a.partials[s * n + at];
  const int64_t row = at / a.y.cols;
  const int64_t output = at % a.y.cols;
  store_value(a.y, row, output, a.accumulate ? sum + load_value(a.y, row, output) : sum);
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

constexpr int64_t kEnoughBlocks = 264;  // two per multiprocessor of an H200

}  // namespace

LinearPlan plan_linear(const Tensor& x, const Weight& w, int64_t groups) {
  LinearPlan plan;
  plan.tensor = x.dtype == DType::kBf16 && w.format != WeightFormat::kF32;
  plan.many_rows = x.rows > 16;
  const int64_t blocks = divide_up(w.rows / groups, kOutputs) * groups * divide_up(x.rows, plan.many_rows ? 64 : 16);
  if (plan.tensor && blocks < kEnoughBlocks) plan.splits = divide_up(w.cols, kChunk);
  return plan;
}

int64_t linear_scratch(const LinearPlan& plan, int64_t rows, int64_t outputs) {
  return plan.splits > 1 ? plan.splits * rows * outputs : 0;
}

void run_linear(const LinearPlan& plan, const Tensor& x, const Weight& w, int64_t groups, const Numerics& numerics,
                bool accumulate, const Tensor& y, float* partials, Stream& stream) {
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
  a.partials = plan.splits > 1 ? partials : nullptr;
  a.accumulate = accumulate;
  a.wide = wide_rows(w);
  DI_KERNEL_CHECK(a.x.group == 0 || a.x.group == 32 || a.x.group == 128, "activation group %d, wanted 32 or 128",
                  a.x.group);
  DI_KERNEL_CHECK(
      divide_up(a.rows, plan.many_rows && plan.tensor ? 64 : 16) <= kMaxGridY && groups * a.splits <= kMaxGridY,
      "%lld rows, %lld groups", static_cast<long long>(a.rows), static_cast<long long>(groups));
  if (!plan.tensor) {
    DI_LAUNCH(stream, linear_exact_kernel,
              grid(divide_up(a.group_outputs, kOutputs), divide_up(a.rows, kExactRows), groups), dim3(kExactThreads),
              kExactShared, a);
    return;
  }
  if (plan.many_rows) {
    launch_tensor<64>(a, groups, stream);
  } else {
    launch_tensor<16>(a, groups, stream);
  }
  if (a.partials != nullptr) {
    DI_LAUNCH(stream, add_partials_kernel, grid(divide_up(a.rows * y.cols, kThreads)), dim3(kThreads), 0, a);
  }
}

namespace {

void reserve_and_run(const Tensor& x, const Weight& w, int64_t groups, const Numerics& numerics, bool accumulate,
                     const Tensor& y, Stream& stream) {
  if (x.rows == 0) return;
  const LinearPlan plan = plan_linear(x, w, groups);
  const int64_t floats = linear_scratch(plan, x.rows, w.rows);
  reserve_scratch(stream, scratch_size(floats * 4));
  run_linear(plan, x, w, groups, numerics, accumulate, y, take_scratch<float>(stream, floats), stream);
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
