// Where a sequence starts after a prefix hit (kv-cache.md §6.4, §6.5; model.md §6): a pure function of the hit, of the
// window entries found and of the rules in force.
#pragma once

#include <cstdint>
#include <optional>

#include "kv/prefix_cache.h"
#include "kv/swa_cache.h"

namespace di::kv {

struct ReplayRules {
  int32_t window = 128;  // the model's sliding window, W
  int32_t block_tokens = 128;
  bool replay = true;  // off: a hit is used only up to a window entry
  // Without an entry at the hit's end, one at most this many tokens before is better than a replay. Replay off: any
  // entry is.
  int32_t lower_reach = 512;
};

struct StartPlan {
  int32_t start = 0;              // first position to compute
  int32_t hit_tokens = 0;         // H: block KV of [0, H) is taken over; a multiple of block_tokens
  int32_t window_start = 0;       // windows see nothing below
  int32_t block_write_begin = 0;  // Block KV below is there already and is not written
  int32_t replay_rows = 0;        // W on a replay, else 0
  int32_t cached_tokens = 0;      // of the prompt, as reported: replayed rows count as cached
  SwaOutcome outcome = SwaOutcome::kNone;
};

// Tokens of a prompt that a hit may cover: full blocks, and one token is left to compute logits.
int32_t usable_tokens(int64_t prompt_tokens, int32_t block_tokens);

// A hit that is worth a window look-up: longer than the window.
bool worth_adopting(const ReplayRules& rules, int32_t hit_tokens);

// `hit_tokens`: known blocks from the start, within usable_tokens(). `window_at`: position of the window entry that
// SwaCache::find() gave, nothing on a miss.
StartPlan plan_start(const ReplayRules& rules, int32_t hit_tokens, std::optional<int32_t> window_at);

// Truncated prefill (model.md §6): positions below stop at the boundary layer. 0: all of the prompt runs through every
// layer. `prompt_tokens`: all tokens to be prefilled; `start`, `window_complete`: where computing starts and whether
// the decoder half's windows below are there.
int32_t keep_begin(int64_t prompt_tokens, int32_t keep, int32_t start, bool window_complete);

}  // namespace di::kv
