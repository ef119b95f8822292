#include "engine/scripted.h"

#include <algorithm>
#include <climits>

namespace di::engine {
namespace {

// Finite, so that a rule against the scripted token leaves others to choose from; e^-1000 is 0 all the same.
constexpr float kUnlikely = -1000.0F;

class ScriptedRunner final : public Runner {
 public:
  ScriptedRunner(ScriptedOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {
    info_.vocab_size = options_.vocab_size;
    info_.eos_token_id = options_.eos_token_id;
    info_.max_positions = options_.max_positions;
    info_.block_tokens = options_.block_tokens;
    info_.n_blocks = options_.n_blocks;
    info_.n_slots = options_.n_slots;
    info_.kv_dtype = "none";
    info_.backend = "scripted";
  }

  const RunnerInfo& info() const override { return info_; }

  Result<LogitsView> forward(std::span<const model::SequenceChunk> chunks, std::span<const SequenceTag> tags) override {
    if (options_.before_step) DI_TRY(options_.before_step(chunks));
    int64_t rows = 0;
    int64_t wanted = 0;
    for (const model::SequenceChunk& chunk : chunks) {
      rows += chunk.count;
      if (chunk.logits_begin < chunk.begin + chunk.count) ++wanted;
    }
    const int64_t duration = options_.step_ns + options_.row_ns * rows;
    if (duration > 0 && !clock_.sleep_until(clock_.now_ns() + duration, stop_.get_token())) {
      return fail(Errc::kUnavailable, "the engine is stopping");
    }
    logits_.assign(static_cast<size_t>(wanted) * static_cast<size_t>(options_.vocab_size), kUnlikely);
    float* row = logits_.data();
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (chunks[i].logits_begin >= chunks[i].begin + chunks[i].count) continue;
      row[next_token(chunks[i].tokens, tags[i].prompt_tokens)] = 0;
      row += options_.vocab_size;
    }
    return LogitsView{logits_.data(), wanted, options_.vocab_size};
  }

  void interrupt() override { stop_.request_stop(); }

 private:
  int32_t next_token(std::span<const int32_t> tokens, int32_t prompt_tokens) const {
    const auto prompt = tokens.first(static_cast<size_t>(prompt_tokens));
    const size_t done = tokens.size() - prompt.size();
    for (const Script& script : options_.scripts) {
      if (std::search(prompt.begin(), prompt.end(), script.match.begin(), script.match.end()) == prompt.end() &&
          !script.match.empty())
        continue;
      return done < script.output.size() ? script.output[done] : options_.eos_token_id;
    }
    return options_.eos_token_id;
  }

  ScriptedOptions options_;
  const Clock& clock_;
  RunnerInfo info_;
  std::stop_source stop_;
  std::vector<float> logits_;
};

}  // namespace

std::unique_ptr<Runner> make_scripted_runner(ScriptedOptions options, const Clock& clock) {
  return std::make_unique<ScriptedRunner>(std::move(options), clock);
}

}  // namespace di::engine
