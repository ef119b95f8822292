// Collects the outputs of one request; wait() returns when every choice has ended.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "engine/api.h"

namespace di::engine {

class OutputCollector {
 public:
  struct Choice {
    std::vector<int32_t> tokens;
    std::vector<OutputToken> detail;
    Output last;
  };

  explicit OutputCollector(int32_t choices = 1) : open_(choices), choices_(static_cast<size_t>(choices)) {}

  OutputSink sink() {
    return [this](Output out) {
      const std::lock_guard lock(mutex_);
      Choice& choice = choices_[static_cast<size_t>(out.choice)];
      for (const OutputToken& token : out.tokens) {
        choice.tokens.push_back(token.token);
        choice.detail.push_back(token);
      }
      if (out.finish != FinishReason::kNone) --open_;
      choice.last = std::move(out);
      changed_.notify_all();
    };
  }
  const Choice& wait(int32_t choice = 0) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_ == 0; });
    return choices_[static_cast<size_t>(choice)];
  }
  // Of all choices so far.
  size_t tokens() {
    const std::lock_guard lock(mutex_);
    size_t n = 0;
    for (const Choice& choice : choices_) n += choice.tokens.size();
    return n;
  }
  void wait_for_tokens(size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return choices_[0].tokens.size() >= n || open_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t open_;
  std::vector<Choice> choices_;
};

}  // namespace di::engine
