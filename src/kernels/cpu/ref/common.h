// What the reference operators share: rows of tensors as fp32, and the few formulas that occur in several operators.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/numeric.h"
#include "base/result.h"
#include "kernels/cpu/quant.h"
#include "kernels/ops.h"

namespace di::kernels::cpu::ref {

// Row `row` of a tensor as fp32: the tensor's own memory if it is fp32, else `buffer` (resized).
inline const float* read_row(const Tensor& t, int64_t row, std::vector<float>& buffer) {
  if (t.dtype == DType::kF32) return static_cast<const float*>(t.data) + row * t.stride;
  const Bf16* source = static_cast<const Bf16*>(t.data) + row * t.stride;
  buffer.resize(static_cast<size_t>(t.cols));
  for (int64_t i = 0; i < t.cols; ++i) buffer[static_cast<size_t>(i)] = to_float(source[i]);
  return buffer.data();
}

// t[row, column : column + n] = x, rounded when t is bf16.
inline void write_row(const Tensor& t, int64_t row, const float* x, int64_t column, int64_t n) {
  if (t.dtype == DType::kF32) {
    float* out = static_cast<float*>(t.data) + row * t.stride + column;
    if (out != x) std::memmove(out, x, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  Bf16* out = static_cast<Bf16*>(t.data) + row * t.stride + column;
  for (int64_t i = 0; i < n; ++i) out[i] = to_bf16(x[i]);
}

inline void write_row(const Tensor& t, int64_t row, const float* x) {
  write_row(t, row, x, 0, t.cols);
}

inline void round_row(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = di::round_bf16(x[i]);
}

// All values of a one-row weight (norms).
inline std::vector<float> read_vector(const Weight& w) {
  std::vector<float> values(static_cast<size_t>(w.cols));
  if (w.cols > 0) dequantise_row(w, 0, values.data());
  return values;
}

// Σ a·b in fp32. Sixteen partial sums, added at the end in a fixed order: the result depends on n only.
inline float dot(const float* a, const float* b, int64_t n) {
  constexpr int64_t kLanes = 16;
  float sum[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) sum[l] += a[i + l] * b[i + l];
  }
  for (int64_t l = 0; i < n; ++i, ++l) sum[l] += a[i] * b[i];
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t l = 0; l < width; ++l) sum[l] += sum[l + width];
  }
  return sum[0];
}

// rsqrt(mean(x²) + eps). The mean is taken in fp64, so that eps = 1e-20 decides only where all of x is (nearly) zero.
inline float inverse_rms(const float* x, int64_t n, float eps) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(n) + static_cast<double>(eps)));
}

// y = w·x·rsqrt(mean(x²) + eps) (model.md §5.3); y may be x.
inline void rms_norm_row(const float* x, const float* w, int64_t n, float eps, float* y) {
  const float r = inverse_rms(x, n, eps);
  for (int64_t i = 0; i < n; ++i) y[i] = w[i] * (x[i] * r);
}

// Rotates adjacent pairs: (x_2i + j·x_2i+1)·(cos_i + j·sin_i), the conjugate for the inverse (model.md §5.5).
inline void rotate(float* x, const float* table, int64_t rope_dim, bool inverse) {
  for (int64_t i = 0; i < rope_dim / 2; ++i) {
    const float c = table[2 * i];
    const float s = inverse ? -table[2 * i + 1] : table[2 * i + 1];
    const float re = x[2 * i];
    const float im = x[2 * i + 1];
    x[2 * i] = re * c - im * s;
    x[2 * i + 1] = re * s + im * c;
  }
}

inline float sigmoid(float x) {
  return 1.F / (1.F + std::exp(-x));
}

// True when score a of index i beats score b of index j: larger first, the lower index on a tie. NaN loses against
// everything, so that the order is total whatever the scores are.
inline bool beats(float a, int64_t i, float b, int64_t j) {
  const bool a_nan = std::isnan(a);
  const bool b_nan = std::isnan(b);
  if (a_nan != b_nan) return b_nan;
  if (!a_nan && a != b) return a > b;
  return i < j;
}

// x ← exp(x - max)/Σ, fp32.
inline void softmax_in_place(float* x, int64_t n) {
  float max = -INFINITY;
  for (int64_t i = 0; i < n; ++i) max = std::fmax(max, x[i]);
  float sum = 0.F;
  for (int64_t i = 0; i < n; ++i) sum += (x[i] = std::exp(x[i] - max));
  for (int64_t i = 0; i < n; ++i) x[i] /= sum;
}

}  // namespace di::kernels::cpu::ref
