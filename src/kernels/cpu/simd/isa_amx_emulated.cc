// The AMX table with its tile instructions written out: needs AVX-512 with VBMI and BF16 only.
#include "kernels/cpu/simd/prelude.h"

#define DI_CPU_ISA amx_emulated
#define DI_CPU_AVX512 1
#define DI_CPU_BF16_DOT 1
#define DI_CPU_TILES 1
#define DI_CPU_TILES_EMULATED 1

#ifdef __clang__
#pragma clang attribute push(                                                                               \
    __attribute__((target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16")
#endif
#include "kernels/cpu/simd/kernels.inl.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace di::kernels::cpu {

const Ops& emulated_amx_ops() {
  static const Ops table = amx_emulated::make_ops("cpu-amx-emulated");
  return table;
}

}  // namespace di::kernels::cpu
