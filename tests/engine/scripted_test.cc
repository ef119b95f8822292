// The draft module of scripts and mocks: how many drafts are right is what the script says, and text is what it was.
#include "engine/scripted.h"

#include <gtest/gtest.h>

#include <numeric>

#include "engine/engine.h"
#include "support/engine_support.h"

namespace di::engine {
namespace {

struct Told {
  std::vector<size_t> steps;  // tokens of each delivery
  std::vector<int32_t> tokens;
  Output last;
};

Told run(const ScriptedOptions& script, SpeculationMode mode, int64_t max_tokens = 1000) {
  const SystemClock clock;
  EngineOptions options;
  options.max_num_batched_tokens = 64;
  options.speculation.mode = mode;
  options.speculation.curve = CostCurve::create({{1, 1.0}, {64, 1.1}}).value();
  auto engine = Engine::create(make_scripted_runner(script, clock), options, clock).value();
  Told told;
  test::Collector collector;
  const OutputSink collect = collector.sink();
  EXPECT_TRUE(engine->submit(test::request({5, 6, 7}, max_tokens), [&](Output out) {
    if (!out.tokens.empty()) told.steps.push_back(out.tokens.size());
    collect(std::move(out));
  }));
  told.tokens = collector.wait().tokens;
  told.last = collector.wait().last;
  return told;
}

ScriptedOptions script_of(int32_t tokens, std::vector<int32_t> accepted, int32_t drafts) {
  ScriptedOptions script;
  script.max_drafts = drafts;
  script.answer = [=](std::span<const int32_t>) {
    auto answer = std::make_shared<ScriptedAnswer>();
    for (int32_t i = 0; i < tokens; ++i) answer->tokens.push_back({10 + i, 0, {}, 0});
    answer->accepted = accepted;
    return answer;
  };
  return script;
}

TEST(ScriptedDrafts, AreAcceptedInTheNumbersOfTheScript) {
  for (const SpeculationMode mode : {SpeculationMode::kFixed, SpeculationMode::kVariable}) {
    const Told told = run(script_of(12, {2, 0, 1, 3}, 3), mode);
    // One token of the prompt's step, then the accepted ones of each round and the next; after the last round one each.
    EXPECT_EQ(told.steps, (std::vector<size_t>{1, 3, 1, 2, 4, 1}));
    EXPECT_EQ(told.last.drafts_accepted, 2 + 0 + 1 + 3);
    std::vector<int32_t> all(12);
    std::iota(all.begin(), all.end(), 10);
    EXPECT_EQ(told.tokens, all);
  }
}

TEST(ScriptedDrafts, AreRightAsOftenAsTheDistributionSays) {
  ScriptedOptions script = script_of(0, {}, 2);
  script.acceptance = {0.8, 0.25};
  script.vocab_size = 5000;
  script.answer = [](std::span<const int32_t>) {
    auto answer = std::make_shared<ScriptedAnswer>();
    for (int32_t i = 0; i < 4000; ++i) answer->tokens.push_back({10 + i, 0, {}, 0});
    return answer;
  };
  const Told told = run(script, SpeculationMode::kFixed, 4000);
  ASSERT_EQ(told.tokens.size(), 4000U);
  double rounds = 0;
  double one = 0;
  double two = 0;
  for (const size_t n : told.steps) {
    rounds += 1;
    one += n >= 2 ? 1 : 0;
    two += n >= 3 ? 1 : 0;
  }
  EXPECT_NEAR(one / rounds, 0.8, 0.04);
  EXPECT_NEAR(two / one, 0.25, 0.04);
  // The same the second time, and the same text without drafts.
  EXPECT_EQ(run(script, SpeculationMode::kFixed, 4000).steps, told.steps);
  EXPECT_EQ(run(script, SpeculationMode::kOff, 4000).tokens, told.tokens);
}

}  // namespace
}  // namespace di::engine
