// A runner without a model: it answers with given tokens, at given times. Everything above it (scheduler, stop rules,
// sampler, server) is the real thing, so tests of those need no weights and no waiting (server.md §18).
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include "base/clock.h"
#include "engine/runner.h"

namespace di::engine {

struct Script {
  std::vector<int32_t> match;   // taken when this run of tokens is in the prompt; empty: always
  std::vector<int32_t> output;  // then the end-of-sequence token, for ever
};

struct ScriptedOptions {
  int32_t vocab_size = 256;
  int32_t eos_token_id = 1;
  int64_t max_positions = 1 << 20;
  int32_t block_tokens = 128;
  int32_t n_blocks = 4097;
  int32_t n_slots = 17;
  std::vector<Script> scripts;  // the first that matches; none: end of sequence at once
  int64_t step_ns = 0;          // a step takes this long on the clock …
  int64_t row_ns = 0;           // … and this much per row
  // Called first in every step, on the engine's thread; an error becomes the step's result. Faults and gates of tests.
  std::function<Result<void>(std::span<const model::SequenceChunk>)> before_step;
};

// The clock must outlive the runner.
std::unique_ptr<Runner> make_scripted_runner(ScriptedOptions options, const Clock& clock);

}  // namespace di::engine
