#include "engine/scripted.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <unordered_map>

#include "base/log.h"

namespace di::engine {
namespace {

// Finite, so that a rule against the scripted token leaves others to choose from; e^-1000 is 0 all the same.
constexpr float kUnlikely = -1000.0F;
// Answers are functions of the prompt, so forgetting one only costs making it again.
constexpr size_t kRememberedAnswers = 4096;

class ScriptedRunner final : public Runner {
 public:
  ScriptedRunner(ScriptedOptions options, const Clock& clock) : options_(std::move(options)), clock_(clock) {
    info_.vocab_size = options_.vocab_size;
    info_.eos_token_id = options_.eos_token_id;
    info_.max_positions = options_.max_positions;
    info_.block_tokens = options_.block_tokens;
    info_.n_blocks = options_.n_blocks;
    info_.n_slots = options_.n_slots;
    info_.window = options_.window;
    info_.kv_dtype = "none";
    info_.backend = options_.backend;
  }

  const RunnerInfo& info() const override { return info_; }

  Result<LogitsView> forward(std::span<const model::SequenceChunk> chunks, std::span<const SequenceTag> tags) override {
    if (options_.before_step) DI_TRY(options_.before_step(chunks));
    int64_t wanted = 0;
    int64_t duration = options_.step_ns + options_.sequence_ns * static_cast<int64_t>(chunks.size());
    for (size_t i = 0; i < chunks.size(); ++i) {
      const model::SequenceChunk& chunk = chunks[i];
      const int32_t prompt_rows =
          std::min(chunk.begin + chunk.count, tags[i].prompt_tokens) - std::min(chunk.begin, tags[i].prompt_tokens);
      duration += options_.row_ns * chunk.count + options_.prompt_row_ns * prompt_rows;
      wanted += logits_rows(chunk);
      if (logits_rows(chunk) > 0) DI_TRY(inject_fault(tags[i], chunk, duration));
    }
    if (duration > 0 && !clock_.sleep_until(clock_.now_ns() + duration, stop_.get_token())) {
      return fail(Errc::kUnavailable, "the engine is stopping");
    }
    logits_.assign(static_cast<size_t>(wanted) * static_cast<size_t>(options_.vocab_size), kUnlikely);
    float* row = logits_.data();
    for (size_t i = 0; i < chunks.size(); ++i) {
      const auto prompt_tokens = static_cast<size_t>(tags[i].prompt_tokens);
      for (int32_t at = std::max(chunks[i].begin, chunks[i].logits_begin); at < chunks[i].begin + chunks[i].count;
           ++at) {
        write_row(row, tags[i], chunks[i].tokens.first(prompt_tokens), at + 1 - tags[i].prompt_tokens);
        row += options_.vocab_size;
      }
    }
    return LogitsView{logits_.data(), wanted, options_.vocab_size};
  }

  void interrupt() override { stop_.request_stop(); }

 private:
  static int64_t logits_rows(const model::SequenceChunk& chunk) {
    const int64_t end = int64_t{chunk.begin} + chunk.count;
    return std::max<int64_t>(0, end - std::max<int64_t>(chunk.begin, chunk.logits_begin));
  }

  // The answer of a sequence; null: none.
  const ScriptedAnswer* answer_of(const SequenceTag& tag, std::span<const int32_t> prompt) {
    if (!options_.answer) return nullptr;
    const auto found = answers_.find(tag.sequence);
    if (found != answers_.end()) return found->second.get();
    if (answers_.size() >= kRememberedAnswers) answers_.clear();
    return answers_.emplace(tag.sequence, options_.answer(prompt)).first->second.get();
  }

  Result<void> inject_fault(const SequenceTag& tag, const model::SequenceChunk& chunk, int64_t& duration) {
    const ScriptedAnswer* answer = answer_of(tag, chunk.tokens.first(static_cast<size_t>(tag.prompt_tokens)));
    if (answer == nullptr) return {};
    const int32_t next = chunk.begin + chunk.count - tag.prompt_tokens;
    if (next >= 0 && static_cast<size_t>(next) < answer->tokens.size())
      duration += answer->tokens[static_cast<size_t>(next)].delay_ns;
    if (answer->fault == ScriptedFault::kNone || next != answer->fault_at) return {};
    switch (answer->fault) {
      case ScriptedFault::kError:
        return fail(Errc::kInternal, "scripted fault before token {}", next);
      case ScriptedFault::kHang:
        clock_.sleep_until(INT64_MAX, stop_.get_token());
        return fail(Errc::kUnavailable, "the engine is stopping");
      case ScriptedFault::kCrash:
        DI_LOG(kError, "scripted crash before token {}", next);
        std::abort();
      case ScriptedFault::kNone:
        break;
    }
    return {};
  }

  // Logits whose softmax has the scripted probabilities; what is left of 1 goes to the lowest other ids, each of which
  // stays less likely than the scripted token.
  void write_row(float* row, const SequenceTag& tag, std::span<const int32_t> prompt, int32_t done) {
    if (done < 0) return;
    const ScriptedAnswer* answer = answer_of(tag, prompt);
    if (!options_.answer) {
      row[next_token(prompt, static_cast<size_t>(done))] = 0;
      return;
    }
    if (answer == nullptr || static_cast<size_t>(done) >= answer->tokens.size()) {
      row[options_.eos_token_id] = 0;
      return;
    }
    const ScriptedToken& token = answer->tokens[static_cast<size_t>(done)];
    double rest = 1.0 - std::exp(static_cast<double>(token.logprob));
    for (const auto& [id, logprob] : token.others) {
      row[id] = logprob;
      rest -= std::exp(static_cast<double>(logprob));
    }
    row[token.token] = token.logprob;
    if (rest <= 1e-6) return;
    const double parts = std::ceil(2 * rest / std::exp(static_cast<double>(token.logprob)));
    for (int32_t id = 0, left = static_cast<int32_t>(parts); id < options_.vocab_size && left > 0; ++id) {
      if (row[id] > kUnlikely) continue;
      row[id] = static_cast<float>(std::log(rest / parts));
      --left;
    }
  }

  int32_t next_token(std::span<const int32_t> prompt, size_t done) const {
    for (const Script& script : options_.scripts) {
      if (!script.match.empty() &&
          std::search(prompt.begin(), prompt.end(), script.match.begin(), script.match.end()) == prompt.end())
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
  std::unordered_map<uint64_t, ScriptedAnswerRef> answers_;  // by sequence
};

}  // namespace

std::unique_ptr<Runner> make_scripted_runner(ScriptedOptions options, const Clock& clock) {
  return std::make_unique<ScriptedRunner>(std::move(options), clock);
}

}  // namespace di::engine
