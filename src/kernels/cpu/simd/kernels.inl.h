// The kernels of one instruction set, in a namespace of its own. An isa_*.cc defines DI_CPU_ISA (namespace), DI_CPU_AVX512 and
// DI_CPU_BF16_DOT (0 or 1), opens the target region and includes this file once.

namespace di::kernels::cpu::DI_CPU_ISA {

#include "kernels/cpu/simd/tasks.inl.h"
#if DI_CPU_AVX512
#include "kernels/cpu/simd/simd_avx512.inl.h"
#else
#include "kernels/cpu/simd/simd_avx2.inl.h"
#endif
#include "kernels/cpu/simd/math.inl.h"
#include "kernels/cpu/simd/gemm.inl.h"
#include "kernels/cpu/simd/moe.inl.h"
#include "kernels/cpu/simd/attention.inl.h"

inline Ops make_ops(const char* name) {
  Ops ops = reference_ops();
  ops.name = name;
  ops.linear = linear;
  ops.grouped_linear = grouped_linear;
  ops.moe = moe;
  ops.attention = attention;
  return ops;
}

}  // namespace di::kernels::cpu::DI_CPU_ISA
