// Scratch memory of a forward pass: a stack of buffers on the device. Buffers live until the mark before them is
// released, so that layers reuse the same bytes. It grows by slabs until the largest step has been seen and allocates
// nothing after. One forward at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "kernels/tensor.h"

namespace di::model {

class Workspace {
 public:
  explicit Workspace(device::Device& device, size_t slab_bytes = size_t{8} << 20)
      : device_(&device), slab_bytes_(slab_bytes) {}

  // Told why when the device has no memory left; what is taken then may not be touched by anybody. Without it that
  // aborts.
  void on_full(std::function<void(const Error&)> told) { on_full_ = std::move(told); }

  // A contiguous matrix; contents undefined.
  kernels::Tensor tensor(int64_t rows, int64_t cols, kernels::DType dtype);
  template <class T>
  T* array(int64_t n) {
    return static_cast<T*>(bytes(n * static_cast<int64_t>(sizeof(T))));
  }

  struct Mark {
    size_t slab = 0;
    size_t used = 0;
  };
  Mark mark() const { return {slab_, used_}; }
  void release(Mark mark);

  size_t bytes_held() const;

 private:
  void* bytes(int64_t n);

  device::Device* device_;
  size_t slab_bytes_;
  std::function<void(const Error&)> on_full_;
  std::vector<device::Buffer> slabs_;
  size_t slab_ = 0;  // current slab; valid when slabs_ is not empty
  size_t used_ = 0;  // bytes of it
};

// Releases at the end of a scope what was taken in it.
class Scope {
 public:
  explicit Scope(Workspace& workspace) : workspace_(&workspace), mark_(workspace.mark()) {}
  ~Scope() { workspace_->release(mark_); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Workspace* workspace_;
  Workspace::Mark mark_;
};

}  // namespace di::model
