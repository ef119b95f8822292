// A runner that takes time instead of computing: a fixed part per step and a part per row, and tokens that are a hash
// of the sequence. For measuring what the engine itself costs, and for load tests without a model (server.md §18).
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "engine/runner.h"

namespace di::engine {

struct MockOptions {
  int32_t vocab_size = 512;
  int32_t eos_token_id = -1;  // >= 0: an answer may end by itself, one token in vocab_size
  int64_t max_positions = 1 << 20;
  int32_t block_tokens = 128;
  int32_t n_blocks = 16385;
  int32_t n_slots = 257;
  bool mixed_steps = true;
  int64_t step_ns = 5'000'000;  // every step
  int64_t row_ns = 0;           // and each of its rows
};

// The clock must outlive the runner.
std::unique_ptr<Runner> make_mock_runner(const MockOptions& options, const Clock& clock);

}  // namespace di::engine
