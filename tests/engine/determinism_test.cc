// The logits of a request are bitwise the same alone and in any company: batches, chunks, preemptions, arrivals and
// departures, with and without overlap. A small random-weight model on the fast operators, a thousand random schedules.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <random>

#include "base/thread_pool.h"
#include "engine/model_runner.h"
#include "kernels/cpu/cpu.h"
#include "support/engine_support.h"
#include "support/folders.h"
#include "support/sanitizers.h"

namespace di::engine {
namespace {

using test::Collector;

constexpr int32_t kBlockTokens = 4;
constexpr size_t kRequests = 48;

uint64_t hash_row(const float* row, size_t n) {
  uint64_t hash = 1469598103934665603ULL;
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, row + i, sizeof bits);
    hash = (hash ^ bits) * 1099511628211ULL;
  }
  return hash;
}

struct Measured {
  int64_t steps = 0;
  int64_t sequences = 0;  // over the steps
  int64_t chunk_splits = 0;
  int64_t rows_checked = 0;
  uint64_t preemptions = 0;
  uint64_t prefix_hits = 0;  // tokens taken from a cache
  uint64_t forks = 0;
};

// The model as one schedule sees it: less memory, another kind of steps; and an eye on every row of logits.
class WatchedRunner final : public Runner {
 public:
  WatchedRunner(Runner& model, int32_t n_blocks, int32_t n_slots, bool mixed) : model_(model), info_(model.info()) {
    info_.n_blocks = n_blocks;
    info_.n_slots = n_slots;
    info_.mixed_steps = mixed;
    info_.max_drafts = 0;  // rows behind a refused draft have no counterpart in an undisturbed run
  }
  const RunnerInfo& info() const override { return info_; }

  Result<LogitsView> forward(std::span<const model::SequenceChunk> chunks, std::span<const SequenceTag> tags) override {
    ++measured.steps;
    measured.sequences += static_cast<int64_t>(chunks.size());
    if (before_step) before_step(measured.steps);
    const LogitsView logits = DI_TRY(model_.forward(chunks, tags));
    const float* row = logits.data;
    for (size_t i = 0; i < chunks.size(); ++i) {
      const model::SequenceChunk& chunk = chunks[i];
      const int32_t end = chunk.begin + chunk.count;
      if (end < tags[i].prompt_tokens) ++measured.chunk_splits;
      for (int32_t p = std::max(chunk.begin, chunk.logits_begin); p < end; ++p, row += logits.stride) {
        on_row(tags[i].sequence, p, hash_row(row, static_cast<size_t>(info_.vocab_size)));
        ++measured.rows_checked;
      }
    }
    return logits;
  }
  void copy(std::span<const CopyPair> blocks, std::span<const CopyPair> slots) override { model_.copy(blocks, slots); }
  void save_window(int32_t slot, kv::SwaEntry& entry) override { model_.save_window(slot, entry); }
  void load_window(int32_t slot, const kv::SwaEntry& entry) override { model_.load_window(slot, entry); }

  std::function<void(int64_t step)> before_step;
  std::function<void(uint64_t sequence, int32_t position, uint64_t hash)> on_row;
  Measured measured;

 private:
  Runner& model_;
  RunnerInfo info_;
};

class Determinism : public testing::Test {
 protected:
  void SetUp() override {
    stream_ = kernels::cpu::make_stream(pool_);
    device_ = device::make_host_device();
    ModelRunnerOptions options;
    options.max_num_seqs = 64;
    options.max_model_len = 256;
    options.block_tokens = kBlockTokens;
    options.numerics = model::NumericMode::kTrained;
    const std::string folder = std::string(di::test::kData) + "/model/v41_tiny_a";
    auto runner = load_model_runner(folder, options, {kernels::cpu::ops(kernels::cpu::best_isa()), *stream_, *device_},
                                    [] { return std::vector<model::TokenText>(); });
    ASSERT_TRUE(runner) << runner.error().message;
    model_ = std::move(*runner);
    make_requests();
  }

  // Short and long prompts, some with a common beginning.
  void make_requests() {
    std::mt19937 random(9);
    std::vector<int32_t> common;
    for (int i = 0; i < 17; ++i) common.push_back(static_cast<int32_t>(3 + random() % 240));
    for (size_t i = 0; i < kRequests; ++i) {
      GenerateRequest r;
      if (i % 3 == 0) r.prompt = common;
      for (size_t k = 1 + random() % (i % 6 == 0 ? 24 : 6); k > 0; --k) {
        r.prompt.push_back(static_cast<int32_t>(3 + random() % 240));
      }
      r.max_tokens = static_cast<int64_t>(3 + random() % 3);
      r.ignore_eos = true;
      r.sampling.seed = random();
      r.sampling.temperature = i % 2 == 0 ? 1.0 : 0.0;
      requests_.push_back(std::move(r));
    }
  }

  // Each request by itself, in one piece, synchronous: the logits and tokens it has to have everywhere.
  void run_alone() {
    const SystemClock clock;
    for (size_t i = 0; i < requests_.size(); ++i) {
      auto runner = std::make_unique<WatchedRunner>(*model_, 60, 2, true);
      runner->on_row = [&, i](uint64_t, int32_t position, uint64_t hash) { rows_[{i, position}] = hash; };
      const EngineOptions options{
          .max_model_len = 200, .max_num_seqs = 1, .max_num_batched_tokens = 200, .async_scheduling = false};
      auto engine = Engine::create(std::move(runner), options, clock).value();
      Collector c;
      ASSERT_TRUE(engine->submit(requests_[i], c.sink()));
      tokens_.push_back(c.wait().tokens);
      ASSERT_EQ(tokens_[i].size(), static_cast<size_t>(requests_[i].max_tokens));
    }
  }

  void run_schedule(int number, std::mt19937& random, Measured& total) {
    const SystemClock clock;
    EngineOptions options;
    options.max_num_seqs = static_cast<int32_t>(random() % 50 == 0 ? 64 : 20 + random() % 4);
    const auto places = static_cast<size_t>(options.max_num_seqs);
    const size_t at_once = places + random() % 2;
    const bool tight = number % 5 < 3;
    const size_t n = at_once + (tight ? 1 : 4) + random() % 3;
    std::vector<size_t> chosen;
    // In a tight schedule the prompts of those that run fill the memory, so that any answer needs a place of another;
    // they share no beginning, which would leave room.
    int32_t prompt_blocks = 0;
    while (chosen.size() < n) {
      const size_t pick = random() % kRequests;
      const bool common = pick % 3 == 0;
      if (tight ? common : chosen.size() >= at_once && !common) continue;
      if (chosen.size() < places) {
        prompt_blocks += (static_cast<int32_t>(requests_[pick].prompt.size()) + kBlockTokens - 1) / kBlockTokens;
      }
      chosen.push_back(pick);
    }
    options.max_num_batched_tokens = options.max_num_seqs + static_cast<int32_t>(8 + random() % 60);
    options.async_scheduling = random() % 4 != 0;
    options.reuse.window_memory_bytes = 1 << 20;  // hits start from a saved window, which is exact
    const int32_t n_blocks = tight ? prompt_blocks + 1 : options.max_num_seqs * 5 + static_cast<int32_t>(random() % 10);
    const bool mixed = random() % 20 != 0;
    options.max_model_len = std::min(200, (n_blocks - 1) * kBlockTokens);
    auto owned = std::make_unique<WatchedRunner>(*model_, n_blocks, options.max_num_seqs + 1, mixed);
    WatchedRunner& runner = *owned;
    runner.on_row = [&](uint64_t sequence, int32_t position, uint64_t hash) {
      const size_t request = chosen[sequence - 1];
      const auto it = rows_.find({request, position});
      if (it == rows_.end()) return;  // a step launched before the end was known
      EXPECT_EQ(hash, it->second) << "request " << request << " position " << position;
    };
    std::vector<std::unique_ptr<Collector>> collectors;
    std::vector<RequestId> ids(n);
    std::vector<std::atomic<bool>> cancelled(n);
    for (size_t i = 0; i < n; ++i) collectors.push_back(std::make_unique<Collector>());
    Engine* engine = nullptr;
    size_t submitted = 0;
    std::mt19937 dice(random());
    // Arrivals and departures come with the tokens, on the engine's thread; the first step waits for the first ones.
    std::function<void()> submit_next = [&] {
      if (submitted == n) return;
      const size_t i = submitted++;
      const auto sink = [&, inner = collectors[i]->sink()](Output out) {
        const bool ended = out.finish != FinishReason::kNone;
        inner(std::move(out));
        if (ended || dice() % 8 == 0) submit_next();
        if (dice() % 64 != 0) return;
        const size_t victim = dice() % submitted;
        cancelled[victim] = true;
        engine->cancel(ids[victim]);
      };
      GenerateRequest r = requests_[chosen[i]];
      if (i >= at_once) r.tenant = "late";  // takes the place of one of the many
      ids[i] = engine->submit(std::move(r), sink).value();
    };
    std::promise<void> go;
    runner.before_step = [&, started = go.get_future().share()](int64_t) { started.wait(); };
    auto owner = Engine::create(std::move(owned), options, clock).value();
    engine = owner.get();
    while (submitted < at_once) submit_next();
    go.set_value();
    for (size_t i = 0; i < n; ++i) {
      const Collector::Choice& c = collectors[i]->wait();
      if (cancelled[i] && c.finish == FinishReason::kAborted) continue;
      EXPECT_EQ(c.finish, FinishReason::kLength) << c.error.message;
      EXPECT_EQ(c.tokens, tokens_[chosen[i]]) << "request " << chosen[i];
    }
    const EngineStats stats = owner->stats();
    EXPECT_EQ(stats.used_slots, 0);
    total.preemptions += stats.preemptions;
    total.prefix_hits += stats.prefix_hits;
    total.forks += stats.forks;
    total.steps += runner.measured.steps;
    total.sequences += runner.measured.sequences;
    total.chunk_splits += runner.measured.chunk_splits;
    total.rows_checked += runner.measured.rows_checked;
    owner.reset();
  }

  ThreadPool pool_{1};
  kernels::cpu::StreamPtr stream_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<ModelRunner> model_;
  std::vector<GenerateRequest> requests_;
  std::map<std::pair<size_t, int32_t>, uint64_t> rows_;
  std::vector<std::vector<int32_t>> tokens_;
};

TEST_F(Determinism, LogitsAreBitwiseTheSameInEverySchedule) {
  run_alone();
  // The sanitizers make the operators ten times slower.
  constexpr int kSchedules = di::test::kSanitized ? 40 : 1000;
  const char* given = std::getenv("DEEPINFER_TEST_SEED");
  const auto seed = static_cast<uint32_t>(given != nullptr ? std::strtoul(given, nullptr, 10) : 1);
  std::mt19937 random(seed);
  Measured all;
  Measured before;  // the last ten schedules began
  for (int i = 1; i <= kSchedules && !HasFailure(); ++i) {
    SCOPED_TRACE(fmt::format("seed {} schedule {}", seed, i));
    run_schedule(i, random, all);
    if (i % 10 != 0) continue;
    EXPECT_GT(all.preemptions, before.preemptions);
    EXPECT_GT(all.chunk_splits, before.chunk_splits);
    EXPECT_GT(all.prefix_hits, before.prefix_hits);
    before = all;
  }
  EXPECT_GE(static_cast<double>(all.sequences) / static_cast<double>(all.steps), 8.0);
  EXPECT_GE(all.prefix_hits, static_cast<uint64_t>(kSchedules / 10) * 8);
  std::printf(
      "%d schedules, %lld steps, mean batch %.1f, %lld rows compared, %llu preemptions, %lld split "
      "prompts, %llu prompt tokens from the cache, %llu forks\n",
      kSchedules, static_cast<long long>(all.steps),
      static_cast<double>(all.sequences) / static_cast<double>(all.steps), static_cast<long long>(all.rows_checked),
      static_cast<unsigned long long>(all.preemptions), static_cast<long long>(all.chunk_splits),
      static_cast<unsigned long long>(all.prefix_hits), static_cast<unsigned long long>(all.forks));
}

}  // namespace
}  // namespace di::engine
