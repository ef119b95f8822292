// The CUDA backend: operators on the stored formats, correct for every shape, with the same arithmetic as the reference
// up to the order of sums. A stream is one of the driver's; operators return before they have run.
//
// The sources also build without a CUDA toolkit against a sequential emulation (tests/kernels/cuda_emulation).
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace di::kernels::cuda {

const Ops& ops();

}  // namespace di::kernels::cuda
