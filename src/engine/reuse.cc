// Where a sequence's memory comes from, what of it exists before anything is computed, and who may use it afterwards.
// engine.h says when each of these is called.
#include <algorithm>

#include "engine/engine.h"

namespace di::engine {

Start Engine::find_start(Sequence&) {
  return {};
}

void Engine::take_over(Sequence& seq) {
  seq.computed = 0;
  seq.cached_tokens = 0;
  seq.window_start = 0;
  seq.block_write_begin = 0;
}

void Engine::blocks_filled(Sequence& seq, int32_t tokens) {
  seq.filled_blocks = tokens / info_.block_tokens;
}

void Engine::retain(Sequence&, bool) {}

int32_t Engine::freed_blocks(const Sequence& seq) const {
  return static_cast<int32_t>(
      std::count_if(seq.blocks.begin(), seq.blocks.end(), [this](int32_t id) { return blocks_.owners(id) == 1; }));
}

int32_t Engine::free_blocks() const {
  return blocks_.free_count();
}

int32_t Engine::allocate_block() {
  return blocks_.allocate();
}

void Engine::choose_verify_rows(std::span<SeqState>) {}

}  // namespace di::engine
