// A request with a seed of its own gets the tokens of a run without speculation, whatever number of drafts is verified
// and whatever runs beside it.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string_view>

#include "engine/sampler.h"
#include "engine/speculation_cases.h"
#include "structured/fixture.h"

namespace di::engine {
namespace {

using structured::ConstraintKind;
using structured::testing::compiled;
using test::Case;
using test::expect_equal;
using test::make_engine;
using test::mixed;
using test::Mode;
using test::prompt;
using test::Ran;
using test::request;
using test::run;

std::vector<GenerateRequest> seeded(std::vector<GenerateRequest> requests, double temperature = 0.9) {
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.temperature = temperature;
    requests[i].sampling.seed = 77 + 1000 * i;
    requests[i].sampling.seed_given = true;
  }
  return requests;
}

// Every fixed length and variable ones: each curve rises where and as steeply as chance has it.
std::vector<Case> every_length() {
  std::vector<Case> out;
  for (int32_t length = 1; length <= 5; ++length) {
    out.push_back({.mode = Mode::kFixed, .async = length % 2 == 0, .length = length});
  }
  std::mt19937 random(5);
  for (int32_t i = 0; i < 6; ++i) {
    std::vector<CurvePoint> points;
    double ms = 1e4;
    for (int32_t size = 1; size <= 48; size += 1 + static_cast<int32_t>(random() % 3)) {
      points.push_back({size, ms});
      if (random() % 4 == 0) ms *= 1.0 + 0.05 * static_cast<double>(random() % 12);
    }
    points.push_back({49, ms});
    Case& c = out.emplace_back();
    c.mode = Mode::kVariable;
    c.async = i % 2 == 0;
    c.engine.speculation.pause_under_load = false;
    c.curve = CostCurve::create(points).value();
  }
  return out;
}

// Different lengths really were verified.
void expect_varied(const Ran& ran) {
  std::set<size_t> lengths;
  for (size_t i = 0; i < ran.stats.speculation.verified_lengths.size(); ++i) {
    if (ran.stats.speculation.verified_lengths[i] > 0) lengths.insert(i);
  }
  EXPECT_GE(lengths.size(), 3U);
}

TEST(SeededSampling, IsThatWithoutDrafts) {
  for (const double temperature : {0.3, 0.9, 1.5}) {
    expect_equal(seeded(mixed(12, 40), temperature), {}, every_length());
  }
  expect_varied(run(every_length().back(), seeded(mixed(12, 40))));
}

TEST(SeededSampling, IsThatOfTheRequestAlone) {
  const std::vector<GenerateRequest> requests = seeded(mixed(12, 40));
  const Ran plain = run({}, requests);
  for (const Case& setup : every_length()) {
    for (const size_t i : {0U, 5U, 11U}) {
      const Ran alone = run(setup, {requests[i]});
      EXPECT_EQ(alone.choices[0].tokens, plain.choices[i].tokens);
      EXPECT_GT(alone.stats.speculation.verified, 0U);
    }
  }
}

TEST(SeededSampling, DiffersBySeed) {
  std::vector<GenerateRequest> requests = seeded(mixed(1, 40));
  const Ran first = run(every_length()[4], requests);
  requests[0].sampling.seed += 1;
  EXPECT_NE(run(every_length()[4], requests).choices[0].tokens, first.choices[0].tokens);
}

TEST(SeededSampling, TopPTopKMinPAndLogprobs) {
  std::vector<GenerateRequest> requests = seeded(mixed(8, 40), 1.2);
  requests[0].sampling.top_p = 0.8;
  requests[1].sampling.top_k = 4;
  requests[2].sampling.min_p = 0.1;
  requests[3].sampling.top_p = 0.9;
  requests[3].sampling.top_k = 5;
  for (GenerateRequest& r : requests) {
    r.sampling.logprobs = true;
    r.sampling.top_logprobs = 3;
  }
  expect_equal(requests, {}, every_length());
}

TEST(SeededSampling, PenaltiesBiasAndBadWords) {
  std::vector<GenerateRequest> requests = seeded(mixed(8, 40));
  requests[0].sampling.repetition_penalty = 1.4;
  requests[1].sampling.frequency_penalty = 0.6;
  requests[2].sampling.presence_penalty = 0.9;
  requests[3].sampling.logit_bias = {{2, 3.0F}, {5, -4.0F}};
  requests[4].sampling.bad_words = {{3}, {4, 6}, {2, 2, 2}};
  requests[5].sampling.allowed_token_ids = {1, 2, 3, 4, 5};
  requests[6].min_tokens = 20;
  expect_equal(requests, [](Case& s) { s.toy.eos_logit = 1; }, every_length());
}

TEST(SeededSampling, EndsStopTokensAndLimits) {
  std::vector<GenerateRequest> requests = seeded(mixed(8, 60));
  requests[0].stop_token_ids = {3, 7};
  requests[1].max_tokens = 1;
  requests[2].ignore_eos = true;
  expect_equal(
      requests,
      [](Case& s) {
        s.toy.eos_logit = 1.5F;
        s.toy.max_positions = 64;
      },
      every_length());
}

// Choice i draws with seed + i: each is the answer of a request with that seed.
TEST(SeededSampling, Choices) {
  std::vector<GenerateRequest> requests = seeded(mixed(3, 30));
  for (GenerateRequest& r : requests) r.n = 3;
  expect_equal(requests, {}, every_length());
  const Ran together = run(every_length().back(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    for (size_t c = 0; c < 3; ++c) {
      GenerateRequest one = requests[i];
      one.n = 1;
      one.sampling.seed += c;
      EXPECT_EQ(run({}, {one}).choices[0].tokens, together.choices[3 * i + c].tokens);
    }
  }
}

TEST(SeededSampling, ChunkedPromptsAndFewRows) {
  std::vector<GenerateRequest> requests;
  for (int32_t i = 0; i < 8; ++i) requests.push_back(request(prompt(i, 40 + i), 30));
  expect_equal(seeded(requests), [](Case& s) { s.engine.max_num_batched_tokens = 24; }, every_length());
}

TEST(SeededSampling, Preemption) {
  std::vector<GenerateRequest> requests;
  for (int32_t i = 0; i < 8; ++i) requests.push_back(request(prompt(i, 6), 60));
  requests = seeded(requests);
  const auto small = [](Case& s) { s.toy.n_blocks = 60; };
  for (Case setup : every_length()) {
    small(setup);
    EXPECT_GT(run(setup, requests).stats.preemptions, 0U);
  }
  expect_equal(requests, small, every_length());
}

TEST(SeededSampling, CancelsBesideIt) {
  const std::vector<GenerateRequest> requests = seeded({request(prompt(1, 4), 200)});
  const Ran expected = run({}, requests);
  for (const Case& setup : every_length()) {
    const SystemClock clock;
    const auto engine = make_engine(setup, clock);
    OutputCollector kept;
    ASSERT_TRUE(engine->submit(requests[0], kept.sink()));
    for (int32_t i = 0; i < 3; ++i) {
      OutputCollector cancelled;
      const auto id = engine->submit(request(prompt(9 + i, 5), 300, 1.0), cancelled.sink());
      cancelled.wait_for_tokens(static_cast<size_t>(1 + i));
      engine->cancel(*id);
      cancelled.wait();
    }
    EXPECT_EQ(kept.wait().tokens, expected.choices[0].tokens);
    EXPECT_GT(engine->stats().speculation.verified, 0U);
  }
}

// A vocabulary of bytes and constraints over it. The draft does not know the masks.
std::vector<GenerateRequest> constrained(double temperature) {
  std::vector<GenerateRequest> requests = mixed(6, 100);
  requests[0].constraint = compiled(ConstraintKind::kRegex, "[a-f]{3}(-[0-9]{2,5}){2,9}");
  requests[1].constraint = compiled(ConstraintKind::kRegex, "[0-9a-f]{3}.*", {}, true);  // thinking comes first
  requests[2].constraint = compiled(ConstraintKind::kJsonSchema, R"({"type": "array", "items": {"type": "boolean"}})");
  requests[3].constraint = compiled(ConstraintKind::kJsonSchema, R"({"type": "string"})", {}, true);
  requests[4].constraint = compiled(ConstraintKind::kRegex, "a{10,50}b{20}");
  for (GenerateRequest& r : requests) r.sampling.temperature = temperature;
  return requests;
}

void byte_model(Case& s) {
  s.toy.vocab = structured::testing::byte_vocabulary()->size();
  s.toy.eos = structured::testing::kEos;
  s.toy.favoured = {{structured::testing::kThinkEnd, 0.6F}};
  s.toy.bend = 0.1F;
}

TEST(ConstrainedSpeculation, GreedyIsThatWithoutIt) {
  expect_equal(constrained(0), byte_model);
}

TEST(ConstrainedSpeculation, SeededIsThatWithoutIt) {
  expect_equal(seeded(constrained(0.1), 0.1), byte_model, every_length());
}

// Both texts: thought and answer, with the border between them.
TEST(ConstrainedSpeculation, CrossesTheThinkingBorder) {
  for (const std::vector<GenerateRequest>& requests : {constrained(0), seeded(constrained(0.1), 0.1)}) {
    Case setup = every_length()[4];
    byte_model(setup);
    const Ran ran = run(setup, {requests[1], requests[3]});
    int64_t thought = 0;
    for (const test::Choice& c : ran.choices) {
      const auto border = std::ranges::find(c.tokens, structured::testing::kThinkEnd);
      thought += border - c.tokens.begin();
      EXPECT_GT(c.tokens.end() - border, 3);
      EXPECT_GT(c.last.drafts_accepted, 0);
    }
    EXPECT_GT(thought, 0);
  }
}

// The rule shares its uniform with the draft: acceptance stays near the overlap of the two distributions, which is what
// rejection sampling gets.
TEST(SeededSampling, AcceptsNearlyAsOftenAsRejectionSampling) {
  std::vector<GenerateRequest> requests = mixed(16, 120);
  for (GenerateRequest& r : requests) r.ignore_eos = true;
  std::vector<GenerateRequest> own = seeded(requests);
  std::vector<GenerateRequest> random = own;
  for (GenerateRequest& r : random) r.sampling.seed_given = false;
  const auto rate = [](const Ran& ran) {
    const SpeculationStats& s = ran.stats.speculation;
    return static_cast<double>(s.accepted) / static_cast<double>(s.verified);
  };
  const double shared = rate(run(every_length()[4], own));
  const double rejection = rate(run(every_length()[4], random));
  EXPECT_GT(shared, 0.6 * rejection);
  EXPECT_GT(rejection, 0.3);
}

}  // namespace
}  // namespace di::engine
