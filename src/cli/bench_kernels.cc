// deepinfer bench kernels: the CPU operators against the ceilings of this machine, in one run.
#include "cli/options.h"
#include "kernels/cpu/bench/bench.h"

namespace di::cli {

int bench_kernels(const BenchKernelsOptions& options) {
  kernels::cpu::BenchOptions bench;
  bench.threads = options.threads;
  bench.repetitions = options.repetitions;
  bench.filter = options.filter;
  bench.megabytes = options.megabytes;
  return kernels::cpu::run_bench(bench);
}

}  // namespace di::cli
