// Benchmarks of the CPU operators (performance.md §4 and §7). Every figure is a ratio inside one run: the ceilings
// (read bandwidth, multiply-add rate) and the peers found on the machine are timed in turn with our operators, sample
// by sample.
#pragma once

#include <string>

#include "kernels/cpu/cpu.h"

namespace di::kernels::cpu {

struct BenchOptions {
  int threads = 0;  // 0 = usable cores
  int repetitions = 9;
  Isa isa = best_isa();
  std::string filter;       // part of a case name; empty = all
  int64_t megabytes = 256;  // of weights in the bandwidth cases: more than 8 times the last cache
};

// Prints a table on standard output. Returns 0, or 1 when no case matches the filter.
int run_bench(const BenchOptions& options);

}  // namespace di::kernels::cpu
