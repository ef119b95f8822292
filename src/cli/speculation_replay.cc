#include "cli/speculation_replay.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <map>

namespace di::cli {
namespace {

double median(std::vector<double>& values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace

std::vector<SpeculationPolicy> speculation_policies(int32_t drafts) {
  std::vector<SpeculationPolicy> out = {{"off", engine::SpeculationMode::kOff, 0}};
  for (int32_t k = 1; k <= drafts; ++k) {
    out.push_back({fmt::format("fixed {}", k), engine::SpeculationMode::kFixed, k});
  }
  out.push_back({"variable", engine::SpeculationMode::kVariable, 0});
  return out;
}

StepCosts measured_costs(engine::CostCurve curve, std::span<const engine::DecodeStep> steps) {
  StepCosts out;
  out.curve = std::move(curve);
  std::vector<double> row_ms;
  std::map<int32_t, std::vector<double>> by_sequences;
  for (const engine::DecodeStep& s : steps) {
    if (s.rows > 0) row_ms.push_back(s.sample_ms / s.rows);
    if (s.proposed) by_sequences[s.num_seqs].push_back(s.draft_ms);
  }
  out.row_ms = median(row_ms);
  // Straight lines between the medians, the outer ones going on as a share of the nearest.
  std::vector<std::pair<double, double>> points;
  for (auto& [n, ms] : by_sequences) points.emplace_back(n, median(ms));
  out.draft_ms = [points](int32_t n) {
    if (points.empty()) return 0.0;
    const auto above = std::ranges::find_if(points, [&](const auto& p) { return p.first >= n; });
    if (above == points.begin()) return above->second;
    if (above == points.end()) return points.back().second * n / points.back().first;
    const auto below = std::prev(above);
    const double share = (n - below->first) / (above->first - below->first);
    return below->second + share * (above->second - below->second);
  };
  return out;
}

StepCosts h200_costs(int32_t max_num_seqs, int32_t drafts) {
  constexpr double kCards = 8;
  constexpr double kBytesPerMs = 4.3e9;
  constexpr double kDenseBytes = 8.73e9;
  constexpr double kExperts = 384;
  constexpr double kExpertBytes = 288.8e9 / kExperts;  // of one expert, all layers
  constexpr double kRowMs = 4.61e-3;                   // activations
  constexpr double kRowFlopMs = 36.7e9 / 790e9;
  constexpr double kContextMs = 4.26e-3;  // Block KV and index keys, shared by the rows of a sequence
  const auto hit = [](double experts, double of_row, double rows) {
    return experts * (1 - std::pow(1 - of_row / experts, rows));
  };
  StepCosts out;
  std::vector<engine::CurvePoint> points;
  for (int32_t rows = 1; rows <= max_num_seqs * (1 + drafts); ++rows) {
    const double experts = hit(kExperts, 6, rows * kCards) * kExpertBytes / kCards;
    points.push_back({rows, std::max((kDenseBytes + experts) / kBytesPerMs + kRowMs * rows, kRowFlopMs * rows)});
  }
  out.curve = engine::CostCurve::create(std::move(points)).value();
  out.sequence_ms = kContextMs;
  // Three of the forty layers' dense weights, lm_head, the Markov head once a draft; 128 experts of three layers.
  out.draft_ms = [=](int32_t n) {
    const double dense = (kDenseBytes - 1.32e9) * 3 / 40 + 1.32e9 + drafts * 129280.0 * 256 * 2;
    const double experts = hit(128, 3, n * drafts * kCards) * kExpertBytes * 3 / 40 / kCards;
    return (dense + experts) / kBytesPerMs + n * drafts * kRowMs * 3 / 40;
  };
  return out;
}

StepCosts h200_measured_costs() {
  StepCosts out;
  out.curve = engine::CostCurve::create({{1, 10.15},    {2, 11.01},    {4, 11.88},    {6, 12.75},    {8, 12.93},
                                         {12, 15.90},   {16, 16.08},   {24, 18.41},   {32, 19.53},   {48, 22.48},
                                         {64, 25.03},   {96, 32.72},   {128, 33.70},  {192, 44.58},  {256, 52.11},
                                         {384, 66.73},  {512, 86.75},  {576, 97.23},  {768, 116.7},  {1024, 149.4},
                                         {1152, 165.6}, {1536, 228.3}, {2048, 294.7}, {2304, 337.7}, {3072, 433.9}})
                  .value();
  const auto rounds = engine::CostCurve::create({{1, 1.394},
                                                 {2, 1.538},
                                                 {4, 1.708},
                                                 {8, 1.908},
                                                 {16, 2.440},
                                                 {32, 3.593},
                                                 {64, 5.228},
                                                 {96, 6.964},
                                                 {128, 8.750},
                                                 {192, 12.63},
                                                 {256, 16.60},
                                                 {384, 24.09},
                                                 {512, 31.75}})
                          .value();
  out.draft_ms = [by_sequences = rounds.dense()](int32_t n) { return by_sequences.at(n)->ms; };
  return out;
}

Replayed replay_rounds(std::span<const RecordedRound> rounds, const SpeculationPolicy& policy,
                       std::span<const LoadStage> load, const StepCosts& costs, int32_t drafts) {
  engine::SpeculationOptions options;
  options.mode = policy.mode;
  options.length = policy.length;
  if (policy.mode == engine::SpeculationMode::kOff) drafts = 0;
  if (policy.length > 0) drafts = policy.length;
  engine::DraftPlanner planner(options, drafts, costs.curve);
  const engine::CostCurve curve = costs.curve.dense();
  int32_t most = 0;
  for (const LoadStage& stage : load) most = std::max(most, stage.num_seqs);
  std::vector<engine::SequenceConfidences> sequences(static_cast<size_t>(most));
  std::vector<size_t> place(sequences.size());
  for (size_t s = 0; s < place.size(); ++s) place[s] = s * 7919 % rounds.size();
  bool drafted = false;
  double ms = 0;
  int64_t tokens = 0;
  int64_t all_rows = 0;
  int64_t sequence_steps = 0;
  int64_t until = 0;
  for (size_t stage = 0; stage < load.size();) {
    const int32_t n = load[stage].num_seqs;
    std::vector<engine::SequenceRates> rates;
    for (int32_t s = 0; s < n; ++s) {
      engine::SequenceConfidences& c = sequences[static_cast<size_t>(s)];
      rates.push_back({drafted ? drafts : 0, drafted, 0, 0, c.rates, c.previous});
    }
    const std::vector<int32_t> rows = planner.plan(rates, INT32_MAX);
    const bool propose = planner.propose(n);
    int32_t total = 0;
    int64_t emitted = 0;
    for (int32_t s = 0; s < n; ++s) {
      const auto at = static_cast<size_t>(s);
      const RecordedRound& now = rounds[place[at]];
      const int32_t scheduled = rows[at] - 1;
      const int32_t accepted = std::min(scheduled, now.accepted);
      total += rows[at];
      emitted += 1 + accepted;
      place[at] = (place[at] + 1) % rounds.size();
      const std::vector<float> seen(static_cast<size_t>(std::min(scheduled, accepted + 1)), 0.0F);
      std::vector<float> next;
      if (propose) {
        next.assign(rounds[place[at]].confidences.begin(), rounds[place[at]].confidences.begin() + drafts);
      }
      planner.round_done({at, 0, scheduled, accepted, seen, next}, sequences[at]);
    }
    const double forward = curve.at(total)->ms + costs.sequence_ms * n;
    const double sample = costs.row_ms * total;
    const double draft = propose ? costs.draft_ms(n) : 0;
    planner.step_done({n, total, emitted, forward, sample, draft, propose});
    drafted = propose;
    ms += forward + sample + draft;
    tokens += emitted;
    all_rows += total;
    sequence_steps += n;
    if (tokens >= until + load[stage].tokens) until += load[stage++].tokens;
  }
  const auto steps = static_cast<double>(sequence_steps);
  return {static_cast<double>(tokens) / ms * 1e3, static_cast<double>(all_rows) / steps - 1,
          static_cast<double>(tokens) / steps - 1};
}

std::vector<LoadStage> mixed_load(int32_t most) {
  constexpr int64_t kTokens = 240;  // of a sequence
  std::vector<LoadStage> out;
  for (int32_t cycle = 0; cycle < 4; ++cycle) {
    for (int32_t n = 1; n <= most; n *= 2) out.push_back({n, n * kTokens});
    for (int32_t n = most / 2; n > 1; n /= 2) out.push_back({n, n * kTokens});
  }
  return out;
}

}  // namespace di::cli
