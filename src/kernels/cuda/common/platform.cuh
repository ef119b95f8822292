// What the kernels need of CUDA, so that the same sources also compile with a plain C++ compiler against the sequential
// emulation of tests/kernels/cuda_emulation: every kernel is checked against the reference on machines without a GPU.
// Kernels use threadIdx, blockIdx, blockDim, gridDim, __syncthreads, __syncwarp, full-warp shuffles, atomicAdd on int
// and what is declared here; nothing else.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__

#include <cuda_runtime.h>

#include "kernels/ops.h"

namespace di::kernels::cuda {

// The block's dynamic shared memory, aligned to 1024 bytes.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char di_dynamic_shared[];
  return reinterpret_cast<T*>(di_dynamic_shared);
}

// d += a·b, a [16, 16] and b [16, 8] bf16, fp32 accumulation; fragments as PTX's mma.m16n8k16 lays them out.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two transposed 8×8 matrices of 16-bit elements from shared memory; lanes 0–7 and 8–15 name their rows (16 bytes
// each, aligned to 16).
__device__ __forceinline__ void load_transposed(uint32_t& r0, uint32_t& r1, const uint16_t* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r0), "=r"(r1)
               : "r"(at)
               : "memory");
}

// Products of two pairs of bf16, each rounded once; subnormal numbers are numbers.
__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// Four 8×8 matrices of 16-bit elements; lanes 8m … 8m+7 name the rows of matrix m (16 bytes each, aligned to 16).
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const uint16_t* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

// An asynchronous copy of 4, 8 or 16 bytes from global to shared memory, both aligned to their number; zeros where
// there is nothing to copy (`from` must be valid nonetheless). Copies are committed in groups; wait_copies<n> returns
// when all but the last n groups of the calling thread are there.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool there) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = there ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(at), "l"(from), "r"(bytes), "n"(kBytes)
                 : "memory");
  }
}
// 16 bytes of a matrix of which a row's neighbouring pieces are read one after the other: the first one brings the 128
// bytes around it into the second-level cache.
__device__ __forceinline__ void copy_weights_async(void* to, const void* from) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kGroups>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// 16 bytes that nothing writes while the kernel runs and the block reads once; the compiler leaves the load where it
// stands, before the products that follow it.
__device__ __forceinline__ uint4 load_ahead(const void* from) {
  uint4 r;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(from));
  return r;
}

// One store of 16 bytes, aligned to 16.
__device__ __forceinline__ void store_sixteen(void* to, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

template <class T>
__device__ __forceinline__ T shuffle_xor(T v, int mask) {
  return __shfl_xor_sync(0xffffffffU, v, mask);
}
template <class T>
__device__ __forceinline__ T shuffle(T v, int lane) {
  return __shfl_sync(0xffffffffU, v, lane);
}
__device__ __forceinline__ uint32_t ballot(bool v) {
  return __ballot_sync(0xffffffffU, v);
}
__device__ __forceinline__ int count_bits(uint32_t v) {
  return __popc(v);
}

// Two values rounded to bf16, low half first; NaN becomes the canonical one.
__device__ __forceinline__ uint32_t round_pair(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// 1/x within one unit in the last place, for normal x.
__device__ __forceinline__ float reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// A kernel launched with DI_LAUNCH_EARLY may start while the kernel before it in the stream runs; what that one writes
// is there after wait_for_previous. let_next_start: the blocks of such a kernel may come from here on.
__device__ __forceinline__ void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

using StreamHandle = cudaStream_t;

template <class... P, class... A>
StreamFailure launch_on(StreamHandle stream, const char*, bool early, void (*kernel)(P...), dim3 grid, dim3 block,
                        size_t shared, A&&... args) {
  cudaError_t status = cudaSuccess;
  // More than 48 KiB must be asked for (227 KiB at most on sm_90 and sm_100).
  if (shared > 48 * 1024) {
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  }
  if (status == cudaSuccess) {
    cudaLaunchAttribute overlap{};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = early ? 1 : 0;
    status = cudaLaunchKernelEx(&config, kernel, P(static_cast<A&&>(args))...);
  }
  if (status == cudaSuccess) return {};
  const bool memory = status == cudaErrorMemoryAllocation;  // a kernel's code is loaded when it is launched first
  if (memory) cudaGetLastError();                           // not sticky
  return {cudaGetErrorString(status), memory};
}

}  // namespace di::kernels::cuda

#else
#include <cuda_emulation/emulation.h>
#endif
