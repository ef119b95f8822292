#include "engine/scripted.h"

#include <xxhash.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "base/log.h"
#include "base/rng.h"

namespace di::engine {
namespace {

// Finite, so that a rule against the scripted token leaves others to choose from; e^-1000 is 0 all the same.
constexpr float kUnlikely = -1000.0F;
// Answers are functions of the prompt, so forgetting one only costs making it again.
constexpr size_t kRememberedAnswers = 4096;
// Of drafts whose number a script tells: they are all worth their rows.
constexpr double kScriptedConfidence = 0.95;

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
    info_.transfers = true;
    info_.state_form = "script";
    info_.max_drafts = info_.backtracking = options_.max_drafts;
    kv_.resize(static_cast<size_t>(info_.n_blocks));
    reached_.resize(static_cast<size_t>(info_.n_slots));
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
      DI_TRY(store(chunk));
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

  // What a block holds here are the tokens of its positions, and a slot how far its sequence has come: enough to see
  // that the right ones arrive.
  std::vector<std::byte> read_block(int32_t block) override { return as_bytes_of(kv_[static_cast<size_t>(block)]); }
  std::vector<std::byte> read_state(int32_t slot, int32_t position) override {
    DI_CHECK(reached_[static_cast<size_t>(slot)] >= position, "slot {} has not reached position {}", slot, position);
    return as_bytes_of({position});
  }
  Result<void> write_block(int32_t block, std::span<const std::byte> bytes) override {
    kv_[static_cast<size_t>(block)] = ints_of(bytes);
    return {};
  }
  Result<void> write_state(int32_t slot, int32_t position, std::span<const std::byte> bytes) override {
    if (ints_of(bytes) != std::vector<int32_t>{position}) return fail(Errc::kInternal, "another sequence's state");
    reached_[static_cast<size_t>(slot)] = position;
    return {};
  }
  TransferFault transfer_fault(const SequenceTag& tag, std::span<const int32_t> prompt) override {
    const ScriptedAnswer* answer = answer_of(tag, prompt);
    if (answer == nullptr) return {};
    TransferFault out;
    if (answer->fault == ScriptedFault::kLateCompletion) out.late_ns = answer->late_ns;
    out.wrong_order = answer->fault == ScriptedFault::kWrongOrder;
    out.damage = answer->fault == ScriptedFault::kDamage;
    return out;
  }

  Result<void> draft(std::span<const DraftStart> starts) override {
    starts_.assign(starts.begin(), starts.end());
    return {};
  }
  Result<LogitsView> draft_step(int32_t k, std::span<const int32_t>, std::span<float> confidences) override {
    const auto vocab = static_cast<size_t>(options_.vocab_size);
    draft_logits_.assign(starts_.size() * vocab, kUnlikely);
    for (size_t i = 0; i < starts_.size(); ++i) {
      const Draft draft = draft_of(starts_[i], k);
      draft_logits_[i * vocab + static_cast<size_t>(draft.token)] = 0;
      confidences[i] = draft.confidence;
    }
    return LogitsView{draft_logits_.data(), static_cast<int64_t>(starts_.size()), options_.vocab_size};
  }

  void interrupt() override { stop_.request_stop(); }

 private:
  struct Known {
    ScriptedAnswerRef answer;
    int32_t prompt_tokens = 0;
    uint64_t hash = 0;  // of the prompt
  };
  struct Draft {
    int32_t token = 0;
    float confidence = 0;
  };

  // Draft k of a round: what the answer has there, or the id behind that.
  Draft draft_of(const DraftStart& start, int32_t k) const {
    const auto found = answers_.find(start.sequence);
    if (found == answers_.end()) return {};
    const Known& known = found->second;
    const int32_t golden = start.context_position + 1 - known.prompt_tokens;  // its place in the answer
    const auto place = static_cast<size_t>(golden + 1 + k);
    const bool told = known.answer != nullptr && !known.answer->accepted.empty();
    const int32_t right = told ? scripted_drafts(known.answer->accepted, golden) : drawn_drafts(known, golden);
    const int32_t token = known.answer == nullptr || place >= known.answer->tokens.size()
                              ? options_.eos_token_id
                              : known.answer->tokens[place].token;
    const auto at = static_cast<size_t>(k);
    const double confidence = told                              ? kScriptedConfidence
                              : at < options_.acceptance.size() ? options_.acceptance[at]
                                                                : 0;
    return {k < right ? token : (token + 1) % options_.vocab_size, static_cast<float>(confidence)};
  }
  static int32_t scripted_drafts(std::span<const int32_t> accepted, int32_t golden) {
    int32_t begin = 0;
    for (const int32_t n : accepted) {
      if (golden <= begin + n) return begin + n - golden;
      begin += n + 1;
    }
    return 0;
  }
  int32_t drawn_drafts(const Known& known, int32_t golden) const {
    int32_t right = 0;
    for (const double p : options_.acceptance) {
      const uint64_t place = static_cast<uint64_t>(golden) * options_.acceptance.size() + static_cast<uint64_t>(right);
      const uint64_t draw = split_mix64(known.hash + place * kSplitMixGamma);
      if (static_cast<double>(draw >> 11U) * 0x1p-53 >= p) break;
      ++right;
    }
    return right;
  }

  static std::vector<std::byte> as_bytes_of(const std::vector<int32_t>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
  }
  static std::vector<int32_t> ints_of(std::span<const std::byte> bytes) {
    std::vector<int32_t> out(bytes.size() / sizeof(int32_t));
    std::memcpy(out.data(), bytes.data(), out.size() * sizeof(int32_t));
    return out;
  }

  // The chunk's rows into its blocks. What lies before them in their first block must be the sequence's.
  Result<void> store(const model::SequenceChunk& chunk) {
    const int32_t size = options_.block_tokens;
    for (int32_t p = chunk.begin; p < chunk.begin + chunk.count; ++p) {
      std::vector<int32_t>& block = kv_[static_cast<size_t>(chunk.block_table[static_cast<size_t>(p / size)])];
      if (p == chunk.begin && p % size != 0) {
        const auto before = chunk.tokens.subspan(static_cast<size_t>(p / size * size), static_cast<size_t>(p % size));
        if (block.size() < before.size() || !std::ranges::equal(before, std::span(block).first(before.size())))
          return fail(Errc::kInternal, "another sequence's KV before position {}", p);
      }
      if (p >= chunk.block_write_begin) {
        block.resize(static_cast<size_t>(p % size));
        block.push_back(chunk.tokens[static_cast<size_t>(p)]);
      }
    }
    reached_[static_cast<size_t>(chunk.state_slot)] = chunk.begin + chunk.count;
    return {};
  }

  static int64_t logits_rows(const model::SequenceChunk& chunk) {
    const int64_t end = int64_t{chunk.begin} + chunk.count;
    return std::max<int64_t>(0, end - std::max<int64_t>(chunk.begin, chunk.logits_begin));
  }

  // The answer of a sequence; null: none.
  const ScriptedAnswer* answer_of(const SequenceTag& tag, std::span<const int32_t> prompt) {
    if (!options_.answer) return nullptr;
    const auto found = answers_.find(tag.sequence);
    if (found != answers_.end()) return found->second.answer.get();
    if (answers_.size() >= kRememberedAnswers) answers_.clear();
    const Known known{options_.answer(prompt), tag.prompt_tokens, XXH3_64bits(prompt.data(), prompt.size_bytes())};
    return answers_.emplace(tag.sequence, known).first->second.answer.get();
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
      case ScriptedFault::kLateCompletion:
      case ScriptedFault::kWrongOrder:
      case ScriptedFault::kDamage:
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
  std::vector<std::vector<int32_t>> kv_;         // [blocks]
  std::vector<int32_t> reached_;                 // [slots]
  std::unordered_map<uint64_t, Known> answers_;  // by sequence
  std::vector<DraftStart> starts_;
  std::vector<float> draft_logits_;
};

}  // namespace

std::unique_ptr<Runner> make_scripted_runner(ScriptedOptions options, const Clock& clock) {
  return std::make_unique<ScriptedRunner>(std::move(options), clock);
}

}  // namespace di::engine
