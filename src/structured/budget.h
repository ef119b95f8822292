// What one compilation or one decoding step may use up: steps, CPU time, bytes (structured-output.md §2.7). Checked
// inside the loops that grow; once exhausted it stays so and keeps the first reason.
#pragma once

#include <cstdint>
#include <string>

namespace di::structured {

class Budget {
 public:
  // cpu_ms 0: no time limit. The clock is the CPU time of the calling thread; it runs from the first look at it.
  void start(int64_t cpu_ms, int64_t max_bytes, int64_t max_nodes);
  // Restarts the clock for a piece of work of its own; bytes and nodes stay counted.
  void restart_clock(int64_t cpu_ms);
  // Counts a step of work; looks at the clock every 1,024 steps.
  bool step() { return (++steps_ & 1023U) == 0 ? check_clock() : !exhausted_; }
  bool take_node(int64_t bytes);
  bool exhausted() const { return exhausted_; }
  // Why: "time", "memory" or "nodes"; empty when not exhausted.
  const std::string& reason() const { return reason_; }
  int64_t bytes() const { return bytes_; }
  void clear_exhaustion();
  void fail(const char* reason);

 private:
  bool check_clock();

  uint64_t steps_ = 0;
  int64_t allowance_ns_ = 0;  // 0: no time limit
  int64_t deadline_ns_ = 0;   // set when the clock is first looked at
  int64_t bytes_ = 0;
  int64_t nodes_ = 0;
  int64_t max_bytes_ = 0;
  int64_t max_nodes_ = 0;
  bool exhausted_ = false;
  std::string reason_;
};

}  // namespace di::structured
