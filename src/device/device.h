// Memory of one compute device. The CPU "device" is the host itself; CUDA and Ascend bring their own. Operators are
// ordered on the backend's kernels::Stream; this interface is only for memory that lives long: caches and workspaces.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"

namespace di::device {

enum class Kind : uint8_t { kHost, kCuda, kAscend };

// One thread's way into a device's memory: host buffers of one size, filled while those before them are on their way.
class LoadLane {
 public:
  virtual ~LoadLane() = default;
  // The next buffer to fill; waits until what was last sent from it has arrived.
  virtual Result<std::byte*> buffer() = 0;
  // Sends a range of the buffer given last.
  virtual Result<void> send(std::byte* to, const std::byte* from, size_t bytes) = 0;
  // Waits for everything that was sent.
  virtual Result<void> finish() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual Kind kind() const = 0;
  // Bytes that allocations can still have; INT64_MAX where the device sets no limit.
  virtual Result<int64_t> free_bytes() const;
  // 64-byte aligned, zero-filled on first use. resource_exhausted names the bytes asked for.
  virtual Result<std::byte*> allocate(size_t bytes) = 0;
  virtual void release(std::byte* data, size_t bytes) = 0;
  // Fills memory of the device before anything runs on it (weights); has finished when it returns.
  virtual Result<void> load(std::byte* to, const std::byte* from, size_t bytes);
  // The same from several threads at once (device/load.h), each with a lane of its own.
  virtual Result<std::unique_ptr<LoadLane>> open_lane(size_t buffer_bytes);
  // Inside the device's memory, ranges apart; after what `load` has put there; has finished when it returns.
  virtual Result<void> copy(std::byte* to, const std::byte* from, size_t bytes);
  // Where the operators read host data that stays where it is (tables too large for the device). The range must outlive
  // the device.
  virtual Result<const std::byte*> share(const std::byte* data, size_t bytes);
};

// Pages are mapped lazily: memory that is never touched is never resident.
std::unique_ptr<Device> make_host_device();

// An owned allocation.
class Buffer {
 public:
  Buffer() = default;
  static Result<Buffer> allocate(Device& device, size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace di::device
