#include "kernels/cpu/ref/common.h"
#include "kernels/cpu/ref/ref.h"

namespace di::kernels::cpu::ref {

// X[t,i,:] = embed[ids[t]]; mix[t,:] = (1, 0, …, 0) (model.md §5.1)
void embed(const EmbedArgs& a, Stream&) {
  const int64_t h = a.table.cols;
  DI_CHECK(a.streams.rows == a.n_tokens && a.streams.cols == a.hc * h, "streams [{}, {}], wanted [{}, {}]",
           a.streams.rows, a.streams.cols, a.n_tokens, a.hc * h);
  std::vector<float> x(static_cast<size_t>(h));
  std::vector<float> buffer;
  for (int64_t t = 0; t < a.n_tokens; ++t) {
    const int32_t override_row = a.override_row != nullptr ? a.override_row[t] : -1;
    const float* row = x.data();
    if (override_row >= 0) {
      DI_CHECK(override_row < a.overrides.rows && a.overrides.cols == h, "override row {} of [{}, {}], width {}",
               override_row, a.overrides.rows, a.overrides.cols, h);
      row = read_row(a.overrides, override_row, buffer);
    } else {
      dequantise_row(a.table, a.ids[t], x.data());
    }
    for (int64_t i = 0; i < a.hc; ++i) write_row(a.streams, t, row, i * h, h);
    for (int64_t i = 0; i < a.hc; ++i) a.mix[t * a.hc + i] = i == 0 ? 1.F : 0.F;
  }
}

void rms_norm(const RmsNormArgs& a, Stream&) {
  DI_CHECK(a.x.rows == a.y.rows && a.x.cols == a.y.cols && a.w.cols == a.x.cols, "x [{}, {}], y [{}, {}], weight {}",
           a.x.rows, a.x.cols, a.y.rows, a.y.cols, a.w.cols);
  const std::vector<float> w = read_vector(a.w);
  std::vector<float> buffer;
  std::vector<float> y(w.size());
  for (int64_t t = 0; t < a.x.rows; ++t) {
    rms_norm_row(read_row(a.x, t, buffer), w.data(), a.x.cols, a.eps, y.data());
    write_row(a.y, t, y.data());
  }
}

void gather_rows(const GatherRowsArgs& a, Stream&) {
  DI_CHECK(a.y.rows == a.n && a.y.cols == a.x.cols, "y [{}, {}], wanted [{}, {}]", a.y.rows, a.y.cols, a.n, a.x.cols);
  std::vector<float> buffer;
  for (int64_t i = 0; i < a.n; ++i) {
    DI_CHECK(a.index[i] >= 0 && a.index[i] < a.x.rows, "row {} of {}", a.index[i], a.x.rows);
    write_row(a.y, i, read_row(a.x, a.index[i], buffer));
  }
}

void gather_table(const GatherTableArgs& a, Stream&) {
  DI_CHECK(a.y.rows == a.n && a.y.cols == a.table.cols, "y [{}, {}], wanted [{}, {}]", a.y.rows, a.y.cols, a.n,
           a.table.cols);
  std::vector<float> row(static_cast<size_t>(a.table.cols));
  for (int64_t i = 0; i < a.n; ++i) {
    dequantise_row(a.table, a.index[i], row.data());
    write_row(a.y, i, row.data());
  }
}

}  // namespace di::kernels::cpu::ref
