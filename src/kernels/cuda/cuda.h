// The CUDA backend: operators on the stored formats, correct for every shape, with the same arithmetic as the reference
// up to the order of sums. A stream is one of the driver's; operators return before they have run.
//
// The sources also build without a CUDA toolkit against a sequential emulation (tests/kernels/cuda_emulation).
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/cuda/cuda.h"
#include "kernels/ops.h"

namespace di::kernels::cuda {

const Ops& ops();

struct StreamDeleter {
  void operator()(Stream* stream) const;
};
using StreamPtr = std::unique_ptr<Stream, StreamDeleter>;

// A stream on device `index` with pinned memory for its copies. The error names what is missing.
Result<StreamPtr> make_stream(int32_t index);
// Work of the stream is captured instead of run, or timed: device/cuda has graphs and events for it.
device::cuda::Stream& device_stream(Stream& stream);

}  // namespace di::kernels::cuda
