#include "kernels/cpu/ref/common.h"
#include "kernels/cpu/ref/ref.h"

namespace di::kernels::cpu::ref {

void engram_gather(const EngramGatherArgs& a, Stream&) {
  const int64_t width = a.table.cols;
  DI_CHECK(a.e.rows == a.n_tokens && a.e.cols == a.columns * width, "e [{}, {}], wanted [{}, {}]", a.e.rows, a.e.cols,
           a.n_tokens, a.columns * width);
  std::vector<float> row(static_cast<size_t>(width));
  for (int64_t t = 0; t < a.n_tokens; ++t) {
    for (int64_t c = 0; c < a.columns; ++c) {
      dequantise_row(a.table, a.rows[t * a.columns + c], row.data());
      write_row(a.e, t, row.data(), c * width, width);
    }
  }
}

// d_i = (Σ_c X_i·qw_i·kw_i·key_i)·rsqrt(mean X_i² + eps)·rsqrt(mean key_i² + eps)/sqrt(H)
// g_i = sigmoid(sign(d_i)·sqrt(max(|d_i|, 1e-6)));  X_i += g_i·value
void engram_gate(const EngramGateArgs& a, Stream&) {
  const int64_t h = a.q_weight.cols;
  const int64_t hc = a.hc;
  DI_CHECK(a.streams.cols == hc * h && a.kvp.cols == (hc + 1) * h && a.kvp.rows == a.streams.rows &&
               a.q_weight.rows == hc && a.k_weight.rows == hc && a.k_weight.cols == h,
           "streams [{}, {}], kvp [{}, {}], q_weight [{}, {}], k_weight [{}, {}], hc {}", a.streams.rows,
           a.streams.cols, a.kvp.rows, a.kvp.cols, a.q_weight.rows, h, a.k_weight.rows, a.k_weight.cols, hc);
  std::vector<float> weight(static_cast<size_t>(hc * h));  // qw·kw
  std::vector<float> kw(static_cast<size_t>(h));
  for (int64_t i = 0; i < hc; ++i) {
    dequantise_row(a.q_weight, i, weight.data() + i * h);
    dequantise_row(a.k_weight, i, kw.data());
    for (int64_t c = 0; c < h; ++c) weight[static_cast<size_t>(i * h + c)] *= kw[static_cast<size_t>(c)];
  }
  const float root = 1.F / std::sqrt(static_cast<float>(h));
  std::vector<float> x_buffer;
  std::vector<float> kv_buffer;
  std::vector<float> scaled(static_cast<size_t>(h));
  for (int64_t t = 0; t < a.streams.rows; ++t) {
    const float* x = read_row(a.streams, t, x_buffer);
    const float* kvp = read_row(a.kvp, t, kv_buffer);
    const float* value = kvp + hc * h;
    const bool image = a.rows.is_image != nullptr && a.rows.is_image[t] != 0;
    for (int64_t i = 0; i < hc; ++i) {
      const float* xi = x + i * h;
      const float* key = kvp + i * h;
      for (int64_t c = 0; c < h; ++c) scaled[static_cast<size_t>(c)] = xi[c] * weight[static_cast<size_t>(i * h + c)];
      const float d =
          dot(scaled.data(), key, h) * inverse_rms(xi, h, a.norm_eps) * inverse_rms(key, h, a.norm_eps) * root;
      const float size = std::sqrt(std::fmax(std::fabs(d), 1e-6F));
      const float g = sigmoid(d == 0.F && !a.copysign_at_zero ? 0.F : std::copysign(size, d));
      if (a.gate != nullptr) a.gate[t * hc + i] = g;
      if (image) continue;
      for (int64_t c = 0; c < h; ++c) scaled[static_cast<size_t>(c)] = xi[c] + g * value[c];
      write_row(a.streams, t, scaled.data(), i * h, h);
    }
  }
}

}  // namespace di::kernels::cpu::ref
