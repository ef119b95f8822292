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

class Device {
 public:
  virtual ~Device() = default;
  virtual Kind kind() const = 0;
  // 64-byte aligned, zero-filled on first use. resource_exhausted names the bytes asked for.
  virtual Result<std::byte*> allocate(size_t bytes) = 0;
  virtual void release(std::byte* data, size_t bytes) = 0;
  // Fills memory of the device before anything runs on it (weights); has finished when it returns.
  virtual Result<void> load(std::byte* to, const std::byte* from, size_t bytes);
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
