// The operators for AVX-512 (F, BW, DQ, VL).
#include "kernels/cpu/simd/prelude.h"

#define DI_CPU_ISA avx512
#define DI_CPU_AVX512 1
#define DI_CPU_BF16_DOT 0
#define DI_CPU_TILES 0

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl")
#endif
#include "kernels/cpu/simd/kernels.inl.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace di::kernels::cpu {

const Ops& ops_avx512() {
  static const Ops table = avx512::make_ops("cpu-avx512");
  return table;
}

Probe probe_avx512() {
  return avx512::make_probe();
}

}  // namespace di::kernels::cpu
