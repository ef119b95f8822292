// bench_kernels [filter] [--threads N] [--repetitions N] [--isa avx2|avx512|avx512bf16|amx] [--megabytes N]
#include <algorithm>
#include <cstdio>
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
      bool found = false;
      for (const Isa candidate : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
        if (std::strcmp(isa, name(candidate)) != 0 || candidate > best_isa()) continue;
        options.isa = candidate;
        found = true;
      }
      if (!found) {
        const char* amx = amx_refusal();
        std::fprintf(stderr, "--isa %s: this processor runs up to %s%s%s\n", isa, name(best_isa()),
                     amx == nullptr ? "" : "; ", amx == nullptr ? "" : amx);
        return 2;
      }
    } else {
      options.filter = argv[i];
    }
  }
  return run_bench(options);
}
