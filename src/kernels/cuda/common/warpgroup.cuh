// Matrix products of a warpgroup (128 consecutive threads from a multiple of 128 on) and the barriers that its parts of
// a block meet at. On compute capability 9.0 these are Hopper's wgmma instructions; elsewhere, and in the emulation,
// the same fragments by mma.m16n8k16, at once instead of asynchronously.
//
// Operands in shared memory are panels: rows of 64 bf16 (128 bytes), one after the other from a multiple of 1024 bytes
// on; the 16-byte unit u of row r stands at place u ^ (r mod 8) (the "128-byte swizzle").
//   rows     the panel's rows are rows of the left, or columns of the right operand; its 64 columns are four depth
//   steps
//            of 16 channels, 32 bytes apart
//   depth    the panel's rows are the depth: a depth step is 16 rows, 2048 bytes; its 64 columns are the operand's
// Fragments of a lane: as mma.m16n8k16 has them, warp w of the warpgroup with rows 16w … 16w+15; d[4·j + i] is value i
// of the column tile j (eight columns).
#pragma once

#include "kernels/cuda/common/platform.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define DI_WGMMA 1
#else
#define DI_WGMMA 0
#endif

namespace di::kernels::cuda {

inline constexpr int kPanelRow = 128;  // bytes

// Byte offset of unit `unit` (0 … 7) of row `row` in a panel.
__device__ __forceinline__ int panel_offset(int row, int unit) {
  return row * kPanelRow + (unit ^ (row & 7)) * 16;
}

#ifdef __CUDACC__

// Barriers 1 … 15 of a block (0 is __syncthreads): `threads` arrive, those that meet wait for all of them.
__device__ __forceinline__ void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// What this thread wrote to shared memory is seen by the products of those that meet it at a barrier afterwards.
__device__ __forceinline__ void publish_operands() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Registers of the warpgroup's threads from here on; the block's threads together may have 64 Ki.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(__CUDA_ARCH_FEAT_SM100_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// 2^x within 2^-22, 0 for -inf.
__device__ __forceinline__ float fast_exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

__device__ __forceinline__ uint32_t warp_max_key(uint32_t v) {
  return __reduce_max_sync(0xffffffffU, v);
}

#endif

// Products are issued between begin_products, which orders them behind what the registers and shared memory hold, and
// finish_products, after which the sums may be read and the operands overwritten.
__device__ __forceinline__ void begin_products() {
#if DI_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
template <int kValues>
__device__ __forceinline__ void finish_products(float (&d)[kValues]) {
#if DI_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (float& v : d) asm volatile("" : "+f"(v)::"memory");  // no read moves to the front of the wait
#else
  static_cast<void>(d);
#endif
}

#if DI_WGMMA

// An operand as the matrix units name it: 128-byte swizzle, eight rows are 1024 bytes apart. (The other distance is not
// used by operands of at most 64 columns.)
struct Operand {
  uint32_t low;
};
__device__ __forceinline__ Operand operand(const uint8_t* shared) {
  return {static_cast<uint32_t>(__cvta_generic_to_shared(shared)) >> 4 | 1U << 16};
}
// The operand `bytes` (a multiple of 16) further on.
__device__ __forceinline__ Operand beyond(Operand o, int bytes) {
  return {o.low + static_cast<uint32_t>(bytes / 16)};
}
__device__ __forceinline__ uint64_t descriptor(Operand o) {
  constexpr uint64_t kHigh = uint64_t{64} << 32 | uint64_t{1} << 62;
  return kHigh | o.low;
}

#define DI_IO4(c, d, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define DI_IO16(c, d, i) DI_IO4(c, d, i), DI_IO4(c, d, i + 4), DI_IO4(c, d, i + 8), DI_IO4(c, d, i + 12)
#define DI_REGISTERS16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define DI_REGISTERS32                                                                                              \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
  "%30,%31}"

#define DI_PRODUCT(shape, add, registers, operands, transposed)                                                   \
  "{.reg .pred add; setp.ne.b32 add, " add ", 0; wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 " registers \
  ", " operands ", add, 1, 1, " transposed ";}"

// d (+)= a·b, a and b [64, 16] in panels whose rows are theirs.
template <bool kAdd>
__device__ __forceinline__ void row_product(float (&d)[32], Operand a, Operand b) {
  const uint64_t left = descriptor(a);
  const uint64_t right = descriptor(b);
  if constexpr (kAdd) {
    asm volatile(DI_PRODUCT("m64n64k16", "1", DI_REGISTERS32, "%32, %33", "0, 0")
                 : DI_IO16("+f", d, 0), DI_IO16("+f", d, 16)
                 : "l"(left), "l"(right));
  } else {
    asm volatile(DI_PRODUCT("m64n64k16", "0", DI_REGISTERS32, "%32, %33", "0, 0")
                 : DI_IO16("=&f", d, 0), DI_IO16("=&f", d, 16)
                 : "l"(left), "l"(right));
  }
}

// d (+)= a·b, a in registers, b [16, 64] in a panel whose rows are the depth.
template <bool kAdd>
__device__ __forceinline__ void depth_product(float (&d)[32], const uint32_t (&a)[4], Operand b) {
  const uint64_t right = descriptor(b);
  if constexpr (kAdd) {
    asm volatile(DI_PRODUCT("m64n64k16", "1", DI_REGISTERS32, "{%32,%33,%34,%35}, %36", "1")
                 : DI_IO16("+f", d, 0), DI_IO16("+f", d, 16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right));
  } else {
    asm volatile(DI_PRODUCT("m64n64k16", "0", DI_REGISTERS32, "{%32,%33,%34,%35}, %36", "1")
                 : DI_IO16("=&f", d, 0), DI_IO16("=&f", d, 16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right));
  }
}

// d (+)= a·b, a in registers, b 32 columns in a panel whose rows are these.
template <bool kAdd>
__device__ __forceinline__ void narrow_product(float (&d)[16], const uint32_t (&a)[4], Operand b) {
  const uint64_t right = descriptor(b);
  if constexpr (kAdd) {
    asm volatile(DI_PRODUCT("m64n32k16", "1", DI_REGISTERS16, "{%16,%17,%18,%19}, %20", "0")
                 : DI_IO16("+f", d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right));
  } else {
    asm volatile(DI_PRODUCT("m64n32k16", "0", DI_REGISTERS16, "{%16,%17,%18,%19}, %20", "0")
                 : DI_IO16("=&f", d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right));
  }
}

#else

using Operand = const uint8_t*;
__device__ __forceinline__ Operand operand(const uint8_t* shared) {
  return shared;
}
__device__ __forceinline__ Operand beyond(Operand o, int bytes) {
  return o + bytes;
}

// The unit at `offset` bytes of a panel's rows, seen from `panel`, which may lie inside of its first row: as the
// hardware does it, on the address.
__device__ __forceinline__ const uint16_t* swizzled_unit(const uint8_t* panel, int offset) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(panel) + static_cast<uintptr_t>(offset);
  return reinterpret_cast<const uint16_t*>(at ^ (at >> 7 & 7U) << 4);
}

template <bool kAdd, int kValues>
__device__ __forceinline__ void product_of_rows(float (&d)[kValues], const uint32_t (&a)[4], const uint8_t* b) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int pair = 0; pair < kValues / 8; ++pair) {
    uint32_t r[4];
    load_matrices(r, swizzled_unit(b, (pair * 16 + lane / 16 * 8 + lane % 8) * kPanelRow + lane / 8 % 2 * 16));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float(&tile)[4] = *reinterpret_cast<float(*)[4]>(d + (pair * 2 + half) * 4);
      if (!kAdd) tile[0] = tile[1] = tile[2] = tile[3] = 0.F;
      mma_bf16(tile, a, r[2 * half], r[2 * half + 1]);
    }
  }
}
template <bool kAdd>
__device__ __forceinline__ void row_product(float (&d)[32], Operand a, Operand b) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint32_t left[4];
  load_matrices(left, swizzled_unit(a, static_cast<int>(threadIdx.x / 32 % 4 * 16) * kPanelRow + lane % 16 * kPanelRow +
                                           lane / 16 * 16));
  product_of_rows<kAdd>(d, left, b);
}
template <bool kAdd>
__device__ __forceinline__ void narrow_product(float (&d)[16], const uint32_t (&a)[4], Operand b) {
  product_of_rows<kAdd>(d, a, b);
}
template <bool kAdd>
__device__ __forceinline__ void depth_product(float (&d)[32], const uint32_t (&a)[4], Operand b) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    uint32_t b0;
    uint32_t b1;
    load_transposed(b0, b1, swizzled_unit(b, lane % 16 * kPanelRow + j * 16));
    float(&tile)[4] = *reinterpret_cast<float(*)[4]>(d + j * 4);
    if (!kAdd) tile[0] = tile[1] = tile[2] = tile[3] = 0.F;
    mma_bf16(tile, a, b0, b1);
  }
}

#endif

}  // namespace di::kernels::cuda
