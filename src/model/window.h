// The sliding windows of a state slot as bytes in host memory (kv-cache.md §6.1): for each ring the records of the last
// W positions before a block boundary, then the compressor rows that the group behind the boundary still needs (none
// for V4.1's ratios, four for V4's overlapping groups). Entries of the roll-back rows are left out.
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

int64_t window_bytes(const CacheLayout& layout, const WindowForm& form);

// The window at `position`, a multiple of the ratios and at least W. The slot must have computed the positions before
// it and no more than max_backtracking rows beyond (accepted or not).
void save_window(const KvCache& cache, const WindowForm& form, int32_t slot, int32_t position, std::span<std::byte> out,
                 const CopyBytes& copy = copy_on_host);
// Puts the slot where save_window() found it, in the stored rings.
void load_window(KvCache& cache, const WindowForm& form, int32_t slot, int32_t position,
                 std::span<const std::byte> bytes, const CopyBytes& copy = copy_on_host);

}  // namespace di::model
