// Everything the kernels of one instruction set use. Included before the target region starts, so that inline functions of
// these headers keep the base instruction set: a linker may take any one copy of them for the whole program.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/numeric.h"
#include "base/result.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/plan.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/stream.h"

namespace di::kernels::cpu {

// The tables of the instruction sets; `ops()` picks one.
const Ops& ops_avx2();
const Ops& ops_avx512();
const Ops& ops_avx512bf16();

}  // namespace di::kernels::cpu
