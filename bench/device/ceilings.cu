// The read ceiling of the device, and random bytes; compiled with the benchmark only.
#include <cuda_runtime.h>

#include "ceilings.h"

namespace di::bench {
namespace {

constexpr int kThreads = 512;

__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* data, int64_t n, uint32_t* sink) {
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads * 4;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t at = i + int64_t{k} * gridDim.x * kThreads;
      if (at < n) {
        const uint4 v = data[at];
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
      }
    }
  }
  if (sum == 0x9e3779b9U) *sink = sum;  // keeps the loads
}

__device__ uint32_t hash(uint64_t z) {
  z += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<uint32_t>(z >> 32);
}

__global__ void __launch_bounds__(kThreads) fill_kernel(uint32_t* data, int64_t n, Fill fill, uint64_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    const uint32_t r = hash(seed * 0x100000001b3ULL + static_cast<uint64_t>(i));
    uint32_t v = r;
    if (fill == Fill::kBf16) v = (r & 0x807f807fU) | 0x3f003f00U;   // ±[0.5, 1)
    if (fill == Fill::kF32) v = (r & 0x807fffffU) | 0x3f000000U;    // ±[0.5, 1)
    if (fill == Fill::kE4m3) v = r & 0xbfbfbfbfU;                   // below 2, no NaN
    if (fill == Fill::kScale) v = 0x78787878U + (r & 0x03030303U);  // 2^-7 … 2^-4
    data[i] = v;
  }
}

}  // namespace

void launch_read(const void* data, int64_t bytes, uint32_t* sink, void* stream) {
  read_kernel<<<132 * 4, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const uint4*>(data), bytes / 16,
                                                                           sink);
}

void launch_fill(void* data, int64_t bytes, Fill fill, uint64_t seed, void* stream) {
  fill_kernel<<<1024, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<uint32_t*>(data), bytes / 4, fill,
                                                                        seed);
}

}  // namespace di::bench
