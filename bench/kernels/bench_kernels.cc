// bench_kernels [filter] [--threads N] [--repetitions N] [--isa avx2|avx512|avx512bf16] [--megabytes N]
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/bench/bench.h"

int main(int argc, char** argv) {
  using namespace di::kernels::cpu;
  BenchOptions options;
  for (int i = 1; i < argc; ++i) {
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (std::strcmp(argv[i], "--threads") == 0) {
      options.threads = std::atoi(value());
    } else if (std::strcmp(argv[i], "--repetitions") == 0) {
      options.repetitions = std::max(1, std::atoi(value()));
    } else if (std::strcmp(argv[i], "--megabytes") == 0) {
      options.megabytes = std::max(16, std::atoi(value()));
    } else if (std::strcmp(argv[i], "--isa") == 0) {
      const char* isa = value();
      for (const Isa candidate : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
        if (std::strcmp(isa, name(candidate)) == 0 && candidate <= best_isa()) options.isa = candidate;
      }
    } else {
      options.filter = argv[i];
    }
  }
  return run_bench(options);
}
