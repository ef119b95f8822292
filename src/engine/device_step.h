// The device side of a step (engine.md §4): what the host sends down, the state that stays there between steps, and
// what comes back. A DeviceStep lives on the device's thread (step_worker.h) and is the only one that calls the Runner.
// The host sends no token ids of a running sequence: a lane knows its tokens, and what step n-1 sampled feeds step n
// here.
//
// Lanes. Each state slot has a lane: the tokens, the block table and the sampling parameters of the sequence that has
// the slot. The host fills it when it admits a sequence and sends only new blocks afterwards. Slots may change hands
// while older steps are queued: everything happens in the order of the launches.
//
// Speculation. A decode sequence may have 1 + d rows: the last token and d drafts (speculative/handover.h). The exact
// first position is known here only; the host's is an upper bound that takes all drafts in flight for accepted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/constraint.h"
#include "engine/runner.h"
#include "engine/sampler.h"
#include "engine/sequence.h"
#include "engine/speculative/speculator.h"
#include "engine/trace.h"
#include "kv/swa_cache.h"
#include "model/batch.h"

namespace di::engine {

// One sequence's share of a step.
struct StepRows {
  uint64_t sequence = 0;
  uint32_t epoch = 0;               // Sequence::epoch at launch
  int32_t slot = 0;                 // its lane
  int32_t begin = 0;                // first position; decode with drafts in flight: upper bound
  int32_t count = 0;                // rows
  bool decode = false;              // last token (and drafts); else positions that the lane knows: a prompt chunk
  bool sample = false;              // a token follows the last row
  int32_t remap = -1;               // its index in the step launched before, -1: not in it
  int32_t window_start = 0;         // as in model::SequenceChunk
  int32_t block_write_begin = 0;    // as in model::SequenceChunk
  int32_t keep_begin = 0;           // as in model::SequenceChunk
  bool masked = false;              // as in model::SequenceChunk
  bool prompt_logprobs = false;     // of the chunk's positions
  SequenceSpecRef admitted;         // set when the sequence gets its slot: refills the lane …
  std::vector<int32_t> tokens;      // … with its prompt and output so far
  std::vector<int32_t> new_blocks;  // appended to the lane's table (after a refill: the whole table)
  std::vector<std::pair<int32_t, int32_t>> replaced_blocks;  // place in the table, block with the same contents
  kv::SwaEntryRef window_load;                               // of an admission: the slot starts from there
  kv::SwaEntryRef window_save;  // to be filled when the sequence reaches its position, in this step or a later one
  // Hand-over (engine/transfer.h). Of an admission: the bytes for the blocks at these places of the table, and the
  // state at position begin.
  TransferRef receive;
  int32_t receive_from = 0;
  // To be read when the chunk is computed: these places of the table, with the last chunk also the state.
  TransferRef send;
  int32_t send_from = 0;
  int32_t send_to = 0;
};

struct StepInput {
  uint64_t step = 0;
  std::vector<StepRows> rows;
  std::vector<CopyPair> block_copies;  // before the forward pass
  std::vector<CopyPair> slot_copies;
  int32_t total_rows = 0;
  // The decode rows are one total: the device shares it by the newest confidences (speculative.md §4.3), the counts
  // above are what the host knows.
  bool share_rows = false;
  bool propose = false;  // sequences that get a token get drafts for their next step
};

// What sampling needs of the host beside the lanes.
struct SampleInput {
  uint64_t step = 0;
};

struct RowsOutput {
  std::vector<OutputToken> tokens;  // accepted drafts, then the sampled token; none when nothing was to be sampled
  std::vector<OutputToken> prompt;  // prompt_logprobs: of the positions after each row of the chunk
  int32_t scheduled = 0;            // drafts whose rows were computed
  int32_t accepted = 0;
  std::vector<float> accept_prob;       // of those looked at, up to the first that was refused: estimated chance
  std::vector<float> next_confidences;  // of the drafts for the next step
  bool failed = false;                  // no finite logit was left
  bool constraint_failed = false;       // the constraint reached its limits, or leaves no token that is possible
  bool skipped = false;    // its mask was late: no token, the next step computes the last position once more
  kv::SwaEntryRef window;  // filled
};

// A sliding window that was saved to host memory or loaded from it.
struct WindowMove {
  bool save = false;
  int64_t bytes = 0;
  int64_t ns = 0;
};

struct StepOutput {
  Result<void> status;                // of the forward pass
  std::vector<RowsOutput> sequences;  // in the order of StepInput::rows; empty when the forward pass failed
  int64_t forward_ns = 0;
  int64_t sample_ns = 0;
  int64_t draft_ns = 0;
  int32_t decode_rows = 0;  // computed; other rows were of prompts
  int32_t prompt_rows = 0;
  int64_t prepare_ns = 0;
  int64_t gap_ns = 0;   // from the end of the forward pass before to the beginning of this one
  int64_t idle_ns = 0;  // of that, without a step to work on
  double flops = 0;     // of the rows computed (Runner::row_flops)
  std::vector<WindowMove> moves;
  int64_t sent_bytes = 0;  // read for other engines
};

// The device's knowledge of a sequence.
struct Lane {
  SequenceSpecRef spec;
  std::vector<int32_t> tokens;  // prompt and output, the last sampled token included
  std::vector<int32_t> block_table;
  bool stopped = false;  // its last token was sampled: what is still in flight for it is discarded
  std::optional<structured::Matcher> matcher;  // after `tokens`
  bool matcher_due = false;                    // to be made before the first mask
  bool unmatched = false;                      // the tokens it was filled with do not fit its constraint
  std::shared_ptr<MaskWork> late_mask;         // of the last step, which went on without it
  bool skipped = false;                        // the last step did: its positions are computed once more

  // After the end of the constrained text (ignore_eos) anything goes.
  bool constrained() const { return matcher && !matcher->terminated(); }
  kv::SwaEntryRef window_save;
};

class DeviceStep {
 public:
  // max_drafts: most drafts a sequence may verify in one step. mask_patience_ns: as in EngineOptions.
  DeviceStep(Runner& runner, int32_t max_drafts, int64_t mask_patience_ns, const Clock& clock);

  // What the forward pass needs, from the lanes and the step before: no work of the backend. Then the pass itself.
  void prepare(const StepInput& input);
  Result<void> forward(const StepInput& input);
  // After the forward() of the same step; in the order of its rows.
  std::vector<RowsOutput> sample(const StepInput& input, const SampleInput& sample);
  // After sample(), with StepInput::propose: drafts for the next step.
  Result<void> propose(const StepInput& input, std::vector<RowsOutput>& outputs);

  // The step failed: its sequences end, but what is launched already goes on with any token.
  void abandon(const StepInput& input);

  int32_t device_fed() const { return device_fed_; }  // sequences of the last forward() with a remap
  int32_t decode_rows() const { return decode_rows_; }
  int32_t prompt_rows() const { return prompt_rows_; }
  double flops() const;  // of the last forward()
  // Windows that were moved since the last call.
  std::vector<WindowMove> take_moves() { return std::exchange(moves_, {}); }
  // Bytes read for other engines since the last call.
  int64_t take_sent_bytes() { return std::exchange(sent_bytes_, 0); }

 private:
  void fill_lanes(const StepInput& input);
  void clear_outputs(size_t groups);
  kv::SwaEntryRef save_window(const StepRows& rows, Lane& lane, int32_t end);
  int32_t exact_begin(const StepRows& rows) const;
  void choose_counts(const StepInput& input);
  void hand_over_rows(const StepInput& input);
  void build_chunks(const StepInput& input);
  void begin_masks(const StepInput& input);
  void make_due_matcher(Lane& lane, int32_t drafts);
  void skip(size_t index, const StepRows& rows, Lane& lane, const MaskJob* mask);
  RowsOutput sample_rows(size_t index, const StepRows& rows, Lane& lane, float*& logits, const MaskJob* mask);
  void keep_tokens(Lane& lane, int32_t length, RowsOutput& out) const;
  void read_prompt_logprobs(const StepRows& rows, const Lane& lane, float*& logits, RowsOutput& out);

  void move_window(bool save, int32_t slot, kv::SwaEntry& entry);
  Result<void> receive(const StepRows& rows);
  void send(const StepRows& rows, const Lane& lane);

  Runner& runner_;
  const Clock& clock_;
  int32_t max_drafts_;
  Sampler sampler_;
  MaskFiller masks_;  // of the rows from forward() to sample(), of drafts in propose()
  Speculator speculator_;
  std::vector<Lane> lanes_;  // [slots]
  // Of the step being computed.
  std::vector<int32_t> decode_lengths_;  // by decode sequence: positions with this step's rows, exact
  std::vector<int32_t> decode_ids_;      // their token ids, one after the other
  std::vector<int32_t> counts_;          // [row groups]: rows computed
  std::vector<int32_t> first_position_;  // [row groups], exact
  std::vector<model::SequenceChunk> chunks_;
  std::vector<SequenceTag> tags_;
  LogitsView logits_;
  int32_t device_fed_ = 0;
  std::span<const MaskJob> filled_;  // masks of the constrained row groups, in order
  int32_t decode_rows_ = 0;
  std::vector<WindowMove> moves_;
  int64_t sent_bytes_ = 0;
  int32_t prompt_rows_ = 0;
  // Outputs of the last step, by its row groups: what the next one is fed with.
  std::vector<int32_t> accepted_;  // -1: nothing, not even its first position
  std::vector<int32_t> sampled_;
  std::vector<int32_t> drafts_;  // [groups, max_drafts]
};

}  // namespace di::engine
