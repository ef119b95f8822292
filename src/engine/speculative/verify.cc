#include "engine/speculative/verify.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace di::engine {
namespace {

// First id whose cumulated weight exceeds u times the total; ids of weight 0 are never chosen.
int32_t draw_weighted(std::span<const int32_t> ids, std::span<const double> weights, double total, double u) {
  double cumulated = 0;
  size_t last = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    cumulated += weights[i];
    if (weights[i] <= 0) continue;
    last = i;
    if (cumulated > u * total) return ids[i];
  }
  return ids[last];
}

}  // namespace

void Distribution::assign(const Sampler& sampler) {
  ids.assign(sampler.survivors().begin(), sampler.survivors().end());
  logprobs.assign(sampler.survivor_logprobs().begin(), sampler.survivor_logprobs().end());
}

RowVerdict Verifier::verify(const Sampler& target, const Distribution& q, int32_t draft, uint64_t seed,
                            int64_t position) {
  const std::span<const int32_t> ids = target.survivors();
  const std::span<const float> logprobs = target.survivor_logprobs();
  weights_.resize(ids.size());
  double p_draft = 0;
  double q_draft = 0;
  double total = 0;
  size_t k = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    while (k < q.ids.size() && q.ids[k] < ids[i]) ++k;
    const bool drafted = k < q.ids.size() && q.ids[k] == ids[i];
    const double p = std::exp(static_cast<double>(logprobs[i]));
    const double lower = drafted ? p - std::exp(static_cast<double>(q.logprobs[k]) - kResidualPenalty) : p;
    weights_[i] = std::max(lower, 0.0);
    total += weights_[i];
    if (ids[i] == draft) {
      p_draft = p;
      q_draft = drafted ? std::exp(static_cast<double>(q.logprobs[k])) : 0.0;
    }
  }
  RowVerdict out;
  out.accept_prob = static_cast<float>(std::max(1.0 - total, 0.0));
  // A draft that q cannot have drawn (q = 0) is refused: its probability is all in the residual.
  const double ratio = draft >= 0 && q_draft > 0 ? std::min(1.0, p_draft / q_draft) : 0.0;
  if (ratio > counter_uniform(seed, position, DrawKind::kAccept)) {
    out.accepted = true;
    out.token = draft;
    return out;
  }
  out.token = draw_weighted(ids, weights_, total, counter_uniform(seed, position, DrawKind::kResidual));
  return out;
}

}  // namespace di::engine
