#include "server/profiler.h"

#include <chrono>

namespace di::server {

Profiler::~Profiler() {
  stop();
}

bool Profiler::start(const ProfileSource& source, double seconds, ExchangeRef exchange) {
  const std::lock_guard lock(mutex_);
  if (running_) return false;
  running_ = true;
  source.begin();
  thread_ = std::jthread([this, &source, seconds, exchange = std::move(exchange)](const std::stop_token& stop) {
    run(stop, source, seconds, exchange);
  });
  return true;
}

void Profiler::stop() {
  std::jthread ended;
  {
    const std::lock_guard lock(mutex_);
    ended = std::move(thread_);
  }
}

void Profiler::run(const std::stop_token& stop, const ProfileSource& source, double seconds,
                   const ExchangeRef& exchange) {
  struct Left {  // outlives the profile: the connection may call back later
    std::mutex mutex;
    std::condition_variable_any changed;
    bool gone = false;
  };
  const auto left = std::make_shared<Left>();
  exchange->on_disconnect([left] {
    const std::lock_guard lock(left->mutex);
    left->gone = true;
    left->changed.notify_all();
  });
  {
    std::unique_lock lock(left->mutex);
    left->changed.wait_for(lock, stop, std::chrono::duration<double>(seconds), [&] { return left->gone; });
  }
  HttpResponse response;
  response.body = source.end();
  {
    const std::lock_guard lock(mutex_);
    running_ = false;
  }
  exchange->reply(std::move(response));
}

}  // namespace di::server
