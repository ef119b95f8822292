#include "kernels/cpu/ref/common.h"
#include "kernels/cpu/ref/ref.h"

namespace di::kernels::cpu::ref {

// kv = RMSNorm(kv, norm) →bf16; rope(kv[D-rd:]) →bf16; record (model.md §5.4)
void swa_store(const SwaStoreArgs& a, Stream&) {
  const int64_t d = a.kv.cols;
  DI_CHECK(a.norm.cols == d && a.rope_dim <= d, "kv of {} columns, norm {}, rope {}", d, a.norm.cols, a.rope_dim);
  const std::vector<float> norm = read_vector(a.norm);
  const int64_t bytes = record_bytes(a.format, d);
  std::vector<float> buffer;
  std::vector<float> kv(static_cast<size_t>(d));
  for (int64_t t = 0; t < a.kv.rows; ++t) {
    rms_norm_row(read_row(a.kv, t, buffer), norm.data(), d, a.norm_eps, kv.data());
    if (a.round_bf16) round_row(kv.data(), d);
    rotate(kv.data() + d - a.rope_dim, a.table + t * a.rope_dim, a.rope_dim, false);
    if (a.round_bf16) round_row(kv.data(), d);
    uint8_t* data = a.fresh + t * bytes;
    uint8_t* scale = data + data_bytes(a.format, d);
    store_record(a.format, d, kv.data(), data, scale);
    if (a.entry.data != nullptr) {
      load_record(a.format, d, data, scale, kv.data());
      write_row(a.entry, t, kv.data());
    }
  }
}

void ring_commit(const RingCommitArgs& a, Stream&) {
  const int64_t bytes = record_bytes(a.ring.format, a.ring.width);
  // Later rows of a sequence overwrite earlier ones, so that the last ring_rows remain.
  for (int64_t t = 0; t < a.rows.n; ++t) {
    const int64_t slot = a.rows.state_slot[a.rows.sequence[t]];
    std::memcpy(ring_record(a.ring, slot, a.rows.positions[t]).data, a.fresh + t * bytes, static_cast<size_t>(bytes));
  }
}

// Entry g = position/ratio of the closing row: RMSNorm (index keys) →bf16; rope at ratio·g →bf16; record (§5.6, §5.7)
void page_store(const PageStoreArgs& a, Stream&) {
  const int64_t width = a.x.cols;
  const bool normed = a.norm.data != nullptr;
  DI_CHECK(a.x.rows == a.n_closing && width == a.pages.width && (!normed || a.norm.cols == width) && a.ratio > 0,
           "x [{}, {}] for {} entries of width {}, norm {}, ratio {}", a.x.rows, width, a.n_closing, a.pages.width,
           a.norm.cols, a.ratio);
  const std::vector<float> norm = normed ? read_vector(a.norm) : std::vector<float>{};
  std::vector<float> buffer;
  std::vector<float> x(static_cast<size_t>(width));
  for (int64_t i = 0; i < a.n_closing; ++i) {
    const float* row = read_row(a.x, i, buffer);
    std::copy(row, row + width, x.begin());
    if (normed) rms_norm_row(x.data(), norm.data(), width, a.norm_eps, x.data());
    if (a.round_bf16) round_row(x.data(), width);
    rotate(x.data() + width - a.rope_dim, a.table + i * a.rope_dim, a.rope_dim, false);
    if (a.round_bf16) round_row(x.data(), width);
    const int64_t t = a.closing[i];
    const RecordAt at = page_entry(a.pages, a.rows, a.rows.sequence[t], a.rows.positions[t] / a.ratio);
    store_record(a.pages.format, width, x.data(), at.data, at.scale);
  }
}

}  // namespace di::kernels::cpu::ref
