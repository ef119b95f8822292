// Everything the kernels of one instruction set use. Included before the target region starts, so that inline functions
// of these headers keep the base instruction set: a linker may take any one copy of them for the whole program.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/numeric.h"
#include "base/result.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/expert_parallel.h"
#include "kernels/cpu/plan.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/stream.h"

namespace di::kernels::cpu {

// Arithmetic ceilings of one worker, for benchmarks: each call does n rounds of `…_flops` operations. pairs is null
// without the bf16 instruction, tiles without the matrix unit.
struct Probe {
  float (*wide)(int64_t n);
  float (*pairs)(int64_t n);
  float (*tiles)(int64_t n);
  double wide_flops;
  double pair_flops;
  double tile_flops;
};
Probe probe_avx2();
Probe probe_avx512();
Probe probe_avx512bf16();
Probe probe_amx();

// The tables of the instruction sets; `ops()` picks one.
const Ops& ops_avx2();
const Ops& ops_avx512();
const Ops& ops_avx512bf16();
const Ops& ops_amx();

}  // namespace di::kernels::cpu
