// Threads for work that must not hold up the network or the engine: reading, rendering and tokenising requests, turning
// tokens into events. Thread-safe.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "base/queue.h"

namespace di::server {

class Workers {
 public:
  explicit Workers(int32_t threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Dropped after stop().
  void post(std::function<void()> task);
  // Runs what is queued, then ends.
  void stop();

 private:
  Queue<std::function<void()>> tasks_;
  std::vector<std::jthread> threads_;
};

}  // namespace di::server
