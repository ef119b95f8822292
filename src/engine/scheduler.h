// Which rows the next step computes: a pure function of the queues and the free memory (engine.md §3, §3.6), so that
// policies are tested and replayed without a model. Whoever calls it (Engine, a test, a simulator) applies the plan.
//
// Rules
//   Decode rows come first, in the order of `running`; what is left of the token budget goes to prompt chunks: first of
//   sequences that have started, then of admitted ones.
//   A sequence is admitted in the order of `waiting` when a state slot and the blocks of everything it has to compute
//   are free, with one block in hand for each running sequence. The first one that does not fit holds back those behind
//   it. A running sequence that needs a block when none is free takes those of the victim: lowest priority first, then
//   the longest output. The victim goes back to waiting and is computed again; the sampler gives it the same tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace di::engine {

struct SchedulerConfig {
  int32_t max_num_seqs = 16;
  int32_t max_num_batched_tokens = 512;  // rows per step
  int32_t block_tokens = 128;
};

// What the scheduler sees of a sequence.
struct SeqState {
  uint64_t id = 0;
  int32_t length = 0;    // tokens, prompt and output
  int32_t computed = 0;  // tokens whose KV is stored; < length
  int32_t output_tokens = 0;
  int32_t blocks = 0;    // in its table
  int32_t priority = 0;  // lower first
};

struct PoolState {
  int32_t free_blocks = 0;
  int32_t free_slots = 0;
};

struct ScheduledRows {
  uint64_t id = 0;
  int32_t begin = 0;  // first position
  int32_t count = 0;
  int32_t new_blocks = 0;  // to append to its table before the step
  bool admit = false;      // comes from `waiting`: give it a state slot
  bool sample = false;     // its last row gets logits
};

struct StepPlan {
  std::vector<ScheduledRows> rows;
  std::vector<uint64_t> preempted;  // free their blocks and slots first, then back to the front of waiting
  std::vector<uint64_t> exhausted;  // need more blocks than the whole pool can give them: end them
  int32_t total_rows = 0;
};

// `running`: sequences with a state slot, in order of admission. `waiting`: without, in the order they are to be
// admitted.
StepPlan plan_step(const SchedulerConfig& config, PoolState pool, std::span<const SeqState> running,
                   std::span<const SeqState> waiting);

// Blocks for `tokens` tokens.
int32_t blocks_for(int64_t tokens, int32_t block_tokens);

}  // namespace di::engine
