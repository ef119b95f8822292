// deepinfer bench engine: what the engine itself costs (a runner that only takes time), what requests see that arrive
// by a fixed trace, and what continuous batching and the engine's other features are worth on models: the one of the
// folder, whose weights stay in the caches, and one of random weights that are read from memory.

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
#include "cli/random_folder.h"
#include "engine/engine.h"
#include "engine/mock.h"
#include "kernels/cpu/bench/harness.h"

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
  int32_t shared = 0;  // first tokens of the prompt, the same in all requests
};

struct Seen {
  std::vector<double> ttft_ms;
  std::vector<double> tpot_ms;
  int64_t tokens = 0;
  double seconds = 0;
};

// Hands the requests in at their times and waits for all. Prompts differ from request to request and by `salt`.
Seen drive(engine::EngineApi& engine, const std::vector<Arrival>& arrivals, const Clock& clock, uint32_t salt = 0) {
  Seen seen;
  std::mutex mutex;  // guards seen
  std::latch open(static_cast<std::ptrdiff_t>(arrivals.size()));
  const int64_t start = clock.now_ns();
  for (size_t i = 0; i < arrivals.size(); ++i) {
    clock.sleep_until(start + arrivals[i].at_ns);
    GenerateRequest request;
    for (int32_t k = 0; k < arrivals[i].prompt; ++k) {
      const int32_t own = k < arrivals[i].shared ? 0 : static_cast<int32_t>(i * 17 + salt * 7919);
      request.prompt.push_back(3 + (k * 31 + own) % 200);
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
      const double prepare_us = stats.times.prepare.sum * 1e6 / static_cast<double>(stats.steps);
      std::printf("| %d | %s | %.1f %% | %.1f %% | %.0f + %.0f us | %.0f us |\n", sequences, async ? "async" : "sync",
                  100 * percentile(gaps, 0.5),
                  100 * stats.bubble_seconds / (stats.times.forward.sum + stats.gap_seconds),
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

constexpr int32_t kConcurrent[] = {1, 8, 32};

struct Rate {
  double per_second = 0;
  double per_cpu_second = 0;
};

Rate measure(engine::EngineApi& engine, int32_t concurrent, const Arrival& each, uint32_t salt, const Clock& clock) {
  const double cpu = process_cpu_seconds();
  const Seen seen = drive(engine, std::vector<Arrival>(static_cast<size_t>(concurrent), each), clock, salt);
  const auto tokens = static_cast<double>(seen.tokens);
  return {tokens / seen.seconds, tokens / (process_cpu_seconds() - cpu)};
}

// A row of a table: how requests are computed.
struct Mode {
  const char* name;
  bool batched = true;
  bool async = true;
  bool prefix_cache = true;
  const char* spec = "off";
};

// One row a mode, one column a number of requests; the last column is over the first row's last figure, the result.
template <class Modes>
Result<Rate> print_rates(const char* versus, const Modes& modes,
                         const std::function<Result<std::vector<Rate>>(const Mode&)>& row) {
  std::printf("| scheduling |");
  for (const int32_t n : kConcurrent) std::printf(" %d concurrent |", n);
  std::printf(" at 32, over %s |\n|---|---|---|---|---|\n", versus);
  Rate first;
  for (const Mode& mode : modes) {
    const std::vector<Rate> rates = DI_TRY(row(mode));
    std::printf("| %s |", mode.name);
    for (const Rate& rate : rates) std::printf(" %.0f (%.0f) |", rate.per_second, rate.per_cpu_second);
    if (first.per_second == 0) first = rates.back();
    std::printf(" %.2f (%.2f) |\n", rates.back().per_second / first.per_second,
                rates.back().per_cpu_second / first.per_cpu_second);
    std::fflush(stdout);
  }
  return first;
}

// What a mode gives on a model: the best of `rounds`, each with prompts of its own.
Result<std::vector<Rate>> model_rates(const ModelOptions& base, const Mode& mode, const Arrival& each, int32_t rounds,
                                      const Clock& clock) {
  ModelOptions model = base;
  model.max_num_seqs = mode.batched ? 32 : 1;
  model.max_model_len = 512;
  model.async_scheduling = mode.async;
  model.prefix_cache = mode.prefix_cache;
  model.spec = mode.spec;
  const auto loaded = load_model(model, codec::ApiPolicy::kExtended, clock);
  if (!loaded) return fail(Errc::kInvalidRequest, "{}", loaded.error().message);
  engine::EngineApi& engine = *(*loaded)->engine;
  uint32_t salt = 1;
  measure(engine, 1, each, salt++, clock);  // pages are touched, what the prompts share is cached
  std::vector<Rate> out;
  for (const int32_t n : kConcurrent) {
    Rate best;
    for (int32_t round = 0; round < rounds; ++round) {
      const Rate now = measure(engine, n, each, salt++, clock);
      best.per_second = std::max(best.per_second, now.per_second);
      best.per_cpu_second = std::max(best.per_cpu_second, now.per_cpu_second);
    }
    out.push_back(best);
  }
  return out;
}

// What the machine gives: bytes read from memory and products, a second.
struct Ceilings {
  double read = 0;
  double flops = 0;
};

Ceilings measure_ceilings(int32_t threads, bool pairs) {
  namespace kb = kernels::cpu::bench;
  kernels::cpu::BenchOptions options;
  options.threads = threads;
  kb::Session session(options);
  kb::Buffer memory(int64_t{256} << 20);
  memory.fill(session.pool, kernels::WeightFormat::kFp4Row);
  using kernels::cpu::Isa;
  const kb::Peak peak = !pairs || options.isa < Isa::kAvx512Bf16 ? kb::Peak::kWide
                        : options.isa == Isa::kAmx               ? kb::Peak::kTiles
                                                                 : kb::Peak::kPairs;
  const auto rate = [&](const kb::Contestant& what, double amount) {
    const kb::Timing time = kb::race({what}, 5).front();
    return amount / (session.pool.size() == 1 ? time.median_cpu() : time.best());
  };
  constexpr double kFlops = 2e9;
  return {rate(kb::read_contestant(session, memory), static_cast<double>(memory.bytes())),
          rate(kb::peak_contestant(session, kFlops, peak), kFlops)};
}

// Steps of 1 and 32 rows at the ceilings, and what continuous batching can give at 32 over a token alone as measured.
void print_limit(const StepWork& work, const Ceilings& ceilings, bool from_memory, const Rate& alone, int32_t threads) {
  const auto step_ms = [&](double rows) {
    const double read = from_memory ? work.bytes(rows) / ceilings.read : 0;
    return 1e3 * std::max(read, rows * work.row_flops / ceilings.flops);
  };
  const double alone_ms = 1e3 / (threads == 1 ? alone.per_cpu_second : alone.per_second);
  std::printf(
      "\nLimit: a step of 1 row reads %.0f MB of weights, one of 32 rows %.0f MB, %.0f MFLOP a row; the machine reads "
      "%.1f GB/s and does %.0f GFLOP/s. A step of 1 row takes at least %.2f ms%s, one of 32 rows %.2f ms; a token "
      "alone took %.2f ms, so batching can give at most %.1f times.\n",
      work.bytes(1) * 1e-6, work.bytes(32) * 1e-6, work.row_flops * 1e-6, ceilings.read * 1e-9, ceilings.flops * 1e-9,
      step_ms(1), from_memory ? "" : " (products alone, the weights stay in the caches)", step_ms(32), alone_ms,
      32 * alone_ms / step_ms(32));
}

constexpr Mode kBatching[] = {
    {.name = "one request at a time, synchronous", .batched = false, .async = false},
    {.name = "one request at a time", .batched = false},
    {.name = "continuous batching, synchronous", .async = false},
    {.name = "continuous batching"},
};
constexpr Mode kFeatures[] = {
    {.name = "all", .spec = "dspark"},
    {.name = "without continuous batching", .batched = false, .spec = "dspark"},
    {.name = "without asynchronous steps", .async = false, .spec = "dspark"},
    {.name = "without prefix cache", .prefix_cache = false, .spec = "dspark"},
    {.name = "without speculation"},
};

Result<void> bench_mock(const Clock& clock) {
  std::printf(
      "\nMock, 5 ms a step and 20 us a row: prompts of 16 tokens, answers of 64, all requests at once; "
      "tokens/s (tokens per second of CPU)\n\n");
  const Result<Rate> done = print_rates("one at a time", kBatching, [&](const Mode& mode) -> Result<std::vector<Rate>> {
    std::vector<Rate> out;
    for (const int32_t n : kConcurrent) {
      const auto engine = mock_engine(mode.batched ? 32 : 1, 20'000, mode.async, nullptr, clock);
      out.push_back(measure(*engine, n, {.prompt = 16, .output = 64}, 0, clock));
    }
    return out;
  });
  if (!done) return std::unexpected(done.error());
  return {};
}

Result<void> bench_folder(const ModelOptions& model, const Clock& clock) {
  constexpr Arrival kEach{.prompt = 16, .output = 64};
  std::printf(
      "\nThe model of the folder: prompts of 16 tokens, answers of 64, all requests at once, without drafts;\n"
      "tokens/s (tokens per second of CPU)\n\n");
  const Rate alone = DI_TRY(print_rates("one at a time", kBatching,
                                        [&](const Mode& mode) { return model_rates(model, mode, kEach, 2, clock); }));
  print_limit(DI_TRY(step_work(model.folder)), measure_ceilings(model.threads, false), false, alone, model.threads);
  constexpr Arrival kShared{.prompt = 272, .output = 64, .shared = 256};
  std::printf("\nThe same with prompts of 272 tokens, 256 of them shared by all requests, and with drafts\n\n");
  const Result<Rate> done =
      print_rates("all", kFeatures, [&](const Mode& mode) { return model_rates(model, mode, kShared, 1, clock); });
  if (!done) return std::unexpected(done.error());
  return {};
}

// Models whose weights are read from memory: 300 MB and more by a step of one row.
struct Wide {
  const char* name;
  bool quantised;
  int32_t width;
};
constexpr Wide kWide[] = {
    {"BF16, width 1280", false, 1280},
    {"FP8 and MXFP4, width 2048", true, 2048},
};

Json members_of(const Wide& wide) {
  Json out;
  for (const auto& [name, value] : {std::pair{"hidden_size", wide.width},
                                    {"num_attention_heads", 16},
                                    {"head_dim", wide.width / 8},
                                    {"q_lora_rank", wide.width / 2},
                                    {"o_groups", 4},
                                    {"o_lora_rank", wide.width / 4},
                                    {"moe_intermediate_size", wide.width / 2},
                                    {"n_routed_experts", 4},
                                    {"num_experts_per_tok", 2}}) {
    out.set(name, value);
  }
  if (!wide.quantised) out.set("quantization_config", nullptr);
  return out;
}

Result<void> bench_wide(const Wide& wide, const ModelOptions& base, const Clock& clock) {
  constexpr Arrival kEach{.prompt = 4, .output = 24};
  const TemporaryFolder folder = DI_TRY(TemporaryFolder::create());
  DI_TRY(write_random_folder(base.folder, members_of(wide), folder.path()));
  ModelOptions model = base;
  model.folder = folder.path().string();
  model.numerics = "trained";
  std::printf(
      "\nRandom weights, %s, the arithmetic of the training: prompts of 4 tokens, answers of 24, all requests at "
      "once;\n"
      "tokens/s (tokens per second of CPU)\n\n",
      wide.name);
  const Rate alone = DI_TRY(print_rates("one at a time", kBatching,
                                        [&](const Mode& mode) { return model_rates(model, mode, kEach, 1, clock); }));
  print_limit(DI_TRY(step_work(model.folder)), measure_ceilings(model.threads, true), true, alone, model.threads);
  return {};
}

int bench_batching(const BenchEngineOptions& options, const Clock& clock) {
  ModelOptions model;
  model.folder = options.folder;
  model.threads = options.threads;
  Result<void> done = bench_mock(clock);
  if (done) done = bench_folder(model, clock);
  for (const Wide& wide : kWide) {
    if (done) done = bench_wide(wide, model, clock);
  }
  if (done) return kOk;
  std::fprintf(stderr, "deepinfer bench engine: %s\n", done.error().message.c_str());
  return kFailed;
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
