// Steps overlap as they should, and nobody can tell from the tokens.
#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <map>
#include <random>
#include <set>
#include <string_view>

#include "base/json.h"
#include "engine/mock.h"
#include "engine/step_worker.h"
#include "support/engine_support.h"

namespace di::engine {
namespace {

using test::Collector;
using test::HashOptions;
using test::HashRunner;
using test::request;

struct Interval {
  double begin = 0;
  double end = 0;
  int64_t device_fed = 0;
};

// Spans of a Chrome trace by name and step, in microseconds.
std::map<std::string, std::map<int64_t, Interval>> read_trace(const std::string& text) {
  std::map<std::string, std::map<int64_t, Interval>> out;
  const Json root = parse_json(text).value();
  for (const Json& event : root.find("traceEvents")->as_array()) {
    if (event.find("ph")->as_string() != "X") continue;
    const double begin = *event.find("ts")->to_double();
    const Json& args = *event.find("args");
    out[event.find("name")->as_string()][*args.find("step")->to_i64()] = {
        begin, begin + *event.find("dur")->to_double(), *args.find("device_fed")->to_i64()};
  }
  return out;
}

// A forward pass that takes as long as the host needs: that of step n ends when what step n-1 gave is handed out and
// step n+1 is scheduled. Steps that do not overlap never get there; then it stops waiting and the test fails.
class PatientRunner final : public Runner {
 public:
  PatientRunner(std::unique_ptr<Runner> inner, const Trace& trace) : inner_(std::move(inner)), trace_(trace) {}
  const RunnerInfo& info() const override { return inner_->info(); }
  Result<LogitsView> forward(std::span<const model::SequenceChunk> chunks, std::span<const SequenceTag> tags) override {
    Result<LogitsView> logits = inner_->forward(chunks, tags);
    const uint64_t step = ++steps_;
    if (step == 1) started_.wait();
    const int64_t limit = clock_.now_ns() + 60 * kNsPerSecond;
    while (!gave_up_ && !host_is_done(step)) {
      clock_.sleep_until(clock_.now_ns() + kNsPerMs / 10);
      gave_up_ = clock_.now_ns() > limit;
    }
    return logits;
  }
  void start() { started_.count_down(); }

 private:
  bool host_is_done(uint64_t step) {
    bool scheduled = false;
    bool posted = step == 1;
    for (const TraceSpan& span : trace_.spans()) {
      scheduled = scheduled || (span.step == step + 1 && std::string_view(span.name) == "schedule");
      posted = posted || (span.step == step - 1 && std::string_view(span.name) == "post");
    }
    return scheduled && posted;
  }

  std::unique_ptr<Runner> inner_;
  const Trace& trace_;
  const SystemClock clock_;
  std::latch started_{1};
  uint64_t steps_ = 0;
  bool gave_up_ = false;
};

constexpr int32_t kSequences = 8;
constexpr int64_t kTokens = 60;

void run_requests(Engine& engine, const std::function<void()>& start) {
  std::vector<std::unique_ptr<Collector>> collectors;
  for (int32_t i = 0; i < kSequences; ++i) {
    collectors.push_back(std::make_unique<Collector>());
    GenerateRequest r = request({5 + i, 6}, kTokens);
    r.sampling.seed = static_cast<uint64_t>(i);
    ASSERT_TRUE(engine.submit(r, collectors.back()->sink()));
  }
  start();
  for (const auto& c : collectors) EXPECT_EQ(c->wait().tokens.size(), static_cast<size_t>(kTokens));
}

TEST(Pipeline, TheTraceShowsThatStepsOverlap) {
  Trace trace;
  {
    const SystemClock clock;
    EngineOptions options{.max_num_seqs = kSequences};
    options.trace = &trace;
    auto runner = std::make_unique<PatientRunner>(make_mock_runner({.step_ns = 0}, clock), trace);
    PatientRunner& patient = *runner;
    auto engine = Engine::create(std::move(runner), options, clock).value();
    run_requests(*engine, [&] { patient.start(); });
  }
  auto spans = read_trace(trace.json());
  for (int64_t n = 5; n < 55; ++n) {
    SCOPED_TRACE(n);
    ASSERT_TRUE(spans["schedule"].contains(n + 1) && spans["forward"].contains(n) && spans["post"].contains(n - 1));
    EXPECT_LT(spans["schedule"][n + 1].begin, spans["sample"][n].end);
    EXPECT_GE(spans["post"][n - 1].begin, spans["forward"][n].begin);
    EXPECT_LE(spans["post"][n - 1].end, spans["forward"][n].end);
    // All got their token from step n-1 on the device: the plan of n was made before sample(n-1) was.
    EXPECT_EQ(spans["forward"][n].device_fed, kSequences);
    EXPECT_LE(spans["schedule"][n].end, spans["sample"][n - 1].begin);
  }
}

TEST(Pipeline, SynchronousStepsDoNotOverlap) {
  Trace trace;
  {
    const SystemClock clock;
    EngineOptions options{.max_num_seqs = kSequences, .async_scheduling = false};
    options.trace = &trace;
    auto engine = Engine::create(make_mock_runner({.step_ns = 0}, clock), options, clock).value();
    run_requests(*engine, [] {});
  }
  auto spans = read_trace(trace.json());
  for (int64_t n = 3; n < 18; ++n) {
    EXPECT_GE(spans["schedule"][n + 1].begin, spans["post"][n].end);
    EXPECT_GE(spans["post"][n].begin, spans["sample"][n].end);
    EXPECT_EQ(spans["forward"][n].device_fed, 0);
  }
}

TEST(PipelineDeathTest, WaitingBetweenForwardAndSampleAborts) {
#ifndef DI_DEBUG_CHECKS
  GTEST_SKIP() << "the guard is in debug builds";
#else
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const SystemClock clock;
  EXPECT_DEATH(
      {
        const auto runner = make_mock_runner({.step_ns = 0}, clock);
        StepWorker worker(*runner, 0, 0, clock, nullptr);
        worker.launch_forward(StepInput{.step = 1, .rows = {}, .block_copies = {}, .slot_copies = {}});
        worker.wait();
      },
      "the host waits for the device between forward and sample of step 1");
#endif
}

// Requests of every kind at once: the tokens, log-probabilities and ends are those of synchronous steps.
TEST(Pipeline, AsynchronousStepsGiveTheSameTokens) {
  std::mt19937 random(3);
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 60; ++i) {
    GenerateRequest r;
    for (size_t k = 1 + random() % 30; k > 0; --k) r.prompt.push_back(static_cast<int32_t>(2 + random() % 48));
    r.max_tokens = static_cast<int64_t>(random() % 40);
    r.min_tokens = std::min<int64_t>(r.max_tokens, static_cast<int64_t>(random() % 3));
    r.n = static_cast<int32_t>(1 + random() % 3);
    r.sampling.seed = random();
    r.sampling.temperature = i % 3 == 0 ? 0.0 : 1.0;
    r.sampling.logprobs = i % 2 == 0;
    r.sampling.top_logprobs = i % 2 == 0 ? 3 : 0;
    r.sampling.repetition_penalty = i % 5 == 0 ? 1.3 : 1.0;
    r.sampling.presence_penalty = i % 7 == 0 ? 0.5 : 0.0;
    if (i % 4 == 0) r.stop_token_ids = {7, 8, 9, 10};
    if (i % 6 == 0) r.sampling.bad_words = {{3}, {4, 5}};
    if (i % 5 == 1) r.prompt_logprobs = 2;
    requests.push_back(std::move(r));
  }
  std::vector<std::string> results[2];
  for (const bool async : {false, true}) {
    const SystemClock clock;
    EngineOptions options{.max_num_seqs = 8, .max_num_batched_tokens = 24, .async_scheduling = async};
    auto engine = Engine::create(std::make_unique<HashRunner>(HashOptions{.n_blocks = 22}), options, clock).value();
    std::vector<std::unique_ptr<Collector>> collectors;
    for (const GenerateRequest& r : requests) {
      collectors.push_back(std::make_unique<Collector>(r.n));
      ASSERT_TRUE(engine->submit(r, collectors.back()->sink()));
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      for (int32_t choice = 0; choice < requests[i].n; ++choice) {
        const Collector::Choice& c = collectors[i]->wait(choice);
        std::string text = fmt::format("{} {}", i, to_string(c.finish));
        for (const OutputToken& t : c.detail) {
          text += fmt::format(" {}:{}", t.token, t.logprob);
          for (const TokenLogprob& top : t.top) text += fmt::format(",{}:{}", top.token, top.logprob);
        }
        EXPECT_EQ(c.prompt.size(), requests[i].prompt_logprobs >= 0 && choice == 0 ? requests[i].prompt.size() - 1 : 0);
        for (const OutputToken& t : c.prompt) text += fmt::format(" p{}:{}:{}", t.token, t.logprob, t.top.size());
        results[async ? 1 : 0].push_back(text);
      }
    }
    EXPECT_GT(engine->stats().preemptions, 0U);
    EXPECT_EQ(engine->stats().used_blocks, 0);
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace di::engine
