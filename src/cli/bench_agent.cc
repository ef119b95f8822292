// deepinfer bench agent-trace: an agent's turns on one growing history, with the prefix cache and without: cached
// tokens and time to the first token, turn by turn, in one run.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <random>

#include "cli/local_model.h"

namespace di::cli {
namespace {

struct Turn {
  int64_t prompt = 0;
  int64_t cached = 0;
  double first_token_ms = 0;
  std::vector<int32_t> tokens;
};

// Sends one request and waits for its end.
Result<Turn> ask(engine::EngineApi& engine, const std::vector<int32_t>& prompt, int64_t max_tokens) {
  std::mutex mutex;
  std::condition_variable done;
  Turn turn;
  bool ended = false;
  engine::GenerateRequest request;
  request.prompt = prompt;
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  request.ignore_eos = true;
  const auto id = engine.submit(request, [&](engine::Output out) {
    const std::lock_guard lock(mutex);
    for (const engine::OutputToken& t : out.tokens) turn.tokens.push_back(t.token);
    turn.prompt = out.prompt_tokens;
    turn.cached = out.cached_tokens;
    turn.first_token_ms = static_cast<double>(out.times.first_token_ns - out.times.arrival_ns) * 1e-6;
    ended = out.finish != engine::FinishReason::kNone;
    if (ended) done.notify_all();
  });
  if (!id) return std::unexpected(id.error().error);
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return ended; });
  return turn;
}

// The same conversation: each turn adds the answer and `added` new tokens.
Result<std::vector<Turn>> play(const BenchAgentOptions& options, bool prefix_cache) {
  ModelOptions model;
  model.folder = options.folder;
  model.threads = options.threads;
  model.max_num_seqs = 4;
  model.prefix_cache = prefix_cache;
  const SystemClock clock;
  auto loaded = load_model(model, codec::ApiPolicy::kExtended, clock);
  if (!loaded) return fail(Errc::kInvalidRequest, "{}", loaded.error().message);
  engine::EngineApi& engine = *(*loaded)->engine;
  std::mt19937 random(5);
  const auto text = [&](int32_t n) {
    std::vector<int32_t> out;
    for (int32_t i = 0; i < n; ++i) out.push_back(300 + static_cast<int32_t>(random() % 3000));
    return out;
  };
  std::vector<int32_t> history = text(options.history);
  std::vector<Turn> turns;
  for (int32_t i = 0; i < options.turns; ++i) {
    turns.push_back(DI_TRY(ask(engine, history, options.answer)));
    history.insert(history.end(), turns.back().tokens.begin(), turns.back().tokens.end());
    const std::vector<int32_t> more = text(options.added);
    history.insert(history.end(), more.begin(), more.end());
  }
  return turns;
}

Result<void> bench(const BenchAgentOptions& options) {
  const std::vector<Turn> cold = DI_TRY(play(options, false));
  const std::vector<Turn> warm = DI_TRY(play(options, true));
  std::printf(
      "| turn | prompt tokens | cached | TTFT cold, ms | TTFT with the prefix cache, ms | ratio | same tokens |\n"
      "|---|---|---|---|---|---|---|\n");
  for (size_t i = 0; i < cold.size(); ++i) {
    std::printf("| %zu | %lld | %.1f %% | %.1f | %.1f | %.3f | %s |\n", i + 1, static_cast<long long>(warm[i].prompt),
                100.0 * static_cast<double>(warm[i].cached) / static_cast<double>(warm[i].prompt),
                cold[i].first_token_ms, warm[i].first_token_ms, warm[i].first_token_ms / cold[i].first_token_ms,
                cold[i].tokens == warm[i].tokens ? "yes" : "no");
  }
  return {};
}

}  // namespace

int bench_agent(const BenchAgentOptions& options) {
  if (const Result<void> done = bench(options); !done) {
    std::fprintf(stderr, "deepinfer bench agent-trace: %s\n", done.error().message.c_str());
    return kFailed;
  }
  return kOk;
}

}  // namespace di::cli
