// The products of the routed experts without their sum, for expert_parallel.cu.
#pragma once

#include "kernels/ops.h"

namespace di::kernels::cuda {

// With `parts`, and without a shared expert: parts[t, j] as kernels::MoePartsArgs says, `out` is not written; pairs
// with id -1 are passed over. Null: the operator `moe`.
void run_moe(const MoeArgs& a, float* parts, Stream& stream);

}  // namespace di::kernels::cuda
