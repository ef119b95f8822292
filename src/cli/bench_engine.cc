// deepinfer bench engine: what the engine itself costs (a runner that only takes time), what requests see that arrive
// by a fixed trace, and what continuous batching is worth on a model.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <latch>
#include <map>
#include <mutex>
#include <random>
#include <vector>

#include "base/cpu_time.h"
#include "cli/local_model.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "engine/mock.h"

namespace di::cli {
namespace {

using engine::Engine;
using engine::EngineOptions;
using engine::EngineStats;
using engine::GenerateRequest;
using engine::Output;

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(p * static_cast<double>(values.size() - 1))];
}

struct Arrival {
  int64_t at_ns = 0;
  int32_t prompt = 16;
  int32_t output = 16;
};

struct Seen {
  std::vector<double> ttft_ms;
  std::vector<double> tpot_ms;
  int64_t tokens = 0;
  double seconds = 0;
};

// Hands the requests in at their times and waits for all.
Seen drive(engine::EngineApi& engine, const std::vector<Arrival>& arrivals, const Clock& clock) {
  Seen seen;
  std::mutex mutex;  // guards seen
  std::latch open(static_cast<std::ptrdiff_t>(arrivals.size()));
  const int64_t start = clock.now_ns();
  for (size_t i = 0; i < arrivals.size(); ++i) {
    clock.sleep_until(start + arrivals[i].at_ns);
    GenerateRequest request;
    for (int32_t k = 0; k < arrivals[i].prompt; ++k) {
      request.prompt.push_back(3 + (k * 31 + static_cast<int32_t>(i) * 17) % 200);
    }
    request.max_tokens = arrivals[i].output;
    request.ignore_eos = true;
    request.sampling.seed = i;
    const auto done = engine.submit(std::move(request), [&](const Output& out) {
      if (out.finish == engine::FinishReason::kNone) return;
      {
        const std::lock_guard lock(mutex);
        seen.tokens += out.output_tokens;
        seen.ttft_ms.push_back(static_cast<double>(out.times.first_token_ns - out.times.arrival_ns) * 1e-6);
        if (out.output_tokens > 1) {
          seen.tpot_ms.push_back(static_cast<double>(out.times.finished_ns - out.times.first_token_ns) * 1e-6 /
                                 static_cast<double>(out.output_tokens - 1));
        }
      }
      open.count_down();
    });
    if (!done) open.count_down();
  }
  open.wait();
  seen.seconds = static_cast<double>(clock.now_ns() - start) * 1e-9;
  return seen;
}

std::unique_ptr<Engine> mock_engine(int32_t sequences, int64_t row_ns, bool async, engine::Trace* trace,
                                    const Clock& clock) {
  engine::MockOptions mock;
  mock.n_slots = sequences + 1;
  mock.row_ns = row_ns;
  EngineOptions options;
  options.max_num_seqs = sequences;
  options.max_num_batched_tokens = std::max(512, sequences);
  options.async_scheduling = async;
  options.trace = trace;
  return Engine::create(engine::make_mock_runner(mock, clock), options, clock).value();
}

void bench_pipeline(const Clock& clock) {
  std::printf("Pipeline: steps of 5 ms that compute nothing; medians over the steps\n\n");
  std::printf("| sequences | scheduling | gap between forwards | without work | schedule + prepare | hand out |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (const int32_t sequences : {32, 256}) {
    for (const bool async : {true, false}) {
      engine::Trace trace;
      EngineStats stats;
      {
        const auto engine = mock_engine(sequences, 0, async, &trace, clock);
        drive(*engine, std::vector<Arrival>(static_cast<size_t>(sequences), Arrival{0, 4, 300}), clock);
        stats = engine->stats();
      }
      std::map<std::string_view, std::vector<double>> us;
      std::map<uint64_t, engine::TraceSpan> forwards;
      for (const engine::TraceSpan& span : trace.spans()) {
        us[span.name].push_back(static_cast<double>(span.end_ns - span.begin_ns) * 1e-3);
        if (std::string_view(span.name) == "forward") forwards[span.step] = span;
      }
      std::vector<double> gaps;
      for (const auto& [step, span] : forwards) {
        const auto next = forwards.find(step + 1);
        if (next == forwards.end()) continue;
        const auto gap = static_cast<double>(next->second.begin_ns - span.end_ns);
        gaps.push_back(gap / (gap + static_cast<double>(next->second.end_ns - next->second.begin_ns)));
      }
      const double prepare_us = stats.prepare_seconds * 1e6 / static_cast<double>(stats.steps);
      std::printf("| %d | %s | %.1f %% | %.1f %% | %.0f + %.0f us | %.0f us |\n", sequences, async ? "async" : "sync",
                  100 * percentile(gaps, 0.5), 100 * stats.bubble_seconds / (stats.forward_seconds + stats.gap_seconds),
                  percentile(us["schedule"], 0.5), prepare_us, percentile(us["post"], 0.5));
    }
  }
}

void bench_arrivals(const Clock& clock) {
  std::printf(
      "\nArrivals: 120 requests, prompts of 32 to 512 tokens, answers of 16 to 64, 32 sequences, steps of 5 ms + 20 us "
      "a row\n\n");
  std::printf("| requests/s | tokens/s | TTFT mean / p99 | TPOT mean / p99 |\n|---|---|---|---|\n");
  for (const double rate : {10.0, 40.0, 160.0}) {
    std::mt19937 random(7);
    std::exponential_distribution<double> gap(rate);
    std::vector<Arrival> arrivals;
    double at = 0;
    for (int i = 0; i < 120; ++i) {
      at += gap(random);
      arrivals.push_back({static_cast<int64_t>(at * 1e9), static_cast<int32_t>(32 + random() % 481),
                          static_cast<int32_t>(16 + random() % 49)});
    }
    const auto engine = mock_engine(32, 20'000, true, nullptr, clock);
    const Seen seen = drive(*engine, arrivals, clock);
    const auto mean = [](const std::vector<double>& v) {
      double sum = 0;
      for (const double x : v) sum += x;
      return v.empty() ? 0 : sum / static_cast<double>(v.size());
    };
    std::printf("| %.0f | %.0f | %.0f / %.0f ms | %.1f / %.1f ms |\n", rate,
                static_cast<double>(seen.tokens) / seen.seconds, mean(seen.ttft_ms), percentile(seen.ttft_ms, 0.99),
                mean(seen.tpot_ms), percentile(seen.tpot_ms, 0.99));
  }
}

// How requests are computed: one at a time or all that are there, steps overlapping with the host's work or not.
struct Mode {
  const char* name;
  bool batched;
  bool async;
};
constexpr Mode kModes[] = {
    {"one request at a time, synchronous", false, false},
    {"one request at a time", false, true},
    {"continuous batching, synchronous", true, false},
    {"continuous batching", true, true},
};
constexpr int32_t kConcurrent[] = {1, 8, 32};

struct Rate {
  double per_second = 0;
  double per_cpu_second = 0;
};

Rate measure(engine::EngineApi& engine, int32_t concurrent, const Clock& clock) {
  const double cpu = process_cpu_seconds();
  const Seen seen = drive(engine, std::vector<Arrival>(static_cast<size_t>(concurrent), Arrival{0, 16, 64}), clock);
  const auto tokens = static_cast<double>(seen.tokens);
  return {tokens / seen.seconds, tokens / (process_cpu_seconds() - cpu)};
}

void print_rates(const char* what, const std::function<void(const Mode&, int32_t, Rate&)>& fill) {
  std::printf(
      "\n%s: prompts of 16 tokens, answers of 64, all requests at once; tokens/s (tokens per second of CPU)\n\n", what);
  std::printf("| scheduling |");
  for (const int32_t n : kConcurrent) std::printf(" %d concurrent |", n);
  std::printf(" at 32, over one at a time |\n|---|---|---|---|---|\n");
  Rate alone;  // 32 requests, one after the other
  for (const Mode& mode : kModes) {
    std::printf("| %s |", mode.name);
    Rate rate;
    for (const int32_t n : kConcurrent) {
      fill(mode, n, rate);
      std::printf(" %.0f (%.0f) |", rate.per_second, rate.per_cpu_second);
      std::fflush(stdout);
    }
    if (alone.per_second == 0) alone = rate;
    std::printf(" %.2f (%.2f) |\n", rate.per_second / alone.per_second, rate.per_cpu_second / alone.per_cpu_second);
  }
}

int bench_batching(const BenchEngineOptions& options, const Clock& clock) {
  print_rates("Mock, 5 ms a step and 20 us a row", [&](const Mode& mode, int32_t concurrent, Rate& rate) {
    const auto engine = mock_engine(mode.batched ? 32 : 1, 20'000, mode.async, nullptr, clock);
    rate = measure(*engine, concurrent, clock);
  });
  int status = kOk;
  print_rates("Model on the CPU", [&](const Mode& mode, int32_t concurrent, Rate& rate) {
    ModelOptions model;
    model.folder = options.folder;
    model.threads = options.threads;
    model.max_num_seqs = mode.batched ? 32 : 1;
    model.max_model_len = 256;
    model.async_scheduling = mode.async;
    model.spec = "off";
    const auto loaded = load_model(model, codec::ApiPolicy::kExtended, clock);
    if (!loaded) {
      std::fprintf(stderr, "deepinfer bench engine: %s\n", loaded.error().message.c_str());
      status = loaded.error().exit_status;
      return;
    }
    measure(*(*loaded)->engine, concurrent, clock);  // caches and pages warm
    Rate best;
    for (int round = 0; round < 3; ++round) {
      const Rate now = measure(*(*loaded)->engine, concurrent, clock);
      best.per_second = std::max(best.per_second, now.per_second);
      best.per_cpu_second = std::max(best.per_cpu_second, now.per_cpu_second);
    }
    rate = best;
  });
  return status;
}

}  // namespace

int bench_engine(const BenchEngineOptions& options) {
  const SystemClock clock;
  if (options.part.empty() || options.part == "pipeline") bench_pipeline(clock);
  if (options.part.empty() || options.part == "arrivals") bench_arrivals(clock);
  if (options.part.empty() || options.part == "model") return bench_batching(options, clock);
  return kOk;
}

}  // namespace di::cli
