#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace di::model {
namespace {

// Channel at which a rotation makes `turns` turns over the original context.
double turns_channel(double turns, double theta, int32_t rope_dim, double original) {
  return rope_dim * std::log(original / (2.0 * std::numbers::pi * turns)) / (2.0 * std::log(theta));
}

}  // namespace

std::vector<float> plain_inv_freq(double theta, int32_t rope_dim) {
  std::vector<float> f;
  for (int32_t i = 0; i < rope_dim / 2; ++i) f.push_back(static_cast<float>(std::pow(theta, -2.0 * i / rope_dim)));
  return f;
}

std::vector<float> yarn_inv_freq(double theta, int32_t rope_dim, const RopeScaling& scaling) {
  const double original = static_cast<double>(scaling.original_max_position_embeddings);
  const double low = std::max(std::floor(turns_channel(scaling.beta_fast, theta, rope_dim, original)), 0.0);
  const double high = std::min(std::ceil(turns_channel(scaling.beta_slow, theta, rope_dim, original)), rope_dim - 1.0);
  const double width = std::max(high - low, 0.001);
  std::vector<float> f;
  for (int32_t i = 0; i < rope_dim / 2; ++i) {
    const double plain = std::pow(theta, -2.0 * i / rope_dim);
    const double ramp = std::clamp((i - low) / width, 0.0, 1.0);
    f.push_back(static_cast<float>(plain / scaling.factor * ramp + plain * (1.0 - ramp)));
  }
  return f;
}

RopeFrequencies rope_frequencies(const ModelConfig& c) {
  RopeFrequencies f;
  f.plain = plain_inv_freq(c.rope_theta, c.qk_rope_head_dim);
  f.compressed = c.rope_scaling.present ? yarn_inv_freq(c.compress_rope_theta, c.qk_rope_head_dim, c.rope_scaling)
                                        : plain_inv_freq(c.compress_rope_theta, c.qk_rope_head_dim);
  return f;
}

}  // namespace di::model
