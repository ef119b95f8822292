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
#include <functional>
#include <span>
#include <vector>

namespace di::engine {

struct SchedulerConfig {
  int32_t max_num_seqs = 16;
  int32_t max_num_batched_tokens = 512;  // rows per step
  int32_t block_tokens = 128;
  int32_t max_drafts = 0;  // positions beyond a decode sequence's rows that a step may write
};

// What the scheduler sees of a sequence.
struct SeqState {
  uint64_t id = 0;
  int32_t length = 0;    // tokens, prompt and output; the most there can be when steps in flight are done
  int32_t computed = 0;  // tokens whose KV is stored or in flight; < length
  int32_t output_tokens = 0;
  int32_t blocks = 0;       // in its table
  int32_t priority = 0;     // lower first
  int32_t decode_rows = 1;  // rows of a decode step: the last token and the drafts to verify
  bool ending = false;      // the token in flight is its last: no more rows, its memory comes back soon
};

// Where a waiting sequence would begin, looked up when its turn comes.
struct Start {
  int32_t computed = 0;     // first position to compute; what lies before is taken over
  int32_t blocks = 0;       // taken over, need no allocation
  int32_t idle_blocks = 0;  // of these, counted in PoolState::free_blocks because nobody else has them
  bool ready = true;        // false: something it needs is on its way; it is passed over
};
using StartLookup = std::function<Start(uint64_t id)>;

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
  bool decode = false;     // its last token (and drafts)
  bool sample = false;     // its last row gets logits
};

struct StepPlan {
  std::vector<ScheduledRows> rows;
  std::vector<uint64_t> preempted;  // free their blocks and slots first, then back to the front of waiting
  std::vector<uint64_t> exhausted;  // need more blocks than the whole pool can give them: end them
  int32_t total_rows = 0;
};

// `running`: sequences with a state slot, in order of admission. `waiting`: without, in the order they are to be
// admitted. `start` is called for waiting sequences only, at most once each; none: all begin at 0.
StepPlan plan_step(const SchedulerConfig& config, PoolState pool, std::span<const SeqState> running,
                   std::span<const SeqState> waiting, const StartLookup& start = {});

// Blocks for `tokens` tokens.
int32_t blocks_for(int64_t tokens, int32_t block_tokens);

}  // namespace di::engine
