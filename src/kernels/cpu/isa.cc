#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/prelude.h"

namespace di::kernels::cpu {

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

// There is no AMX table: such a processor has AVX512-BF16 as well and uses that one.
Isa best_isa() {
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi")) return Isa::kAvx512Bf16;
  return avx512 ? Isa::kAvx512 : Isa::kAvx2;
}

const char* name(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

const Ops& ops(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return ops_avx2();
    case Isa::kAvx512:
      return ops_avx512();
    case Isa::kAvx512Bf16:
    case Isa::kAmx:
      return ops_avx512bf16();
  }
  return reference_ops();
}

}  // namespace di::kernels::cpu
