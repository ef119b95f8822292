#include "model/window.h"

#include <algorithm>
#include <cstring>

namespace di::model {
namespace {

// Open rows before its first position that a group needs: those of the group before, where groups overlap.
int32_t rows_before(const CacheLayout& layout, size_t plane) {
  if (layout.state_rows[plane] == 0) return 0;
  const int32_t needed = layout.state_rows[plane] - layout.options.max_backtracking + 1;
  return needed - layout.planes[plane].ratio;
}

// Calls f(offset in the slot, bytes) for every piece, in the order of the stored form.
template <class F>
void for_each_piece(const CacheLayout& layout, const WindowForm& form, int32_t position, F f) {
  const int64_t record = kernels::record_bytes(layout.swa_format, layout.head_dim);
  for (int32_t ring = 0; ring < form.n_rings; ++ring) {
    for (int32_t p = std::max(0, position - form.window); p < position; ++p) {
      f(layout.ring_bytes * ring + record * (p % layout.ring_rows), record);
    }
  }
  for (size_t i = 0; i < layout.planes.size(); ++i) {
    const int32_t group = position / layout.planes[i].ratio * layout.planes[i].ratio;
    for (int32_t p = std::max(0, group - rows_before(layout, i)); p < position; ++p) {
      const auto row = [&](int64_t offset, int32_t width) {
        if (offset < 0) return;
        const int64_t bytes = int64_t{2} * width * 4;
        f(offset + bytes * (p % layout.state_rows[i]), bytes);
      };
      row(layout.state_offset[i], layout.state_width[i]);
      row(layout.index_state_offset[i], layout.index_state_width[i]);
    }
  }
}

}  // namespace

void copy_on_host(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

int64_t window_bytes(const CacheLayout& layout, const WindowForm& form) {
  return window_bytes(layout, form, (form.window / layout.options.block_tokens + 1) * layout.options.block_tokens);
}

int64_t window_bytes(const CacheLayout& layout, const WindowForm& form, int32_t position) {
  int64_t bytes = 0;
  for_each_piece(layout, form, position, [&](int64_t, int64_t n) { bytes += n; });
  return bytes;
}

void save_window(const KvCache& cache, const WindowForm& form, int32_t slot, int32_t position, std::span<std::byte> out,
                 const CopyBytes& copy) {
  DI_CHECK(static_cast<int64_t>(out.size()) == window_bytes(cache.layout(), form, position), "a window of {} bytes",
           out.size());
  std::byte* to = out.data();
  for_each_piece(cache.layout(), form, position, [&](int64_t offset, int64_t n) {
    copy(to, cache.slot(slot) + offset, static_cast<size_t>(n));
    to += n;
  });
}

void load_window(KvCache& cache, const WindowForm& form, int32_t slot, int32_t position,
                 std::span<const std::byte> bytes, const CopyBytes& copy) {
  DI_CHECK(static_cast<int64_t>(bytes.size()) == window_bytes(cache.layout(), form, position), "a window of {} bytes",
           bytes.size());
  const std::byte* from = bytes.data();
  for_each_piece(cache.layout(), form, position, [&](int64_t offset, int64_t n) {
    copy(cache.slot(slot) + offset, from, static_cast<size_t>(n));
    from += n;
  });
}

}  // namespace di::model
