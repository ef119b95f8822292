#include "kernels/cpu/ref/common.h"
#include "kernels/cpu/ref/ref.h"
#include "kernels/cpu/ref/rows.h"

namespace di::kernels::cpu::ref {

int64_t activation_group(const Weight& w, const Numerics& numerics) {
  switch (w.format) {
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
      return 0;
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Row:
      return numerics.quantise_activations ? numerics.activation_group : 0;
    case WeightFormat::kFp4Row:
      return numerics.quantise_activations ? 32 : 0;  // also in V4 (model.md §4.2)
  }
  return 0;
}

// Each weight row is dequantised once per kRowBlock rows of x.
void linear(const LinearArgs& a, Stream&) {
  DI_CHECK(a.x.cols == a.w.cols && a.y.cols == a.w.rows && a.y.rows == a.x.rows, "x [{}, {}], w [{}, {}], y [{}, {}]",
           a.x.rows, a.x.cols, a.w.rows, a.w.cols, a.y.rows, a.y.cols);
  const int64_t group = activation_group(a.w, a.numerics);
  std::vector<float> x;
  std::vector<float> w(static_cast<size_t>(a.w.cols));
  for (int64_t first = 0; first < a.x.rows; first += kRowBlock) {
    const int64_t n = std::min(kRowBlock, a.x.rows - first);
    read_rows(a.x, first, n, 0, a.x.cols, x);
    if (group > 0) {
      for (int64_t t = 0; t < n; ++t) requantise_activations(x.data() + t * a.w.cols, a.w.cols, group);
    }
    for (int64_t o = 0; o < a.w.rows; ++o) {
      dequantise_row(a.w, o, w.data());
      for (int64_t t = 0; t < n; ++t) {
        float y = dot(x.data() + t * a.w.cols, w.data(), a.w.cols);
        if (a.accumulate) y += read_element(a.y, first + t, o);
        write_row(a.y, first + t, &y, o, 1);
      }
    }
  }
}

void grouped_linear(const GroupedLinearArgs& a, Stream&) {
  const int64_t c = a.w.cols;
  DI_CHECK(a.groups > 0 && a.x.cols == a.groups * c && a.w.rows % a.groups == 0 && a.y.cols == a.w.rows &&
               a.y.rows == a.x.rows,
           "x [{}, {}], w [{}, {}] in {} groups, y [{}, {}]", a.x.rows, a.x.cols, a.w.rows, c, a.groups, a.y.rows,
           a.y.cols);
  const int64_t r = a.w.rows / a.groups;
  const int64_t group = activation_group(a.w, a.numerics);
  std::vector<float> x;
  std::vector<float> w(static_cast<size_t>(c));
  for (int64_t first = 0; first < a.x.rows; first += kRowBlock) {
    const int64_t n = std::min(kRowBlock, a.x.rows - first);
    for (int64_t g = 0; g < a.groups; ++g) {
      read_rows(a.x, first, n, g * c, c, x);
      if (group > 0) {
        for (int64_t t = 0; t < n; ++t) requantise_activations(x.data() + t * c, c, group);
      }
      for (int64_t o = g * r; o < (g + 1) * r; ++o) {
        dequantise_row(a.w, o, w.data());
        for (int64_t t = 0; t < n; ++t) {
          const float y = dot(x.data() + t * c, w.data(), c);
          write_row(a.y, first + t, &y, o, 1);
        }
      }
    }
  }
}

}  // namespace di::kernels::cpu::ref
