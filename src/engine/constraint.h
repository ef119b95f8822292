// Structured output in the engine (engine.md §5.6, structured-output.md §3): a matcher per choice, the masks of a
// step's sampling rows filled beside the forward pass, and what they do to the logits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/api.h"

namespace di::engine {

// A matcher after `tokens`, the constrained text so far (the end of the prompt where it belongs to it, the output);
// nothing without a constraint. The error: the tokens do not belong to the constrained text.
Result<std::optional<structured::Matcher>> make_matcher(const structured::CompiledRef& constraint,
                                                        const std::vector<int32_t>& stop_token_ids,
                                                        std::span<const int32_t> tokens);

// A mask may take so long from begin() on before the others of its step go on without it (structured-output.md §2.7).
inline constexpr int64_t kMaskPatienceNs = 5 * kNsPerMs;

// What a thread fills: a state of its own, so that a step may end without it.
struct MaskWork;

// The rows of one choice in a step: the first is the mask of the next token, row j that after draft[0..j).
struct MaskJob {
  const structured::Matcher* matcher = nullptr;
  const structured::Compiled* constraint = nullptr;  // the matcher's
  std::span<const int32_t> draft;
  // In: what was late for the same choice in an earlier step, null: nothing. Out: this job's own.
  std::shared_ptr<MaskWork> work;
  // Results.
  std::span<const uint32_t> rows;  // draft.size() + 1 rows
  size_t valid = 0;                // draft tokens that the constraint allows; the rows behind are all ones
  bool failed = false;             // a limit was reached: the choice has to end
  bool late = false;  // not done in time, or its constraint is at work on another choice's: nothing is known

  std::span<const uint32_t> row(size_t j) const {
    const size_t words = rows.size() / (draft.size() + 1);
    return rows.subspan(j * words, words);
  }
};

// Fills masks on threads of its own, so that a slow one delays nobody: what is late goes on by itself, with a spare
// thread in its place. One owner. Its matchers and drafts are read by begin() only, and those of a constraint with a
// late mask may not be asked for anything (they would wait for it).
class MaskFiller {
 public:
  MaskFiller(int32_t threads, int32_t vocab_size, int64_t patience_ns = kMaskPatienceNs);
  ~MaskFiller();
  MaskFiller(const MaskFiller&) = delete;
  MaskFiller& operator=(const MaskFiller&) = delete;

  void begin(std::vector<MaskJob> jobs);
  // Waits for the jobs of the last begin(), but not for late ones; their rows live until the next one.
  // others: somebody else waits for this; otherwise it may take as long again.
  std::span<const MaskJob> finish(bool others = true);
  // A late mask of this constraint is at work.
  bool busy(const structured::Compiled& constraint);

 private:
  void work(const std::stop_token& stop);
  std::shared_ptr<MaskWork> new_work(const MaskJob& job);
  void collect();
  bool busy_locked(const structured::Compiled& constraint) const;

  const size_t words_;
  const int32_t at_once_;
  const int64_t patience_ns_;
  std::vector<MaskJob> jobs_;
  std::vector<std::shared_ptr<MaskWork>> idle_;  // to be used again
  std::chrono::steady_clock::time_point begun_;

  std::mutex mutex_;  // guards the members of this paragraph; a work that runs belongs to its thread
  std::condition_variable_any wake_;
  std::condition_variable done_;
  std::deque<std::shared_ptr<MaskWork>> queue_;
  std::vector<std::shared_ptr<MaskWork>> late_;  // not done when their step went on
  int32_t running_ = 0;                          // that are not late
  size_t open_ = 0;                              // of jobs_, not done

  std::vector<std::jthread> threads_;  // last
};

// Tokens whose bit is 0 become -inf. Those of `unwanted` too (end of sequence before min_tokens), unless nothing else
// is allowed: the constraint comes first.
void apply_mask(std::span<float> logits, std::span<const uint32_t> row, std::span<const int32_t> unwanted);

// The same for a row that leaves few tokens: their ids, ascending, so that nothing need look at the others. False, and
// no ids, when it leaves more than one of kSparseMask.
inline constexpr size_t kSparseMask = 4;
bool sparse_mask(std::span<const uint32_t> row, size_t vocab, std::span<const int32_t> unwanted,
                 std::vector<int32_t>& ids);

}  // namespace di::engine
