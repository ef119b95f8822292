#include "kernels/cpu/bench/harness.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/cpu/simd/prelude.h"

namespace di::kernels::cpu::bench {

namespace {

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Processor time of all threads.
double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

}  // namespace

double Timing::median() const {
  return middle(seconds);
}
double Timing::median_cpu() const {
  return middle(cpu);
}

double Timing::best() const {
  return *std::min_element(seconds.begin(), seconds.end());
}

std::vector<Timing> race(const std::vector<Contestant>& contestants, int rounds) {
  std::vector<Timing> timings;
  for (const Contestant& c : contestants) {
    c.run();
    timings.push_back({c.name, c.bytes, c.flops, {}, {}});
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < contestants.size(); ++i) {
      const auto start = std::chrono::steady_clock::now();
      const double cpu = cpu_seconds();
      contestants[i].run();
      timings[i].cpu.push_back(cpu_seconds() - cpu);
      timings[i].seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
  }
  return timings;
}

double ratio(const Timing& a, const Timing& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.seconds.size(); ++i) ratios.push_back(b.seconds[i] / a.seconds[i]);
  return middle(ratios);
}

void report(const std::string& name, const std::vector<Timing>& timings) {
  for (size_t i = 0; i < timings.size(); ++i) {
    const Timing& t = timings[i];
    std::string rate = t.bytes > 0.0 ? fmt::format("{:7.2f} GB/s ", t.bytes / t.median() * 1e-9) : std::string{};
    if (t.flops > 0.0) rate += fmt::format("{:7.1f} GFLOP/s", t.flops / t.median() * 1e-9);
    const std::string comparison =
        i == 0 ? std::string{}
               : fmt::format("  ours/this {:.2f}, best {:.2f}, cpu {:.2f}", ratio(timings[0], t),
                             t.best() / timings[0].best(), t.median_cpu() / timings[0].median_cpu());
    fmt::print("{:<34} {:<16} {:9.3f} ms (best {:9.3f}, cpu {:9.3f})  {}{}\n", i == 0 ? name : "", t.name,
               t.median() * 1e3, t.best() * 1e3, t.median_cpu() * 1e3, rate, comparison);
  }
  std::fflush(stdout);
}

Session::Session(const BenchOptions& o)
    : options(o), pool(o.threads), stream(make_stream(pool)), ops(di::kernels::cpu::ops(o.isa)) {}

void Buffer::Free::operator()(std::byte* p) const {
  ::operator delete(p, std::align_val_t{64});
}

Buffer::Buffer(int64_t bytes)
    : memory_(static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes + 64), std::align_val_t{64}))),
      bytes_(bytes) {}

void Buffer::fill(ThreadPool& pool, WeightFormat format) {
  // Random bits with exponents close to 1, so that no NaN, infinity or subnormal occurs.
  uint64_t keep = ~uint64_t{0};
  uint64_t set = 0;
  switch (format) {
    case WeightFormat::kF32:
      keep = 0x807fffff807fffff;
      set = 0x3f0000003f000000;
      break;
    case WeightFormat::kBf16:
      keep = 0x807f807f807f807f;
      set = 0x3f003f003f003f00;
      break;
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Row:
      keep = 0xbfbfbfbfbfbfbfbf;
      break;
    case WeightFormat::kFp4Row:
      break;
  }
  uint64_t* words = static_cast<uint64_t*>(data());
  const int64_t n = (bytes_ + 7) / 8;
  pool.for_each(0, 64, 1, [&](int64_t part) {
    uint64_t state = 0x9e3779b97f4a7c15ULL * static_cast<uint64_t>(part + 1);
    for (int64_t i = n * part / 64; i < n * (part + 1) / 64; ++i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      words[i] = (state & keep) | set;
    }
  });
}

void Buffer::fill_bytes(uint8_t value) {
  std::memset(data(), value, static_cast<size_t>(bytes_));
}

namespace {
int64_t scale_count(WeightFormat format, int64_t rows, int64_t cols) {
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kBf16:
      return 0;
    case WeightFormat::kFp8Block:
      return (rows + 31) / 32 * ((cols + 31) / 32);
    case WeightFormat::kFp8Row:
    case WeightFormat::kFp4Row:
      return rows * ((cols + 31) / 32);
  }
  return 0;
}
int64_t value_bits(WeightFormat format) {
  return format == WeightFormat::kF32      ? 32
         : format == WeightFormat::kBf16   ? 16
         : format == WeightFormat::kFp4Row ? 4
                                           : 8;
}
}  // namespace

int64_t weight_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  return rows * cols * value_bits(format) / 8 + scale_count(format, rows, cols);
}

RandomWeight random_weight(ThreadPool& pool, WeightFormat format, int64_t rows, int64_t cols) {
  RandomWeight w{Buffer(rows * cols * value_bits(format) / 8), Buffer(scale_count(format, rows, cols)), {}};
  w.data.fill(pool, format);
  w.scale.fill_bytes(120);
  w.weight = {w.data.data(), w.scale.bytes() > 0 ? static_cast<const uint8_t*>(w.scale.data()) : nullptr,
              format,        32,
              rows,          cols};
  return w;
}

const char* name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "fp32";
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kFp8Block:
      return "fp8-32x32";
    case WeightFormat::kFp8Row:
      return "fp8-row";
    case WeightFormat::kFp4Row:
      return "mxfp4";
  }
  return "?";
}

Contestant read_contestant(Session& s, const Buffer& buffer) {
  const uint64_t* words = static_cast<const uint64_t*>(buffer.data());
  const int64_t n = buffer.bytes() / 64 * 8;
  const auto read = [&s, words, n] {
    s.pool.parallel([&](int worker) {
      const int64_t workers = s.pool.size();
      const int64_t end = n / 8 * (worker + 1) / workers * 8;
      uint64_t sum[8] = {};
      for (int64_t i = n / 8 * worker / workers * 8; i < end; i += 8) {
        for (int64_t j = 0; j < 8; ++j) sum[j] += words[i + j];
      }
      for (int64_t j = 0; j < 8; ++j) {
        asm volatile("" : : "r"(sum[j]));
      }
    });
  };
  return {"read", read, static_cast<double>(n * 8), 0.0};
}

Contestant peak_contestant(Session& s, double flops, Peak peak) {
  const Probe probe = s.options.isa == Isa::kAvx2         ? probe_avx2()
                      : s.options.isa == Isa::kAvx512     ? probe_avx512()
                      : s.options.isa == Isa::kAvx512Bf16 ? probe_avx512bf16()
                                                          : probe_amx();
  struct Loop {
    const char* name;
    float (*run)(int64_t n);
    double flops;
  };
  const Loop loops[] = {{"peak fp32", probe.wide, probe.wide_flops},
                        {"peak bf16 pairs", probe.pairs, probe.pair_flops},
                        {"peak bf16 tiles", probe.tiles, probe.tile_flops}};
  const Loop& chosen = loops[static_cast<size_t>(peak)];
  const auto loop = chosen.run;
  const double per_round = chosen.flops;
  const int64_t rounds = static_cast<int64_t>(flops / per_round / s.pool.size()) + 1;
  const auto run = [&s, loop, rounds] { s.pool.parallel([&](int) { loop(rounds); }); };
  return {chosen.name, run, 0.0, static_cast<double>(rounds * s.pool.size()) * per_round};
}

}  // namespace di::kernels::cpu::bench

namespace di::kernels::cpu {

int run_bench(const BenchOptions& options) {
  bench::Session session(options);
  struct Group {
    const char* name;
    void (*run)(bench::Session&);
  };
  constexpr Group kGroups[] = {{"gemv", bench::bench_gemv},
                               {"gemm", bench::bench_gemm},
                               {"operators", bench::bench_operators},
                               {"llama", bench::bench_llama_shape}};
  fmt::print("{}, {} threads, {} rounds, medians\n", session.ops.name, session.pool.size(), options.repetitions);
  int found = 0;
  for (const Group& group : kGroups) {
    if (std::string(group.name).find(options.filter) == std::string::npos) continue;
    ++found;
    group.run(session);
  }
  if (found == 0) fmt::print(stderr, "no benchmark matches '{}': gemv, gemm, operators, llama\n", options.filter);
  return found == 0 ? 1 : 0;
}

}  // namespace di::kernels::cpu
