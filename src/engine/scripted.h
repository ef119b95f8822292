// A runner without a model: it answers with given tokens, at given times and with given faults. Everything above it
// (scheduler, cache, stop rules, sampler, server) is the real thing, so tests of those need no weights and no waiting
// (server.md §18).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/runner.h"

namespace di::engine {

struct Script {
  std::vector<int32_t> match;   // taken when this run of tokens is in the prompt; empty: always
  std::vector<int32_t> output;  // then the end-of-sequence token, for ever
};

// One step of an answer.
struct ScriptedToken {
  int32_t token = 0;
  float logprob = 0;                              // <= 0; 0: certain
  std::vector<std::pair<int32_t, float>> others;  // further tokens with their log probabilities
  int64_t delay_ns = 0;                           // the step that computes it takes this much longer
};

enum class ScriptedFault : uint8_t {
  kNone,
  kError,  // the step fails
  kHang,   // the step does not end before the engine does
  kCrash,  // the process aborts
  // When its prompt is handed over to another engine (transfer.h), whatever the token:
  kLateCompletion,  // its end is seen late_ns after it was sent
  kWrongOrder,      // its end overtakes its first block
  kDamage,          // its bytes are not those that were sent
};

struct ScriptedAnswer {
  std::vector<ScriptedToken> tokens;  // then the end-of-sequence token, for ever
  int32_t fault_at = 0;               // before this token
  ScriptedFault fault = ScriptedFault::kNone;
  int64_t late_ns = 0;
  // Drafts that are right, by round: a round begins behind the tokens of the one before. Beyond its end: none.
  std::vector<int32_t> accepted;
};
using ScriptedAnswerRef = std::shared_ptr<const ScriptedAnswer>;

struct ScriptedOptions {
  int32_t vocab_size = 256;
  int32_t eos_token_id = 1;
  int64_t max_positions = 1 << 20;
  int32_t block_tokens = 128;
  int32_t n_blocks = 4097;
  int32_t n_slots = 17;
  int32_t window = 0;      // > 0: prompts are reused, with so many positions computed again (engines with replay)
  int32_t max_drafts = 0;  // > 0: there is a draft module, for `answer`
  // How probable it is that draft 1, 2, … is right if those before it are, for answers that do not say how many are.
  // Which ones are is a function of the prompt and the place in the answer.
  std::vector<double> acceptance = {};
  const char* backend = "scripted";
  std::vector<Script> scripts;  // the first that matches; none: end of sequence at once
  // Asked once per sequence when set, instead of `scripts`. Null: end of sequence at once.
  std::function<ScriptedAnswerRef(std::span<const int32_t> prompt)> answer;
  int64_t step_ns = 0;        // a step takes this long on the clock …
  int64_t row_ns = 0;         // … this much per row …
  int64_t prompt_row_ns = 0;  // … this much per row of a prompt …
  int64_t sequence_ns = 0;    // … and this much per sequence
  // Called first in every step, on the engine's thread; an error becomes the step's result. Faults and gates of tests.
  std::function<Result<void>(std::span<const model::SequenceChunk>)> before_step;
};

// The clock must outlive the runner.
std::unique_ptr<Runner> make_scripted_runner(ScriptedOptions options, const Clock& clock);

}  // namespace di::engine
