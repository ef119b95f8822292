#include "device/device.h"

#include <climits>
#include <cstring>
#include <utility>
#include <vector>

namespace di::device {
namespace {

// Of a device that `load` reaches.
class PlainLane final : public LoadLane {
 public:
  PlainLane(Device& device, size_t bytes) : device_(device), buffer_(bytes) {}
  Result<std::byte*> buffer() override { return buffer_.data(); }
  Result<void> send(std::byte* to, const std::byte* from, size_t bytes) override {
    return device_.load(to, from, bytes);
  }
  Result<void> finish() override { return {}; }

 private:
  Device& device_;
  std::vector<std::byte> buffer_;
};

}  // namespace

Result<int64_t> Device::free_bytes() const {
  return INT64_MAX;
}

Result<void> Device::load(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return {};
}

Result<std::unique_ptr<LoadLane>> Device::open_lane(size_t buffer_bytes) {
  return std::make_unique<PlainLane>(*this, buffer_bytes);
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
