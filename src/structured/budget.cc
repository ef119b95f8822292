#include "structured/budget.h"

#include <ctime>

namespace di::structured {
namespace {

int64_t thread_cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

void Budget::start(int64_t cpu_ms, int64_t max_bytes, int64_t max_nodes) {
  bytes_ = 0;
  nodes_ = 0;
  max_bytes_ = max_bytes;
  max_nodes_ = max_nodes;
  restart_clock(cpu_ms);
}

void Budget::restart_clock(int64_t cpu_ms) {
  // Reading the clock costs more than a mask that is known already: the first 1,024 steps are free.
  allowance_ns_ = cpu_ms * 1'000'000;
  deadline_ns_ = 0;
  steps_ = 0;
  clear_exhaustion();
}

void Budget::clear_exhaustion() {
  exhausted_ = false;
  reason_.clear();
}

void Budget::fail(const char* reason) {
  if (exhausted_) return;
  exhausted_ = true;
  reason_ = reason;
}

bool Budget::take_node(int64_t bytes) {
  bytes_ += bytes;
  ++nodes_;
  if (max_bytes_ > 0 && bytes_ > max_bytes_) fail("memory");
  if (max_nodes_ > 0 && nodes_ > max_nodes_) fail("nodes");
  return step();
}

bool Budget::check_clock() {
  if (allowance_ns_ > 0 && !exhausted_) {
    const int64_t now = thread_cpu_ns();
    if (deadline_ns_ == 0) deadline_ns_ = now + allowance_ns_;
    if (now > deadline_ns_) fail("time");
  }
  return !exhausted_;
}

}  // namespace di::structured
