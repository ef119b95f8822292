#include "kv/replay_plan.h"

#include <algorithm>

#include "base/result.h"

namespace di::kv {

int32_t usable_tokens(int64_t prompt_tokens, int32_t block_tokens) {
  return static_cast<int32_t>(std::max<int64_t>(0, prompt_tokens - 1) / block_tokens) * block_tokens;
}

bool worth_adopting(const ReplayRules& rules, int32_t hit_tokens) {
  return hit_tokens > rules.window;
}

StartPlan plan_start(const ReplayRules& rules, int32_t hit_tokens, std::optional<int32_t> window_at) {
  DI_CHECK(hit_tokens % rules.block_tokens == 0, "a hit of {} tokens with blocks of {}", hit_tokens,
           rules.block_tokens);
  StartPlan plan;
  if (!worth_adopting(rules, hit_tokens)) return plan;
  if (window_at) {
    DI_CHECK(*window_at > 0 && *window_at <= hit_tokens && *window_at % rules.block_tokens == 0,
             "a window at {} for a hit of {} tokens", *window_at, hit_tokens);
    plan.outcome = *window_at == hit_tokens ? SwaOutcome::kHit : SwaOutcome::kHitLower;
    plan.start = *window_at;
    plan.cached_tokens = *window_at;
    plan.hit_tokens = hit_tokens;
    plan.block_write_begin = hit_tokens;
    return plan;
  }
  plan.outcome = SwaOutcome::kMiss;
  if (!rules.replay) return plan;
  plan.start = hit_tokens - rules.window;
  plan.window_start = plan.start;
  plan.hit_tokens = hit_tokens;
  plan.block_write_begin = hit_tokens;
  plan.replay_rows = rules.window;
  plan.cached_tokens = hit_tokens;
  return plan;
}

int32_t keep_begin(int64_t prompt_tokens, int32_t keep, int32_t start, bool window_complete) {
  const auto first = static_cast<int32_t>(std::max<int64_t>(0, prompt_tokens - keep));
  return window_complete ? first : std::max(first, start);
}

}  // namespace di::kv
