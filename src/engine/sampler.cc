#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "base/rng.h"
#include "engine/softmax.h"

namespace di::engine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

Result<void> check_ids(std::span<const int32_t> ids, int32_t vocab_size, std::string_view what) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return fail(Errc::kInvalidRequest, "{}[{}] is {}, token ids are 0 to {}", what, i, ids[i], vocab_size - 1);
    }
  }
  return {};
}

Result<void> check_range(std::string_view name, double value, bool ok, std::string_view range) {
  if (!ok)
    return fail(Errc::kInvalidRequest, "Invalid {} value {}, the valid range of {} is {}", name, value, name, range);
  return {};
}

void penalise(std::span<float> logits, const SamplingParams& params, std::span<const int32_t> tokens,
              int32_t prompt_tokens) {
  std::unordered_map<int32_t, int32_t> output_counts;  // 0 for tokens of the prompt only
  for (size_t i = 0; i < tokens.size(); ++i) {
    int32_t& count = output_counts[tokens[i]];
    if (static_cast<int32_t>(i) >= prompt_tokens) ++count;
  }
  const auto repetition = static_cast<float>(params.repetition_penalty);
  for (const auto& [token, count] : output_counts) {
    float& logit = logits[static_cast<size_t>(token)];
    if (repetition != 1.0F) logit = logit > 0 ? logit / repetition : logit * repetition;
    if (count > 0) {
      logit -= static_cast<float>(params.frequency_penalty) * static_cast<float>(count) +
               static_cast<float>(params.presence_penalty);
    }
  }
}

bool ends_with(std::span<const int32_t> tokens, std::span<const int32_t> tail) {
  return tail.size() <= tokens.size() &&
         std::equal(tail.begin(), tail.end(), tokens.end() - static_cast<std::ptrdiff_t>(tail.size()));
}

}  // namespace

bool thinks_too_long(const SamplingParams& p, std::span<const int32_t> output) {
  return p.thinking_budget >= 0 && static_cast<int64_t>(output.size()) >= p.thinking_budget &&
         std::find(output.begin(), output.end(), p.think_end) == output.end();
}

Result<void> check_sampling(const SamplingParams& p, int32_t vocab_size) {
  DI_TRY(check_range("temperature", p.temperature, p.temperature >= 0 && std::isfinite(p.temperature), "[0, inf)"));
  DI_TRY(check_range("top_p", p.top_p, p.top_p > 0 && p.top_p <= 1, "(0, 1.0]"));
  DI_TRY(check_range("top_k", p.top_k, p.top_k == -1 || p.top_k >= 1, "-1 or [1, 2^31)"));
  DI_TRY(check_range("min_p", p.min_p, p.min_p >= 0 && p.min_p <= 1, "[0, 1]"));
  DI_TRY(check_range("repetition_penalty", p.repetition_penalty,
                     p.repetition_penalty > 0 && std::isfinite(p.repetition_penalty), "(0, inf)"));
  DI_TRY(check_range("frequency_penalty", p.frequency_penalty, std::abs(p.frequency_penalty) <= 2, "[-2, 2]"));
  DI_TRY(check_range("presence_penalty", p.presence_penalty, std::abs(p.presence_penalty) <= 2, "[-2, 2]"));
  DI_TRY(check_range("top_logprobs", p.top_logprobs, p.top_logprobs >= 0 && p.top_logprobs <= 1000, "[0, 1000]"));
  for (const auto& [token, bias] : p.logit_bias) {
    if (token < 0 || token >= vocab_size) {
      return fail(Errc::kInvalidRequest, "logit_bias names token {}, token ids are 0 to {}", token, vocab_size - 1);
    }
    DI_TRY(check_range("logit_bias", static_cast<double>(bias), std::abs(bias) <= 100, "[-100, 100]"));
  }
  if (p.thinking_budget >= 0 && (p.think_end < 0 || p.think_end >= vocab_size))
    return fail(Errc::kInvalidRequest, "think_end is {}, token ids are 0 to {}", p.think_end, vocab_size - 1);
  DI_TRY(check_ids(p.allowed_token_ids, vocab_size, "allowed_token_ids"));
  DI_TRY(check_ids(p.logprob_token_ids, vocab_size, "logprob_token_ids"));
  for (const std::vector<int32_t>& word : p.bad_words) {
    if (word.empty()) return fail(Errc::kInvalidRequest, "bad_words holds an empty word");
    DI_TRY(check_ids(word, vocab_size, "bad_words"));
  }
  return {};
}

void apply_processors(std::span<float> logits, const SamplingParams& params, std::span<const int32_t> tokens,
                      int32_t prompt_tokens, std::span<const int32_t> ruled_out) {
  if (params.repetition_penalty != 1.0 || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0) {
    penalise(logits, params, tokens, prompt_tokens);
  }
  for (const auto& [token, bias] : params.logit_bias) logits[static_cast<size_t>(token)] += bias;
  if (!params.allowed_token_ids.empty()) {
    std::vector<std::pair<int32_t, float>> allowed;
    for (const int32_t token : params.allowed_token_ids)
      allowed.emplace_back(token, logits[static_cast<size_t>(token)]);
    std::fill(logits.begin(), logits.end(), kMinusInfinity);
    for (const auto& [token, logit] : allowed) logits[static_cast<size_t>(token)] = logit;
  }
  for (const std::vector<int32_t>& word : params.bad_words) {
    const std::span<const int32_t> before(word.data(), word.size() - 1);
    if (ends_with(tokens, before)) logits[static_cast<size_t>(word.back())] = kMinusInfinity;
  }
  for (const int32_t token : ruled_out) logits[static_cast<size_t>(token)] = kMinusInfinity;
  if (thinks_too_long(params, tokens.subspan(static_cast<size_t>(prompt_tokens)))) {
    std::fill(logits.begin(), logits.end(), kMinusInfinity);
    logits[static_cast<size_t>(params.think_end)] = 0;
  }
}

// p = softmax(logits/T). Ranked by p descending, ties by lower id: ids whose exclusive prefix sum exceeds top_p are
// removed (the first never is), then ids of rank >= top_k (engine.md §5.3). Only as much of the vocabulary is sorted as
// is needed.
void Sampler::keep_ranked(double top_p, int64_t top_k, double total) {
  order_.clear();
  for (size_t i = 0; i < scaled_.size(); ++i) {
    if (scaled_[i] > kMinusInfinity) order_.push_back(static_cast<int32_t>(i));
  }
  const auto better = [&](int32_t a, int32_t b) {
    const float la = scaled_[static_cast<size_t>(a)];
    const float lb = scaled_[static_cast<size_t>(b)];
    return la > lb || (la == lb && a < b);
  };
  const auto n = static_cast<int64_t>(order_.size());
  const int64_t limit = top_k < 0 ? n : std::min(n, top_k);

  int64_t sorted = 0;
  int64_t take = 0;
  double before = 0;
  for (int64_t width = 256; take < limit; width *= 8) {
    if (take == sorted) {
      const int64_t end = std::min(limit, sorted + width);
      std::partial_sort(order_.begin() + sorted, order_.begin() + end, order_.end(), better);
      sorted = end;
    }
    bool full = false;
    while (take < sorted) {
      if (take > 0 && before > top_p) {
        full = true;
        break;
      }
      before += weights_[static_cast<size_t>(order_[static_cast<size_t>(take)])] / total;
      ++take;
    }
    if (full) break;
  }
  kept_.assign(order_.begin(), order_.begin() + take);
  std::sort(kept_.begin(), kept_.end());
}

// Keeps p >= m·max(p) of what is left.
void Sampler::keep_min_p(double min_p) {
  float largest = kMinusInfinity;
  for (const int32_t id : kept_) largest = std::max(largest, scaled_[static_cast<size_t>(id)]);
  const double floor = static_cast<double>(largest) + std::log(min_p);
  std::erase_if(kept_, [&](int32_t id) { return static_cast<double>(scaled_[static_cast<size_t>(id)]) < floor; });
}

bool Sampler::transform(std::span<const float> logits, const Transforms& transforms, std::span<const int32_t> ids) {
  const auto inverse = static_cast<float>(1.0 / transforms.temperature);
  const size_t n = logits.size();
  scaled_.resize(n);
  for (size_t i = 0; i < n; ++i) scaled_[i] = logits[i] * inverse;
  bool has_nan = false;
  const float largest = largest_of(scaled_, has_nan);
  if (has_nan || !std::isfinite(largest)) return false;
  weights_.resize(n);
  const double total = softmax_weights(scaled_, largest, weights_);

  const bool all = transforms.top_p >= 1.0 && transforms.top_k < 0;  // that are possible
  if (all) {
    kept_.resize(n);
    size_t kept = 0;
    for (size_t i = 0; i < n; ++i) {
      kept_[kept] = static_cast<int32_t>(i);
      kept += scaled_[i] > kMinusInfinity ? 1 : 0;
    }
    kept_.resize(kept);
  } else {
    const double top_p = transforms.top_p >= 1.0 ? std::numeric_limits<double>::infinity() : transforms.top_p;
    keep_ranked(top_p, transforms.top_k, total);
  }
  if (transforms.min_p > 0) keep_min_p(transforms.min_p);

  // Down to the survivors, in place: their ids ascend.
  const size_t kept = kept_.size();
  total_ = total;
  if (kept < n) {
    for (size_t i = 0; i < kept; ++i) {
      const auto id = static_cast<size_t>(kept_[i]);
      scaled_[i] = scaled_[id];
      weights_[i] = weights_[id];
    }
    // What a mask rules out weighs nothing: the total stays.
    if (!all || transforms.min_p > 0)
      total_ = std::accumulate(weights_.begin(), weights_.begin() + static_cast<std::ptrdiff_t>(kept), 0.0);
  }
  const double log_total = std::log(total_);
  logprobs_.resize(kept);
  for (size_t i = 0; i < kept; ++i) {
    logprobs_[i] = static_cast<float>(static_cast<double>(scaled_[i] - largest) - log_total);
  }
  if (!ids.empty()) {
    for (int32_t& id : kept_) id = ids[static_cast<size_t>(id)];
  }
  return true;
}

int32_t Sampler::draw(double u) const {
  const double target = u * total_;
  double cumulated = 0;
  size_t last = 0;
  for (size_t i = 0; i < kept_.size(); ++i) {
    cumulated += weights_[i];
    if (cumulated > target) return kept_[i];
    if (weights_[i] > 0) last = i;
  }
  return kept_[last];  // rounding: the sum of all, in another order, was less
}

std::optional<OutputToken> Sampler::sample(std::span<const float> logits, const SamplingParams& params,
                                           int64_t position, std::span<const int32_t> ids) {
  OutputToken out;
  const bool greedy = params.temperature < kGreedyTemperature;
  if (greedy) {
    bool has_nan = false;
    const float best = largest_of(logits, has_nan);
    if (has_nan || !std::isfinite(best)) return std::nullopt;
    out.token = static_cast<int32_t>(std::find(logits.begin(), logits.end(), best) - logits.begin());
    if (!ids.empty()) out.token = ids[static_cast<size_t>(out.token)];
    if (!params.logprobs) return out;
  }
  const Transforms transforms = greedy ? Transforms{.temperature = kGreedyTemperature}
                                       : Transforms{params.temperature, params.top_p, params.top_k, params.min_p};
  if (!transform(logits, transforms, ids)) return std::nullopt;
  if (!greedy) out.token = draw(counter_uniform(params.seed, position, DrawKind::kSample));
  if (!params.logprobs) return out;

  describe(out, params.top_logprobs, logits.size(), params.logprob_token_ids);
  return out;
}

OutputToken Sampler::score(std::span<const float> logits, int32_t token, int32_t top) {
  OutputToken out;
  out.token = token;
  if (!transform(logits, {})) kept_.clear();
  describe(out, top, logits.size());
  return out;
}

float Sampler::logprob_of(int32_t token) const {
  const auto it = std::lower_bound(kept_.begin(), kept_.end(), token);
  const bool kept = it != kept_.end() && *it == token;
  return kept ? std::max(kPrunedLogprob, logprobs_[static_cast<size_t>(it - kept_.begin())]) : kPrunedLogprob;
}

void Sampler::describe(OutputToken& out, int32_t top, size_t vocab, std::span<const int32_t> also) {
  out.logprob = logprob_of(out.token);
  const size_t n = std::min(static_cast<size_t>(std::max(top, 0)), vocab);
  order_.resize(kept_.size());
  std::iota(order_.begin(), order_.end(), 0);
  const size_t ranked = std::min(n, kept_.size());
  std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(ranked), order_.end(),
                    [&](int32_t a, int32_t b) {
                      const float la = logprobs_[static_cast<size_t>(a)];
                      const float lb = logprobs_[static_cast<size_t>(b)];
                      return la > lb || (la == lb && a < b);
                    });
  for (size_t i = 0; i < ranked; ++i) {
    const auto k = static_cast<size_t>(order_[i]);
    out.top.push_back({kept_[k], std::max(kPrunedLogprob, logprobs_[k])});
  }
  // Fewer survivors than asked for: pruned ids, lowest first, fill the list.
  for (int32_t id = 0; out.top.size() < n; ++id) {
    if (!std::binary_search(kept_.begin(), kept_.end(), id)) out.top.push_back({id, kPrunedLogprob});
  }
  for (const int32_t id : also) {
    if (std::none_of(out.top.begin(), out.top.end(), [&](const TokenLogprob& one) { return one.token == id; }))
      out.top.push_back({id, logprob_of(id)});
  }
}

}  // namespace di::engine
