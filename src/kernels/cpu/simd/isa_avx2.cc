// The operators for AVX2 with FMA and F16C.
#include "kernels/cpu/simd/prelude.h"

#define DI_CPU_ISA avx2
#define DI_CPU_AVX512 0
#define DI_CPU_BF16_DOT 0
#define DI_CPU_TILES 0

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2")
#endif
#include "kernels/cpu/simd/kernels.inl.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace di::kernels::cpu {

const Ops& ops_avx2() {
  static const Ops table = avx2::make_ops("cpu-avx2");
  return table;
}

Probe probe_avx2() {
  return avx2::make_probe();
}

}  // namespace di::kernels::cpu
