// POST /admin/profile (server.md §9.3): what the engine's threads did for some seconds, as a Chrome trace with totals
// by kind of work. One profile at a time. Thread-safe.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "server/http.h"

namespace di::server {

// What is profiled: end() gives what was done since begin() as a Chrome trace. Empty functions: there are no profiles.
struct ProfileSource {
  std::function<void()> begin;
  std::function<std::string()> end;
};

class Profiler {
 public:
  static constexpr double kLeastSeconds = 0.01;
  static constexpr double kMostSeconds = 60;

  Profiler() = default;
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Answers the exchange when the time is over, when stop() is called or when its client leaves. False, with nothing
  // answered: one is under way. `source` must outlive the profile: stop() comes before its end.
  bool start(const ProfileSource& source, double seconds, ExchangeRef exchange);
  // Ends the one under way with what there is.
  void stop();

 private:
  void run(const std::stop_token& stop, const ProfileSource& source, double seconds, const ExchangeRef& exchange);

  std::mutex mutex_;  // guards the members below
  bool running_ = false;
  std::jthread thread_;  // of the last profile
};

}  // namespace di::server
