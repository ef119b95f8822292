// Verify lengths on recorded draft rounds of the bundled model (tests/data/speculation/rounds.jsonl, written by
// `deepinfer bench speculation --replay-only --record` on the reference's evaluation set): the variable one against
// every fixed one, on step costs as measured on one CPU thread, on one H200 and on those derived for H200 cards. The
// same work for every policy, no clock.
#include "cli/speculation_replay.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "support/folders.h"

namespace di::cli {
namespace {

constexpr int32_t kDrafts = 5;

std::vector<RecordedRound> recorded() {
  std::vector<RecordedRound> out;
  std::ifstream in(std::string(di::test::kData) + "/speculation/rounds.jsonl");
  for (std::string line; std::getline(in, line);) {
    const Json json = parse_json(line).value();
    RecordedRound& r = out.emplace_back();
    r.accepted = static_cast<int32_t>(json.find_value("accepted")->to_i64().value());
    r.decided = static_cast<int32_t>(json.find_value("decided")->to_i64().value());
    for (const Json& c : json.find_value("confidences")->as_array()) {
      r.confidences.push_back(static_cast<float>(c.to_double().value()));
    }
  }
  return out;
}

// Draft costs as a multiple of those measured.
StepCosts cpu(double drafting) {
  StepCosts out;
  out.curve = engine::CostCurve::create({{1, .97},
                                         {2, 1.38},
                                         {4, 1.69},
                                         {6, 3.28},
                                         {8, 4.20},
                                         {12, 4.93},
                                         {16, 6.04},
                                         {24, 8.18},
                                         {32, 10.77},
                                         {48, 15.15},
                                         {64, 19.94},
                                         {96, 29.40},
                                         {128, 41.20},
                                         {192, 57.98},
                                         {256, 78.31},
                                         {384, 136.77}})
                  .value();
  out.row_ms = .002;
  out.draft_ms = [drafting](int32_t n) { return drafting * (.7 + .41 * n); };
  return out;
}

struct Rates {
  double variable = 0;
  double best = 0;  // of no drafts and all fixed lengths
  double longest = 0;
};

Rates rates(std::span<const LoadStage> load, const StepCosts& costs) {
  static const std::vector<RecordedRound> rounds = recorded();
  Rates out;
  for (const SpeculationPolicy& p : speculation_policies(kDrafts)) {
    const double rate = replay_rounds(rounds, p, load, costs, kDrafts).tokens_per_second;
    if (p.mode == engine::SpeculationMode::kVariable) {
      out.variable = rate;
    } else {
      out.best = std::max(out.best, rate);
      out.longest = rate;
    }
  }
  return out;
}

void expect_good(const StepCosts& costs, std::initializer_list<int32_t> loads) {
  for (const int32_t n : loads) {
    const std::vector<LoadStage> load = {{n, 3000 * n}};
    const Rates r = rates(load, costs);
    fmt::print("{} requests: {:.0f} tokens/s, {:+.1f} % over the best fixed length\n", n, r.variable,
               (r.variable / r.best - 1) * 100);
    EXPECT_GE(r.variable, .98 * r.best) << n;
  }
  const Rates mixed = rates(mixed_load(*(loads.end() - 1)), costs);
  fmt::print("mixed load: {:.0f} tokens/s, {:+.1f} % over the best fixed length, {:+.1f} % over {} drafts\n",
             mixed.variable, (mixed.variable / mixed.best - 1) * 100, (mixed.variable / mixed.longest - 1) * 100,
             kDrafts);
  EXPECT_GE(mixed.variable, .99 * mixed.best);
  EXPECT_GE(mixed.variable, 1.06 * mixed.longest);
}

TEST(SpeculationReplay, VariableIsTheBestOnTheCpu) {
  expect_good(cpu(1), {1, 4, 16, 64});
}

TEST(SpeculationReplay, VariableIsTheBestOnTheCpuWithCheaperDrafts) {
  expect_good(cpu(.3), {1, 4, 16, 64});
}

TEST(SpeculationReplay, VariableIsTheBestOnTheFloorOfH200) {
  expect_good(h200_costs(256, kDrafts), {1, 8, 64, 256});
}

TEST(SpeculationReplay, VariableIsTheBestOnTheMeasuredStepsOfH200) {
  expect_good(h200_measured_costs(), {1, 8, 64, 256});
}

// performance.md §2.4, rows "8 | 1 …" to "8 | 256 …": the floor of a step without drafts, ms.
TEST(SpeculationReplay, TheFloorIsThatOfTheTable) {
  const StepCosts costs = h200_costs(256, kDrafts);
  const std::pair<int32_t, double> table[] = {{1, 3.032}, {8, 7.432}, {64, 10.990}};
  for (const auto& [n, ms] : table) {
    EXPECT_NEAR(costs.curve.at(n)->ms + costs.sequence_ms * n, ms, .02 * ms) << n;
  }
}

// The same rounds give the same tokens a step whatever they cost.
TEST(SpeculationReplay, FixedLengthsAcceptWhatWasRecorded) {
  const std::vector<RecordedRound> rounds = {{{.9F, .9F, .9F, .9F, .9F}, 5, 2}};
  const std::vector<LoadStage> load = {{3, 9000}};
  const auto policies = speculation_policies(kDrafts);
  for (size_t k = 2; k < policies.size() - 1; ++k) {
    const Replayed r = replay_rounds(rounds, policies[k], load, cpu(1), kDrafts);
    EXPECT_NEAR(r.mean_length, static_cast<double>(k), .02) << k;
    EXPECT_NEAR(r.mean_accepted, 2, .02) << k;
  }
}

}  // namespace
}  // namespace di::cli
