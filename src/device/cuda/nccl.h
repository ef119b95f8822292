// A group of NVIDIA devices of this process: exchanges run over NCCL, host values over the memory that the ranks share.
// The library is looked for (libnccl.so.2) when a group is made, not when the program starts.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/group.h"

namespace di::device::cuda {

// Rank r on devices[r]. Waits until the devices are connected. An exchange is captured like other work, sends and
// receives of one call are one operation, and its sizes must be the same for all ranks that take part (in a graph all
// of them must replay). fail() takes the work that waits for a peer off the devices. Errors (kUnavailable): no library,
// or what NCCL says.
Result<std::vector<std::unique_ptr<Group>>> make_nccl_group(std::span<const int32_t> devices,
                                                            std::chrono::milliseconds timeout);
// "NCCL 2.28.9", or why there is none.
Result<std::string> nccl_version();

}  // namespace di::device::cuda
