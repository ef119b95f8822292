// Speculation in the whole pipeline, against the same engine without it, on a toy model that knows what is stored:
// greedy output is equal, sampled output equally distributed; every test has verified drafts.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <random>

#include "engine/collector.h"
#include "engine/engine.h"
#include "engine/scripted.h"
#include "engine/toy_runner.h"
#include "support/sanitizers.h"

namespace di::engine {
namespace {

using Choice = OutputCollector::Choice;

enum class Mode { kOff, kFixed, kVariable };

struct Case {  // of speculation
  Mode mode = Mode::kOff;
  bool async = true;
  int32_t length = 0;
  ToyOptions toy = {};
  EngineOptions engine = {};
};

CostCurve curve() {
  return CostCurve::create({{1, 1.0}, {6, 1.2}, {12, 1.5}, {24, 2.5}, {48, 5.0}}).value();
}

std::unique_ptr<Engine> make_engine(const Case& setup, const Clock& clock) {
  EngineOptions options = setup.engine;
  options.max_num_seqs = std::min(options.max_num_seqs, setup.toy.n_slots - 1);
  options.async_scheduling = setup.async;
  options.speculation.mode = setup.mode == Mode::kOff     ? SpeculationMode::kOff
                             : setup.mode == Mode::kFixed ? SpeculationMode::kFixed
                                                          : SpeculationMode::kVariable;
  options.speculation.length = setup.length;
  options.speculation.curve = curve();
  return Engine::create(std::make_unique<ToyRunner>(setup.toy), options, clock).value();
}

GenerateRequest request(std::vector<int32_t> prompt, int64_t max_tokens, double temperature = 0) {
  GenerateRequest r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.temperature = temperature;
  return r;
}

struct Ran {
  std::vector<Choice> choices;
  EngineStats stats;
};

// All requests at once; the choices of each, one after the other.
Ran run(const Case& setup, const std::vector<GenerateRequest>& requests) {
  const SystemClock clock;
  const auto engine = make_engine(setup, clock);
  std::vector<std::unique_ptr<OutputCollector>> collectors;
  for (const GenerateRequest& r : requests) {
    collectors.push_back(std::make_unique<OutputCollector>(r.n));
    EXPECT_TRUE(engine->submit(r, collectors.back()->sink()));
  }
  Ran out;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (int32_t c = 0; c < requests[i].n; ++c) out.choices.push_back(collectors[i]->wait(c));
  }
  out.stats = engine->stats();
  return out;
}

const std::vector<Case> kSpeculative = {{.mode = Mode::kFixed, .async = false},
                                        {.mode = Mode::kFixed, .async = true},
                                        {.mode = Mode::kVariable, .async = false},
                                        {.mode = Mode::kVariable, .async = true},
                                        {.mode = Mode::kFixed, .async = true, .length = 2}};

// Runs the requests without and with every kind of speculation and compares tokens, ends and log-probabilities.
void expect_equal(const std::vector<GenerateRequest>& requests, const std::function<void(Case&)>& change = {}) {
  Case plain;
  if (change) change(plain);
  const Ran expected = run(plain, requests);
  EXPECT_EQ(expected.stats.speculation.verified, 0U);
  for (Case setup : kSpeculative) {
    if (change) change(setup);
    const Ran found = run(setup, requests);
    ASSERT_EQ(found.choices.size(), expected.choices.size());
    for (size_t i = 0; i < expected.choices.size(); ++i) {
      const Choice& a = expected.choices[i];
      const Choice& b = found.choices[i];
      EXPECT_EQ(b.tokens, a.tokens) << "choice " << i << " async " << setup.async << " mode "
                                    << static_cast<int>(setup.mode);
      EXPECT_EQ(to_string(b.last.finish), to_string(a.last.finish)) << b.last.error.message;
      ASSERT_EQ(b.detail.size(), a.detail.size());
      for (size_t t = 0; t < a.detail.size(); ++t) {
        EXPECT_FLOAT_EQ(b.detail[t].logprob, a.detail[t].logprob);
        ASSERT_EQ(b.detail[t].top.size(), a.detail[t].top.size());
        for (size_t k = 0; k < a.detail[t].top.size(); ++k) {
          EXPECT_EQ(b.detail[t].top[k].token, a.detail[t].top[k].token);
        }
      }
    }
    EXPECT_GT(found.stats.speculation.verified, 0U) << "mode " << static_cast<int>(setup.mode);
    EXPECT_GT(found.stats.speculation.accepted, 0U);
    EXPECT_EQ(to_string(found.stats.speculation.state), "active");
  }
}

std::vector<int32_t> prompt(int32_t seed, int32_t length) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<int32_t> out;
  for (int32_t i = 0; i < length; ++i) out.push_back(1 + static_cast<int32_t>(random() % 11));
  return out;
}

std::vector<GenerateRequest> mixed(int32_t n, int64_t max_tokens) {
  std::vector<GenerateRequest> out;
  for (int32_t i = 0; i < n; ++i) out.push_back(request(prompt(i, 1 + i % 9), max_tokens + 3 * i));
  return out;
}

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
  for (const Case& setup : {kSpeculative[0], kSpeculative[1]}) {  // fixed length: the draws are the same
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
  static constexpr int32_t kRequests = test::kSanitized ? 500 : 4000;

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
