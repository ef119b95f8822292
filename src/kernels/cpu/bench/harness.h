// Timing of competitors in turn, and random operands.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/bench/bench.h"
#include "kernels/cpu/stream.h"

namespace di::kernels::cpu::bench {

struct Contestant {
  std::string name;
  std::function<void()> run;
  double bytes = 0.0;  // moved by one run
  double flops = 0.0;
};

struct Timing {
  std::string name;
  double bytes = 0.0;
  double flops = 0.0;
  std::vector<double> seconds;  // one a round
  std::vector<double> cpu;      // processor time of the same rounds: steadier on a shared machine, for one thread
  double median() const;
  double median_cpu() const;
  double best() const;
};

// One warm-up each, then `rounds` rounds in which every contestant runs once, in turn.
std::vector<Timing> race(const std::vector<Contestant>& contestants, int rounds);

// Median over the rounds of time(b)/time(a): how many times faster a is.
double ratio(const Timing& a, const Timing& b);

// Prints a line per contestant: time, GB/s or GFLOP/s, and how many times faster than it the first one is: by the
// median of the rounds' ratios, by the best times, and by processor time.
void report(const std::string& name, const std::vector<Timing>& timings);

struct Session {
  explicit Session(const BenchOptions& o);
  BenchOptions options;
  ThreadPool pool;
  StreamPtr stream;
  const Ops& ops;
};

// Memory that the workers have touched first, filled with random values of the given format around 1.
class Buffer {
 public:
  explicit Buffer(int64_t bytes);
  void* data() const { return memory_.get(); }
  int64_t bytes() const { return bytes_; }
  void fill(ThreadPool& pool, WeightFormat format);
  void fill_bytes(uint8_t value);

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  int64_t bytes_;
};

// A stored matrix with random values and its memory.
struct RandomWeight {
  Buffer data;
  Buffer scale;
  Weight weight;
};
RandomWeight random_weight(ThreadPool& pool, WeightFormat format, int64_t rows, int64_t cols);
int64_t weight_bytes(WeightFormat format, int64_t rows, int64_t cols);
const char* name(WeightFormat format);

// Reads all of a buffer on all workers.
Contestant read_contestant(Session& s, const Buffer& buffer);
// Multiply-adds at the rate of the registers, about `flops` of them: of fp32, of the bf16 instruction, of matrix tiles.
enum class Peak : uint8_t { kWide, kPairs, kTiles };
Contestant peak_contestant(Session& s, double flops, Peak peak);

// cases_*.cc
void bench_gemv(Session& s);
void bench_gemm(Session& s);
void bench_operators(Session& s);
void bench_llama_shape(Session& s);

}  // namespace di::kernels::cpu::bench
