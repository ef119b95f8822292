#include <numeric>

#include "kernels/cpu/ref/common.h"
#include "kernels/cpu/ref/ref.h"

namespace di::kernels::cpu::ref {
namespace {

float softplus(float x) {
  return std::fmax(x, 0.F) + std::log1p(std::exp(-std::fabs(x)));
}

}  // namespace

// s = sqrt(softplus(y·gateᵀ)); ids = top-k of s + bias; w = s[ids]/(Σ s[ids] + 1e-20)·scale (model.md §5.9)
void router(const RouterArgs& a, Stream&) {
  const int64_t experts = a.gate.rows;
  DI_CHECK(a.y.cols == a.gate.cols && a.k >= 0 && a.k <= experts, "y of {} columns, gate [{}, {}], top {}", a.y.cols,
           experts, a.gate.cols, a.k);
  std::vector<float> gate(static_cast<size_t>(experts * a.gate.cols));
  for (int64_t e = 0; e < experts; ++e) dequantise_row(a.gate, e, gate.data() + e * a.gate.cols);
  std::vector<float> buffer;
  std::vector<float> s(static_cast<size_t>(experts));
  std::vector<float> biased(static_cast<size_t>(experts));
  std::vector<int32_t> index(static_cast<size_t>(experts));
  for (int64_t t = 0; t < a.y.rows; ++t) {
    const float* y = read_row(a.y, t, buffer);
    for (int64_t e = 0; e < experts; ++e) {
      s[static_cast<size_t>(e)] = std::sqrt(softplus(dot(y, gate.data() + e * a.gate.cols, a.gate.cols)));
    }
    int32_t* ids = a.ids + t * a.k;
    if (a.forced_ids != nullptr) {
      std::copy(a.forced_ids + t * a.k, a.forced_ids + (t + 1) * a.k, ids);
    } else {
      const bool image = a.rows.is_image != nullptr && a.rows.is_image[t] != 0;
      const float* bias = image && a.bias_vl != nullptr ? a.bias_vl : a.bias;
      for (size_t e = 0; e < s.size(); ++e) biased[e] = bias != nullptr ? s[e] + bias[e] : s[e];
      std::iota(index.begin(), index.end(), 0);
      std::partial_sort(index.begin(), index.begin() + a.k, index.end(), [&](int32_t i, int32_t j) {
        return beats(biased[static_cast<size_t>(i)], i, biased[static_cast<size_t>(j)], j);
      });
      std::copy(index.begin(), index.begin() + a.k, ids);
    }
    float sum = 0.F;
    for (int64_t k = 0; k < a.k; ++k) {
      DI_CHECK(ids[k] >= 0 && ids[k] < experts, "expert {} of {}", ids[k], experts);
      sum += s[static_cast<size_t>(ids[k])];
    }
    for (int64_t k = 0; k < a.k; ++k) {
      a.weights[t * a.k + k] = s[static_cast<size_t>(ids[k])] / (sum + 1e-20F) * a.scale;
    }
  }
}

}  // namespace di::kernels::cpu::ref
