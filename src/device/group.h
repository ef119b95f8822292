// A group of ranks that compute one step together: expert parallelism's collectives behind one interface. Ranks are
// threads of this process, each with its own device (local ranks: host memory; src/device/cuda/nccl.h: NVIDIA devices).
//
// Every member but fail() and error() is a collective: all ranks call the same ones in the same order. A rank that
// fails, or does not come within the time-out, ends the group: every call of every rank returns the first error from
// then on, and nobody waits for ever. Each rank uses its own object from one thread; fail() and error() may be called
// from any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace di::device {

// What goes to one peer and what comes from it in an exchange; both in the rank's device memory. A peer may stand in
// several pieces: its n-th piece for a rank meets that rank's n-th piece for it. The rank itself may be the peer: a
// copy.
struct Piece {
  int32_t peer = 0;
  const void* send = nullptr;
  int64_t send_bytes = 0;
  void* receive = nullptr;
  int64_t receive_bytes = 0;
};

class Group {
 public:
  virtual ~Group() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;

  // All-to-all with the sizes that the callers know, in the order of `stream` (the device's own handle; null on the
  // host, where it has finished on return). The memory must stay as it is until then. Ranks that disagree about a size
  // are an error (on devices only where that is seen before anything runs).
  virtual Result<void> exchange(std::span<const Piece> pieces, void* stream) = 0;

  // Host values of all ranks, [size, values.size()] by rank. The same number everywhere.
  virtual Result<std::vector<int64_t>> gather(std::span<const int64_t> values) = 0;

  // Ends the group; the first error counts.
  virtual void fail(Error error) = 0;
  virtual std::optional<Error> error() const = 0;
};

// One member for each rank, whose pieces lie in host memory.
std::vector<std::unique_ptr<Group>> make_local_group(int32_t size, std::chrono::milliseconds timeout);

}  // namespace di::device
