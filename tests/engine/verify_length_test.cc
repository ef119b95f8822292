#include "engine/speculative/verify_length.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace di::engine {
namespace {

struct Rounds {
  std::vector<std::vector<float>> now;
  std::vector<std::vector<float>> before;
  std::vector<SequenceRates> sequences() const {
    std::vector<SequenceRates> out;
    for (size_t i = 0; i < now.size(); ++i) {
      out.push_back({static_cast<int32_t>(now[i].size()), true, 3, 3, now[i], before[i]});
    }
    return out;
  }
};

Rounds random_rounds(std::mt19937& random, int32_t n, int32_t drafts) {
  std::uniform_real_distribution<float> chance(0.05F, 1.0F);
  Rounds out;
  for (int32_t i = 0; i < n; ++i) {
    for (auto* rates : {&out.now, &out.before}) {
      std::vector<float> c;
      for (int32_t k = 0; k < drafts; ++k) c.push_back(chance(random));
      rates->push_back(survivals(c));
    }
  }
  return out;
}

CostCurve curve_of(const std::vector<CurvePoint>& points) {
  return CostCurve::create(points).value();
}

std::vector<CurvePoint> rising(int32_t max, double base, double per_row) {
  std::vector<CurvePoint> out;
  for (const int32_t s : step_sizes(max, 8)) out.push_back({s, base + per_row * s});
  return out;
}

TEST(VerifyLength, ScalingTheCurveChangesNothing) {
  std::mt19937 random(1);
  for (int32_t i = 0; i < 200; ++i) {
    const Rounds rounds = random_rounds(random, 1 + i % 16, 5);
    std::vector<CurvePoint> points = rising(96, 4, 0.1 * (i % 7));
    const int32_t total = plan_lengths(rounds.sequences(), curve_of(points), {})->total;
    for (CurvePoint& p : points) p.ms *= 8;
    EXPECT_EQ(plan_lengths(rounds.sequences(), curve_of(points), {})->total, total);
    EXPECT_LE(total, static_cast<int32_t>(rounds.now.size()) * 6);
    EXPECT_GE(total, static_cast<int32_t>(rounds.now.size()));
  }
}

// Dearer by the same factor, so that their order among each other stays.
TEST(VerifyLength, DearerLargeStepsNeverRaiseTheTotal) {
  std::mt19937 random(2);
  for (int32_t i = 0; i < 300; ++i) {
    const Rounds rounds = random_rounds(random, 1 + i % 16, 5);
    std::vector<CurvePoint> points = rising(96, 4, 0.05 * (i % 9));
    const int32_t total = plan_lengths(rounds.sequences(), curve_of(points), {})->total;
    const size_t from = random() % points.size();
    for (size_t k = from; k < points.size(); ++k) points[k].ms *= 1.01 + 0.01 * (i % 50);
    EXPECT_LE(plan_lengths(rounds.sequences(), curve_of(points), {})->total, total);
  }
}

TEST(VerifyLength, AFlatCurveAdmitsEveryDraftInsideTheTopSize) {
  std::mt19937 random(3);
  const Rounds rounds = random_rounds(random, 8, 5);
  EXPECT_EQ(plan_lengths(rounds.sequences(), curve_of({{48, 5.0}}), {})->total, 48);
  EXPECT_EQ(plan_lengths(rounds.sequences(), curve_of({{20, 5.0}}), {})->total, 20);
}

TEST(VerifyLength, ACurveThatEndsBelowTheSequencesIsAnError) {
  std::mt19937 random(4);
  const Rounds rounds = random_rounds(random, 8, 5);
  const Result<VerifyPlan> plan = plan_lengths(rounds.sequences(), curve_of({{4, 5.0}}), {});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().message, "the cost curve ends at 4 rows, 8 sequences need at least as many");
}

// The total follows round n-2, the shares round n-1.
TEST(VerifyLength, NewerConfidencesDoNotMoveTheTotal) {
  const CostCurve curve = curve_of({{2, 1.0}, {4, 1.3}, {12, 3.0}});
  Rounds rounds{{{0.9F, 0.8F, 0.7F, 0.6F, 0.5F}, {0.1F, 0.05F, 0.01F, 0.01F, 0.01F}},
                {{0.2F, 0.1F, 0.1F, 0.1F, 0.1F}, {0.9F, 0.6F, 0.2F, 0.1F, 0.1F}}};
  const VerifyPlan plan = plan_lengths(rounds.sequences(), curve, {}).value();
  EXPECT_EQ(plan.total, 4);
  EXPECT_EQ(plan.rows, (std::vector<int32_t>{3, 1}));
  rounds.before = rounds.now;  // with the newest for both
  rounds.before[1] = rounds.now[0];
  EXPECT_EQ(plan_lengths(rounds.sequences(), curve, {})->total, 12);
}

TEST(VerifyLength, ASequenceWithoutConfidencesIsHopelessUntilItHasDrafts) {
  const CostCurve curve = curve_of({{2, 1.0}, {4, 1.01}, {12, 3.0}});
  const std::vector<float> rates = {0.5F, 0.4F, 0.3F, 0.2F, 0.1F};
  std::vector<SequenceRates> s = {{5, true, 2, 2, rates, rates}, {5, false, 1, 1, {}, {}}};
  EXPECT_EQ(plan_lengths(s, curve, {})->rows, (std::vector<int32_t>{3, 1}));
  s[1].has_draft_info = true;
  EXPECT_EQ(plan_lengths(s, curve, {})->rows, (std::vector<int32_t>{1, 3}));
}

TEST(VerifyLength, RanksMeetAtTheLargestSize) {
  const std::vector<int32_t> sizes = step_sizes(48, 8);
  EXPECT_EQ(agreed_rows(std::vector<int32_t>{9, 17, 3}, sizes, 8, 5), 24);
  EXPECT_EQ(agreed_rows(std::vector<int32_t>{9, 17, 3}, sizes, 3, 5), 18);  // no more than all its drafts
  EXPECT_EQ(agreed_rows(std::vector<int32_t>{9, 60}, sizes, 20, 5), 60);
}

TEST(CostCurve, MeasuresFiveReplaysWithoutTheBestAndTheWorst) {
  const std::vector<double> script = {99, 3, 1, 2, 10, 4};
  size_t calls = 0;
  const CostCurve curve =
      measure_curve(std::vector<int32_t>{7}, [&](int32_t) -> Result<double> { return script[calls++]; }).value();
  EXPECT_EQ(calls, 6U);
  EXPECT_DOUBLE_EQ(curve.at(7)->ms, 3.0);
  EXPECT_EQ(curve.at(8), nullptr);
}

TEST(CostCurve, DenseLinesPassThroughThePoints) {
  const CostCurve dense = curve_of({{2, 2.0}, {4, 3.0}, {8, 5.0}}).dense();
  EXPECT_EQ(dense.points().size(), 7U);
  EXPECT_DOUBLE_EQ(dense.at(1)->ms, 2.0);
  EXPECT_DOUBLE_EQ(dense.at(3)->ms, 2.5);
  EXPECT_DOUBLE_EQ(dense.at(7)->ms, 4.5);
  EXPECT_FALSE(CostCurve::create({{4, 1.0}, {4, 2.0}}));
  EXPECT_FALSE(CostCurve::create({{4, 0.0}}));
}

// Steps that take longer than the curve per row move the choice; fewer than ten of a size do not.
TEST(RuntimeCost, TheSlopeMovesTheChoice) {
  const CostCurve curve = curve_of(rising(96, 4, 0.02));
  std::mt19937 random(5);
  const Rounds rounds = random_rounds(random, 12, 5);
  RuntimeCost runtime;
  const int32_t before = plan_lengths(rounds.sequences(), curve, runtime)->total;
  const auto run = [&](int32_t steps) {
    for (int32_t i = 0; i < steps; ++i) runtime.add(12, 48, 48, curve.at(48)->ms, curve.at(48)->ms + 48 * 0.4, 0.5);
  };
  run(9);
  EXPECT_EQ(runtime.slope(), 0);
  run(1);
  EXPECT_NEAR(runtime.slope(), 0.4, 1e-12);
  EXPECT_NEAR(runtime.sampler_ms(12), 0.5, 1e-12);
  EXPECT_LT(plan_lengths(rounds.sequences(), curve, runtime)->total, before);
}

TEST(RuntimeCost, ForgetsOldSteps) {
  RuntimeCost runtime;
  for (int32_t i = 0; i < 20; ++i) runtime.add(1, 8, 8, 1.0, 9.0, 0);
  EXPECT_NEAR(runtime.slope(), 1.0, 1e-12);
  for (size_t i = 0; i < RuntimeCost::kWindowSteps; ++i) runtime.add(1, 8, 8, 1.0, 1.0, 0);
  EXPECT_EQ(runtime.slope(), 0);
}

}  // namespace
}  // namespace di::engine
