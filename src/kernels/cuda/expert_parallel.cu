// Expert parallelism (distributed.md §3) around the products of moe.cu: which pairs are here, how many, and the sum of
// a row's parts in the order of the router.
#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/ops.h"

namespace di::kernels::cuda {
namespace {

// The expert where its owner is this rank, else -1, which the products pass over.
__global__ void __launch_bounds__(kThreads)
    local_ids_kernel(const int32_t* __restrict__ ids, const int32_t* __restrict__ owner, int64_t pairs, int experts,
                     int rank, int32_t* __restrict__ local) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= pairs) return;
  const int32_t id = ids[i];
  local[i] = id >= 0 && id < experts && owner[id] == rank ? id : -1;
}

__global__ void __launch_bounds__(kThreads)
    count_received_kernel(const int32_t* __restrict__ local, int64_t pairs, int64_t* __restrict__ received) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  int mine = 0;
  for (int64_t i = threadIdx.x; i < pairs; i += kThreads) mine += local[i] == static_cast<int32_t>(blockIdx.x) ? 1 : 0;
  if (mine > 0) atomicAdd(&count, mine);
  __syncthreads();
  if (threadIdx.x == 0) received[blockIdx.x] += count;
}

__global__ void __launch_bounds__(kThreads) moe_sum_kernel(const __grid_constant__ MoeSumArgs a) {
  const int64_t t = blockIdx.x;
  const int64_t h = a.out.cols;
  for (int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x; c < h; c += int64_t{gridDim.y} * kThreads) {
    float sum = 0.F;
    for (int64_t pair = t * a.k; pair < (t + 1) * a.k; ++pair) {
      const int32_t owner = a.owner[a.ids[pair]];
      const float* parts = owner == a.rank ? a.mine : a.back + owner * a.back_stride;
      sum += parts[pair * h + c];
    }
    if (a.shared.data != nullptr) sum += load_value(a.shared, t, c);
    store_value(a.out, t, c, sum);
  }
}

}  // namespace

void moe_parts(const MoePartsArgs& a, Stream& stream) {
  const int64_t pairs = a.y.rows * a.k;
  if (pairs == 0) return;
  DI_LAUNCH(stream, local_ids_kernel, grid(divide_up(pairs, kThreads)), dim3(kThreads), 0, a.ids, a.owner, pairs,
            a.n_experts, a.rank, a.local_ids);
  if (a.received != nullptr) {
    DI_LAUNCH(stream, count_received_kernel, grid(a.n_experts), dim3(kThreads), 0,
              static_cast<const int32_t*>(a.local_ids), pairs, a.received);
  }
  DI_KERNEL_CHECK(a.n_experts > 0 && a.n_experts <= 1024 && a.form.inner > 0, "%d experts of width %lld", a.n_experts,
                  static_cast<long long>(a.form.inner));
  MoeArgs m{};
  m.y = a.y;
  m.ids = a.local_ids;
  m.weights = a.weights;
  m.k = a.k;
  m.experts = a.experts;
  m.n_experts = a.n_experts;
  m.form = a.form;
  m.swiglu_limit = a.swiglu_limit;
  m.numerics = a.numerics;
  run_moe(m, a.parts, stream);
}

void moe_sum(const MoeSumArgs& a, Stream& stream) {
  if (a.out.rows == 0) return;
  DI_LAUNCH(stream, moe_sum_kernel, grid(a.out.rows, a.out.rows >= 256 ? 1 : 4), dim3(kThreads), 0, a);
}

}  // namespace di::kernels::cuda
