#include "model/workspace.h"

#include <algorithm>

namespace di::model {
namespace {

// Aligned as memory would be; an address that nobody may use.
void* const kNowhere = reinterpret_cast<void*>(uintptr_t{64} << 10);

}  // namespace

void* Workspace::bytes(int64_t n) {
  const size_t need = (static_cast<size_t>(std::max<int64_t>(n, 1)) + 63) / 64 * 64;
  while (slab_ < slabs_.size() && used_ + need > slabs_[slab_].size()) {
    ++slab_;
    used_ = 0;
  }
  if (slab_ == slabs_.size()) {
    auto slab = device::Buffer::allocate(*device_, std::max(slab_bytes_, need));
    if (!slab && on_full_) {
      on_full_(slab.error());
      used_ = 0;
      return kNowhere;
    }
    DI_CHECK(slab.has_value(), "workspace: {}", slab.error().message);
    slabs_.push_back(std::move(*slab));
    used_ = 0;
  }
  void* data = slabs_[slab_].data() + used_;
  used_ += need;
  return data;
}

kernels::Tensor Workspace::tensor(int64_t rows, int64_t cols, kernels::DType dtype) {
  kernels::Tensor t;
  t.data = bytes(rows * cols * kernels::size_of(dtype));
  t.dtype = dtype;
  t.rows = rows;
  t.cols = cols;
  t.stride = cols;
  return t;
}

void Workspace::release(Mark mark) {
  slab_ = mark.slab;
  used_ = mark.used;
}

size_t Workspace::bytes_held() const {
  size_t total = 0;
  for (const device::Buffer& slab : slabs_) total += slab.size();
  return total;
}

}  // namespace di::model
