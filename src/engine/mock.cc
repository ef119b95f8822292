#include "engine/mock.h"

#include <algorithm>
#include <stop_token>
#include <vector>

#include "base/rng.h"

namespace di::engine {
namespace {

class MockRunner final : public Runner {
 public:
  MockRunner(const MockOptions& options, const Clock& clock) : options_(options), clock_(clock) {
    info_.vocab_size = options.vocab_size;
    info_.eos_token_id = options.eos_token_id;
    info_.max_positions = options.max_positions;
    info_.block_tokens = options.block_tokens;
    info_.n_blocks = options.n_blocks;
    info_.n_slots = options.n_slots;
    info_.mixed_steps = options.mixed_steps;
    info_.kv_dtype = "none";
    info_.backend = "mock";
  }
  const RunnerInfo& info() const override { return info_; }

  Result<LogitsView> forward(std::span<const model::SequenceChunk> chunks, std::span<const SequenceTag>) override {
    const int64_t begin = clock_.now_ns();
    const auto vocab = static_cast<size_t>(options_.vocab_size);
    int64_t rows = 0;
    size_t wanted = 0;
    for (const model::SequenceChunk& chunk : chunks) {
      rows += chunk.count;
      wanted += static_cast<size_t>(std::max(0, chunk.begin + chunk.count - std::max(chunk.begin, chunk.logits_begin)));
    }
    // Flat but for one token per row, which is taken back before the next step.
    if (logits_.size() < wanted * vocab) logits_.resize(wanted * vocab, -1000.0F);
    for (const size_t at : raised_) logits_[at] = -1000.0F;
    raised_.clear();
    for (const model::SequenceChunk& chunk : chunks) {
      for (int32_t p = std::max(chunk.begin, chunk.logits_begin); p < chunk.begin + chunk.count; ++p) {
        const auto last = static_cast<uint64_t>(chunk.tokens[static_cast<size_t>(p)]);
        const uint64_t hash = split_mix64(last * 1'000'003 + static_cast<uint64_t>(p));
        raised_.push_back(raised_.size() * vocab + hash % vocab);
        logits_[raised_.back()] = 0.0F;
      }
    }
    const int64_t end = begin + options_.step_ns + options_.row_ns * rows;
    if (end > begin && !clock_.sleep_until(end, stop_.get_token())) {
      return fail(Errc::kUnavailable, "the engine is stopping");
    }
    return LogitsView{logits_.data(), static_cast<int64_t>(wanted), options_.vocab_size};
  }

  void interrupt() override { stop_.request_stop(); }

 private:
  MockOptions options_;
  const Clock& clock_;
  RunnerInfo info_;
  std::stop_source stop_;
  std::vector<float> logits_;
  std::vector<size_t> raised_;
};

}  // namespace

std::unique_ptr<Runner> make_mock_runner(const MockOptions& options, const Clock& clock) {
  return std::make_unique<MockRunner>(options, clock);
}

}  // namespace di::engine
