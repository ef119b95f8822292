#include "device/meeting.h"

#include <algorithm>
#include <utility>

namespace di::device {

Meeting::Meeting(int32_t ranks, std::chrono::milliseconds timeout)
    : timeout_(timeout),
      items_(static_cast<size_t>(ranks)),
      calls_(static_cast<size_t>(ranks)),
      here_(static_cast<size_t>(ranks)) {}

void Meeting::fail_locked(std::unique_lock<std::mutex>& lock, Error error) {
  if (error_) return;
  error_ = std::move(error);
  changed_.notify_all();
  if (!hook_) return;
  lock.unlock();
  hook_();
  lock.lock();
}

void Meeting::fail(Error error) {
  std::unique_lock lock(mutex_);
  fail_locked(lock, std::move(error));
}

std::optional<Error> Meeting::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

// Waits for everybody once. With `leave` an error counts only at the end: the others may still read what this rank has
// posted, and all of them come.
Result<void> Meeting::pass(std::unique_lock<std::mutex>& lock, int32_t rank, std::string_view what, bool leave) {
  if (error_ && !leave) return std::unexpected(*error_);
  const auto me = static_cast<size_t>(rank);
  calls_[me] = what;
  here_[me] = 1;
  const uint64_t round = round_;
  if (++arrived_ == ranks()) {
    arrived_ = 0;
    ++round_;
    std::fill(here_.begin(), here_.end(), uint8_t{0});
    changed_.notify_all();
  } else if (leave) {
    changed_.wait(lock, [&] { return round_ != round; });
  } else if (!changed_.wait_for(lock, timeout_, [&] { return round_ != round || error_; })) {
    const auto missing = std::find(here_.begin(), here_.end(), uint8_t{0}) - here_.begin();
    fail_locked(lock,
                {Errc::kDeadlineExceeded, fmt::format("rank {} waited {} ms in '{}' for rank {}, which did not come",
                                                      rank, timeout_.count(), what, missing)});
  }
  // A round that is complete is so for all, whatever has happened since: all run their bodies, or none.
  if (round_ != round && !leave) return {};
  if (error_) return std::unexpected(*error_);
  return {};
}

Result<void> Meeting::meet(int32_t rank, std::string_view what, const void* item,
                           const std::function<Result<void>(const Items&)>& body) {
  std::unique_lock lock(mutex_);
  items_[static_cast<size_t>(rank)] = item;
  DI_TRY(pass(lock, rank, what, false));
  // Nobody writes the items or the calls before everybody has passed again.
  const Items items = items_;
  Result<void> status;
  for (size_t r = 0; r < calls_.size() && status; ++r) {
    if (calls_[r] != what) {
      status = di::fail(Errc::kInternal, "rank {} is in '{}', rank {} in '{}': ranks must make the same calls", rank,
                        what, r, calls_[r]);
    }
  }
  if (status && body) {
    lock.unlock();
    status = body(items);
    lock.lock();
  }
  if (!status) fail_locked(lock, status.error());
  return pass(lock, rank, what, true);
}

Result<std::vector<int64_t>> Meeting::gather(int32_t rank, std::span<const int64_t> values) {
  std::vector<int64_t> out;
  DI_TRY(meet(rank, "gather", &values, [&](const Items& all) -> Result<void> {
    for (size_t r = 0; r < all.size(); ++r) {
      const auto& theirs = *static_cast<const std::span<const int64_t>*>(all[r]);
      if (theirs.size() != values.size()) {
        return di::fail(Errc::kInternal, "rank {} gathers {} values, rank {} {}", rank, values.size(), r,
                        theirs.size());
      }
      out.insert(out.end(), theirs.begin(), theirs.end());
    }
    return {};
  }));
  return out;
}

}  // namespace di::device
