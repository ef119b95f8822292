// The state of a slot at one position as bytes in host memory (kv-cache.md §6.1, §8.1): for each ring the records of
// the last W positions before it, then the compressor rows that the groups behind it still need: at a block boundary
// none for V4.1's ratios and four for V4's overlapping groups, elsewhere those of the open group too. Entries of the
// roll-back rows are left out, so the two slots need not have as many of them.
//
// Called by the device's thread between forward passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "model/cache.h"

namespace di::model {

// Moves bytes between the cache's memory and the host's (Forward::read and write where those differ).
using CopyBytes = std::function<void(void* to, const void* from, size_t bytes)>;
void copy_on_host(void* to, const void* from, size_t bytes);

struct WindowForm {
  int32_t window = 0;   // W
  int32_t n_rings = 0;  // rings [0, n_rings) are stored: all of the layout, or those up to the boundary layer
};

// At a block boundary that is at least W; at any position.
int64_t window_bytes(const CacheLayout& layout, const WindowForm& form);
int64_t window_bytes(const CacheLayout& layout, const WindowForm& form, int32_t position);

// The slot must have computed the positions before `position` and no more than max_backtracking rows beyond (accepted
// or not). `out`: of window_bytes() at this position.
void save_window(const KvCache& cache, const WindowForm& form, int32_t slot, int32_t position, std::span<std::byte> out,
                 const CopyBytes& copy = copy_on_host);
// Puts the slot where save_window() found it, in the stored rings.
void load_window(KvCache& cache, const WindowForm& form, int32_t slot, int32_t position,
                 std::span<const std::byte> bytes, const CopyBytes& copy = copy_on_host);

}  // namespace di::model
