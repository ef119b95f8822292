#include "model/window.h"

#include <cstring>

namespace di::model {
namespace {

// Open rows before an aligned position that its group needs: those of the group before, where groups overlap.
int32_t rows_before(const CacheLayout& layout, size_t plane) {
  if (layout.state_rows[plane] == 0) return 0;
  const int32_t needed = layout.state_rows[plane] - layout.options.max_backtracking + 1;
  return needed - layout.planes[plane].ratio;
}

// Calls f(slot bytes, their size) for every piece, in the order of the stored form.
template <class F>
void for_each_piece(const KvCache& cache, const WindowForm& form, int32_t slot, int32_t position, F f) {
  const CacheLayout& layout = cache.layout();
  DI_CHECK(position >= form.window && form.window > 0, "a window of {} at position {}", form.window, position);
  std::byte* base = cache.slot(slot);
  const int64_t record = kernels::record_bytes(layout.swa_format, layout.head_dim);
  for (int32_t ring = 0; ring < form.n_rings; ++ring) {
    for (int32_t p = position - form.window; p < position; ++p) {
      f(base + layout.ring_bytes * ring + record * (p % layout.ring_rows), static_cast<size_t>(record));
    }
  }
  for (size_t i = 0; i < layout.planes.size(); ++i) {
    for (int32_t p = position - rows_before(layout, i); p < position; ++p) {
      const auto row = [&](int64_t offset, int32_t width) {
        if (offset < 0) return;
        const int64_t bytes = int64_t{2} * width * 4;
        f(base + offset + bytes * (p % layout.state_rows[i]), static_cast<size_t>(bytes));
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
  int64_t bytes = kernels::record_bytes(layout.swa_format, layout.head_dim) * form.window * form.n_rings;
  for (size_t i = 0; i < layout.planes.size(); ++i) {
    const int64_t width = (layout.state_offset[i] < 0 ? 0 : layout.state_width[i]) +
                          (layout.index_state_offset[i] < 0 ? 0 : layout.index_state_width[i]);
    bytes += width * 2 * 4 * rows_before(layout, i);
  }
  return bytes;
}

void save_window(const KvCache& cache, const WindowForm& form, int32_t slot, int32_t position, std::span<std::byte> out,
                 const CopyBytes& copy) {
  DI_CHECK(static_cast<int64_t>(out.size()) == window_bytes(cache.layout(), form), "a window of {} bytes", out.size());
  std::byte* to = out.data();
  for_each_piece(cache, form, slot, position, [&](const std::byte* from, size_t n) {
    copy(to, from, n);
    to += n;
  });
}

void load_window(KvCache& cache, const WindowForm& form, int32_t slot, int32_t position,
                 std::span<const std::byte> bytes, const CopyBytes& copy) {
  DI_CHECK(static_cast<int64_t>(bytes.size()) == window_bytes(cache.layout(), form), "a window of {} bytes",
           bytes.size());
  const std::byte* from = bytes.data();
  for_each_piece(cache, form, slot, position, [&](std::byte* to, size_t n) {
    copy(to, from, n);
    from += n;
  });
}

}  // namespace di::model
