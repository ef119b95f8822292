#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "device/device.h"

namespace di::device {
namespace {

class HostDevice final : public Device {
 public:
  Kind kind() const override { return Kind::kHost; }

  Result<std::byte*> allocate(size_t bytes) override {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      return fail(Errc::kResourceExhausted, "cannot map {} bytes of host memory: {}", bytes, std::strerror(errno));
    }
    return static_cast<std::byte*>(data);
  }

  void release(std::byte* data, size_t bytes) override { munmap(data, bytes); }
};

}  // namespace

std::unique_ptr<Device> make_host_device() {
  return std::make_unique<HostDevice>();
}

}  // namespace di::device
