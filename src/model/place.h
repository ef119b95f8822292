// Weights on a device whose memory is not the host's: one arena, planned before anything is allocated.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "device/device.h"
#include "device/load.h"
#include "model/config.h"
#include "model/schedule.h"
#include "model/weights.h"

namespace di::model {

// Tables above this size stay in host memory, which the device reads (Engram: a few rows per token).
inline constexpr int64_t kSharedTableBytes = int64_t{4} << 30;

// Bytes of the arena that place_weights makes; 0 on the host.
int64_t placed_bytes(const ModelConfig& config, const Schedule& schedule, ModelWeights& weights,
                     const device::Device& device);

// Copies every bound tensor into one allocation of the device, each at a multiple of 256 bytes, and points `weights` at
// the copies; builds the tables of experts there. On the host it does nothing and returns an empty buffer. The buffer
// must outlive the use of `weights`. Errors: kResourceExhausted names the bytes needed; those of load_ranges.
Result<device::Buffer> place_weights(const ModelConfig& config, const Schedule& schedule, ModelWeights& weights,
                                     device::Device& device, const device::LoadOptions& options = {});

}  // namespace di::model
