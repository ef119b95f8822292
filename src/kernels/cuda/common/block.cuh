// Reductions of a warp and of a block in an order that only the number of threads decides, and rows held in shared
// memory.
#pragma once

#include "kernels/cuda/common/launch.cuh"

namespace di::kernels::cuda {

template <class T>
__device__ __forceinline__ T warp_sum(T v) {
  for (int mask = 16; mask > 0; mask /= 2) v += shuffle_xor(v, mask);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
  for (int mask = 16; mask > 0; mask /= 2) v = fmaxf(v, shuffle_xor(v, mask));
  return v;
}

// Sum over the block, in every thread. `slots` holds one value per warp; the caller's next write to it must come after
// another barrier of the block (block_sum begins with one).
template <class T>
__device__ __forceinline__ T block_sum(T v, T* slots) {
  v = warp_sum(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = v;
  __syncthreads();
  T sum = slots[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) sum += slots[w];
  return sum;
}

// rsqrt(mean(x²) + eps) of a row that the block holds in `x`, in fp64 like the reference (model.md §5.3: eps = 1e-20
// decides only where all of x is nearly zero).
__device__ __forceinline__ float block_inverse_rms(const float* x, int64_t n, float eps, double* slots) {
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  sum = block_sum(sum, slots);
  return static_cast<float>(1.0 / sqrt(sum / static_cast<double>(n) + static_cast<double>(eps)));
}

// x ← RMSNorm(x, w) of a row in shared memory; every thread returns after a barrier.
__device__ __forceinline__ void block_rms_norm(float* x, const Weight& w, int64_t n, float eps, bool round,
                                               double* slots) {
  const float r = block_inverse_rms(x, n, eps, slots);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const float v = weight_value(w, 0, i) * (x[i] * r);
    x[i] = round ? round_bf16(v) : v;
  }
  __syncthreads();
}

// (x_2i + j·x_2i+1)·(cos + j·sin), the conjugate for the inverse (model.md §5.5).
__device__ __forceinline__ void rotate_pair(float& re, float& im, const float* table, int64_t i, bool inverse) {
  const float c = table[2 * i];
  const float s = inverse ? -table[2 * i + 1] : table[2 * i + 1];
  const float x = re;
  const float y = im;
  re = x * c - y * s;
  im = x * s + y * c;
}

// Rotates the last rope_dim channels of a row of n in shared memory.
__device__ __forceinline__ void block_rotate(float* x, int64_t n, const float* table, int rope_dim, bool round) {
  for (int64_t i = threadIdx.x; i < rope_dim / 2; i += blockDim.x) {
    float* pair = x + n - rope_dim + 2 * i;
    float re = pair[0];
    float im = pair[1];
    rotate_pair(re, im, table, i, false);
    pair[0] = round ? round_bf16(re) : re;
    pair[1] = round ? round_bf16(im) : im;
  }
  __syncthreads();
}

// Writes a row of shared memory as a record (model.md §4.3); one warp per group. width is a multiple of 32 in quantised
// formats. All lanes of a warp take part in every turn.
__device__ __forceinline__ void block_store_record(KvFormat format, int64_t width, const float* x, RecordAt at) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (format == KvFormat::kF32) {
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) reinterpret_cast<float*>(at.data)[i] = x[i];
    return;
  }
  for (int64_t group = threadIdx.x / 32; group < width / 32; group += blockDim.x / 32) {
    const int64_t c = group * 32 + lane;
    const float v = round_bf16(x[c]);
    float amax = fabsf(v);
    for (int mask = 1; mask < 16; mask *= 2) amax = fmaxf(amax, shuffle_xor(amax, mask));  // of 16 channels
    if (format == KvFormat::kE2m1E4m3) {
      const uint8_t scale = e2m1_group_e4m3_scale(amax);
      const uint32_t code = float_to_e2m1(v / e4m3_to_float(scale));
      const uint32_t next = shuffle_xor(code, 1);
      if (lane % 2 == 0) at.data[c / 2] = static_cast<uint8_t>(code | next << 4);
      if (lane % 16 == 0) at.scale[c / 16] = scale;
      continue;
    }
    amax = fmaxf(amax, shuffle_xor(amax, 16));
    if (format == KvFormat::kE4m3Ue8m0) {
      const int e = e4m3_group_exponent(amax);
      at.data[c] = float_to_e4m3(v * exp2_int(-e));
      if (lane == 0) at.scale[group] = static_cast<uint8_t>(e + 127);
    } else {
      const int e = e2m1_group_exponent(amax);
      const uint32_t code = float_to_e2m1(v * exp2_int(-e));
      const uint32_t next = shuffle_xor(code, 1);
      if (lane % 2 == 0) at.data[c / 2] = static_cast<uint8_t>(code | next << 4);
      if (lane == 0) at.scale[group] = static_cast<uint8_t>(e + 127);
    }
  }
}

__device__ __forceinline__ float sigmoid(float x) {
  return 1.F / (1.F + expf(-x));
}

// Larger first, the lower index on a tie; NaN loses against everything.
__device__ __forceinline__ bool beats(float a, int64_t i, float b, int64_t j) {
  const uint32_t x = score_key(a);
  const uint32_t y = score_key(b);
  return x != y ? x > y : i < j;
}

}  // namespace di::kernels::cuda
