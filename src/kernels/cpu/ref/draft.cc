#include "kernels/cpu/ref/common.h"
#include "kernels/cpu/ref/ref.h"

namespace di::kernels::cpu::ref {

// t_l = mean over the streams of X, fp32 (model.md §8)
void stream_mean(const StreamMeanArgs& a, Stream&) {
  const int64_t h = a.streams.cols / a.hc;
  DI_CHECK(a.streams.cols == a.hc * h && a.column + h <= a.y.cols && a.y.rows == a.streams.rows,
           "streams [{}, {}], y [{}, {}] at column {}, hc {}", a.streams.rows, a.streams.cols, a.y.rows, a.y.cols,
           a.column, a.hc);
  std::vector<float> buffer;
  std::vector<float> mean(static_cast<size_t>(h));
  for (int64_t t = 0; t < a.streams.rows; ++t) {
    const float* x = read_row(a.streams, t, buffer);
    for (int64_t c = 0; c < h; ++c) {
      float sum = 0.F;
      for (int64_t i = 0; i < a.hc; ++i) sum += x[i * h + c];
      mean[static_cast<size_t>(c)] = sum / static_cast<float>(a.hc);
    }
    write_row(a.y, t, mean.data(), a.column, h);
  }
}

// c = sigmoid(clamp(([h ; e]·w)/T, ±60)) (speculative.md §1.4)
void confidence(const ConfidenceArgs& a, Stream&) {
  DI_CHECK(a.w.cols == a.h.cols + a.e.cols && a.h.rows == a.e.rows, "h [{}, {}], e [{}, {}], w {} columns", a.h.rows,
           a.h.cols, a.e.rows, a.e.cols, a.w.cols);
  const std::vector<float> w = read_vector(a.w);
  std::vector<float> h_buffer;
  std::vector<float> e_buffer;
  for (int64_t t = 0; t < a.h.rows; ++t) {
    const float logit = dot(read_row(a.h, t, h_buffer), w.data(), a.h.cols) +
                        dot(read_row(a.e, t, e_buffer), w.data() + a.h.cols, a.e.cols);
    a.confidence[t] = sigmoid(std::fmin(std::fmax(logit / a.temperature, -60.F), 60.F));
  }
}

void argmax(const ArgmaxArgs& a, Stream&) {
  DI_CHECK(a.logits.cols > 0 || a.logits.rows == 0, "logits without columns");
  std::vector<float> buffer;
  for (int64_t t = 0; t < a.logits.rows; ++t) {
    const float* x = read_row(a.logits, t, buffer);
    int64_t best = 0;
    for (int64_t i = 1; i < a.logits.cols; ++i) {
      if (beats(x[i], i, x[best], best)) best = i;
    }
    a.ids[t] = static_cast<int32_t>(best);
  }
}

}  // namespace di::kernels::cpu::ref
