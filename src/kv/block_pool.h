// Ids of equal pieces of memory: KV blocks and state slots (engine.md §6.1). The pool counts owners; it does not touch
// the memory. Id 0 is reserved (null block, padding slot). Free ids are handed out in the order they came back, so that
// a freed piece stays untouched as long as possible. Owned by the engine's thread; not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace di::kv {

class BlockPool {
 public:
  // Ids 1 … n-1 are usable.
  explicit BlockPool(int32_t n);

  int32_t free_count() const { return static_cast<int32_t>(free_.size()); }
  int32_t used_count() const { return capacity() - free_count(); }
  int32_t capacity() const { return static_cast<int32_t>(owners_.size()) - 1; }

  int32_t owners(int32_t id) const { return owners_[static_cast<size_t>(id)]; }

  // There must be a free id (checked). The caller owns it once.
  int32_t allocate();
  // One more owner of an id in use.
  void share(int32_t id);
  // One owner less; the last one frees it.
  void release(int32_t id);
  // A sequence's blocks, last one first.
  void release_all(std::span<const int32_t> ids);

  // Aborts when counts and free list disagree.
  void check() const;

 private:
  std::vector<int32_t> owners_;  // [n]; 0 = free; [0] is pinned
  std::deque<int32_t> free_;     // exactly the ids with 0 owners
};

}  // namespace di::kv
