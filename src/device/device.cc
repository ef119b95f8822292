#include "device/device.h"

#include <cstring>
#include <utility>

namespace di::device {

Result<void> Device::load(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return {};
}

Result<void> Device::copy(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return {};
}

Result<const std::byte*> Device::share(const std::byte* data, size_t) {
  return data;
}

Result<Buffer> Buffer::allocate(Device& device, size_t bytes) {
  Buffer buffer;
  buffer.device_ = &device;
  buffer.size_ = bytes;
  if (bytes > 0) buffer.data_ = DI_TRY(device.allocate(bytes));
  return buffer;
}

Buffer::~Buffer() {
  if (data_ != nullptr) device_->release(data_, size_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) device_->release(data_, size_);
    device_ = other.device_;
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

}  // namespace di::device
