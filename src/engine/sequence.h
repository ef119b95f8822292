// A request and its choices as the engine's thread keeps them (engine.md §2.1), and the rules that end a choice (§2.3).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/api.h"
#include "engine/scheduler.h"

namespace di::engine {

struct Request {
  RequestId id;
  GenerateRequest spec;
  OutputSink sink;
  int64_t arrival_ns = 0;
  int32_t unfinished = 0;  // choices
  bool queued = true;      // counted in the queue bound: no choice has been scheduled yet
};

// One choice. Waiting: no slot, no blocks, computed 0. Running: a slot and the blocks of [0, computed).
struct Sequence {
  uint64_t id = 0;
  Request* request = nullptr;
  int32_t choice = 0;
  SamplingParams sampling;      // with this choice's seed
  std::vector<int32_t> tokens;  // prompt, then output
  int32_t prompt_tokens = 0;
  int32_t computed = 0;  // tokens whose KV is stored
  std::vector<int32_t> blocks;
  int32_t slot = -1;
  int32_t preemptions = 0;
  RequestTimes times;

  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
  int32_t output_tokens() const { return length() - prompt_tokens; }
  SeqState state() const {
    return {id, length(), computed, output_tokens(), static_cast<int32_t>(blocks.size()), request->spec.priority};
  }
};

// What happens to a freshly sampled token. kStop: the token is dropped. kLength: it is the last one.
FinishReason check_stop(const GenerateRequest& request, int32_t eos_token_id, int64_t max_model_len, int32_t token,
                        int64_t prompt_tokens, int64_t output_tokens_with_it);

// End of sequence and stop tokens while fewer than min_tokens were put out, else nothing.
std::vector<int32_t> ruled_out_tokens(const GenerateRequest& request, int32_t eos_token_id, int64_t output_tokens);

// Admission checks of engine.md §2.2 that need no state. The error names what is wrong and the limit.
std::expected<void, Rejection> check_request(const GenerateRequest& request, const EngineInfo& info);

}  // namespace di::engine
