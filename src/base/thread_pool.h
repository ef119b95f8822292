// A fixed team of worker threads that runs one parallel region at a time: the CPU "device" of the operators. The
// calling thread takes part as worker 0. A region costs about a microsecond: workers spin for a short while before they
// sleep, so that the many small regions of a decode step do not pay for a wake-up each. parallel() may be called from
// one thread at a time; regions do not nest (a nested call runs inline).
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace di {

class ThreadPool {
 public:
  // n_threads counts the caller; 0 = number of usable cores.
  explicit ThreadPool(int n_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Runs body(worker) once on each worker, worker in [0, size()).
  template <class Body>
  void parallel(const Body& body) {
    run(&call<Body>, const_cast<void*>(static_cast<const void*>(&body)));
  }

  // Runs body(i) for i in [begin, end), contiguous shares of at least `grain` items a worker. Which worker runs an item
  // never changes a result of ours; the split is deterministic all the same.
  template <class Body>
  void for_each(int64_t begin, int64_t end, int64_t grain, const Body& body) {
    const int64_t n = end - begin;
    if (n <= 0) return;
    int64_t shares = grain > 0 ? n / grain : n;
    if (shares > size()) shares = size();
    if (shares <= 1) {
      for (int64_t i = begin; i < end; ++i) body(i);
      return;
    }
    parallel([&](int worker) {
      if (worker >= shares) return;
      const int64_t first = begin + n * worker / shares;
      const int64_t last = begin + n * (worker + 1) / shares;
      for (int64_t i = first; i < last; ++i) body(i);
    });
  }

 private:
  using Function = void (*)(void*, int);
  template <class Body>
  static void call(void* context, int worker) {
    (*static_cast<const Body*>(context))(worker);
  }
  void run(Function function, void* context);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace di
