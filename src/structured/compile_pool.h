// Compiles constraints on threads of its own and keeps what it compiled (structured-output.md §2.6): a request that
// waits for its constraint occupies nobody else. Equal specifications are compiled once, also when they arrive at the
// same time; refusals are kept for a while, so that a bad schema sent again and again costs nothing.
//
// Thread-safe. A constraint that is in use lives on after it was dropped from the cache.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/queue.h"
#include "structured/structured.h"

namespace di::structured {

struct CompilePoolOptions {
  int32_t threads = 0;                 // 0: a quarter of the cores, 1 to 8
  int64_t cache_bytes = 512LL << 20U;  // of constraints with their masks; the least recently used ones go first
  size_t max_cached = 4096;
  int64_t keep_refusal_ms = 60'000;
  size_t max_waiting = 1024;  // compilations not yet begun; more are refused
  Limits limits;
};

struct CompilePoolStats {
  uint64_t hits = 0;    // answered from the cache, or joined to a compilation under way
  uint64_t misses = 0;  // compiled
  uint64_t refused = 0;
  int64_t waiting = 0;  // not yet begun
  int64_t cached = 0;
  int64_t cached_bytes = 0;
};

class CompilePool {
 public:
  // The verdict; called once, on a thread of the pool, or on the caller's when it is known already. When too many wait,
  // the code is "overloaded".
  using Done = std::function<void(const Expected<CompiledRef>&)>;

  // The clock must outlive the pool.
  CompilePool(VocabularyRef vocabulary, const CompilePoolOptions& options, const Clock& clock);
  // Verdicts not yet known are dropped, their callbacks not called.
  ~CompilePool();
  CompilePool(const CompilePool&) = delete;
  CompilePool& operator=(const CompilePool&) = delete;

  void compile(ConstraintSpec spec, Done done);

  // Hears the wall seconds of each compilation, on a thread of the pool.
  void on_compiled(std::function<void(double)> observer);

  const VocabularyRef& vocabulary() const { return vocabulary_; }
  CompilePoolStats stats() const;

 private:
  struct Entry {
    std::string key;
    std::optional<Expected<CompiledRef>> verdict;  // nothing: being compiled
    int64_t forget_at_ns = 0;                      // of refusals
    std::vector<Done> waiting;
  };
  using Entries = std::list<Entry>;

  void work();
  void store(const std::string& key, const Expected<CompiledRef>& verdict, double seconds);
  void trim_locked();

  const VocabularyRef vocabulary_;
  const CompilePoolOptions options_;
  const Clock& clock_;

  mutable std::mutex mutex_;  // guards the members of this paragraph
  Entries entries_;           // most recently used first
  std::unordered_map<std::string, Entries::iterator> by_key_;
  CompilePoolStats stats_;
  std::function<void(double)> on_compiled_;

  struct Task {
    std::string key;
    ConstraintSpec spec;
  };
  Queue<Task> tasks_;
  std::vector<std::jthread> threads_;
};

// Digest over everything that decides what a specification compiles to, but for the vocabulary.
std::string constraint_key(const ConstraintSpec& spec);

}  // namespace di::structured
