// Drafts of a constrained text obey its constraint, and what is emitted keeps the masked target's distribution.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "engine/sampler.h"
#include "engine/speculation_cases.h"
#include "structured/fixture.h"
#include "support/sanitizers.h"

namespace di::engine {
namespace {

using structured::ConstraintKind;
using structured::testing::byte_vocabulary;
using structured::testing::compiled;
using test::Case;
using test::kSpeculative;
using test::Mode;
using test::Ran;
using test::request;
using test::run;

// The toy model over the vocabulary of bytes; every draft is verified.
Case byte_case(Mode mode, float bend) {
  Case c = {.mode = mode};
  c.toy.vocab = byte_vocabulary()->size();
  c.toy.eos = structured::testing::kEos;
  c.toy.bend = bend;
  return c;
}

std::vector<GenerateRequest> constrained(const structured::CompiledRef& constraint, double temperature, int32_t n) {
  std::vector<GenerateRequest> out;
  for (int32_t i = 0; i < n; ++i) {
    GenerateRequest r = request({4, 9}, 60, temperature);
    r.constraint = constraint;
    r.sampling.seed = 1000 + static_cast<uint64_t>(i) * 7919;
    out.push_back(std::move(r));
  }
  return out;
}

// Only the mask lies between such a draft and its target: all are accepted, and none is lost to the constraint.
TEST(ConstrainedDrafts, TheTargetsOwnDistributionIsAlwaysAccepted) {
  const std::vector<structured::CompiledRef> constraints = {
      compiled(ConstraintKind::kRegex, "[a-f]{3}(-[0-9]{2,5}){2,9}"),
      compiled(ConstraintKind::kJsonSchema, R"({"type":"array","items":{"enum":["new",3,null]},"maxItems":9})"),
      compiled(ConstraintKind::kRegex, "[0-9a-f]{40}", {}, true)};
  for (const structured::CompiledRef& constraint : constraints) {
    for (const double temperature : {0.0, 1.0}) {
      for (const bool seed_given : {false, true}) {
        std::vector<GenerateRequest> requests = constrained(constraint, temperature, 8);
        for (GenerateRequest& r : requests) r.sampling.seed_given = seed_given;
        Case setup = byte_case(Mode::kFixed, 0);
        setup.toy.favoured = {{structured::testing::kThinkEnd, 2.0F}};
        const SpeculationStats stats = run(setup, requests).stats.speculation;
        EXPECT_GT(stats.verified, 15U);
        // A drafted end counts as the token that is sampled behind the drafts: nothing can be sampled behind it.
        EXPECT_GE(stats.accepted + requests.size(), stats.verified)
            << "temperature " << temperature << " seed given " << seed_given;
      }
    }
  }
}

using Chances = std::map<std::vector<int32_t>, double>;

// How probable each answer is, by the definition: mask, transforms, product over its tokens.
void add_answers(const ToyOptions& toy, const SamplingParams& params, structured::Matcher& matcher,
                 std::vector<int32_t>& text, double chance, Chances& out) {
  if (matcher.terminated()) {
    out[{text.begin() + 2, text.end() - 1}] = chance;  // the end is not handed out
    return;
  }
  std::vector<uint32_t> mask(matcher.mask_words());
  ASSERT_TRUE(matcher.fill_mask(mask));
  std::vector<float> row = toy_target(toy, text[text.size() - 2], text.back());
  apply_mask(row, mask, {});
  Sampler sampler;
  ASSERT_TRUE(sampler.transform(row, {params.temperature, params.top_p, params.top_k, params.min_p}));
  const std::vector<int32_t> ids(sampler.survivors().begin(), sampler.survivors().end());
  const std::vector<float> logprobs(sampler.survivor_logprobs().begin(), sampler.survivor_logprobs().end());
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_TRUE(matcher.accept(ids[i]));
    text.push_back(ids[i]);
    add_answers(toy, params, matcher, text, chance * std::exp(static_cast<double>(logprobs[i])), out);
    text.pop_back();
    matcher.rollback(1);
  }
}

// Chi-square of whole answers. The limit is far out: where steps overlap, chance also decides what is verified
// together.
void check_distribution(const Case& setup, const SamplingParams& params) {
  constexpr int32_t kRequests = di::test::kSanitized ? 400 : 2000;
  const auto constraint = compiled(ConstraintKind::kRegex, "[a-c]{2}([ab]c?|12|-)[x-z]");
  structured::Matcher matcher(constraint);
  std::vector<int32_t> text = {4, 9};
  Chances chances;
  add_answers(setup.toy, params, matcher, text, 1, chances);
  std::vector<GenerateRequest> requests = constrained(constraint, params.temperature, kRequests);
  for (GenerateRequest& r : requests) {
    r.sampling.top_k = params.top_k;
    r.sampling.top_p = params.top_p;
  }
  const Ran ran = run(setup, requests);
  std::map<std::vector<int32_t>, double> seen;
  for (const test::Choice& c : ran.choices) {
    ASSERT_TRUE(chances.contains(c.tokens)) << structured::testing::text_of(c.tokens);
    seen[c.tokens] += 1;
  }
  double chi = 0;
  double rest = 0;
  double rest_seen = 0;
  double f = 0;
  for (const auto& [tokens, chance] : chances) {
    const double expected = kRequests * chance;
    if (expected < 5) {
      rest += expected;
      rest_seen += seen[tokens];
      continue;
    }
    chi += (seen[tokens] - expected) * (seen[tokens] - expected) / expected;
    ++f;
  }
  if (rest > 0) chi += (rest_seen - rest) * (rest_seen - rest) / rest;
  ASSERT_GT(f, 10);
  EXPECT_LT(chi, f * std::pow(1 - 2 / (9 * f) + 5.0 * std::sqrt(2 / (9 * f)), 3)) << f << " degrees of freedom";
  EXPECT_GT(ran.stats.speculation.verified, static_cast<uint64_t>(kRequests));
}

class MaskedQ : public testing::TestWithParam<int> {};

TEST_P(MaskedQ, KeepsTheTargetsDistribution) {
  Case setup = kSpeculative[static_cast<size_t>(GetParam())];
  const Case bytes = byte_case(setup.mode, 1.2F);
  setup.toy = bytes.toy;
  check_distribution(setup, {});
  SamplingParams few;
  few.temperature = 0.8;
  few.top_k = 3;
  check_distribution(setup, few);
}
INSTANTIATE_TEST_SUITE_P(Modes, MaskedQ, testing::Values(1, 3));

// Rounds of one request, as the planner hears of them.
std::vector<std::vector<float>> confidences_of(Case setup, GenerateRequest r) {
  std::mutex mutex;
  std::vector<std::vector<float>> out;
  setup.engine.speculation.on_round = [&](const DraftRound& round) {
    const std::lock_guard lock(mutex);
    out.emplace_back(round.confidences.begin(), round.confidences.end());
  };
  run(setup, {std::move(r)});
  return out;
}

// Where the constraint leaves one token, the draft cannot be refused, however far it is from the target.
TEST(ConstrainedDrafts, ForcedTokensAreCertain) {
  const std::string text = "xyz-uvw-xyz-uvw-xyz-uvw";
  for (const Mode mode : {Mode::kFixed, Mode::kVariable}) {
    Case setup = byte_case(mode, 6);
    setup.async = false;
    const GenerateRequest r = constrained(compiled(ConstraintKind::kRegex, text), 1.5, 1)[0];
    const auto rounds = confidences_of(setup, r);
    ASSERT_FALSE(rounds.empty());
    for (const std::vector<float>& round : rounds) {
      for (const float c : round) EXPECT_EQ(c, 1.0F);
    }
    const Ran ran = run(setup, {r});
    EXPECT_EQ(structured::testing::text_of(ran.choices[0].tokens), text);
    EXPECT_GE(ran.stats.speculation.accepted + 1, ran.stats.speculation.verified);  // the end, see above
    EXPECT_GT(ran.stats.speculation.accepted, 10U);
  }
}

// Nothing is drafted behind the end of the text. Where the end is to be ignored the next round goes on.
TEST(ConstrainedDrafts, EndWithTheText) {
  Case setup = byte_case(Mode::kFixed, 0);
  setup.async = false;
  GenerateRequest r = constrained(compiled(ConstraintKind::kRegex, "xyz"), 1, 1)[0];
  std::vector<std::vector<float>> rounds = confidences_of(setup, r);
  ASSERT_EQ(rounds.size(), 1U);
  EXPECT_EQ(rounds[0].size(), 3U);  // y, z and the end
  r.ignore_eos = true;
  r.max_tokens = 20;
  rounds = confidences_of(setup, r);
  ASSERT_GT(rounds.size(), 1U);
  EXPECT_EQ(rounds[0].size(), 3U);
  EXPECT_EQ(rounds[1].size(), 5U);
}

}  // namespace
}  // namespace di::engine
