#include "engine/engine.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "engine/scripted.h"
#include "support/engine_support.h"

namespace di::engine {
namespace {

using test::Collector;
using test::HashOptions;
using test::HashRunner;
using test::request;

// Opens once; the engine's thread waits at it.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void wait_for_arrival() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int waiting_ = 0;
};

std::unique_ptr<Engine> scripted_engine(ScriptedOptions script, const Clock& clock, EngineOptions options = {}) {
  return Engine::create(make_scripted_runner(std::move(script), clock), options, clock).value();
}

TEST(Engine, GivesTheScriptedTokensAndStopsAtTheEndToken) {
  SystemClock clock;
  ScriptedOptions script;
  script.scripts = {{{7}, {10, 11, 12}}, {{}, {20}}};
  auto engine = scripted_engine(script, clock);
  Collector a;
  Collector b;
  ASSERT_TRUE(engine->submit(request({5, 7, 9}), a.sink()));
  ASSERT_TRUE(engine->submit(request({5}), b.sink()));
  EXPECT_EQ(a.wait().tokens, (std::vector<int32_t>{10, 11, 12}));
  EXPECT_EQ(a.wait().finish, FinishReason::kStop);
  EXPECT_EQ(a.wait().last.prompt_tokens, 3);
  EXPECT_EQ(a.wait().last.output_tokens, 3);
  EXPECT_EQ(b.wait().tokens, (std::vector<int32_t>{20}));
}

TEST(Engine, StopRulesComeInTheirOrder) {
  SystemClock clock;
  ScriptedOptions script;
  script.scripts = {{{}, {10, 11, 12, 13, 14, 15}}};
  auto engine = scripted_engine(script, clock, {.max_model_len = 8});
  const auto run = [&](GenerateRequest r) {
    Collector c;
    EXPECT_TRUE(engine->submit(std::move(r), c.sink()));
    return c.wait();
  };
  Collector::Choice c = run(request({1, 2}, 3));
  EXPECT_EQ(c.tokens, (std::vector<int32_t>{10, 11, 12}));
  EXPECT_EQ(c.finish, FinishReason::kLength);

  GenerateRequest r = request({1, 2}, 3);
  r.stop_token_ids = {12};  // at the same token as max_tokens: the stop wins and the token is dropped
  c = run(r);
  EXPECT_EQ(c.tokens, (std::vector<int32_t>{10, 11}));
  EXPECT_EQ(c.finish, FinishReason::kStop);

  r.ignore_eos = true;
  EXPECT_EQ(run(r).tokens, (std::vector<int32_t>{10, 11, 12}));

  r = request({1, 2}, 100);
  r.ignore_eos = true;  // 8 positions, then one token that cannot be fed any more
  c = run(r);
  EXPECT_EQ(c.tokens.size(), 7U);
  EXPECT_EQ(c.tokens.back(), 1);
  EXPECT_EQ(c.finish, FinishReason::kLength);

  r = request({1, 2}, 10);
  r.min_tokens = 8;
  r.max_tokens = 8;
  c = run(r);  // the end token may not come before 8: something else does
  for (const int32_t token : c.tokens) EXPECT_NE(token, 1);

  EXPECT_TRUE(run(request({1, 2}, 0)).tokens.empty());
  EXPECT_EQ(run(request({1, 2}, 0)).finish, FinishReason::kLength);
}

TEST(Engine, RefusesBadRequestsAndNamesWhatIsWrong) {
  SystemClock clock;
  auto engine = scripted_engine({}, clock, {.max_model_len = 8});
  const auto refusal = [&](const GenerateRequest& r) {
    Collector c;
    const auto result = engine->submit(r, c.sink());
    return result ? Rejection{} : result.error();
  };
  EXPECT_EQ(refusal(request({})).error.message, "the prompt has no tokens");
  EXPECT_EQ(refusal(request({5, 300})).error.message, "prompt token 1 has id 300, token ids are 0 to 255");
  EXPECT_EQ(refusal(request({5, -1})).error.message, "prompt token 1 has id -1, token ids are 0 to 255");
  const Rejection too_long = refusal(request(std::vector<int32_t>(9, 5)));
  EXPECT_EQ(too_long.reason, RejectReason::kContextLength);
  EXPECT_NE(too_long.error.message.find("8 tokens"), std::string::npos);
  GenerateRequest r = request({5});
  r.sampling.top_p = 2;
  EXPECT_NE(refusal(r).error.message.find("top_p"), std::string::npos);
  r = request({5}, 2);
  r.min_tokens = 3;
  EXPECT_NE(refusal(r).error.message.find("min_tokens"), std::string::npos);
}

TEST(Engine, RefusesLimitsThatDoNotFit) {
  SystemClock clock;
  const auto message = [&](const EngineOptions& options) {
    ScriptedOptions script;
    script.n_blocks = 5;
    const auto engine = Engine::create(make_scripted_runner(script, clock), options, clock);
    return engine ? std::string() : engine.error().message;
  };
  EXPECT_EQ(message({}), "");
  EXPECT_EQ(message({.max_model_len = 513}),
            "max-model-len is 513, the KV memory holds 512 tokens; the largest context that fits is 512");
  EXPECT_NE(message({.max_num_seqs = 17}).find("max-num-seqs"), std::string::npos);
  EXPECT_NE(message({.max_num_seqs = 4, .max_num_batched_tokens = 3}).find("max-num-batched-tokens"),
            std::string::npos);
}

TEST(Engine, BoundsTheQueueAndSaysWhenToComeBack) {
  SystemClock clock;
  Gate gate;
  ScriptedOptions script;
  script.before_step = [&](std::span<const model::SequenceChunk>) -> Result<void> {
    gate.pass();
    return {};
  };
  auto engine = scripted_engine(script, clock, {.max_num_seqs = 1, .max_queue_size = 2});
  Collector first;
  Collector second;
  Collector third;
  Collector fourth;
  ASSERT_TRUE(engine->submit(request({5}), first.sink()));
  gate.wait_for_arrival();  // the first one is in a step, so it no longer counts
  ASSERT_TRUE(engine->submit(request({5}), second.sink()));
  ASSERT_TRUE(engine->submit(request({5}), third.sink()));
  const auto refused = engine->submit(request({5}), fourth.sink());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, RejectReason::kQueueFull);
  EXPECT_EQ(refused.error().error.code, Errc::kResourceExhausted);
  EXPECT_GE(refused.error().retry_after_s, 1);
  gate.open();
  EXPECT_EQ(first.wait().finish, FinishReason::kStop);
  EXPECT_EQ(third.wait().finish, FinishReason::kStop);
  ASSERT_TRUE(engine->submit(request({5}), fourth.sink()));
  EXPECT_EQ(fourth.wait().finish, FinishReason::kStop);
}

TEST(Engine, SaysHowLongTheQueueTakesByTheRateOfLate) {
  ManualClock clock;
  Gate gate;
  int steps = 0;
  ScriptedOptions script;
  script.before_step = [&](std::span<const model::SequenceChunk>) -> Result<void> {
    if (++steps == 1) {
      clock.advance(100 * kNsPerMs);
    } else {
      gate.pass();
    }
    return {};
  };
  // Synchronous: no step is launched for a request that has just ended.
  auto engine = scripted_engine(script, clock, {.max_num_seqs = 1, .max_queue_size = 2, .async_scheduling = false});
  Collector first;
  ASSERT_TRUE(engine->submit(request(std::vector<int32_t>(100, 5)), first.sink()));  // 1000 tokens per second
  first.wait();
  Collector running;
  Collector waiting;
  Collector refused;
  ASSERT_TRUE(engine->submit(request({5}), running.sink()));
  gate.wait_for_arrival();
  ASSERT_TRUE(engine->submit(request(std::vector<int32_t>(2600, 5)), waiting.sink()));

  GenerateRequest hurried = request({5});
  hurried.ttft_target_ms = 2599;
  auto answer = engine->submit(hurried, refused.sink());
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().reason, RejectReason::kQueueFull);
  EXPECT_EQ(answer.error().error.message, "the first token would take 2600 ms, the target is 2599 ms");
  EXPECT_EQ(answer.error().retry_after_s, 3);
  Collector patient;
  hurried.ttft_target_ms = 2600;
  ASSERT_TRUE(engine->submit(hurried, patient.sink()));
  answer = engine->submit(request({5}), refused.sink());
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().error.message, "the queue is full: 2 requests are waiting");
  EXPECT_EQ(answer.error().retry_after_s, 3);
  gate.open();
  patient.wait();
}

TEST(Engine, CountsHowFullStepsAreAndTheirArithmetic) {
  class CountedRunner final : public HashRunner {
   public:
    using HashRunner::HashRunner;
    double row_flops(int64_t position) const override { return 10.0 + static_cast<double>(position); }
  };
  const SystemClock clock;
  EngineOptions options{.max_num_seqs = 2, .max_num_batched_tokens = 16};
  options.peak_flops = 1e-3;
  auto engine = Engine::create(std::make_unique<CountedRunner>(HashOptions{}), options, clock).value();
  Collector collector;
  GenerateRequest r = request({5, 6, 7, 8}, 150);
  r.ignore_eos = true;
  ASSERT_TRUE(engine->submit(r, collector.sink()));
  EXPECT_EQ(collector.wait().tokens.size(), 150U);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.steps, 150U);
  double flops = 4 * (10.0 + 2);  // the prompt's rows count as its middle one
  for (int position = 4; position < 4 + 149; ++position) flops += 10.0 + position;
  EXPECT_DOUBLE_EQ(stats.flops, flops);
  EXPECT_GT(stats.flops_utilisation, 0);
  EXPECT_NEAR(stats.batch_fill, (4 + 99) / 100.0 / 16, 1e-12);
  EXPECT_GT(stats.times.wait.sum, 0);
  EXPECT_EQ(stats.finished, 1U);
  EXPECT_EQ(stats.input_tokens, 4U);
  EXPECT_EQ(stats.output_tokens, 150U);
}

TEST(Engine, CancelFreesMemoryWhileRunningAndWhileWaiting) {
  ManualClock clock;
  ScriptedOptions script;
  script.step_ns = kNsPerMs;
  script.scripts = {{{}, std::vector<int32_t>(1000, 9)}};
  script.n_slots = 2;
  auto engine = scripted_engine(script, clock, {.max_num_seqs = 1});
  Collector running;
  Collector waiting;
  Collector next;
  const RequestId a = engine->submit(request({5}, 1000), running.sink()).value();
  const RequestId b = engine->submit(request({6}, 1000), waiting.sink()).value();
  clock.wait_for_sleepers(1);
  clock.advance(kNsPerMs);
  running.wait_for_tokens(1);
  engine->cancel(b);
  engine->cancel(a);
  engine->cancel(RequestId{12345});
  ASSERT_TRUE(engine->submit(request({7}, 1), next.sink()));
  // The steps in flight end, then both are gone and the next one has the only slot.
  while (!next.ended()) {
    clock.advance(kNsPerMs);
    std::this_thread::yield();
  }
  EXPECT_EQ(running.wait().finish, FinishReason::kAborted);
  EXPECT_EQ(waiting.wait().finish, FinishReason::kAborted);
  EXPECT_TRUE(waiting.wait().tokens.empty());
  EXPECT_EQ(next.wait().tokens, (std::vector<int32_t>{9}));
}

TEST(Engine, EndsRequestsAtTheirDeadlines) {
  ManualClock clock;
  ScriptedOptions script;
  script.step_ns = kNsPerMs;
  script.scripts = {{{}, std::vector<int32_t>(1000, 9)}};
  auto engine = scripted_engine(script, clock, {.max_num_seqs = 1});
  Collector total;
  Collector queued;
  GenerateRequest r = request({5}, 1000);
  r.deadline_ns = 2 * kNsPerMs;
  ASSERT_TRUE(engine->submit(r, total.sink()));
  r = request({6}, 1000);
  r.queue_deadline_ns = kNsPerMs;
  ASSERT_TRUE(engine->submit(r, queued.sink()));
  for (int i = 0; i < 2; ++i) {
    clock.wait_for_sleepers(1);
    clock.advance(kNsPerMs);
  }
  EXPECT_EQ(queued.wait().error.code, Errc::kResourceExhausted);
  EXPECT_EQ(total.wait().finish, FinishReason::kError);
  EXPECT_EQ(total.wait().error.code, Errc::kDeadlineExceeded);
}

TEST(Engine, AFailingStepEndsOnlyItsRequests) {
  SystemClock clock;
  ScriptedOptions script;
  script.scripts = {{{}, {9}}};
  script.before_step = [](std::span<const model::SequenceChunk> chunks) -> Result<void> {
    if (chunks[0].tokens[0] == 66) return fail(Errc::kInternal, "broken");
    if (chunks[0].tokens[0] == 67) throw std::bad_alloc();
    return {};
  };
  auto engine = scripted_engine(script, clock);
  for (const int32_t token : {66, 67}) {
    Collector bad;
    ASSERT_TRUE(engine->submit(request({token}), bad.sink()));
    EXPECT_EQ(bad.wait().finish, FinishReason::kError);
    EXPECT_EQ(bad.wait().error.code, Errc::kInternal);
    Collector good;
    ASSERT_TRUE(engine->submit(request({5}), good.sink()));
    EXPECT_EQ(good.wait().tokens, (std::vector<int32_t>{9}));
  }
  EXPECT_EQ(engine->stats().used_blocks, 0);
}

TEST(Engine, StoppingEndsWhatIsUnfinished) {
  ManualClock clock;
  Collector c;
  {
    ScriptedOptions script;
    script.step_ns = kNsPerMs;
    auto engine = scripted_engine(script, clock);
    ASSERT_TRUE(engine->submit(request({5}), c.sink()));
    clock.wait_for_sleepers(1);
  }
  EXPECT_EQ(c.wait().finish, FinishReason::kError);
  EXPECT_EQ(c.wait().error.code, Errc::kUnavailable);
}

std::vector<int32_t> alone(const GenerateRequest& r) {
  SystemClock clock;
  auto engine = Engine::create(std::make_unique<HashRunner>(HashOptions{}),
                               {.max_num_seqs = 8, .max_num_batched_tokens = 1000}, clock)
                    .value();
  Collector c;
  EXPECT_TRUE(engine->submit(r, c.sink()));
  return c.wait().tokens;
}

TEST(Engine, GivesTheSameTokensAloneInBatchesInChunksAndAfterPreemption) {
  std::mt19937 random(5);
  uint64_t preemptions = 0;
  for (int round = 0; round < 12; ++round) {
    SystemClock clock;
    // Small chunks and a pool that cannot hold all of them to their ends.
    const EngineOptions options{.max_num_seqs = static_cast<int32_t>(2 + random() % 7),
                                .max_num_batched_tokens = static_cast<int32_t>(8 + random() % 20)};
    auto engine = Engine::create(std::make_unique<HashRunner>(HashOptions{.n_blocks = 14}), options, clock).value();
    std::vector<GenerateRequest> requests;
    std::vector<std::unique_ptr<Collector>> collectors;
    for (int i = 0; i < 20; ++i) {
      GenerateRequest r;
      for (size_t k = 1 + random() % 40; k > 0; --k) r.prompt.push_back(static_cast<int32_t>(2 + random() % 48));
      r.max_tokens = static_cast<int64_t>(1 + random() % 50);
      r.sampling.seed = random();
      r.sampling.temperature = i % 3 == 0 ? 0.0 : 1.0;
      r.priority = static_cast<int32_t>(random() % 2);
      requests.push_back(r);
      collectors.push_back(std::make_unique<Collector>());
      ASSERT_TRUE(engine->submit(r, collectors.back()->sink()));
    }
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(collectors[i]->wait().tokens, alone(requests[i])) << "round " << round << " request " << i;
    preemptions += engine->stats().preemptions;
    engine.reset();
  }
  EXPECT_GT(preemptions, 0U) << "the pool was meant to be too small";
}

TEST(Engine, ChoicesDifferBySeedAndEndSeparately) {
  SystemClock clock;
  auto engine = Engine::create(std::make_unique<HashRunner>(HashOptions{}), {.max_num_seqs = 8}, clock).value();
  GenerateRequest r = request({5, 6, 7}, 20);
  r.n = 3;
  r.sampling.seed = 99;
  Collector c(3);
  ASSERT_TRUE(engine->submit(r, c.sink()));
  for (int32_t choice = 0; choice < 3; ++choice) {
    GenerateRequest single = request({5, 6, 7}, 20);
    single.sampling.seed = 99 + static_cast<uint64_t>(choice);
    EXPECT_EQ(c.wait(choice).tokens, alone(single));
  }
  EXPECT_NE(c.wait(0).tokens, c.wait(1).tokens);
}

TEST(Engine, CountersReturnToZeroAfterRandomCancels) {
  std::mt19937 random(17);
  SystemClock clock;
  auto engine = Engine::create(std::make_unique<HashRunner>(HashOptions{.n_blocks = 14}),
                               {.max_num_seqs = 4, .max_num_batched_tokens = 16}, clock)
                    .value();
  std::vector<std::unique_ptr<Collector>> collectors;
  std::vector<RequestId> ids;
  for (int i = 0; i < 300; ++i) {
    GenerateRequest r = request(std::vector<int32_t>(1 + random() % 60, 5), static_cast<int64_t>(1 + random() % 40));
    r.n = static_cast<int32_t>(1 + random() % 2);
    collectors.push_back(std::make_unique<Collector>(r.n));
    const auto id = engine->submit(r, collectors.back()->sink());
    ASSERT_TRUE(id);
    ids.push_back(*id);
    if (random() % 2 == 0) engine->cancel(ids[random() % ids.size()]);
  }
  for (const auto& collector : collectors) EXPECT_NE(collector->wait().finish, FinishReason::kNone);
  EXPECT_EQ(engine->stats().used_blocks, 0);
  EXPECT_EQ(engine->stats().used_slots, 0);
  EXPECT_EQ(engine->stats().waiting, 0);
}

}  // namespace
}  // namespace di::engine
