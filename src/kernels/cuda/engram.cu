// The n-gram memory (model.md §5.10): gather of table rows, which may lie in mapped host memory, and the gate.
#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/ops.h"

namespace di::kernels::cuda {
namespace {

// One warp per gathered row, so that a row in host memory is read in few wide requests.
__global__ void __launch_bounds__(kThreads)
    engram_gather_kernel(const __grid_constant__ EngramGatherArgs a, int64_t n) {
  join_chain();
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (at >= n) return;
  const int64_t width = a.table.cols;
  const int64_t row = a.rows[at];
  const int64_t t = at / a.columns;
  const int64_t column = at % a.columns * width;
  for (int64_t c = threadIdx.x % 32; c < width; c += 32) store_value(a.e, t, column + c, weight_value(a.table, row, c));
}

// One block per row and stream.
__global__ void __launch_bounds__(kThreads) engram_gate_kernel(const __grid_constant__ EngramGateArgs a) {
  join_chain();
  __shared__ float dots[kThreads / 32];
  __shared__ double x_sums[kThreads / 32];
  __shared__ double key_sums[kThreads / 32];
  const int64_t t = blockIdx.x;
  const int64_t i = blockIdx.y;
  const int64_t h = a.q_weight.cols;
  float dot = 0.F;
  double xx = 0.0;
  double kk = 0.0;
  for (int64_t c = threadIdx.x; c < h; c += kThreads) {
    const float x = load_value(a.streams, t, i * h + c);
    const float key = load_value(a.kvp, t, i * h + c);
    dot += x * (weight_value(a.q_weight, i, c) * weight_value(a.k_weight, i, c)) * key;
    xx += static_cast<double>(x) * static_cast<double>(x);
    kk += static_cast<double>(key) * static_cast<double>(key);
  }
  dot = block_sum(dot, dots);
  xx = block_sum(xx, x_sums);
  kk = block_sum(kk, key_sums);
  const double n = static_cast<double>(h);
  const double eps = static_cast<double>(a.norm_eps);
  const float rx = static_cast<float>(1.0 / sqrt(xx / n + eps));
  const float rk = static_cast<float>(1.0 / sqrt(kk / n + eps));
  const float d = dot * rx * rk * (1.F / sqrtf(static_cast<float>(h)));
  const float size = sqrtf(fmaxf(fabsf(d), 1e-6F));
  const float g = sigmoid(d == 0.F && !a.copysign_at_zero ? 0.F : copysignf(size, d));
  if (threadIdx.x == 0 && a.gate != nullptr) a.gate[t * a.hc + i] = g;
  if (a.rows.is_image != nullptr && a.rows.is_image[t] != 0) return;
  for (int64_t c = threadIdx.x; c < h; c += kThreads) {
    const float v = load_value(a.streams, t, i * h + c) + g * load_value(a.kvp, t, a.hc * h + c);
    store_value(a.streams, t, i * h + c, v);
  }
}

}  // namespace

void engram_gather(const EngramGatherArgs& a, Stream& stream) {
  DI_KERNEL_CHECK(a.e.rows == a.n_tokens && a.e.cols == a.columns * a.table.cols, "e [%lld, %lld], %d columns of %lld",
                  static_cast<long long>(a.e.rows), static_cast<long long>(a.e.cols), a.columns,
                  static_cast<long long>(a.table.cols));
  const int64_t n = int64_t{a.n_tokens} * a.columns;
  if (n == 0) return;
  DI_LAUNCH_EARLY(stream, engram_gather_kernel, grid(divide_up(n * 32, kThreads)), dim3(kThreads), 0, a, n);
}

void engram_gate(const EngramGateArgs& a, Stream& stream) {
  const int64_t h = a.q_weight.cols;
  DI_KERNEL_CHECK(a.streams.cols == a.hc * h && a.kvp.cols == (a.hc + 1) * h && a.kvp.rows == a.streams.rows &&
                      a.q_weight.rows == a.hc && a.k_weight.rows == a.hc && a.k_weight.cols == h,
                  "streams [%lld, %lld], kvp [%lld, %lld], hc %d", static_cast<long long>(a.streams.rows),
                  static_cast<long long>(a.streams.cols), static_cast<long long>(a.kvp.rows),
                  static_cast<long long>(a.kvp.cols), a.hc);
  if (a.streams.rows == 0) return;
  DI_LAUNCH_EARLY(stream, engram_gate_kernel, grid(a.streams.rows, a.hc), dim3(kThreads), 0, a);
}

}  // namespace di::kernels::cuda
