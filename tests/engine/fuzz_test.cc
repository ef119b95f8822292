// Random requests, cancels, deadlines and too little memory, on runners that check every row: no request hurts another,
// none gets stuck, and all blocks and slots come back. DEEPINFER_SOAK_SECONDS makes it as long as wanted.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
#include <random>

#include "engine/mock.h"
#include "support/engine_support.h"

namespace di::engine {
namespace {

using test::Collector;
using test::HashOptions;
using test::HashRunner;

// Fails now and then, like memory that runs out or a kernel that reports an error; some rows are not finite.
class FaultyRunner final : public HashRunner {
 public:
  FaultyRunner(const HashOptions& options, uint32_t seed) : HashRunner(options), random_(seed) {}
  Result<LogitsView> forward(std::span<const model::SequenceChunk> chunks, std::span<const SequenceTag> tags) override {
    LogitsView logits = DI_TRY(HashRunner::forward(chunks, tags));
    const auto dice = static_cast<uint32_t>(random_() % 200);
    if (dice == 0) throw std::bad_alloc();
    if (dice == 1) return fail(Errc::kInternal, "a fault of the test");
    if (dice < 6 && logits.rows > 0) logits.data[0] = std::numeric_limits<float>::quiet_NaN();
    return logits;
  }

 private:
  std::mt19937 random_;
};

GenerateRequest random_request(std::mt19937& random, const Clock& clock) {
  GenerateRequest r;
  for (size_t k = 1 + random() % 60; k > 0; --k) r.prompt.push_back(static_cast<int32_t>(2 + random() % 48));
  if (random() % 20 == 0) r.prompt[0] = 1000;  // refused
  r.tenant = std::string(1, static_cast<char>('a' + random() % 3));
  r.traffic_class = static_cast<TrafficClass>(random() % 3);
  r.priority = static_cast<int32_t>(random() % 3) - 1;
  r.n = static_cast<int32_t>(random() % 4 == 0 ? 1 + random() % 4 : 1);
  r.max_tokens = static_cast<int64_t>(random() % 50);
  r.sampling.seed = random();
  r.sampling.temperature = random() % 3 == 0 ? 0.0 : 1.0;
  if (random() % 4 == 0) r.sampling.top_k = 3;
  if (random() % 5 == 0) r.prompt_logprobs = 1;
  if (random() % 10 == 0) r.sampling.allowed_token_ids = {5};
  if (random() % 6 == 0) r.deadline_ns = clock.now_ns() + static_cast<int64_t>(random() % 20) * kNsPerMs;
  if (random() % 6 == 0) r.queue_deadline_ns = clock.now_ns() + static_cast<int64_t>(random() % 5) * kNsPerMs;
  return r;
}

void run_round(std::mt19937& random) {
  const SystemClock clock;
  const HashOptions runner{.n_blocks = static_cast<int32_t>(16 + random() % 20),
                           .n_slots = 9,
                           .mixed_steps = random() % 4 != 0,
                           .copies = random() % 2 == 0};
  EngineOptions options{.max_num_seqs = static_cast<int32_t>(1 + random() % 8),
                        .max_num_batched_tokens = static_cast<int32_t>(8 + random() % 30),
                        .max_queue_size = 60,
                        .max_queue_ms = 20,
                        .async_scheduling = random() % 3 != 0,
                        .recompute_preempted = random() % 4 != 0};
  auto engine =
      Engine::create(std::make_unique<FaultyRunner>(runner, static_cast<uint32_t>(random())), options, clock).value();
  std::vector<std::unique_ptr<Collector>> collectors;
  std::vector<RequestId> ids;
  for (int i = 0; i < 60; ++i) {
    GenerateRequest r = random_request(random, clock);
    auto collector = std::make_unique<Collector>(r.n);
    const auto id = engine->submit(std::move(r), collector->sink());
    if (!id) continue;
    ids.push_back(*id);
    collectors.push_back(std::move(collector));
    if (random() % 3 == 0) engine->cancel(ids[random() % ids.size()]);
    if (random() % 5 == 0) engine->cancel(ids[random() % ids.size()], static_cast<int32_t>(random() % 3));
  }
  const bool stop_early = random() % 8 == 0;
  if (stop_early) engine.reset();  // ends what is left
  for (const auto& collector : collectors) {
    const FinishReason reason = collector->wait().finish;
    EXPECT_NE(reason, FinishReason::kNone);
    if (options.recompute_preempted) {
      EXPECT_NE(reason, FinishReason::kPreempted);
    }
  }
  if (stop_early) return;
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.used_blocks, 0);
  EXPECT_EQ(stats.used_slots, 0);
  EXPECT_EQ(stats.running + stats.waiting + stats.waiting_tokens, 0);
}

TEST(EngineFuzz, NothingIsLostAndNothingGetsStuck) {
  const char* soak = std::getenv("DEEPINFER_SOAK_SECONDS");
  const auto seconds = std::chrono::seconds(soak == nullptr ? 3 : std::atoi(soak));
  const char* given = std::getenv("DEEPINFER_TEST_SEED");
  const auto seed = static_cast<uint32_t>(given != nullptr ? std::strtoul(given, nullptr, 10) : 1);
  std::mt19937 random(seed);
  const auto end = std::chrono::steady_clock::now() + seconds;
  int rounds = 0;
  while (std::chrono::steady_clock::now() < end && !testing::Test::HasFailure()) {
    SCOPED_TRACE(fmt::format("seed {} round {}", seed, rounds));
    run_round(random);
    ++rounds;
  }
  std::printf("%d rounds\n", rounds);
}

}  // namespace
}  // namespace di::engine
