// Eight columns at a time: one access of 16 bytes to a bf16 row, or as many as its type and alignment need.
#pragma once

#include "kernels/cuda/common/launch.cuh"

namespace di::kernels::cuda {

__device__ __forceinline__ void unpack_eight(uint4 packed, float (&v)[8]) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = bits_float(words[i] << 16);
    v[2 * i + 1] = bits_float(words[i] & 0xffff0000U);
  }
}

__device__ __forceinline__ uint4 pack_eight(const float (&v)[8]) {
  return {round_pair(v[0], v[1]), round_pair(v[2], v[3]), round_pair(v[4], v[5]), round_pair(v[6], v[7])};
}

// Rows whose columns 8i … 8i+7 are one aligned access.
inline bool in_eights(const Tensor& t) {
  return t.dtype == DType::kBf16 && t.cols % 8 == 0 && t.stride % 8 == 0 && is_aligned(t.data, 16);
}

__device__ __forceinline__ uint4* eight_at(const Tensor& t, int64_t row, int64_t column) {
  return reinterpret_cast<uint4*>(static_cast<uint16_t*>(t.data) + row * t.stride + column);
}

inline bool is_norm(const Weight& w) {
  return w.format == WeightFormat::kBf16 || w.format == WeightFormat::kF32;
}
// A [1, cols] norm weight that eights can be read of.
__device__ __forceinline__ bool norm_in_eights(const Weight& w) {
  return w.format == WeightFormat::kBf16 && reinterpret_cast<uintptr_t>(w.data) % 16 == 0;
}
// What of a row thread i of kThreadsOfRow holds: eights i, i + kThreadsOfRow, …
template <int kEights, int kThreadsOfRow>
__device__ __forceinline__ void load_held(const Tensor& t, int64_t row, uint4 (&held)[kEights]) {
#pragma unroll
  for (int i = 0; i < kEights; ++i) {
    const int64_t c = (static_cast<int64_t>(threadIdx.x) + i * kThreadsOfRow) * 8;
    held[i] = {0, 0, 0, 0};
    if (c < t.cols) held[i] = *eight_at(t, row, c);
  }
}
template <int kEights, int kThreadsOfRow>
__device__ __forceinline__ void load_held_norm(const Weight& w, bool eights, uint4 (&held)[kEights]) {
#pragma unroll
  for (int i = 0; i < kEights; ++i) held[i] = {0, 0, 0, 0};
  if (!eights) return;
#pragma unroll
  for (int i = 0; i < kEights; ++i) {
    const int64_t c = (static_cast<int64_t>(threadIdx.x) + i * kThreadsOfRow) * 8;
    if (c < w.cols) held[i] = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(w.data) + c);
  }
}

// RMSNorm of eight columns: w·(x·r); `packed` is of load_held_norm. A norm that is not in eights is read here.
__device__ __forceinline__ uint4 scale_eight(uint4 x, float r, const Weight& w, bool eights, uint4 packed,
                                             int64_t first) {
  float v[8];
  float by[8];
  unpack_eight(x, v);
  unpack_eight(packed, by);
  if (!eights) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      by[i] = w.format == WeightFormat::kF32 ? static_cast<const float*>(w.data)[first + i]
                                             : bf16_to_float(static_cast<const uint16_t*>(w.data)[first + i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = by[i] * (v[i] * r);
  return pack_eight(v);
}

// 16-byte access to four coefficients.
__device__ __forceinline__ void load_four(const float* from, float (&v)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  v[0] = four.x;
  v[1] = four.y;
  v[2] = four.z;
  v[3] = four.w;
}

// Σ x² over a row in fp64, in every lane: the way out where fp32 squares overflow.
__device__ __forceinline__ double warp_square_sum(const Tensor& t, int64_t row, int64_t cols) {
  double sum = 0.0;
  for (int64_t c = threadIdx.x % 32; c < cols; c += 32) {
    const double v = load_value(t, row, c);
    sum += v * v;
  }
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  return sum;
}

__device__ __forceinline__ float inverse_rms(double square, int64_t n, float eps) {
  return static_cast<float>(1.0 / sqrt(square / static_cast<double>(n) + static_cast<double>(eps)));
}
// Of a row of t whose fp32 sum is `square`; all lanes of a warp with the same.
__device__ __forceinline__ float inverse_rms(float square, const Tensor& t, int64_t row, float eps) {
  if (!(square < INFINITY)) return inverse_rms(warp_square_sum(t, row, t.cols), t.cols, eps);
  return 1.F / sqrtf(square / static_cast<float>(t.cols) + eps);
}

}  // namespace di::kernels::cuda
