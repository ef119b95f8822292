// NVIDIA devices. The runtime library is linked statically and finds the driver when it is first asked: on a machine
// without one every function here returns an error and nothing else changes (docs/decisions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "device/device.h"

namespace di::device::cuda {

struct Info {
  int32_t index = 0;
  std::string name;
  int32_t major = 0;  // compute capability
  int32_t minor = 0;
  int32_t multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t free_bytes = 0;
};

// Errors (kUnavailable): no driver, no device, no such index, or a device that this program has no code for (9.0 and
// 10.0 are built). The message says which and what was found.
Result<Info> describe(int32_t index);

// Memory of a device. Thread-safe.
Result<std::unique_ptr<Device>> open(int32_t index);

// Host memory that the device reads and writes directly; the fast source and target of copies.
class PinnedBuffer {
 public:
  static Result<PinnedBuffer> allocate(size_t bytes);
  PinnedBuffer() = default;
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A stream of a device, with what orders and times work on it. One thread submits; wait() may be called by any.
class Stream {
 public:
  static Result<Stream> create(int32_t device);
  Stream() = default;
  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void* handle() const { return handle_; }  // cudaStream_t
  // An error of the work submitted so far; a sticky one (kInternal) leaves the device unusable for this process.
  Result<void> wait();

 private:
  void* handle_ = nullptr;
};

class Event {
 public:
  static Result<Event> create(bool timed);
  Event() = default;
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  Result<void> record(Stream& stream);
  Result<void> wait_on(Stream& stream);  // the stream waits, the host does not
  Result<bool> done() const;
  Result<void> wait();
  Result<float> milliseconds_since(const Event& earlier) const;  // both timed and done

 private:
  void* handle_ = nullptr;  // cudaEvent_t
};

// Work captured once and replayed with one call. Everything it reads and writes must stay at its address.
class Graph {
 public:
  // Runs `submit` with the stream in capture; nothing is executed. What it may not do: allocate, wait, copy pageable
  // memory.
  static Result<Graph> capture(Stream& stream, const std::function<void()>& submit);
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Result<void> replay(Stream& stream) const;
  int64_t nodes() const { return nodes_; }

 private:
  void* handle_ = nullptr;  // cudaGraphExec_t
  int64_t nodes_ = 0;
};

}  // namespace di::device::cuda
