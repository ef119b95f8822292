// Structured output in the engine (engine.md §5.6, structured-output.md §3): a matcher per choice, the masks of a
// step's sampling rows filled beside the forward pass, and what they do to the logits.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/result.h"
#include "engine/api.h"

namespace di::engine {

// A matcher after `tokens`, the constrained text so far (the end of the prompt where it belongs to it, the output);
// nothing without a constraint. The error: the tokens do not belong to the constrained text.
Result<std::optional<structured::Matcher>> make_matcher(const structured::CompiledRef& constraint,
                                                        const std::vector<int32_t>& stop_token_ids,
                                                        std::span<const int32_t> tokens);

// The rows of one choice in a step: the first is the mask of the next token, row j that after draft[0..j).
struct MaskJob {
  structured::Matcher* matcher = nullptr;
  std::span<const int32_t> draft;
  // Results.
  std::span<uint32_t> rows;  // draft.size() + 1 rows
  size_t valid = 0;          // draft tokens that the constraint allows; the rows behind are all ones
  bool failed = false;       // a limit was reached: the choice has to end

  std::span<const uint32_t> row(size_t j) const {
    const size_t words = rows.size() / (draft.size() + 1);
    return rows.subspan(j * words, words);
  }
};

// Fills masks on threads of its own. One owner; its matchers and drafts are left alone from begin() to finish().
class MaskFiller {
 public:
  MaskFiller(int32_t threads, int32_t vocab_size);
  ~MaskFiller();
  MaskFiller(const MaskFiller&) = delete;
  MaskFiller& operator=(const MaskFiller&) = delete;

  void begin(std::vector<MaskJob> jobs);
  // Waits for the jobs of the last begin(); their rows live until the next one.
  std::span<const MaskJob> finish();

 private:
  void work(const std::stop_token& stop);

  const size_t words_;
  std::vector<uint32_t> memory_;

  std::mutex mutex_;  // guards the members of this paragraph; a job belongs to the thread that took it
  std::condition_variable_any wake_;
  std::condition_variable_any done_;
  std::vector<MaskJob> jobs_;
  size_t next_ = 0;
  size_t finished_ = 0;

  std::vector<std::jthread> threads_;  // last
};

// Tokens whose bit is 0 become -inf. Those of `unwanted` too (end of sequence before min_tokens), unless nothing else
// is allowed: the constraint comes first.
void apply_mask(std::span<float> logits, std::span<const uint32_t> row, std::span<const int32_t> unwanted);

}  // namespace di::engine
