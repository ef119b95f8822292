// Blocks of activation rows for the operators with matrices.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cpu/ref/common.h"

namespace di::kernels::cpu::ref {

// Rows of x that share one dequantised weight row.
inline constexpr int64_t kRowBlock = 256;

inline float read_element(const Tensor& t, int64_t row, int64_t column) {
  const int64_t at = row * t.stride + column;
  return t.dtype == DType::kF32 ? static_cast<const float*>(t.data)[at]
                                : to_float(static_cast<const Bf16*>(t.data)[at]);
}

// out = t[first : first + n, column : column + width], dense fp32.
inline void read_rows(const Tensor& t, int64_t first, int64_t n, int64_t column, int64_t width,
                      std::vector<float>& out) {
  out.resize(static_cast<size_t>(n * width));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t c = 0; c < width; ++c) {
      out[static_cast<size_t>(i * width + c)] = read_element(t, first + i, column + c);
    }
  }
}

// Channels per activation scale before this weight, 0 = the activations are used as they are (model.md §4.2).
int64_t activation_group(const Weight& w, const Numerics& numerics);

}  // namespace di::kernels::cpu::ref
