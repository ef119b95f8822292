#include "kv/block_pool.h"

#include "base/result.h"

namespace di::kv {

BlockPool::BlockPool(int32_t n) {
  DI_CHECK(n >= 2, "a pool needs a null id and one more, asked for {}", n);
  owners_.assign(static_cast<size_t>(n), 0);
  owners_[0] = 1;
  for (int32_t id = 1; id < n; ++id) free_.push_back(id);
}

int32_t BlockPool::allocate() {
  DI_CHECK(!free_.empty(), "the pool of {} is used up", capacity());
  const int32_t id = free_.front();
  free_.pop_front();
  owners_[static_cast<size_t>(id)] = 1;
  return id;
}

void BlockPool::share(int32_t id) {
  DI_CHECK(id > 0 && id <= capacity() && owners_[static_cast<size_t>(id)] > 0, "id {} is not in use", id);
  ++owners_[static_cast<size_t>(id)];
}

void BlockPool::release(int32_t id) {
  DI_CHECK(id > 0 && id <= capacity() && owners_[static_cast<size_t>(id)] > 0, "id {} is not in use", id);
  if (--owners_[static_cast<size_t>(id)] == 0) free_.push_back(id);
}

void BlockPool::release_all(std::span<const int32_t> ids) {
  for (auto it = ids.rbegin(); it != ids.rend(); ++it) release(*it);
}

void BlockPool::check() const {
  std::vector<uint8_t> listed(owners_.size(), 0);
  for (const int32_t id : free_) {
    DI_CHECK(id > 0 && id <= capacity(), "free list holds id {}", id);
    DI_CHECK(listed[static_cast<size_t>(id)] == 0, "id {} is free twice", id);
    listed[static_cast<size_t>(id)] = 1;
    DI_CHECK(owners_[static_cast<size_t>(id)] == 0, "free id {} has {} owners", id, owners_[static_cast<size_t>(id)]);
  }
  for (size_t id = 1; id < owners_.size(); ++id) {
    DI_CHECK((owners_[id] == 0) == (listed[id] == 1), "id {} has {} owners and is {}listed as free", id, owners_[id],
             listed[id] == 1 ? "" : "not ");
  }
}

}  // namespace di::kv
