// Where the threads of a group meet: what a rank posts is seen by all others once the last one has come.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace di::device {

class Meeting {
 public:
  Meeting(int32_t ranks, std::chrono::milliseconds timeout);

  // Posts `item` (valid until meet returns) and waits for all ranks. Then each runs `body` with the items of all, and
  // none leaves before every body has ended. `what` names the call in errors; ranks in different calls are one. An
  // error of a body ends the meeting as fail() does.
  using Items = std::vector<const void*>;
  Result<void> meet(int32_t rank, std::string_view what, const void* item,
                    const std::function<Result<void>(const Items&)>& body);

  // The values of all ranks in the order of the ranks, as many of each; an error where the numbers differ.
  Result<std::vector<int64_t>> gather(int32_t rank, std::span<const int64_t> values);

  void fail(Error error);
  std::optional<Error> error() const;
  int32_t ranks() const { return static_cast<int32_t>(items_.size()); }
  // Runs once, in the thread that ends the meeting; set before the ranks start.
  void on_failure(std::function<void()> hook) { hook_ = std::move(hook); }

 private:
  Result<void> pass(std::unique_lock<std::mutex>& lock, int32_t rank, std::string_view what, bool leave);
  void fail_locked(std::unique_lock<std::mutex>& lock, Error error);

  const std::chrono::milliseconds timeout_;
  std::function<void()> hook_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  Items items_;
  std::vector<std::string> calls_;
  std::vector<uint8_t> here_;
  int32_t arrived_ = 0;
  uint64_t round_ = 0;
  std::optional<Error> error_;
};

}  // namespace di::device
