#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <random>

#include "base/json.h"
#include "base/rng.h"
#include "engine/softmax.h"
#include "support/folders.h"

namespace di::engine {
namespace {

std::string vectors_file(const std::string& name) {
  return std::string(di::test::kVectors) + "/dspark/" + name;
}

double as_double(const Json& value) {
  return value.is_string() ? std::strtod(value.as_string().c_str(), nullptr) : *value.to_double();
}
uint64_t as_seed(const Json& value) {
  return std::strtoull(value.as_string().c_str(), nullptr, 10);
}

TEST(CounterRng, EqualsTheReferenceUniforms) {
  const std::string file = vectors_file("rng_uniform.json");
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no reference vectors at " << file;
  const Json root = parse_json_file(file).value();
  const Json::Array& cases = root.find("cases")->as_array();
  ASSERT_FALSE(cases.empty());
  for (const Json& c : cases) {
    const uint64_t seed = as_seed(*c.find("seed_u64"));
    const int64_t position = *c.find("position")->to_i64();
    EXPECT_EQ(counter_uniform(seed, position, DrawKind::kSample), as_double(*c.find("u_draw")));
    EXPECT_EQ(counter_uniform(seed, position, DrawKind::kResidual), as_double(*c.find("u_residual")));
    EXPECT_EQ(counter_uniform(seed, position, DrawKind::kAccept), as_double(*c.find("u_accept")));
  }
}

void check_reference_row(const Json& c, size_t row) {
  std::vector<float> logits;
  for (const Json& l : c.find("logits")->as_array()[row].as_array())
    logits.push_back(static_cast<float>(*l.to_double()));
  const auto at = [&](const char* key) -> const Json& { return c.find(key)->as_array()[row]; };
  const auto expected = [&](const char* key) -> const Json& { return c.find("expected")->find(key)->as_array()[row]; };

  Sampler sampler;
  ASSERT_TRUE(sampler.transform(logits, {*at("temperature").to_double(), *at("top_p").to_double(),
                                         static_cast<int32_t>(*at("top_k").to_i64()), 0}));
  std::vector<int32_t> survivors;
  for (const Json& id : expected("survivors").as_array()) survivors.push_back(static_cast<int32_t>(*id.to_i64()));
  EXPECT_EQ(std::vector<int32_t>(sampler.survivors().begin(), sampler.survivors().end()), survivors);

  const uint64_t seed = as_seed(at("seed_u64"));
  const int64_t position = *at("position").to_i64();
  const int32_t token = sampler.draw(counter_uniform(seed, position, DrawKind::kSample));
  EXPECT_EQ(token, *expected("token").to_i64());
  EXPECT_EQ(sampler.draw(counter_uniform(seed + kDraftSeedOffset, position, DrawKind::kSample)),
            *expected("token_draft_stream").to_i64());
  const auto index = std::lower_bound(survivors.begin(), survivors.end(), token) - survivors.begin();
  EXPECT_NEAR(static_cast<double>(sampler.survivor_logprobs()[static_cast<size_t>(index)]),
              *expected("token_logprob").to_double(), 1e-4);
}

TEST(Sampler, EqualsTheReferenceTransformsAndDraws) {
  const std::string file = vectors_file("sampler_basic.json");
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no reference vectors at " << file;
  const Json root = parse_json_file(file).value();
  for (const Json& c : root.find("cases")->as_array()) {
    const size_t rows = c.find("logits")->as_array().size();
    ASSERT_GT(rows, 0U);
    for (size_t row = 0; row < rows; ++row) check_reference_row(c, row);
  }
}

TEST(Softmax, WeightsAreThoseOfTheLibraryAndEveryLengthIsRead) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 40);
  for (size_t n = 1; n < 70; ++n) {
    std::vector<float> logits(n);
    for (float& l : logits) l = normal(random);
    if (n > 5) logits[random() % n] = -std::numeric_limits<float>::infinity();
    if (n > 6) logits[random() % n] = -2000.0F;
    bool has_nan = true;
    const float largest = largest_of(logits, has_nan);
    EXPECT_EQ(largest, *std::max_element(logits.begin(), logits.end()));
    EXPECT_FALSE(has_nan);
    std::vector<double> weights(n);
    const double total = softmax_weights(logits, largest, weights);
    double expected_total = 0;
    for (size_t i = 0; i < n; ++i) {
      const double expected = std::exp(static_cast<double>(logits[i] - largest));
      EXPECT_NEAR(weights[i], expected, 1e-15 * expected) << "logit " << logits[i] - largest;
      expected_total += expected;
    }
    EXPECT_NEAR(total, expected_total, 1e-14 * expected_total);
    logits[random() % n] = std::numeric_limits<float>::quiet_NaN();
    largest_of(logits, has_nan);
    EXPECT_TRUE(has_nan);
  }
}

// engine.md §5.3 as it is worded: sort everything, walk, mark.
std::vector<int32_t> survivors_by_full_sort(const std::vector<float>& logits, double temperature, double top_p,
                                            int32_t top_k) {
  std::vector<int32_t> order;
  const float inverse = static_cast<float>(1.0 / temperature);
  double total = 0;
  float largest = *std::max_element(logits.begin(), logits.end()) * inverse;
  for (size_t i = 0; i < logits.size(); ++i) {
    order.push_back(static_cast<int32_t>(i));
    total += std::exp(static_cast<double>(logits[i] * inverse - largest));
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  std::vector<int32_t> kept;
  double before = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const float l = logits[static_cast<size_t>(order[rank])];
    const bool removed = (rank > 0 && top_p < 1 && before > top_p) ||
                         (top_k >= 0 && static_cast<int32_t>(rank) >= top_k) ||
                         l == -std::numeric_limits<float>::infinity();
    if (!removed) kept.push_back(order[rank]);
    before += std::exp(static_cast<double>(l * inverse - largest)) / total;
  }
  std::sort(kept.begin(), kept.end());
  return kept;
}

TEST(Sampler, PartialRankingKeepsWhatAFullSortKeeps) {
  std::mt19937 random(7);
  Sampler sampler;
  for (int round = 0; round < 300; ++round) {
    const size_t n = 1 + random() % 3000;
    std::vector<float> logits(n);
    std::normal_distribution<float> normal(0, round % 3 == 0 ? 0.01F : 4.0F);
    for (float& l : logits) l = normal(random);
    for (size_t i = 0; i < n; i += 1 + random() % 9) logits[i] = logits[random() % n];  // ties
    if (n > 3) logits[random() % n] = -std::numeric_limits<float>::infinity();
    const double temperature = 0.3 + 0.1 * static_cast<double>(random() % 12);
    const double top_p = random() % 3 == 0 ? 1.0 : 0.05 * static_cast<double>(1 + random() % 20);
    const int32_t top_k = random() % 2 == 0 ? -1 : static_cast<int32_t>(1 + random() % (2 * n));
    ASSERT_TRUE(sampler.transform(logits, {temperature, top_p, top_k, 0}));
    ASSERT_EQ(std::vector<int32_t>(sampler.survivors().begin(), sampler.survivors().end()),
              survivors_by_full_sort(logits, temperature, top_p, top_k))
        << "round " << round << " n " << n << " top_p " << top_p << " top_k " << top_k;
  }
}

TEST(Sampler, GreedyTakesTheLowestOfEqualLogitsWhateverTheSeed) {
  std::vector<float> logits = {0.5F, 2.0F, 2.0F, 1.0F};
  SamplingParams params;
  params.temperature = 0;
  params.logprobs = true;
  params.top_logprobs = 3;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    params.seed = seed;
    const OutputToken token = Sampler().sample(logits, params, 10).value();
    EXPECT_EQ(token.token, 1);
    EXPECT_NEAR(token.logprob, std::log(0.5), 1e-6);
    ASSERT_EQ(token.top.size(), 3U);
    EXPECT_EQ(token.top[1].token, 2);
    EXPECT_EQ(token.top[2].token, 3);
    EXPECT_EQ(token.top[2].logprob, kPrunedLogprob);
  }
}

TEST(Sampler, ChosenTokensComeAfterTheBestOnceEach) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  SamplingParams params;
  params.logprobs = true;
  params.top_logprobs = 1;
  params.top_k = 3;
  params.logprob_token_ids = {3, 0, 2};
  const OutputToken token = Sampler().sample(logits, params, 0).value();
  ASSERT_EQ(token.top.size(), 3U);
  EXPECT_EQ(token.top[0].token, 0);
  EXPECT_EQ(token.top[1].token, 3);
  EXPECT_EQ(token.top[1].logprob, kPrunedLogprob);
  EXPECT_EQ(token.top[2].token, 2);
  EXPECT_NEAR(token.top[2].logprob, std::log(0.15 / 0.95), 1e-6);
  params.top_logprobs = 0;
  EXPECT_EQ(Sampler().sample(logits, params, 0)->top.size(), 3U);
}

TEST(Sampler, ThinkingEndsWhereItsBudgetDoes) {
  SamplingParams params;
  params.thinking_budget = 2;
  params.think_end = 3;
  const auto after = [&](std::vector<int32_t> tokens) {  // the first is the prompt
    std::vector<float> logits = {0, 1, 2, -5};
    apply_processors(logits, params, tokens, 1, {});
    return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  };
  EXPECT_EQ(after({3}), 2) << "the prompt's own tokens do not count";
  EXPECT_EQ(after({0, 1}), 2);
  EXPECT_EQ(after({0, 1, 1}), 3);
  EXPECT_EQ(after({0, 1, 1, 1}), 3);
  EXPECT_EQ(after({0, 1, 3}), 2) << "it has ended";
  EXPECT_EQ(after({0, 1, 1, 3, 1}), 2);
  params.think_end = -1;
  EXPECT_FALSE(check_sampling(params, 4));
}

TEST(Sampler, DrawsInProportionAndNeverWhatWasPruned) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  SamplingParams params;
  params.top_k = 3;
  std::vector<int> counts(4, 0);
  constexpr int kDraws = 20000;
  Sampler sampler;
  for (int i = 0; i < kDraws; ++i) {
    params.seed = static_cast<uint64_t>(i) * 7919;
    ++counts[static_cast<size_t>(sampler.sample(logits, params, i % 100)->token)];
  }
  EXPECT_EQ(counts[3], 0);
  EXPECT_NEAR(counts[0] / double{kDraws}, 0.5 / 0.95, 0.015);
  EXPECT_NEAR(counts[1] / double{kDraws}, 0.3 / 0.95, 0.015);
  EXPECT_NEAR(counts[2] / double{kDraws}, 0.15 / 0.95, 0.015);
}

TEST(Sampler, MinPKeepsWhatIsProbableEnoughBesideTheBest) {
  const std::vector<float> logits = {std::log(0.6F), std::log(0.31F), std::log(0.05F), std::log(0.04F)};
  Sampler sampler;
  ASSERT_TRUE(sampler.transform(logits, {1.0, 1.0, -1, 0.5}));
  EXPECT_EQ(std::vector<int32_t>(sampler.survivors().begin(), sampler.survivors().end()), (std::vector<int32_t>{0, 1}));
  EXPECT_NEAR(std::exp(static_cast<double>(sampler.survivor_logprobs()[0])), 0.6 / 0.91, 1e-6);
}

TEST(Sampler, GivesNothingForLogitsThatAreNotNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  SamplingParams greedy;
  greedy.temperature = 0;
  for (const SamplingParams& params : {SamplingParams{}, greedy}) {
    EXPECT_FALSE(Sampler().sample(std::vector<float>{0, nan, 1}, params, 1));
    EXPECT_FALSE(Sampler().sample(std::vector<float>{-infinity, -infinity}, params, 1));
    EXPECT_FALSE(Sampler().sample(std::vector<float>{0, infinity}, params, 1));
  }
}

TEST(Processors, ApplyPenaltiesBiasAndBansInOrder) {
  SamplingParams params;
  params.repetition_penalty = 2;
  params.frequency_penalty = 0.5;
  params.presence_penalty = 0.25;
  params.logit_bias = {{3, 10.0F}};
  // Prompt 0, 1; output 1, 2, 2.
  const std::vector<int32_t> tokens = {0, 1, 1, 2, 2};
  std::vector<float> logits = {4, -4, 2, 1, 1};
  apply_processors(logits, params, tokens, 2, {});
  EXPECT_EQ(logits, (std::vector<float>{2, -8.75F, -0.25F, 11, 1}));

  SamplingParams bans;
  bans.bad_words = {{4}, {2, 2, 1}, {1, 2, 0}};
  bans.allowed_token_ids = {0, 1, 4};
  logits = {1, 2, 3, 4, 5};
  const std::vector<int32_t> ruled_out = {0};
  apply_processors(logits, bans, tokens, 2, ruled_out);
  const float gone = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(logits, (std::vector<float>{gone, gone, gone, gone, gone}));
  bans.bad_words = {{2, 1, 1}, {1, 2, 0}};
  logits = {1, 2, 3, 4, 5};
  apply_processors(logits, bans, tokens, 2, {});
  EXPECT_EQ(logits, (std::vector<float>{1, 2, gone, gone, 5}));
}

TEST(CheckSampling, NamesTheParameterAndItsRange) {
  const auto message = [](auto change) {
    SamplingParams params;
    change(params);
    const Result<void> result = check_sampling(params, 100);
    return result ? std::string() : result.error().message;
  };
  EXPECT_EQ(message([](SamplingParams&) {}), "");
  EXPECT_EQ(message([](SamplingParams& p) { p.top_p = 0; }),
            "Invalid top_p value 0, the valid range of top_p is (0, 1.0]");
  EXPECT_NE(message([](SamplingParams& p) { p.temperature = std::nan(""); }).find("temperature"), std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.top_k = 0; }).find("top_k"), std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.logit_bias = {{100, 1.0F}}; }).find("token ids are 0 to 99"),
            std::string::npos);
  EXPECT_NE(message([](SamplingParams& p) { p.bad_words = {{}}; }).find("bad_words"), std::string::npos);
}

// Tokens that are impossible change nothing for the others.
TEST(Sampler, RowsWithImpossibleTokensAreThoseOfTheOthers) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  std::vector<float> row;
  std::vector<float> possible;
  for (int32_t i = 0; i < 1000; ++i) {
    row.push_back(i % 7 < 3 ? kNever : 4.0F * std::sin(static_cast<float>(i * i)));
    if (row.back() != kNever) possible.push_back(row.back());
  }
  for (const Transforms& t : {Transforms{}, Transforms{.temperature = 0.7, .top_p = 0.8}, Transforms{.top_k = 30},
                              Transforms{.min_p = 0.05}}) {
    Sampler masked;
    Sampler alone;
    ASSERT_TRUE(masked.transform(row, t));
    ASSERT_TRUE(alone.transform(possible, t));
    ASSERT_EQ(masked.survivors().size(), alone.survivors().size());
    double total = 0;
    for (size_t i = 0; i < alone.survivors().size(); ++i) {
      EXPECT_EQ(row[static_cast<size_t>(masked.survivors()[i])], possible[static_cast<size_t>(alone.survivors()[i])]);
      EXPECT_NEAR(masked.survivor_logprobs()[i], alone.survivor_logprobs()[i], 1e-6);
      total += std::exp(static_cast<double>(masked.survivor_logprobs()[i]));
    }
    EXPECT_NEAR(total, 1, 1e-5);
    for (const double u : {0.01, 0.3, 0.77, 0.999}) {
      EXPECT_EQ(row[static_cast<size_t>(masked.draw(u))], possible[static_cast<size_t>(alone.draw(u))]);
    }
  }
}

}  // namespace
}  // namespace di::engine
