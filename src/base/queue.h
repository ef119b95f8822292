// A hand-over between threads: any number of producers, any number of consumers, closed once. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace di {

template <class T>
class Queue {
 public:
  // False (and the value is dropped) after close().
  bool push(T value) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return false;
      items_.push_back(std::move(value));
    }
    filled_.notify_one();
    return true;
  }

  // Waits for an item; nothing when the queue is closed and empty.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return !items_.empty() || closed_; });
    if (items_.empty()) return std::nullopt;
    std::optional<T> value(std::move(items_.front()));
    items_.pop_front();
    return value;
  }

  // Everything that is there now, in order, without waiting.
  std::vector<T> take_all() {
    const std::lock_guard lock(mutex_);
    std::vector<T> out(std::make_move_iterator(items_.begin()), std::make_move_iterator(items_.end()));
    items_.clear();
    return out;
  }

  // Waits until there is an item or the queue is closed. False when closed and empty.
  bool wait() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return !items_.empty() || closed_; });
    return !items_.empty();
  }

  // The same for at most this long; true when there is an item.
  bool wait_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    filled_.wait_for(lock, time, [&] { return !items_.empty() || closed_; });
    return !items_.empty();
  }

  // Waits until the queue is closed, for at most this long; true when it is.
  bool wait_closed_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return filled_.wait_for(lock, time, [&] { return closed_; });
  }

  // Producers are refused from now on; consumers still get what is there.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    filled_.notify_all();
  }

 private:
  std::mutex mutex_;  // guards items_ and closed_
  std::condition_variable filled_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace di
