// Speculation in the whole pipeline, against the same engine without it, on a toy model that knows what is stored:
// greedy output is equal, sampled output equally distributed; every test has verified drafts.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/sampler.h"
#include "engine/speculation_cases.h"
#include "support/sanitizers.h"

namespace di::engine {
namespace {

using test::Case;
using test::Choice;
using test::expect_equal;
using test::kSpeculative;
using test::make_engine;
using test::mixed;
using test::prompt;
using test::Ran;
using test::request;
using test::run;

TEST(Speculation, GreedyOutputIsThatWithoutIt) {
  expect_equal({request({3, 4, 5}, 80)});
  expect_equal(mixed(20, 30));
}

TEST(Speculation, StopsAtEndTokens) {
  expect_equal(mixed(12, 60), [](Case& s) { s.toy.eos_logit = 1.5F; });
}

TEST(Speculation, StopTokensAndLimits) {
  std::vector<GenerateRequest> requests = mixed(8, 40);
  requests[0].stop_token_ids = {3, 7};
  requests[1].stop_token_ids = {5};
  requests[1].min_tokens = 20;
  requests[2].max_tokens = 1;
  requests[3].max_tokens = 2;
  requests[4].ignore_eos = true;
  requests[5].max_tokens = 0;
  expect_equal(requests, [](Case& s) { s.toy.eos_logit = 1.0F; });
}

TEST(Speculation, ContextEnds) {
  std::vector<GenerateRequest> requests = mixed(8, 500);
  for (GenerateRequest& r : requests) r.ignore_eos = true;
  expect_equal(requests, [](Case& s) { s.toy.max_positions = 64; });
  expect_equal(requests, [](Case& s) { s.engine.max_model_len = 63; });
}

TEST(Speculation, PenaltiesBiasAndBadWords) {
  std::vector<GenerateRequest> requests = mixed(8, 40);
  requests[0].sampling.repetition_penalty = 1.4;
  requests[1].sampling.frequency_penalty = 0.6;
  requests[2].sampling.presence_penalty = 0.9;
  requests[3].sampling.logit_bias = {{2, 3.0F}, {5, -4.0F}};
  requests[4].sampling.bad_words = {{3}, {4, 6}, {2, 2, 2}};
  requests[5].sampling.allowed_token_ids = {1, 2, 3, 4, 5};
  expect_equal(requests);
}

TEST(Speculation, Logprobs) {
  std::vector<GenerateRequest> requests = mixed(4, 30);
  for (GenerateRequest& r : requests) {
    r.sampling.logprobs = true;
    r.sampling.top_logprobs = 4;
  }
  requests[1].prompt_logprobs = 2;
  expect_equal(requests);
}

TEST(Speculation, ThinkingBudgets) {
  std::vector<GenerateRequest> requests = mixed(6, 30);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.thinking_budget = static_cast<int64_t>(i) * 3;
    requests[i].sampling.think_end = 5;
  }
  expect_equal(requests);
}

TEST(Speculation, ChunkedPrompts) {
  std::vector<GenerateRequest> requests;
  for (int32_t i = 0; i < 10; ++i) requests.push_back(request(prompt(i, 40 + i), 30));
  expect_equal(requests, [](Case& s) { s.engine.max_num_batched_tokens = 24; });
}

TEST(Speculation, Preemption) {
  std::vector<GenerateRequest> requests;
  for (int32_t i = 0; i < 8; ++i) requests.push_back(request(prompt(i, 6), 60));
  const auto small = [](Case& s) { s.toy.n_blocks = 60; };
  Case setup = kSpeculative[3];
  small(setup);
  EXPECT_GT(run(setup, requests).stats.preemptions, 0U);
  expect_equal(requests, small);
}

TEST(Speculation, Choices) {
  std::vector<GenerateRequest> requests = mixed(3, 30);
  for (GenerateRequest& r : requests) r.n = 3;
  expect_equal(requests);
}

TEST(Speculation, FewRowsPerStep) {
  expect_equal(mixed(8, 40), [](Case& s) { s.engine.max_num_batched_tokens = 16; });
}

TEST(Speculation, CancelLeavesTheOthersAlone) {
  const Ran expected = run({}, {request(prompt(1, 4), 200)});
  for (const Case& setup : kSpeculative) {
    const SystemClock clock;
    const auto engine = make_engine(setup, clock);
    OutputCollector kept;
    ASSERT_TRUE(engine->submit(request(prompt(1, 4), 200), kept.sink()));
    for (int32_t i = 0; i < 6; ++i) {
      OutputCollector cancelled;
      const auto id = engine->submit(request(prompt(9 + i, 5), 300), cancelled.sink());
      cancelled.wait_for_tokens(static_cast<size_t>(1 + i));
      engine->cancel(*id);
      cancelled.wait();
    }
    EXPECT_EQ(kept.wait().tokens, expected.choices[0].tokens);
    EXPECT_GT(engine->stats().speculation.verified, 0U);
  }
}

TEST(Speculation, SeedsRepeat) {
  std::vector<GenerateRequest> requests = mixed(6, 40);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.temperature = 0.9;
    requests[i].sampling.seed = 77 + i;
  }
  // A fixed length repeats the draws of rejection sampling; for seeds of the request's own see seeded_test.cc.
  for (const Case& setup : {kSpeculative[0], kSpeculative[1]}) {
    const Ran a = run(setup, requests);
    const Ran b = run(setup, requests);
    for (size_t i = 0; i < a.choices.size(); ++i) EXPECT_EQ(a.choices[i].tokens, b.choices[i].tokens);
    // The same alone.
    EXPECT_EQ(run(setup, {requests[2]}).choices[0].tokens, a.choices[2].tokens);
    EXPECT_GT(a.stats.speculation.verified, 0U);
  }
  EXPECT_EQ(run(kSpeculative[0], requests).choices[4].tokens, run(kSpeculative[1], requests).choices[4].tokens);
}

// The third and fourth token of many short requests, against the distribution without speculation in closed form.
class Sampled : public testing::TestWithParam<int> {
 protected:
  static constexpr int32_t kRequests = di::test::kSanitized ? 500 : 4000;

  static std::vector<double> distribution(const ToyOptions& toy, const SamplingParams& params, int32_t before,
                                          int32_t last) {
    Sampler sampler;
    std::vector<double> out(static_cast<size_t>(toy.vocab), 0.0);
    EXPECT_TRUE(sampler.transform(toy_target(toy, before, last),
                                  {params.temperature, params.top_p, params.top_k, params.min_p}));
    for (size_t i = 0; i < sampler.survivors().size(); ++i) {
      out[static_cast<size_t>(sampler.survivors()[i])] = std::exp(static_cast<double>(sampler.survivor_logprobs()[i]));
    }
    return out;
  }

  // Chi-square of tokens 3 and 4 of the answers (earlier ones are summed over), and its degrees of freedom.
  static void check(const Case& setup, const SamplingParams& params) {
    std::vector<GenerateRequest> requests;
    for (int32_t i = 0; i < kRequests; ++i) {
      GenerateRequest r = request({4, 9}, 4);
      r.sampling = params;
      r.sampling.seed = 1000 + static_cast<uint64_t>(i) * 7919;
      r.ignore_eos = true;
      requests.push_back(std::move(r));
    }
    const Ran ran = run(setup, requests);
    const auto v = static_cast<size_t>(setup.toy.vocab);
    // p[a][b]: chance that the last two tokens are a, b.
    std::vector<double> p(v * v, 0.0);
    p[4 * v + 9] = 1;
    for (int32_t step = 0; step < 4; ++step) {
      std::vector<double> next(v * v, 0.0);
      for (size_t a = 0; a < v; ++a) {
        for (size_t b = 0; b < v; ++b) {
          if (p[a * v + b] == 0) continue;
          const auto row = distribution(setup.toy, params, static_cast<int32_t>(a), static_cast<int32_t>(b));
          for (size_t c = 0; c < v; ++c) next[b * v + c] += p[a * v + b] * row[c];
        }
      }
      p = next;
    }
    std::vector<double> seen(v * v, 0.0);
    for (const Choice& c : ran.choices) {
      ASSERT_EQ(c.tokens.size(), 4U);
      seen[static_cast<size_t>(c.tokens[2]) * v + static_cast<size_t>(c.tokens[3])] += 1;
    }
    double chi = 0;
    int32_t cells = 0;
    double rest_seen = 0;
    double rest = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      const double expected = kRequests * p[i];
      if (expected < 5) {
        rest += expected;
        rest_seen += seen[i];
        if (p[i] < 1e-12) {
          EXPECT_EQ(seen[i], 0) << "a pair that cannot occur";
        }
        continue;
      }
      chi += (seen[i] - expected) * (seen[i] - expected) / expected;
      ++cells;
    }
    if (rest > 0) chi += (rest_seen - rest) * (rest_seen - rest) / rest;
    const double f = cells;
    const double limit = f * std::pow(1 - 2 / (9 * f) + 3.0902 * std::sqrt(2 / (9 * f)), 3);
    EXPECT_LT(chi, limit) << "with " << cells << " degrees of freedom";
    EXPECT_GT(ran.stats.speculation.verified, static_cast<uint64_t>(kRequests));
  }
};

TEST_P(Sampled, HasTheDistributionWithoutSpeculation) {
  const Case& setup = kSpeculative[static_cast<size_t>(GetParam())];
  SamplingParams params;
  check(setup, params);
  params.temperature = 0.7;
  params.top_p = 0.85;
  check(setup, params);
  params.temperature = 1.4;
  params.top_p = 1;
  params.top_k = 5;
  check(setup, params);
  params.top_k = -1;
  params.min_p = 0.1;
  check(setup, params);
}
INSTANTIATE_TEST_SUITE_P(Modes, Sampled, testing::Range(0, 4));

TEST(Speculation, IsOffWithoutADraftModule) {
  Case setup = kSpeculative[3];
  setup.toy.drafts = 0;
  const Ran ran = run(setup, {request({3, 4}, 20)});
  EXPECT_EQ(ran.stats.speculation.verified, 0U);
  EXPECT_EQ(to_string(ran.stats.speculation.state), "no_draft_module");
  EXPECT_EQ(to_string(run({}, {request({3, 4}, 5)}).stats.speculation.state), "off");
}

// Each request knows its own drafts.
TEST(Speculation, CountsPerRequest) {
  const Ran ran = run(kSpeculative[1], mixed(5, 40));
  int64_t verified = 0;
  int64_t accepted = 0;
  for (const Choice& c : ran.choices) {
    EXPECT_GT(c.last.drafts_verified, 0);
    verified += c.last.drafts_verified;
    accepted += c.last.drafts_accepted;
  }
  EXPECT_EQ(static_cast<uint64_t>(verified), ran.stats.speculation.verified);
  EXPECT_EQ(static_cast<uint64_t>(accepted), ran.stats.speculation.accepted);
}

}  // namespace
}  // namespace di::engine
