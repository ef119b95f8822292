// What computes logits for the engine: the model on some backend, a script, a stub of a test. The border below
// scheduler, stop rules and sampler, so that all of these are the same for every kind of engine. Called by the engine's
// thread only.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "engine/api.h"
#include "model/batch.h"

namespace di::engine {

struct RunnerInfo {
  int32_t vocab_size = 0;
  int32_t eos_token_id = -1;
  int64_t max_positions = 0;  // positions 0 … max_positions-1 may be computed
  int32_t block_tokens = 128;
  int32_t n_blocks = 0;  // with the null block
  int32_t n_slots = 0;   // with the padding slot
  const char* kv_dtype = "";
  const char* backend = "";
};

// Whose chunk it is, for runners that act on requests (scripts).
struct SequenceTag {
  uint64_t sequence = 0;
  int32_t prompt_tokens = 0;
};

// [rows, vocab] fp32; `stride` floats from one row to the next.
struct LogitsView {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t stride = 0;
};

class Runner {
 public:
  virtual ~Runner() = default;
  virtual const RunnerInfo& info() const = 0;

  // Computes the chunks' rows and stores their KV. Returns the logits of the positions >= logits_begin, in the order of
  // the chunks; they live until the next call and may be written to. An error ends the requests of the step.
  virtual Result<LogitsView> forward(std::span<const model::SequenceChunk> chunks,
                                     std::span<const SequenceTag> tags) = 0;

  // The engine is being destroyed (called from another thread): a forward that waits for something returns soon.
  virtual void interrupt() {}
};

}  // namespace di::engine
