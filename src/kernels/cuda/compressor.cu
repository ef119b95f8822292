// The compressors of the KV source layers (model.md §5.6, §10.3): one block per entry; then the rows of the call go to
// the state, in a launch of their own because the entries read what it overwrites.
#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/ops.h"

namespace di::kernels::cuda {
namespace {

constexpr int kMaxSlots = 128;

// The value (part 0) or score (part 1) row of the position `back` places before row t: a row of the call while it
// belongs to the sequence, else from the state.
struct History {
  Tensor v;
  Tensor s;
  Rows rows;
  CompressorStateView state;

  __device__ const float* row(int64_t t, int64_t back, int part) const {
    const int64_t sequence = rows.sequence[t];
    if (t - back >= 0 && rows.sequence[t - back] == sequence) {
      const Tensor& tensor = part == 0 ? v : s;
      return static_cast<const float*>(tensor.data) + (t - back) * tensor.stride;
    }
    return state_row(state, rows.state_slot[sequence], rows.positions[t] - back) + part * state.width;
  }
};

__global__ void __launch_bounds__(kThreads) keep_rows_kernel(const __grid_constant__ History h) {
  join_chain();
  const int64_t t = blockIdx.x;
  if (!stays_in_ring(h.rows, t, h.state.ring_rows)) return;
  float* out = state_row(h.state, h.rows.state_slot[h.rows.sequence[t]], h.rows.positions[t]);
  for (int part = 0; part < 2; ++part) {
    const Tensor& tensor = part == 0 ? h.v : h.s;
    const float* from = static_cast<const float*>(tensor.data) + t * tensor.stride;
    for (int64_t c = threadIdx.x; c < h.state.width; c += kThreads) out[part * h.state.width + c] = from[c];
  }
}

__global__ void __launch_bounds__(kThreads)
    compress_kernel(const __grid_constant__ CompressArgs a, const __grid_constant__ History h) {
  join_chain();
  __shared__ double slots[kThreads / 32];
  float* c = dynamic_shared<float>();
  const int64_t d = a.latent.cols;
  const int64_t t = a.closing[blockIdx.x];
  if (t < 0) return;
  for (int64_t i = threadIdx.x; i < d; i += kThreads) {
    float v;
    if (a.ratio == 1) {
      v = load_value(a.v, t, i);
    } else {  // softmax over the group's two tokens, per channel
      const float s0 = h.row(t, 1, 1)[i];
      const float s1 = h.row(t, 0, 1)[i];
      const float max = fmaxf(s0, s1);
      const float e0 = expf(s0 - max);
      const float e1 = expf(s1 - max);
      const float sum = e0 + e1;
      v = e0 / sum * h.row(t, 1, 0)[i] + e1 / sum * h.row(t, 0, 0)[i];
    }
    c[i] = a.round_bf16 ? round_bf16(v) : v;
  }
  const float r = block_inverse_rms(c, d, a.norm_eps, slots);
  for (int64_t i = threadIdx.x; i < d; i += kThreads) {
    store_value(a.latent, blockIdx.x, i, weight_value(a.norm, 0, i) * (c[i] * r));
  }
}

__global__ void __launch_bounds__(kThreads)
    compress_v4_kernel(const __grid_constant__ CompressV4Args a, const __grid_constant__ History h) {
  join_chain();
  __shared__ double sums[kThreads / 32];
  __shared__ const float* v[kMaxSlots];
  __shared__ const float* s[kMaxSlots];
  float* c = dynamic_shared<float>();
  const int64_t d = a.latent.cols;
  const int64_t width = a.v.cols;
  const int64_t ratio = a.ratio;
  const int64_t slots = a.overlap ? 2 * ratio : ratio;
  const int64_t t = a.closing[blockIdx.x];
  const int64_t before = slots - 1 - a.rows.positions[t];
  const int64_t first = before > 0 ? before : 0;  // slots before the start of the sequence are absent
  for (int64_t j = threadIdx.x; j < slots; j += kThreads) {
    v[j] = j < first ? nullptr : h.row(t, slots - 1 - j, 0);
    s[j] = j < first ? nullptr : h.row(t, slots - 1 - j, 1);
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < d; i += kThreads) {
    float max = -INFINITY;
    for (int64_t j = first; j < slots; ++j) {
      const int64_t channel = a.overlap && j >= ratio ? d + i : i;
      max = fmaxf(max, s[j][channel] + a.ape[j % ratio * width + channel]);
    }
    float sum = 0.F;
    for (int64_t j = first; j < slots; ++j) {
      const int64_t channel = a.overlap && j >= ratio ? d + i : i;
      sum += expf(s[j][channel] + a.ape[j % ratio * width + channel] - max);
    }
    float value = 0.F;
    for (int64_t j = first; j < slots; ++j) {
      const int64_t channel = a.overlap && j >= ratio ? d + i : i;
      value += expf(s[j][channel] + a.ape[j % ratio * width + channel] - max) / sum * v[j][channel];
    }
    c[i] = a.round_bf16 ? round_bf16(value) : value;
  }
  const float r = block_inverse_rms(c, d, a.norm_eps, sums);
  for (int64_t i = threadIdx.x; i < d; i += kThreads) {
    store_value(a.latent, blockIdx.x, i, weight_value(a.norm, 0, i) * (c[i] * r));
  }
}

}  // namespace

void compress(const CompressArgs& a, Stream& stream) {
  const int64_t d = a.latent.cols;
  DI_KERNEL_CHECK(a.ratio == 1 || a.ratio == 2, "compress ratio %d, wanted 1 or 2", a.ratio);
  DI_KERNEL_CHECK(
      a.v.cols == d && a.norm.cols == d && a.latent.rows == a.n_closing && a.v.rows == a.rows.n && d <= 8192,
      "v [%lld, %lld], norm %lld, latent of %lld columns, %d closing of %d rows", static_cast<long long>(a.v.rows),
      static_cast<long long>(a.v.cols), static_cast<long long>(a.norm.cols), static_cast<long long>(d), a.n_closing,
      a.rows.n);
  DI_KERNEL_CHECK(a.ratio == 1 || (a.v.dtype == DType::kF32 && a.s.dtype == DType::kF32 && a.state.width == d &&
                                   a.state.ring_rows >= 1),
                  "ratio 2 needs fp32 v and s and a state of width %lld, found width %d, %d rows",
                  static_cast<long long>(d), a.state.width, a.state.ring_rows);
  const History history{a.v, a.s, a.rows, a.state};
  if (a.n_closing > 0) {
    DI_LAUNCH_EARLY(stream, compress_kernel, grid(a.n_closing), dim3(kThreads), static_cast<size_t>(d) * 4, a, history);
  }
  if (a.ratio == 2 && a.rows.n > 0)
    DI_LAUNCH_EARLY(stream, keep_rows_kernel, grid(a.rows.n), dim3(kThreads), 0, history);
}

void compress_v4(const CompressV4Args& a, Stream& stream) {
  const int64_t d = a.latent.cols;
  const int64_t width = a.v.cols;
  const int64_t slots = a.overlap ? 2 * a.ratio : a.ratio;
  DI_KERNEL_CHECK(
      width == (a.overlap ? 2 * d : d) && a.s.cols == width && a.norm.cols == d && a.latent.rows == a.n_closing &&
          a.v.dtype == DType::kF32 && a.s.dtype == DType::kF32 && a.state.width == width &&
          a.state.ring_rows >= slots - 1 && a.v.rows == a.rows.n && slots <= kMaxSlots && d <= 8192,
      "v [%lld, %lld], latent of %lld columns, state %d rows of %d, ratio %d", static_cast<long long>(a.v.rows),
      static_cast<long long>(width), static_cast<long long>(d), a.state.ring_rows, a.state.width, a.ratio);
  const History history{a.v, a.s, a.rows, a.state};
  if (a.n_closing > 0) {
    DI_LAUNCH_EARLY(stream, compress_v4_kernel, grid(a.n_closing), dim3(kThreads), static_cast<size_t>(d) * 4, a,
                    history);
  }
  if (a.rows.n > 0) DI_LAUNCH_EARLY(stream, keep_rows_kernel, grid(a.rows.n), dim3(kThreads), 0, history);
}

}  // namespace di::kernels::cuda
