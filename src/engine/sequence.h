// A request and its choices as the engine's thread keeps them (engine.md §2.1), and the rules that end a choice (§2.3).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/api.h"
#include "engine/scheduler.h"
#include "engine/speculative/planner.h"
#include "kv/block_hash.h"
#include "kv/replay_plan.h"
#include "kv/swa_cache.h"

namespace di::engine {

// What decides about a sampled token; the same on the host and on the device.
struct StopRules {
  int32_t eos_token_id = -1;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  int64_t min_tokens = 0;
  int64_t max_tokens = 0;
  int64_t max_model_len = 0;

  bool is_stop(int32_t token) const;
};

// What never changes about a choice. Shared with the device's thread.
struct SequenceSpec {
  SamplingParams sampling;  // with this choice's seed
  StopRules stop;
  int32_t prompt_tokens = 0;
  int32_t prompt_logprobs = -1;           // alternatives per position; -1: off
  structured::CompiledRef constraint;     // null: none
  int32_t constrained_prompt_tokens = 0;  // as in GenerateRequest
};
using SequenceSpecRef = std::shared_ptr<const SequenceSpec>;

struct Request {
  RequestId id;
  GenerateRequest spec;
  OutputSink sink;
  int64_t arrival_ns = 0;
  int32_t tenant = 0;             // a number that stands for it
  int32_t unfinished = 0;         // choices
  bool queued = true;             // counted in the queue bound: no choice has been scheduled yet
  kv::BlockChain chain;           // of the prompt
  std::vector<uint64_t> choices;  // Sequence::id of each
};

// Where a waiting sequence would start (Engine::find_start).
struct StartChoice {
  kv::StartPlan plan;
  int32_t hit_blocks = 0;            // known ones of the prompt, whether they can be used or not
  uint64_t fork_of = 0;              // a choice of the same request whose prompt is computed; 0: none
  int32_t shared_blocks = 0;         // of it
  kv::SwaEntryRef window;            // to start from
  std::vector<int32_t> checkpoints;  // ascending positions where a window is to be saved
};

// One choice.
//   Waiting: no slot, no blocks, nothing computed, nothing in flight that counts (epoch tells older steps apart).
//   Running: a slot and the blocks of [0, computed), where computed includes what launched steps will have computed.
//   Parked: running, without rows to compute: its prompt comes from another engine, or goes to one
//   (engine_transfer.cc).
// Between launch and processing of a step that samples, `pending` tokens are on the device only; lengths that the
// scheduler sees take the most that may come, ends take the fewest.
struct Sequence {
  uint64_t id = 0;
  Request* request = nullptr;
  int32_t choice = 0;
  SequenceSpecRef spec;
  std::vector<int32_t> tokens;  // prompt, then output, as far as handed out
  int32_t prompt_tokens = 0;

  int32_t computed = 0;       // positions whose KV is stored or in flight; with drafts in flight an upper bound
  int32_t pending = 0;        // most tokens that steps in flight may add
  int32_t steps_pending = 0;  // steps in flight that sample: at least one token each
  int32_t in_flight = 0;      // steps in flight that it is in
  int32_t last_index = -1;    // its place in the last of these
  uint32_t epoch = 0;         // counts admissions: output of steps of an earlier one is discarded
  std::vector<int32_t> blocks;
  int32_t slot = -1;
  bool fresh = true;        // admitted, not yet launched: the lane has to be filled
  int32_t sent_blocks = 0;  // of `blocks`, known to the lane

  // Where its computation starts (Engine::find_start): a cached prefix, a fork of another choice.
  int32_t cached_tokens = 0;      // of the prompt, not computed
  int32_t window_start = 0;       // sliding-window entries below were never computed
  int32_t block_write_begin = 0;  // Block KV below is there already and is shared
  int32_t keep_begin = 0;         // positions below stop at the boundary layer
  int32_t filled_blocks = 0;      // leading blocks offered to others
  kv::BlockChain chain;           // of the full blocks of `tokens`, as far as needed
  StartChoice start;              // while waiting
  kv::SwaEntryRef window_load;    // admitted, not yet launched
  int32_t copy_last_block = 0;    // admitted as a fork: the block whose contents its last one gets
  std::vector<std::pair<int32_t, int32_t>> replaced_blocks;  // not yet known to the lane
  std::vector<int32_t> checkpoints;
  int32_t window_ordered = 0;  // position of the last window ordered while decoding
  int32_t window_kept = 0;     // position of the last window kept while decoding
  CacheReport cache;           // of its first admission

  bool parked = false;
  int32_t offered_blocks = 0;  // of a prompt that is handed over: launched to be read
  TransferRef arrived;         // taken over, not yet launched: what its memory is filled with
  int32_t known_blocks = 0;    // of that, blocks that were here already

  bool drafted = false;  // its last launched step drafts for the next one
  SequenceConfidences confidences;
  int64_t draft_rounds = 0;
  int64_t drafts_verified = 0;
  int64_t drafts_accepted = 0;

  int32_t preemptions = 0;
  RequestTimes times;
  std::vector<OutputToken> prompt_logprobs;  // collected until the first output
  bool constraint_failed = false;            // how it ends
  bool transfer_failed = false;              // the same

  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
  int32_t output_tokens() const { return length() - prompt_tokens; }
  // What is in flight will end it for sure: by max_tokens, by the context, or because only the prompt is wanted.
  bool ending() const {
    if (parked) return true;
    if (spec->stop.max_tokens == 0) return computed >= length();
    return steps_pending > 0 && (output_tokens() + steps_pending >= spec->stop.max_tokens ||
                                 length() + steps_pending > spec->stop.max_model_len);
  }
  SeqState state() const {
    SeqState out;
    out.id = id;
    out.length = length() + pending;
    out.computed = computed;
    out.output_tokens = output_tokens() + pending;
    out.blocks = static_cast<int32_t>(blocks.size());
    out.priority = request->spec.priority;
    out.traffic_class = static_cast<int32_t>(request->spec.traffic_class);
    out.tenant = request->tenant;
    out.arrival_ns = request->arrival_ns;
    out.ending = ending();
    for (const int32_t c : checkpoints) {
      if (c <= computed) continue;
      out.checkpoint = c;
      break;
    }
    return out;
  }
};

SequenceSpecRef sequence_spec(const GenerateRequest& request, int32_t choice, const EngineInfo& info);

// What happens to a freshly sampled token. kStop: the token is dropped. kLength: it is the last one.
FinishReason check_stop(const StopRules& rules, int32_t token, int64_t prompt_tokens, int64_t output_tokens_with_it);

// End of sequence and stop tokens while fewer than min_tokens were put out, else nothing.
std::vector<int32_t> ruled_out_tokens(const StopRules& rules, int64_t output_tokens);

// Admission checks of engine.md §2.2 that need no state. The error names what is wrong and the limit.
std::expected<void, Rejection> check_request(const GenerateRequest& request, const EngineInfo& info);

}  // namespace di::engine
