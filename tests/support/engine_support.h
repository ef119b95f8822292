// What tests of the engine share: a sink that waits, and a runner whose logits show every mistake in the book-keeping.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "engine/engine.h"

namespace di::engine::test {

// Collects the outputs of one request; wait() returns when every choice has ended.
class Collector {
 public:
  explicit Collector(int32_t choices = 1) : open_(choices), choices_(static_cast<size_t>(choices)) {}

  struct Choice {
    std::vector<int32_t> tokens;
    std::vector<OutputToken> detail;
    std::vector<OutputToken> prompt;  // its log-probabilities
    FinishReason finish = FinishReason::kNone;
    Error error;
    Output last;
  };

  OutputSink sink() {
    return [this](Output out) {
      const std::lock_guard lock(mutex_);
      Choice& choice = choices_[static_cast<size_t>(out.choice)];
      ASSERT_EQ(choice.finish, FinishReason::kNone) << "output after the end";
      for (const OutputToken& token : out.tokens) {
        choice.tokens.push_back(token.token);
        choice.detail.push_back(token);
      }
      choice.prompt.insert(choice.prompt.end(), out.prompt_logprobs.begin(), out.prompt_logprobs.end());
      choice.finish = out.finish;
      choice.error = out.error;
      choice.last = out;
      if (out.finish != FinishReason::kNone) --open_;
      changed_.notify_all();
    };
  }
  const Choice& wait(int32_t choice = 0) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_ == 0; });
    return choices_[static_cast<size_t>(choice)];
  }
  bool ended() {
    const std::lock_guard lock(mutex_);
    return open_ == 0;
  }
  void wait_for_tokens(size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return choices_[0].tokens.size() >= n; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t open_;
  std::vector<Choice> choices_;
};

inline GenerateRequest request(std::vector<int32_t> prompt, int64_t max_tokens = 100) {
  GenerateRequest r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  return r;
}

struct HashOptions {
  int32_t n_blocks = 200;
  int32_t block_tokens = 8;
  int32_t n_slots = 9;
  int32_t vocab_size = 50;
  bool mixed_steps = true;
  bool copies = false;
};

// Logits are a hash of the sequence as its blocks hold it, and every rule that a model relies on is checked: rows come
// in order, each live sequence has its own slot, no block is written by two sequences of a step, and what lies in
// blocks and slot is what the sequence says.
class HashRunner : public Runner {
 public:
  explicit HashRunner(const HashOptions& options) : options_(options) {
    info_.vocab_size = options.vocab_size;
    info_.eos_token_id = 1;
    info_.max_positions = 1000;
    info_.block_tokens = options.block_tokens;
    info_.n_blocks = options.n_blocks;
    info_.n_slots = options.n_slots;
    info_.mixed_steps = options.mixed_steps;
    info_.copies = options.copies;
    info_.backtracking = 6;
    info_.kv_dtype = info_.backend = "hash";
    blocks_.assign(static_cast<size_t>(options.n_blocks),
                   std::vector<int32_t>(static_cast<size_t>(options.block_tokens), -1));
  }
  const RunnerInfo& info() const override { return info_; }

  Result<LogitsView> forward(std::span<const model::SequenceChunk> chunks, std::span<const SequenceTag>) override {
    std::set<int32_t> slots;
    std::set<int32_t> written;
    logits_.clear();
    for (const model::SequenceChunk& chunk : chunks) {
      EXPECT_TRUE(slots.insert(chunk.state_slot).second) << "two sequences in one slot";
      check_slot(chunk);
      for (int32_t p = std::max(chunk.begin, chunk.block_write_begin); p < chunk.begin + chunk.count; ++p) {
        const int32_t block = chunk.block_table[static_cast<size_t>(p / options_.block_tokens)];
        if (p == chunk.begin || p % options_.block_tokens == 0) {
          EXPECT_TRUE(written.insert(block).second) << "two sequences write block " << block;
        }
        at(chunk, p) = chunk.tokens[static_cast<size_t>(p)];
      }
      uint64_t hash = 1469598103934665603ULL;
      for (int32_t p = 0; p < chunk.begin + chunk.count; ++p) {
        EXPECT_EQ(at(chunk, p), chunk.tokens[static_cast<size_t>(p)]) << "another sequence's KV at position " << p;
        hash = (hash ^ static_cast<uint64_t>(at(chunk, p))) * 1099511628211ULL;
        if (p >= chunk.begin && p >= chunk.logits_begin) add_logits(hash);
      }
    }
    return LogitsView{logits_.data(), static_cast<int64_t>(logits_.size()) / info_.vocab_size, info_.vocab_size};
  }

  void copy(std::span<const CopyPair> blocks, std::span<const CopyPair> slots) override {
    for (const CopyPair& c : blocks) blocks_[static_cast<size_t>(c.to)] = blocks_[static_cast<size_t>(c.from)];
    for (const CopyPair& c : slots) slots_[c.to] = slots_[c.from];
  }

 private:
  int32_t& at(const model::SequenceChunk& chunk, int32_t p) {
    const auto block = static_cast<size_t>(chunk.block_table[static_cast<size_t>(p / options_.block_tokens)]);
    return blocks_[block][static_cast<size_t>(p % options_.block_tokens)];
  }

  // A slot goes on where it was, or a few rows before.
  void check_slot(const model::SequenceChunk& chunk) {
    std::vector<int32_t>& stored = slots_[chunk.state_slot];
    if (chunk.begin == 0) stored.clear();
    EXPECT_GE(static_cast<int32_t>(stored.size()), chunk.begin) << "rows out of order";
    EXPECT_LE(static_cast<int32_t>(stored.size()), chunk.begin + info_.backtracking) << "rows out of order";
    stored.resize(static_cast<size_t>(chunk.begin));
    for (int32_t p = 0; p < chunk.begin; ++p) {
      EXPECT_EQ(stored[static_cast<size_t>(p)], chunk.tokens[static_cast<size_t>(p)]) << "another sequence's state";
    }
    const auto rows = chunk.tokens.subspan(static_cast<size_t>(chunk.begin), static_cast<size_t>(chunk.count));
    stored.insert(stored.end(), rows.begin(), rows.end());
  }

  void add_logits(uint64_t hash) {
    for (int32_t v = 0; v < info_.vocab_size; ++v) {
      logits_.push_back(static_cast<float>((hash >> (v % 40)) % 97) * 0.05F + (v == 1 ? -3.0F : 0.0F));
    }
  }

  HashOptions options_;
  std::vector<float> logits_;

 protected:
  RunnerInfo info_;
  std::vector<std::vector<int32_t>> blocks_;       // the tokens of their positions, -1: none
  std::map<int32_t, std::vector<int32_t>> slots_;  // the tokens of the sequence so far
};

}  // namespace di::engine::test
