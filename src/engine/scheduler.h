// Which rows the next step computes: a pure function of the queues, the free memory and a little state of its own
// (engine.md §3, §3.6), so that policies are tested and replayed without a model (schedule_record.h). Whoever calls it
// (Engine, a test, a simulator) applies the plan. No token ids pass through here.
//
// Rules
//   Decode rows come first, in the order of `running`; what is left of the token budget goes to prompt chunks. Inside
//   the best class that has some, each tenant gets an equal share of it, in the order of admission; what a class leaves
//   goes to the next. A backend that cannot mix them gets steps of one kind (engine.md §3.1).
//   Admission: queue_order.h says whose turn it is. A sequence is admitted when a state slot and the blocks of
//   everything it has to compute are free, with one block in hand for each running sequence. One that lacks memory
//   holds back those behind it of its tenant and, once it has waited for its ageing bound, all others. A tenant that
//   runs nothing takes the place of a sequence of one that runs several, if that one is in no better class. A running
//   sequence that needs a block when none is free takes those of the victim: lowest class first, then longest output.
//   The victim goes back to waiting and is computed again; the sampler gives it the same tokens.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace di::engine {

inline constexpr int32_t kTrafficClasses = 3;

struct SchedulerConfig {
  int32_t max_num_seqs = 16;
  int32_t max_num_batched_tokens = 512;  // rows per step
  int32_t block_tokens = 128;
  int32_t max_drafts = 0;                      // positions beyond a decode sequence's rows that a step may write
  int64_t max_positions = INT64_MAX;           // none are written from here on
  int64_t max_queue_ns = 2'000'000'000;        // ageing: a request gains one class each time it has waited this long
  bool mixed_steps = true;                     // chunks and decode rows may share a step
  int32_t prefill_attempt_interval = 70;       // separate steps: decode steps between two attempts to admit …
  int32_t prefill_any_attempt_interval = 100;  // … and a second beat (engine.md §3.1)
};

// What the scheduler sees of a sequence.
struct SeqState {
  uint64_t id = 0;
  int32_t length = 0;    // tokens, prompt and output; the most there can be when steps in flight are done
  int32_t computed = 0;  // tokens whose KV is stored or in flight; < length
  int32_t output_tokens = 0;
  int32_t blocks = 0;         // in its table
  int32_t priority = 0;       // inside its class, lower first
  int32_t decode_rows = 1;    // rows of a decode step: the last token and the drafts to verify
  int32_t traffic_class = 0;  // 0 … kTrafficClasses-1, lower first
  int32_t tenant = 0;         // a number that stands for it
  int64_t arrival_ns = 0;
  int32_t checkpoint = 0;  // a prompt chunk that reaches this position ends there; 0: none
  bool ending = false;     // what is in flight is its end: no more rows, its memory comes back soon
};

struct PoolState {
  int32_t free_blocks = 0;
  int32_t free_slots = 0;
};

// Its next step computes its last token (and drafts), not a part of the prompt.
bool is_decode(const SeqState& seq);

// Where a waiting sequence would begin, looked up when its turn comes.
struct Start {
  int32_t computed = 0;     // first position to compute; what lies before is taken over
  int32_t blocks = 0;       // taken over, need no allocation
  int32_t idle_blocks = 0;  // of these, counted in PoolState::free_blocks because nobody else has them
  int32_t checkpoint = 0;   // as in SeqState
  bool ready = true;        // false: something it needs is on its way; it is passed over
};

// What only the owner of the memory knows, asked for when it matters.
struct Lookups {
  std::function<Start(uint64_t id)> start;           // of a waiting sequence; none: all begin at 0
  std::function<int32_t(uint64_t id)> freed_blocks;  // of a running one, were it to give up its memory; none: all
};

struct TenantCredit {
  int32_t tenant = 0;
  int64_t credit = 0;  // tokens it may still have admitted in its turn
};

// Carried from one plan to the next.
struct PolicyState {
  int32_t decode_steps = 0;  // since the last step with chunks
  // Round of the tenants that wait in a class; the first one's turn.
  std::array<std::vector<TenantCredit>, kTrafficClasses> rounds;
};

// `running`: sequences with a state slot, in order of admission. `waiting`: without, first come first (those that lost
// their memory before all others).
struct SchedulerInput {
  int64_t now_ns = 0;
  PoolState pool;
  std::vector<SeqState> running;
  std::vector<SeqState> waiting;
  PolicyState policy;
};

struct ScheduledRows {
  uint64_t id = 0;
  int32_t begin = 0;  // first position
  int32_t count = 0;
  int32_t new_blocks = 0;  // to append to its table before the step
  bool admit = false;      // comes from `waiting`: give it a state slot
  bool decode = false;     // its last token (and drafts)
  bool sample = false;     // its last row gets logits
  friend bool operator==(const ScheduledRows&, const ScheduledRows&) = default;
};

struct StepPlan {
  std::vector<ScheduledRows> rows;
  std::vector<uint64_t> preempted;  // free their blocks and slots first, then back to the front of waiting
  std::vector<uint64_t> exhausted;  // need more blocks than the whole pool can give them: end them
  int32_t total_rows = 0;
  PolicyState policy;  // for the next plan
};

StepPlan plan_step(const SchedulerConfig& config, const SchedulerInput& input, const Lookups& lookups = {});

// Class at `now_ns`: one better for each max_queue_ns since arrival.
int32_t effective_class(const SchedulerConfig& config, const SeqState& seq, int64_t now_ns);
// It has waited longer than its class can be good for: priorities no longer count against it.
bool is_overdue(const SchedulerConfig& config, const SeqState& seq, int64_t now_ns);

// Blocks for `tokens` tokens.
int32_t blocks_for(int64_t tokens, int32_t block_tokens);

}  // namespace di::engine
