// The distribution of what speculation emits (speculative.md §10.1): rounds on a toy vocabulary, whose chain of targets
// and drafts is known in closed form, against the target by chi-square.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "base/rng.h"
#include "engine/sampler.h"
#include "engine/speculative/verify.h"
#include "engine/speculative/verify_length.h"
#include "support/sanitizers.h"

namespace di::engine {
namespace {

constexpr int32_t kVocab = 6;
constexpr int32_t kDrafts = 3;
constexpr int32_t kRounds = test::kSanitized ? 100'000 : 1'000'000;
constexpr uint64_t kSeed = 20260717;
// 99.9 % quantiles of chi-square.
double chi_square_limit(int32_t freedom) {
  // Wilson and Hilferty's cube; within 0.1 of the tables from 5 degrees on.
  const double f = freedom;
  const double z = 3.0902;
  return f * std::pow(1 - 2 / (9 * f) + z * std::sqrt(2 / (9 * f)), 3);
}

using Row = std::array<float, kVocab>;

// Logits that depend on the previous token; the draft's are the target's bent.
Row target_logits(int32_t previous) {
  Row row{};
  for (int32_t i = 0; i < kVocab; ++i)
    row[static_cast<size_t>(i)] = 1.4F * std::sin(0.9F * static_cast<float>(i * (previous + 2)));
  return row;
}
Row draft_logits(int32_t previous) {
  Row row = target_logits(previous);
  for (int32_t i = 0; i < kVocab; ++i)
    row[static_cast<size_t>(i)] += 0.8F * std::cos(1.7F * static_cast<float>(i + previous));
  return row;
}

struct Draft {
  std::vector<int32_t> tokens;
  std::vector<int32_t> after;  // the token before each
  std::vector<float> confidence;
};

// The distributions after every token, transformed once, and the acceptance to expect of a draft drawn there (what an
// ideal confidence head says).
struct Tables {
  Tables(const Transforms& how, bool raw_softmax_q) : target(kVocab), draft(kVocab), q(kVocab) {
    for (int32_t t = 0; t < kVocab; ++t) {
      const auto i = static_cast<size_t>(t);
      target[i].transform(target_logits(t), how);
      draft[i].transform(draft_logits(t), how);
      q[i].assign(draft[i]);
      confidence[i] = Verifier().verify(target[i], q[i], -1, 0, 0).accept_prob;
      if (!raw_softmax_q) continue;
      Sampler raw;
      raw.transform(draft_logits(t), {});
      q[i].assign(raw);
    }
  }
  std::vector<Sampler> target;
  std::vector<Sampler> draft;
  std::vector<Distribution> q;
  std::array<float, kVocab> confidence{};
};

// What a test bends.
struct Rules {
  // Drafts to verify, given this round's and older confidences.
  std::function<int32_t(const std::vector<float>& now, const std::vector<float>& old)> length =
      [](const auto&, const auto&) { return kDrafts; };
};

// Chi-square of the first two tokens of a round (36 cells) after anchor 0, over kRounds rounds.
struct Outcome {
  double chi_square = 0;
  int32_t freedom = 0;
  int64_t verified = 0;
  bool fits() const { return chi_square < chi_square_limit(freedom); }
};

class Toy {
 public:
  Toy(const Tables& tables, const Rules& rules) : tables_(tables), rules_(rules) {}

  Outcome run() {
    std::array<int64_t, static_cast<size_t>(kVocab) * kVocab> counts{};
    Outcome out;
    std::vector<float> old(kDrafts, 1.0F);
    std::vector<float> older = old;
    for (int32_t round = 0; round < kRounds; ++round) {
      const uint64_t seed = split_mix64(kSeed + static_cast<uint64_t>(round));
      const std::vector<int32_t> emitted = play(seed, older, old, out);
      ++counts[static_cast<size_t>(emitted[0] * kVocab + emitted[1])];
    }
    for (int32_t a = 0; a < kVocab; ++a) {
      for (int32_t b = 0; b < kVocab; ++b) {
        const double expected = kRounds * probability(0, a) * probability(a, b);
        const auto seen = static_cast<double>(counts[static_cast<size_t>(a * kVocab + b)]);
        if (expected == 0) {
          if (seen > 0) out.chi_square += 1e9;
          continue;
        }
        out.chi_square += (seen - expected) * (seen - expected) / expected;
        ++out.freedom;
      }
    }
    --out.freedom;
    return out;
  }

 private:
  double probability(int32_t previous, int32_t token) const {
    const Sampler& p = tables_.target[static_cast<size_t>(previous)];
    for (size_t i = 0; i < p.survivors().size(); ++i) {
      if (p.survivors()[i] == token) return std::exp(static_cast<double>(p.survivor_logprobs()[i]));
    }
    return 0;
  }

  Draft propose(uint64_t seed, int64_t position, int32_t anchor) {
    Draft d;
    int32_t previous = anchor;
    for (int32_t k = 0; k < kDrafts; ++k) {
      d.confidence.push_back(tables_.confidence[static_cast<size_t>(previous)]);
      d.after.push_back(previous);
      const int32_t token = tables_.draft[static_cast<size_t>(previous)].draw(
          counter_uniform(seed + kDraftSeedOffset, position + k, DrawKind::kSample));
      d.tokens.push_back(token);
      previous = token;
    }
    return d;
  }

  // Rounds until two tokens are there.
  std::vector<int32_t> play(uint64_t seed, std::vector<float>& older, std::vector<float>& old, Outcome& out) {
    std::vector<int32_t> emitted;
    int32_t anchor = 0;
    while (emitted.size() < 2) {
      const auto position = static_cast<int64_t>(100 + emitted.size());
      const Draft d = propose(seed, position, anchor);
      const int32_t length = rules_.length(d.confidence, older);
      older = old;
      old = d.confidence;
      out.verified += length;
      int32_t previous = anchor;
      bool rejected = false;
      for (int32_t row = 0; row < length && !rejected; ++row) {
        const auto k = static_cast<size_t>(row);
        const RowVerdict v =
            verifier_.verify(tables_.target[static_cast<size_t>(previous)], tables_.q[static_cast<size_t>(d.after[k])],
                             d.tokens[k], seed, row_position(position, row));
        emitted.push_back(v.token);
        previous = v.token;
        rejected = !v.accepted;
      }
      if (!rejected) {
        emitted.push_back(tables_.target[static_cast<size_t>(previous)].draw(
            counter_uniform(seed, row_position(position, length), DrawKind::kSample)));
      }
      anchor = emitted.back();
    }
    return emitted;
  }

  const Tables& tables_;
  const Rules& rules_;
  Verifier verifier_;
};

Outcome play(const Transforms& transforms, const Rules& rules, bool raw_softmax_q = false) {
  const Tables tables(transforms, raw_softmax_q);
  return Toy(tables, rules).run();
}

const std::vector<double> kSteps = {0, 1.0, 0.62, 0.5, 0.49};

TEST(Lossless, FixedLength) {
  for (const Transforms& t : {Transforms{}, Transforms{.temperature = 0.7, .top_p = 0.9}, Transforms{.top_k = 3}}) {
    const Outcome o = play(t, {});
    EXPECT_TRUE(o.fits()) << o.chi_square << " with " << o.freedom << " degrees of freedom";
    EXPECT_GT(o.verified, 0);
  }
}

TEST(Lossless, FailsWhenQIsTheRawSoftmax) {
  for (const Transforms& t : {Transforms{.temperature = 0.7, .top_p = 0.9}, Transforms{.top_k = 3}}) {
    const Outcome o = play(t, {}, true);
    EXPECT_FALSE(o.fits()) << o.chi_square << " with " << o.freedom << " degrees of freedom";
  }
}

TEST(Lossless, AlgorithmOne) {
  Rules rules;
  rules.length = [](const std::vector<float>& now, const std::vector<float>&) {
    const std::vector<std::vector<double>> one = {{now.begin(), now.end()}};
    return search_lengths(one, kSteps, /*early_stop=*/true).lengths[0];
  };
  const Outcome o = play({}, rules);
  EXPECT_TRUE(o.fits()) << o.chi_square << " with " << o.freedom << " degrees of freedom";
  EXPECT_GT(o.verified, 0);
}

// Budget from confidences two rounds old, shares from this round's (there is one sequence: they are the budget).
TEST(Lossless, StaleBudget) {
  Rules rules;
  const CostCurve curve = CostCurve::create({{1, 1.0}, {2, 1.6}, {3, 2.0}, {4, 2.05}}).value();
  rules.length = [&](const std::vector<float>& now, const std::vector<float>& older) {
    const std::vector<float> rates = survivals(now);
    const std::vector<float> stale = survivals(older);
    const SequenceRates s{kDrafts, true, 7, 7, rates, stale};
    return plan_lengths({&s, 1}, curve, {})->total - 1;
  };
  const Outcome o = play({}, rules);
  EXPECT_TRUE(o.fits()) << o.chi_square << " with " << o.freedom << " degrees of freedom";
  EXPECT_GT(o.verified, 0);
}

// Appendix A of the paper: p = (.7, .3), q = (.5, .5), a_1 = .8, a_2 = .9 after token 0 and 0 after token 1, steps per
// second 1, .5, .45. Verifying where the search over this very round's confidences says so emits (.85, .15).
std::array<double, 2> appendix_a(bool early_stop) {
  const std::vector<double> steps = {0, 1.0, 0.5, 0.45};
  const std::array<float, 2> p = {std::log(0.7F), std::log(0.3F)};
  const std::array<float, 2> q = {std::log(0.5F), std::log(0.5F)};
  Sampler target;
  target.transform(p, {});
  Sampler draft;
  draft.transform(q, {});
  Distribution drafted;
  drafted.assign(draft);
  // What the search says after each first draft.
  const auto search = [&](double second) {
    const std::vector<std::vector<double>> confidence = {{0.8, second}};
    return search_lengths(confidence, steps, early_stop).lengths[0];
  };
  const std::array<int32_t, 2> lengths = {search(0.9), search(0.0)};
  Verifier verifier;
  std::array<int64_t, 2> counts{};
  for (int32_t round = 0; round < kRounds; ++round) {
    const uint64_t seed = split_mix64(kSeed + static_cast<uint64_t>(round));
    const int32_t x = draft.draw(counter_uniform(seed + kDraftSeedOffset, 1, DrawKind::kSample));
    const int32_t token = lengths[static_cast<size_t>(x)] > 0
                              ? verifier.verify(target, drafted, x, seed, 1).token
                              : target.draw(counter_uniform(seed, 1, DrawKind::kSample));
    ++counts[static_cast<size_t>(token)];
  }
  return {static_cast<double>(counts[0]) / kRounds, static_cast<double>(counts[1]) / kRounds};
}

TEST(Lossless, SameStepGlobalSearchIsBiased) {
  const auto naive = appendix_a(false);
  EXPECT_NEAR(naive[0], 0.85, 0.002);
  EXPECT_NEAR(naive[1], 0.15, 0.002);
  const double chi_square = kRounds * (std::pow(naive[0] - 0.7, 2) / 0.7 + std::pow(naive[1] - 0.3, 2) / 0.3);
  EXPECT_GT(chi_square, 10.83);  // 99.9 % of one degree of freedom
  const auto early = appendix_a(true);
  EXPECT_LT(kRounds * (std::pow(early[0] - 0.7, 2) / 0.7 + std::pow(early[1] - 0.3, 2) / 0.3), 10.83);
}

}  // namespace
}  // namespace di::engine
