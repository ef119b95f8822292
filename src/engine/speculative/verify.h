// Exact rejection sampling of drafted tokens (speculative.md §3): what is emitted has the target's distribution
// whatever the drafts were, as long as q is the distribution a draft was drawn from. Pure functions of the
// distributions, the seed and the position; used by one thread at a time (a Verifier is scratch memory).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampler.h"

namespace di::engine {

// Verify row r of a request draws at its first row's position + r·kRowStride (engine.md §5.4).
inline constexpr int64_t kRowStride = 10'000'019;
// Residual weights use q·exp(-kResidualPenalty), so that they do not vanish in floating point.
inline constexpr double kResidualPenalty = 5e-5;

inline constexpr int64_t row_position(int64_t first, int32_t row) {
  return first + row * kRowStride;
}

// A distribution over few ids: ascending ids and their natural log-probabilities. Absent ids have probability 0.
struct Distribution {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;

  void assign(const Sampler& sampler);  // the survivors of its last transform
};

struct RowVerdict {
  bool accepted = false;
  int32_t token = -1;     // the draft, or what replaces it
  float accept_prob = 0;  // estimate of the chance that a draft of q is accepted: 1 - Σ max(p - q·e^-5e-5, 0)
};

class Verifier {
 public:
  // The target's distribution p is that of `target`'s last transform. draft -1 is always refused. Accepts when
  // min(1, p/q) > u(kAccept), else draws from the residual with u(kResidual).
  RowVerdict verify(const Sampler& target, const Distribution& q, int32_t draft, uint64_t seed, int64_t position);

  // Rows that choose without a look at the draft: it is accepted when it is the target's choice.
  static RowVerdict verify_choice(int32_t target_choice, int32_t draft) {
    return {draft == target_choice, target_choice, draft == target_choice ? 1.0F : 0.0F};
  }

  // The residual weights of the last verify(), for target.survivors(); not normalised.
  std::span<const double> residual() const { return weights_; }

 private:
  std::vector<double> weights_;
};

}  // namespace di::engine
