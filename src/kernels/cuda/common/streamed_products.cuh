// The products of streamed.cuh: several groups of them under way at once, the left operand in registers (widened there)
// or in a panel, the right one a panel of 8·kTiles rows (warpgroup.cuh has the panels and the fragments).
#pragma once

#include "kernels/cuda/common/warpgroup.cuh"

namespace di::kernels::cuda {

#if DI_WGMMA

__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Returns when all but the last kGroups committed groups of the warpgroup are done.
template <int kGroups>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

#define DI_SUM4(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define DI_SUM16(j) DI_SUM4(j), DI_SUM4(j + 1), DI_SUM4(j + 2), DI_SUM4(j + 3)

#define DI_REGISTERS8 "{%0,%1,%2,%3,%4,%5,%6,%7}"
#define DI_REGISTERS64                                                                                               \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"  \
  "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57," \
  "%58,%59,%60,%61,%62,%63}"

// d += a·bᵀ, sixteen columns of depth; b the rows of the operand that its descriptor names, a in registers (`fragment`,
// then b is operand `right`) or in shared memory too (`left`, then b is `next`). The sums come last.
#define DI_WARPGROUP_PRODUCT(tiles, columns, registers, fragment, right, left, next, ...)                            \
  __device__ __forceinline__ void warpgroup_product(float(&d)[tiles][4], const uint32_t(&a)[4], uint64_t b) {        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 " registers ", " fragment ", " right \
                 ", 1, 1, 1, 0;"                                                                                     \
                 : __VA_ARGS__                                                                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                              \
  }                                                                                                                  \
  __device__ __forceinline__ void warpgroup_product(float(&d)[tiles][4], uint64_t a, uint64_t b) {                   \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 " registers ", " left ", " next      \
                 ", 1, 1, 1, 0, 0;"                                                                                  \
                 : __VA_ARGS__                                                                                       \
                 : "l"(a), "l"(b));                                                                                  \
  }
DI_WARPGROUP_PRODUCT(2, "16", DI_REGISTERS8, "{%8,%9,%10,%11}", "%12", "%8", "%9", DI_SUM4(0), DI_SUM4(1))
DI_WARPGROUP_PRODUCT(4, "32", DI_REGISTERS16, "{%16,%17,%18,%19}", "%20", "%16", "%17", DI_SUM16(0))
DI_WARPGROUP_PRODUCT(8, "64", DI_REGISTERS32, "{%32,%33,%34,%35}", "%36", "%32", "%33", DI_SUM16(0), DI_SUM16(4))
DI_WARPGROUP_PRODUCT(16, "128", DI_REGISTERS64, "{%64,%65,%66,%67}", "%68", "%64", "%65", DI_SUM16(0), DI_SUM16(4),
                     DI_SUM16(8), DI_SUM16(12))
#undef DI_WARPGROUP_PRODUCT
#undef DI_REGISTERS64
#undef DI_REGISTERS8
#undef DI_SUM16
#undef DI_SUM4

#else

__device__ __forceinline__ void commit_products() {}
template <int kGroups>
__device__ __forceinline__ void wait_products() {}

#endif

// d += a·bᵀ for sixteen columns of depth: `step` of the four of operand `b`.
template <int kTiles>
__device__ __forceinline__ void operand_product(float (&d)[kTiles][4], const uint32_t (&a)[4], Operand b, int step) {
#if DI_WGMMA
  warpgroup_product(d, a, descriptor(beyond(b, step * 32)));
#else
  const int group = static_cast<int>(threadIdx.x % 32 / 4);
  const int quad = static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const uint8_t* row = b + quad * 4;
    mma_bf16(d[j], a, *reinterpret_cast<const uint32_t*>(row + panel_offset(j * 8 + group, step * 2)),
             *reinterpret_cast<const uint32_t*>(row + panel_offset(j * 8 + group, step * 2 + 1)));
  }
#endif
}

// The same with the warpgroup's 64 rows of a in shared memory.
template <int kTiles>
__device__ __forceinline__ void operand_product(float (&d)[kTiles][4], Operand a, Operand b, int step) {
#if DI_WGMMA
  warpgroup_product(d, descriptor(beyond(a, step * 32)), descriptor(beyond(b, step * 32)));
#else
  const int row = static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
  const uint8_t* from = a + threadIdx.x % 4 * 4;
  uint32_t fragment[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    fragment[i] = *reinterpret_cast<const uint32_t*>(from + panel_offset(row + i % 2 * 8, step * 2 + i / 2));
  }
  operand_product(d, fragment, b, step);
#endif
}

}  // namespace di::kernels::cuda
