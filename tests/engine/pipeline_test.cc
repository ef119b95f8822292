// Steps overlap as they should, and nobody can tell from the tokens.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

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

void run_mock(Trace& trace, bool async, int32_t sequences, int64_t tokens) {
  const SystemClock clock;
  EngineOptions options;
  options.max_num_seqs = sequences;
  options.async_scheduling = async;
  options.trace = &trace;
  auto engine = Engine::create(make_mock_runner({.step_ns = 3 * kNsPerMs}, clock), options, clock).value();
  std::vector<std::unique_ptr<Collector>> collectors;
  for (int32_t i = 0; i < sequences; ++i) {
    collectors.push_back(std::make_unique<Collector>());
    GenerateRequest r = request({5 + i, 6}, tokens);
    r.sampling.seed = static_cast<uint64_t>(i);
    ASSERT_TRUE(engine->submit(r, collectors.back()->sink()));
  }
  for (const auto& c : collectors) EXPECT_EQ(c->wait().tokens.size(), static_cast<size_t>(tokens));
}

TEST(Pipeline, TheTraceShowsThatStepsOverlap) {
  Trace trace;
  run_mock(trace, true, 8, 60);
  auto spans = read_trace(trace.json());
  int steps = 0;
  int scheduled_before = 0;
  int posted_inside = 0;
  int fed = 0;
  for (int64_t n = 5; n < 55; ++n) {
    ASSERT_TRUE(spans["schedule"].contains(n + 1) && spans["forward"].contains(n) && spans["post"].contains(n - 1));
    ++steps;
    // schedule(n+1) begins before sample(n) ends.
    scheduled_before += spans["schedule"][n + 1].begin < spans["sample"][n].end ? 1 : 0;
    // post(n-1) lies inside forward(n).
    const Interval post = spans["post"][n - 1];
    const Interval forward = spans["forward"][n];
    posted_inside += post.begin >= forward.begin && post.end <= forward.end ? 1 : 0;
    // All eight got their token from step n-1 on the device: the plan of n was made before sample(n-1) was.
    fed += forward.device_fed == 8 && spans["schedule"][n].end < spans["sample"][n - 1].begin ? 1 : 0;
  }
  // The machine may take the core away in the middle of a step; never in most of them.
  EXPECT_GE(scheduled_before, steps * 8 / 10);
  EXPECT_GE(posted_inside, steps * 8 / 10);
  EXPECT_GE(fed, steps * 8 / 10);
}

TEST(Pipeline, SynchronousStepsDoNotOverlap) {
  Trace trace;
  run_mock(trace, false, 4, 20);
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
        StepWorker worker(*runner, 0, clock, nullptr);
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
