#include "kernels/cpu/ref/common.h"
#include "kernels/cpu/ref/ref.h"

namespace di::kernels::cpu::ref {

// The angle is the fp32 product; its sine and cosine are correctly rounded (model.md §5.5).
void rope_table(const RopeTableArgs& a, Stream&) {
  const int64_t pairs = a.rope_dim / 2;
  for (int64_t t = 0; t < a.n; ++t) {
    for (int64_t i = 0; i < pairs; ++i) {
      const float angle = static_cast<float>(a.positions[t]) * a.inv_freq[i];
      a.table[(t * pairs + i) * 2] = static_cast<float>(std::cos(static_cast<double>(angle)));
      a.table[(t * pairs + i) * 2 + 1] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
}

void q_rope(const QRopeArgs& a, Stream&) {
  DI_CHECK(a.heads > 0 && a.q.cols % a.heads == 0 && a.rope_dim <= a.q.cols / a.heads,
           "q of {} columns, {} heads, rope {}", a.q.cols, a.heads, a.rope_dim);
  const int64_t d = a.q.cols / a.heads;
  std::vector<float> buffer;
  std::vector<float> q(static_cast<size_t>(d));
  for (int64_t t = 0; t < a.q.rows; ++t) {
    const float* row = read_row(a.q, t, buffer);
    for (int64_t h = 0; h < a.heads; ++h) {
      std::copy(row + h * d, row + (h + 1) * d, q.begin());
      if (a.head_norm_eps > 0.F) {
        const float r = inverse_rms(q.data(), d, a.head_norm_eps);
        for (float& value : q) value *= r;
      }
      rotate(q.data() + d - a.rope_dim, a.table + t * a.rope_dim, a.rope_dim, false);
      write_row(a.q, t, q.data(), h * d, d);
    }
  }
}

}  // namespace di::kernels::cpu::ref
