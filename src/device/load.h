// Weights into a device's memory by several threads: each reads pieces of the checkpoint into its lane's buffers and
// sends them, so that reading, copying and the bus work at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "device/device.h"

namespace di::device {

struct LoadRange {
  std::byte* to = nullptr;  // of the device
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

struct LoadOptions {
  int32_t threads = 0;                   // 0: the usable cores, 8 at most
  size_t piece_bytes = size_t{4} << 20;  // of a lane's buffer; more than one range may share one
  // Copies host bytes from `from`, which lies in a range, into a buffer; called by several threads at once. Empty:
  // memcpy.
  std::function<Result<void>(std::byte* to, const std::byte* from, size_t bytes)> read = {};
  // Bytes that were sent so far, ascending; never called by two threads at once.
  std::function<void(int64_t done)> progress = {};
};

// Has finished when it returns. What the device holds does not depend on the options. Errors are those of reading, of
// the device, and kUnavailable when no thread can be started; then part of the ranges may be there.
Result<void> load_ranges(Device& device, std::span<const LoadRange> ranges, const LoadOptions& options = {});

}  // namespace di::device
