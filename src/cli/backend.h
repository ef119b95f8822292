// What computes: an operator table with its stream and memory, chosen by the name that --device takes.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "kernels/ops.h"

namespace di::cli {

// Members are in the order they are made.
struct Backend {
  std::unique_ptr<ThreadPool> pool;  // of the CPU's operators; null elsewhere
  std::shared_ptr<kernels::Stream> stream;
  std::unique_ptr<device::Device> device;
  const kernels::Ops* ops = nullptr;
  std::string place;          // "2 threads", "cuda:0 NVIDIA H200"
  int64_t memory_for_kv = 0;  // bytes of the device that KV may take when no size is given; 0: the host decides
};

// name: cpu, cuda or cuda:N. `reference`: the plain operators that define the results, on the CPU only. Errors:
// kInvalid- Request for a name of another form, kUnavailable when the program or the machine has no such device.
Result<Backend> open_backend(std::string_view name, int threads, bool reference);

}  // namespace di::cli
