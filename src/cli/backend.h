// What computes: an operator table with its stream and memory, chosen by the name that --device takes.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "device/group.h"
#include "kernels/ops.h"

namespace di::cli {

// Members are in the order they are made.
struct Backend {
  std::unique_ptr<ThreadPool> pool;  // of the CPU's operators; null elsewhere
  std::shared_ptr<kernels::Stream> stream;
  std::unique_ptr<device::Device> device;
  const kernels::Ops* ops = nullptr;
  int32_t index = -1;  // of an NVIDIA device
  std::string place;   // "2 threads", "cuda:0 NVIDIA H200"
};

// name: cpu, cuda or cuda:N. `reference`: the plain operators that define the results, on the CPU only. Errors:
// kInvalid- Request for a name of another form, kUnavailable when the program or the machine has no such device.
Result<Backend> open_backend(std::string_view name, int threads, bool reference);

// Several devices of one kind, one rank of a group each: their names, separated by commas (cuda:0,cuda:1; cpu,cpu).
// `groups` is empty for one device. The CPU's ranks share the threads.
struct Ranks {
  std::vector<Backend> backends;
  std::vector<std::unique_ptr<device::Group>> groups;
};
Result<Ranks> open_ranks(std::string_view names, int threads, bool reference, std::chrono::milliseconds timeout);

}  // namespace di::cli
