#include "base/clock.h"

#include <chrono>

namespace di {

int64_t SystemClock::now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t SystemClock::unix_seconds() const {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool SystemClock::sleep_until(int64_t deadline_ns, std::stop_token stop) const {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  const std::chrono::steady_clock::time_point deadline{std::chrono::nanoseconds(deadline_ns)};
  never.wait_until(lock, stop, deadline, [&] { return now_ns() >= deadline_ns; });
  return now_ns() >= deadline_ns;
}

int64_t ManualClock::now_ns() const {
  const std::lock_guard lock(mutex_);
  return now_ns_;
}

int64_t ManualClock::unix_seconds() const {
  const std::lock_guard lock(mutex_);
  return unix_seconds_ + now_ns_ / kNsPerSecond;
}

bool ManualClock::sleep_until(int64_t deadline_ns, std::stop_token stop) const {
  std::unique_lock lock(mutex_);
  if (now_ns_ >= deadline_ns) return true;
  ++sleepers_;
  changed_.notify_all();
  const bool reached = changed_.wait(lock, stop, [&] { return now_ns_ >= deadline_ns; });
  --sleepers_;
  return reached;
}

void ManualClock::advance(int64_t ns) {
  const std::lock_guard lock(mutex_);
  now_ns_ += ns;
  changed_.notify_all();
}

void ManualClock::wait_for_sleepers(int n) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return sleepers_ >= n; });
}

}  // namespace di
