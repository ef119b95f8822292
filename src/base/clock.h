// Time as a dependency. Everything that reads the time or waits for it gets a Clock, so that tests run on virtual time
// and never sleep. Both clocks are thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>

namespace di {

inline constexpr int64_t kNsPerMs = 1'000'000;
inline constexpr int64_t kNsPerSecond = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic, of unspecified origin.
  virtual int64_t now_ns() const = 0;
  // Wall time, seconds since 1970.
  virtual int64_t unix_seconds() const = 0;
  // Blocks until now_ns() >= deadline_ns (true) or until a stop is requested (false).
  virtual bool sleep_until(int64_t deadline_ns, std::stop_token stop = {}) const = 0;
};

class SystemClock final : public Clock {
 public:
  int64_t now_ns() const override;
  int64_t unix_seconds() const override;
  bool sleep_until(int64_t deadline_ns, std::stop_token stop = {}) const override;
};

// Stands still until advance() is called.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(int64_t unix_seconds = 1'700'000'000) : unix_seconds_(unix_seconds) {}
  int64_t now_ns() const override;
  int64_t unix_seconds() const override;
  bool sleep_until(int64_t deadline_ns, std::stop_token stop = {}) const override;

  void advance(int64_t ns);
  // Blocks until at least `n` threads are inside sleep_until() with a deadline in the future.
  void wait_for_sleepers(int n) const;

 private:
  mutable std::mutex mutex_;  // guards the members below
  mutable std::condition_variable_any changed_;
  int64_t now_ns_ = 0;
  int64_t unix_seconds_;
  mutable int sleepers_ = 0;
};

}  // namespace di
