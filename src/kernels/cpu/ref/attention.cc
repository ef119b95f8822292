#include "kernels/cpu/ref/common.h"
#include "kernels/cpu/ref/ref.h"

namespace di::kernels::cpu::ref {
namespace {

// Reads the entries of S of row t into `keys` [S, D]: the window ascending by position, then the selected compressed
// entries ascending by index. Returns |S|.
int64_t read_entries(const AttentionArgs& a, int64_t t, std::vector<float>& keys) {
  const int64_t d = a.ring.width;
  const int64_t sequence = a.rows.sequence[t];
  const int64_t begin = a.rows.window_begin[t];
  const int64_t end = a.rows.window_end[t];
  const int64_t window = std::max<int64_t>(0, end - begin);
  const int64_t visible = a.ratio > 0 ? (a.rows.positions[t] + 1) / a.ratio : 0;
  const int64_t compressed = a.ratio == 0 ? 0 : a.selection != nullptr ? a.topk : visible;
  keys.resize(static_cast<size_t>((window + compressed) * d));
  int64_t n = 0;
  for (int64_t p = begin; p < end; ++p, ++n) {
    RecordAt at{};
    if (a.fresh.records != nullptr && p >= a.fresh.position[sequence]) {
      const int64_t row = a.fresh.row[sequence] + p - a.fresh.position[sequence];
      at.data = const_cast<uint8_t*>(a.fresh.records) + row * record_bytes(a.ring.format, d);
      at.scale = at.data + data_bytes(a.ring.format, d);
    } else {
      DI_CHECK(p >= 0, "row {} sees the window entry of position {}", t, p);
      at = ring_record(a.ring, a.rows.state_slot[sequence], p);
    }
    load_record(a.ring.format, d, at.data, at.scale, keys.data() + n * d);
  }
  for (int64_t i = 0; i < compressed; ++i) {
    const int64_t g = a.selection != nullptr ? a.selection[t * a.topk + i] : i;
    if (g < 0) continue;  // unused
    const RecordAt at = page_entry(a.pages, a.rows, sequence, g);
    load_record(a.pages.format, d, at.data, at.scale, keys.data() + n * d);
    ++n;
  }
  return n;
}

}  // namespace

// p_j = q·k_j·scale;  m = max(p, sink);  o = Σ_j exp(p_j - m)/(Σ_j exp(p_j - m) + exp(sink - m))·k_j
void attention(const AttentionArgs& a, Stream&) {
  const int64_t d = a.ring.width;
  DI_CHECK(a.q.cols == a.heads * d && a.o.cols == a.q.cols && a.q.rows == a.rows.n && a.o.rows == a.rows.n &&
               a.rope_dim <= d && (a.ratio == 0 || a.pages.width == d),
           "q [{}, {}], o [{}, {}], {} heads of {}, {} rows, page width {}", a.q.rows, a.q.cols, a.o.rows, a.o.cols,
           a.heads, d, a.rows.n, a.pages.width);
  std::vector<float> buffer;
  std::vector<float> keys;
  std::vector<float> p;
  std::vector<float> o(static_cast<size_t>(d));
  for (int64_t t = 0; t < a.rows.n; ++t) {
    const int64_t n = read_entries(a, t, keys);
    p.resize(static_cast<size_t>(n));
    const float* q = read_row(a.q, t, buffer);
    for (int64_t h = 0; h < a.heads; ++h) {
      float max = a.sink[h];
      for (int64_t j = 0; j < n; ++j) {
        float& score = p[static_cast<size_t>(j)];
        score = dot(q + h * d, keys.data() + j * d, d) * a.scale;
        max = std::fmax(max, score);
      }
      std::fill(o.begin(), o.end(), 0.F);
      if (n > 0) {
        float sum = std::exp(a.sink[h] - max);
        for (float& score : p) sum += (score = std::exp(score - max));
        for (int64_t j = 0; j < n; ++j) {
          float weight = p[static_cast<size_t>(j)] / sum;
          if (a.round_bf16) weight = di::round_bf16(weight);
          const float* k = keys.data() + j * d;
          for (int64_t c = 0; c < d; ++c) o[static_cast<size_t>(c)] += weight * k[c];
        }
      }
      if (a.round_bf16) round_row(o.data(), d);
      rotate(o.data() + d - a.rope_dim, a.table + t * a.rope_dim, a.rope_dim, true);
      write_row(a.o, t, o.data(), h * d, d);
    }
  }
}

}  // namespace di::kernels::cpu::ref
