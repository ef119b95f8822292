// The fast tables that this processor runs.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cpu/cpu.h"

namespace di::kernels::test {

// With the emulated AMX table where AVX512-BF16 is there: the logic of the tiles is tested without them as well.
inline std::vector<const Ops*> cpu_tables() {
  std::vector<const Ops*> tables;
  if (!cpu::has_avx2()) return tables;
  for (const cpu::Isa isa : {cpu::Isa::kAvx2, cpu::Isa::kAvx512, cpu::Isa::kAvx512Bf16, cpu::Isa::kAmx}) {
    if (isa <= cpu::best_isa()) tables.push_back(&cpu::ops(isa));
  }
  if (cpu::best_isa() >= cpu::Isa::kAvx512Bf16) tables.push_back(&cpu::emulated_amx_ops());
  return tables;
}

// The name of a table as part of a test's.
inline std::string test_name(const Ops& ops) {
  std::string name = ops.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace di::kernels::test
