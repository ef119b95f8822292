// A model of a few tokens with a draft module: the logits after a token depend on it and the one before, the draft's
// are the target's bent. It keeps what every slot "stores", and refuses to compute on anything but the text itself:
// drafts that were rejected must have been overwritten.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/runner.h"

namespace di::engine {

struct ToyOptions {
  int32_t vocab = 12;
  int32_t eos = 0;
  float eos_logit = -4;                                  // added to the end token's logit
  std::vector<std::pair<int32_t, float>> favoured = {};  // token, added to its logit
  float bend = 0.6F;                                     // how far the draft is from the target
  int32_t drafts = 5;
  int32_t block_tokens = 4;
  int32_t n_blocks = 200;
  int32_t n_slots = 9;
  int64_t max_positions = 400;
};

inline std::vector<float> toy_target(const ToyOptions& o, int32_t before, int32_t last) {
  std::vector<float> row;
  for (int32_t i = 0; i < o.vocab; ++i) {
    row.push_back(2.0F * std::sin(1.3F * static_cast<float>((i + 1) * (last + 2)) + 0.4F * static_cast<float>(before)));
  }
  row[static_cast<size_t>(o.eos)] += o.eos_logit;
  for (const auto& [token, logit] : o.favoured) row[static_cast<size_t>(token)] += logit;
  return row;
}
inline std::vector<float> toy_draft(const ToyOptions& o, int32_t before, int32_t last) {
  std::vector<float> row = toy_target(o, before, last);
  for (int32_t i = 0; i < o.vocab; ++i)
    row[static_cast<size_t>(i)] += o.bend * std::cos(2.1F * static_cast<float>(i * 3 + last));
  return row;
}

class ToyRunner final : public Runner {
 public:
  explicit ToyRunner(const ToyOptions& options) : options_(options), slots_(static_cast<size_t>(options.n_slots)) {
    info_.vocab_size = options.vocab;
    info_.eos_token_id = options.eos;
    info_.max_positions = options.max_positions;
    info_.block_tokens = options.block_tokens;
    info_.n_blocks = options.n_blocks;
    info_.n_slots = options.n_slots;
    info_.max_drafts = options.drafts;
  }

  const RunnerInfo& info() const override { return info_; }

  Result<LogitsView> forward(std::span<const model::SequenceChunk> chunks, std::span<const SequenceTag>) override {
    logits_.clear();
    int64_t rows = 0;
    for (const model::SequenceChunk& c : chunks) {
      std::vector<int32_t>& stored = slots_[static_cast<size_t>(c.state_slot)];
      const auto begin = static_cast<size_t>(c.begin);
      const auto end = begin + static_cast<size_t>(c.count);
      if (c.begin == 0) stored.clear();
      if (stored.size() < begin)
        return fail(Errc::kInternal, "toy: position {} of slot {} was never stored", begin, c.state_slot);
      if (static_cast<int64_t>(end) > info_.max_positions) return fail(Errc::kInternal, "toy: position {}", end - 1);
      if (static_cast<int64_t>(c.block_table.size()) * info_.block_tokens < static_cast<int64_t>(end)) {
        return fail(Errc::kInternal, "toy: {} blocks for position {}", c.block_table.size(), end - 1);
      }
      for (size_t p = 0; p < begin; ++p) {
        if (stored[p] != c.tokens[p])
          return fail(Errc::kInternal, "toy: position {} holds a draft that was refused", p);
      }
      stored.resize(std::max(stored.size(), end));
      for (size_t p = begin; p < end; ++p) stored[p] = c.tokens[p];
      for (size_t p = begin; p < end; ++p) {
        if (static_cast<int32_t>(p) < c.logits_begin) continue;
        const std::vector<float> row = toy_target(options_, p == 0 ? 0 : c.tokens[p - 1], c.tokens[p]);
        logits_.insert(logits_.end(), row.begin(), row.end());
        ++rows;
      }
    }
    return LogitsView{logits_.data(), rows, options_.vocab};
  }

  Result<void> draft(std::span<const DraftStart> starts) override {
    before_.clear();
    for (const DraftStart& s : starts) {
      const std::vector<int32_t>& stored = slots_[static_cast<size_t>(s.state_slot)];
      if (static_cast<int32_t>(stored.size()) <= s.context_position)
        return fail(Errc::kInternal, "toy: no context at {}", s.context_position);
      before_.push_back(stored[static_cast<size_t>(s.context_position)]);
    }
    return {};
  }

  Result<LogitsView> draft_step(int32_t, std::span<const int32_t> previous, std::span<float> confidences) override {
    draft_logits_.clear();
    for (size_t i = 0; i < previous.size(); ++i) {
      const std::vector<float> row = toy_draft(options_, before_[i], previous[i]);
      draft_logits_.insert(draft_logits_.end(), row.begin(), row.end());
      confidences[i] = 0.35F + 0.05F * static_cast<float>((previous[i] * 7 + before_[i]) % 12);
      before_[i] = previous[i];
    }
    return LogitsView{draft_logits_.data(), static_cast<int64_t>(previous.size()), options_.vocab};
  }

 private:
  ToyOptions options_;
  RunnerInfo info_;
  std::vector<std::vector<int32_t>> slots_;  // token of every stored position
  std::vector<float> logits_;
  std::vector<float> draft_logits_;
  std::vector<int32_t> before_;
};

}  // namespace di::engine
