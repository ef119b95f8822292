#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"

namespace di {
namespace {

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
  const unsigned n = std::thread::hardware_concurrency();
  return n == 0 ? 1 : static_cast<int>(n);
}

// About 20 microseconds on current cores: longer than the serial code between two operators, short enough to leave an
// idle server at 0 % CPU.
constexpr int kSpins = 4000;

inline void pause_cpu() {
  __builtin_ia32_pause();
}

}  // namespace

struct ThreadPool::State {
  std::vector<std::jthread> workers;
  std::mutex mutex;  // guards sleeping on `wake`
  std::condition_variable wake;
  std::atomic<uint64_t> epoch{0};  // incremented once per region; a worker runs when it sees a new value
  std::atomic<int> running{0};     // workers that have not finished the current region
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> busy{false};  // a region is active: nested calls run inline
  Function function = nullptr;
  void* context = nullptr;
  int n_threads = 1;

  void loop(int worker) {
    uint64_t seen = 0;
    for (;;) {
      int spins = 0;
      while (epoch.load(std::memory_order_acquire) == seen && !stop.load(std::memory_order_relaxed)) {
        if (++spins < kSpins) {
          pause_cpu();
          continue;
        }
        std::unique_lock lock(mutex);
        sleepers.fetch_add(1);
        wake.wait(lock, [&] { return epoch.load() != seen || stop.load(); });
        sleepers.fetch_sub(1);
      }
      if (stop.load(std::memory_order_relaxed)) return;
      seen = epoch.load(std::memory_order_acquire);
      function(context, worker);
      running.fetch_sub(1, std::memory_order_release);
    }
  }
};

ThreadPool::ThreadPool(int n_threads) : state_(std::make_unique<State>()) {
  state_->n_threads = n_threads > 0 ? n_threads : usable_cores();
  for (int worker = 1; worker < state_->n_threads; ++worker) {
    state_->workers.emplace_back([state = state_.get(), worker] {
      const std::string name = "di-op-" + std::to_string(worker);
      pthread_setname_np(pthread_self(), name.c_str());
      state->loop(worker);
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop.store(true);
  }
  state_->wake.notify_all();
}

int ThreadPool::size() const {
  return state_->n_threads;
}

void ThreadPool::run(Function function, void* context) {
  State& s = *state_;
  if (s.n_threads == 1 || s.busy.exchange(true)) {
    // One thread, or a nested call: every share is run here, in order.
    for (int worker = 0; worker < s.n_threads; ++worker) function(context, worker);
    return;
  }
  s.function = function;
  s.context = context;
  s.running.store(s.n_threads - 1, std::memory_order_relaxed);
  s.epoch.fetch_add(1);
  if (s.sleepers.load() > 0) {
    std::lock_guard lock(s.mutex);
    s.wake.notify_all();
  }
  function(context, 0);
  // A worker that lost its core to another process needs ours: give it away after a while.
  for (int spins = 0; s.running.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) {
      pause_cpu();
    } else {
      sched_yield();
    }
  }
  s.busy.store(false);
}

}  // namespace di
