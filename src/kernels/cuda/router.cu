// Router (model.md §5.9): scores by the dense product, then one warp per token scores, ranks and weights.
#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ops.h"

namespace di::kernels::cuda {
namespace {

constexpr int kRouterWarps = 4;

__global__ void __launch_bounds__(kRouterWarps * 32)
    route_kernel(const __grid_constant__ RouterArgs a, const float* __restrict__ dots) {
  join_chain();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int experts = static_cast<int>(a.gate.rows);
  float* s = dynamic_shared<float>() + threadIdx.x / 32 * 2 * static_cast<unsigned>(experts);
  auto* key = reinterpret_cast<uint32_t*>(s + experts);
  const int64_t t = int64_t{blockIdx.x} * kRouterWarps + threadIdx.x / 32;
  if (t >= a.y.rows) return;
  const bool image = a.rows.is_image != nullptr && a.rows.is_image[t] != 0;
  const float* bias = image && a.bias_vl != nullptr ? a.bias_vl : a.bias;
  for (int e = lane; e < experts; e += 32) {
    const float x = dots[t * experts + e];
    const float v = sqrtf(fmaxf(x, 0.F) + log1pf(expf(-fabsf(x))));
    s[e] = v;
    key[e] = score_key(bias != nullptr ? v + bias[e] : v);
  }
  __syncwarp();
  float sum = 0.F;
  for (int k = 0; k < a.k; ++k) {
    int id;
    if (a.forced_ids != nullptr) {
      id = a.forced_ids[t * a.k + k];
    } else {
      uint32_t best = 0;  // below every key that is left
      id = experts;
      for (int e = lane; e < experts; e += 32) {
        if (key[e] > best) {
          best = key[e];
          id = e;
        }
      }
      for (int mask = 16; mask > 0; mask /= 2) {
        const uint32_t other = shuffle_xor(best, mask);
        const int other_id = shuffle_xor(id, mask);
        if (other > best || (other == best && other_id < id)) {
          best = other;
          id = other_id;
        }
      }
      __syncwarp();
      if (lane == 0) key[id] = 0;
      __syncwarp();
    }
    sum += s[id];
    if (lane == 0) a.ids[t * a.k + k] = id;
  }
  __syncwarp();
  for (int k = lane; k < a.k; k += 32) a.weights[t * a.k + k] = s[a.ids[t * a.k + k]] / (sum + 1e-20F) * a.scale;
}

}  // namespace

void router(const RouterArgs& a, Stream& stream) {
  const int64_t experts = a.gate.rows;
  DI_KERNEL_CHECK(a.y.cols == a.gate.cols && a.k >= 0 && a.k <= experts && experts <= 4096,
                  "y of %lld columns, gate [%lld, %lld], top %d", static_cast<long long>(a.y.cols),
                  static_cast<long long>(experts), static_cast<long long>(a.gate.cols), a.k);
  if (a.y.rows == 0) return;
  const LinearPlan plan = plan_linear(a.y, a.gate, 1);
  reserve_scratch(stream, scratch_size(a.y.rows * experts * 4) + linear_scratch_bytes(plan, a.y.rows, experts));
  Tensor dots;
  dots.data = take_scratch<float>(stream, a.y.rows * experts);
  dots.dtype = DType::kF32;
  dots.rows = a.y.rows;
  dots.cols = experts;
  dots.stride = experts;
  run_linear(plan, a.y, a.gate, 1, {}, false, dots, take_linear_scratch(plan, a.y.rows, experts, stream), stream);
  DI_LAUNCH_EARLY(stream, route_kernel, grid(divide_up(a.y.rows, kRouterWarps)), dim3(kRouterWarps * 32),
                  static_cast<size_t>(experts) * 8 * kRouterWarps, a, static_cast<const float*>(dots.data));
}

}  // namespace di::kernels::cuda
