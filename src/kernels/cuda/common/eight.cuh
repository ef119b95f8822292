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

// Columns first … first + 7 of a [1, cols] norm weight.
__device__ __forceinline__ void load_norm_eight(const Weight& w, int64_t first, float (&v)[8]) {
  if (w.format == WeightFormat::kBf16 && reinterpret_cast<uintptr_t>(w.data) % 16 == 0) {
    unpack_eight(*reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(w.data) + first), v);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = weight_value(w, 0, first + i);
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

}  // namespace di::kernels::cuda
