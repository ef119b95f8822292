// Inverse frequencies of the rotary embedding (model.md §5.5): plain for layers with r = 0, YaRN for layers with r > 0.
// YaRN is on for every prompt length and carries no attention factor.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace di::model {

// f_i = θ^(-2i/rope_dim), i < rope_dim/2.
std::vector<float> plain_inv_freq(double theta, int32_t rope_dim);

// f_i/factor·ramp_i + f_i·(1 - ramp_i) with ramp_i = clamp((i - low)/max(high - low, 0.001), 0, 1),
// low = max(⌊c(beta_fast)⌋, 0), high = min(⌈c(beta_slow)⌉, rope_dim - 1), c(n) = rope_dim·ln(original/(2πn))/(2·ln θ).
std::vector<float> yarn_inv_freq(double theta, int32_t rope_dim, const RopeScaling& scaling);

struct RopeFrequencies {
  std::vector<float> plain;       // layers with r = 0 and the draft: rope_theta
  std::vector<float> compressed;  // layers with r > 0: compress_rope_theta, YaRN when rope_scaling is present
};

RopeFrequencies rope_frequencies(const ModelConfig& config);

}  // namespace di::model
