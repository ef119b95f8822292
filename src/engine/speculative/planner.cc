#include "engine/speculative/planner.h"

#include <algorithm>
#include <climits>
#include <cmath>

namespace di::engine {
namespace {

constexpr double kPauseBelow = 0.99;   // gain at which drafting stops
constexpr double kResumeAbove = 1.00;  // and begins again
constexpr uint64_t kRoundsFirst = 64;  // that are seen before it may stop

}  // namespace

int32_t agreed_drafts(const SpeculationOptions& options, const RunnerInfo& runner) {
  if (options.mode == SpeculationMode::kOff) return 0;
  const int32_t most = std::min(runner.max_drafts, static_cast<int32_t>(kMaxDrafts));
  return options.length > 0 ? std::min(options.length, most) : most;
}

// Every power of two and half-way between.
std::vector<int32_t> decode_curve_sizes(int32_t max_num_seqs, int32_t drafts, int32_t max_rows) {
  const int32_t max = std::min(max_num_seqs * (1 + drafts), max_rows);
  std::vector<int32_t> sizes;
  for (int32_t s = 1; s < max; s *= 2) {
    sizes.push_back(s);
    if (s >= 4 && s + s / 2 < max) sizes.push_back(s + s / 2);
  }
  sizes.push_back(max);
  return sizes;
}

Result<CostCurve> measure_decode_curve(Runner& runner, std::span<const int32_t> sizes, int32_t drafts,
                                       const Clock& clock) {
  const RunnerInfo& info = runner.info();
  // Sequences of 1 + drafts rows, short enough for one block each; they may share it.
  const std::vector<int32_t> tokens(static_cast<size_t>(drafts) + 1, 0);
  const std::vector<int32_t> table(static_cast<size_t>((drafts + info.block_tokens) / info.block_tokens), 1);
  const auto replay = [&](int32_t rows) -> Result<double> {
    std::vector<model::SequenceChunk> chunks;
    std::vector<SequenceTag> tags;
    for (int32_t left = rows; left > 0;) {
      model::SequenceChunk chunk;
      chunk.tokens = tokens;
      chunk.count = std::min(left, drafts + 1);
      chunk.state_slot = 1 + static_cast<int32_t>(chunks.size());
      chunk.block_table = table;
      left -= chunk.count;
      chunks.push_back(chunk);
      tags.push_back({0, 1});
    }
    const int64_t begin = clock.now_ns();
    DI_TRY(runner.forward(chunks, tags));
    return static_cast<double>(clock.now_ns() - begin) * 1e-6;
  };
  return measure_curve(sizes, replay);
}

DraftPlanner::DraftPlanner(const SpeculationOptions& options, int32_t drafts, CostCurve curve)
    : mode_(options.mode),
      drafts_(drafts),
      pause_under_load_(options.pause_under_load && options.mode == SpeculationMode::kVariable),
      on_round_(options.on_round),
      on_step_(options.on_step),
      curve_(curve.dense()) {
  for (const CurvePoint& p : curve.points()) buckets_.push_back(p.size);
  stats_.max_drafts = drafts;
  stats_.state = options.mode == SpeculationMode::kOff ? SpeculationState::kOff
                 : drafts == 0                         ? SpeculationState::kNoDraftModule
                                                       : SpeculationState::kActive;
}

std::vector<int32_t> DraftPlanner::plan(std::span<const SequenceRates> sequences, int32_t max_rows) const {
  std::vector<int32_t> rows;
  const bool curve_reaches = !curve_.empty() && curve_.max_size() >= static_cast<int32_t>(sequences.size());
  if (mode_ == SpeculationMode::kVariable && curve_reaches) {
    rows = plan_lengths(sequences, curve_, runtime_)->rows;
  } else {
    for (const SequenceRates& s : sequences) rows.push_back(1 + s.num_drafts);
  }
  int64_t spare = max_rows;
  for (const int32_t r : rows) spare -= r;
  // Too many for one step: the longest give first.
  while (spare < 0) {
    const auto longest = std::max_element(rows.begin(), rows.end());
    if (longest == rows.end() || *longest <= 1) break;
    --*longest;
    ++spare;
  }
  return rows;
}

// Tokens per ms with the best number of drafts, if the next rounds are like the last ones, over those without any.
double DraftPlanner::gain(int32_t num_seqs) const {
  const double slope = runtime_.slope();
  const auto step_ms = [&](double rows) {
    const CurvePoint* p = curve_.at(static_cast<int32_t>(std::ceil(rows)));
    return p == nullptr ? 0.0 : p->ms + slope * rows;
  };
  const double plain_ms = step_ms(num_seqs);
  if (plain_ms <= 0) return 1;
  const double draft_ms = draft_cost_.at(num_seqs);
  double rows = num_seqs;
  double expected = num_seqs;
  double best = 0;
  recent_.best_first(num_seqs, [&](double drafts, double survival) {
    rows += drafts;
    expected += drafts * survival;
    const double ms = step_ms(rows);
    if (ms > 0) best = std::max(best, expected / (ms + draft_ms));
  });
  return best * plain_ms / num_seqs;
}

bool DraftPlanner::propose(int32_t num_seqs) {
  if (drafts_ == 0) return false;
  if (!pause_under_load_ || curve_.empty() || num_seqs == 0 || recent_.rounds() < kRoundsFirst) return true;
  const double g = gain(num_seqs);
  paused_ = paused_ ? g < kResumeAbove : g < kPauseBelow;
  stats_.state = paused_ ? SpeculationState::kLoad : SpeculationState::kActive;
  if (!paused_) {
    paused_steps_ = 0;
    probe_after_ = kFirstProbe;
    return true;
  }
  ++stats_.unprofitable_steps;
  if (++paused_steps_ < probe_after_) return false;
  paused_steps_ = 0;
  probe_after_ = std::min(2 * probe_after_, kLastProbe);
  return true;
}

void RecentSurvivals::add(std::span<const float> survivals) {
  for (Bin& b : bins_) {
    b.count *= 1 - kForget;
    b.sum *= 1 - kForget;
  }
  for (const float s : survivals) {
    Bin& b = bins_[static_cast<size_t>(std::clamp(static_cast<int32_t>(s * kBins), 0, int32_t{kBins} - 1))];
    b.count += 1;
    b.sum += static_cast<double>(s);
  }
  weight_ = weight_ * (1 - kForget) + 1;
  ++rounds_;
}

void RecentSurvivals::verified(double predicted, int32_t accepted) {
  predicted_ = predicted_ * (1 - kForget) + predicted;
  accepted_ = accepted_ * (1 - kForget) + accepted;
}

void DraftPlanner::round_done(const Round& round, SequenceConfidences& sequence) {
  const auto had = static_cast<int32_t>(sequence.current.size());
  const auto verified = static_cast<int32_t>(round.accept_prob.size());
  if (had > 0) {
    ++stats_.rounds;
    ++stats_.verified_lengths[static_cast<size_t>(round.scheduled)];
    ++stats_.accepted_lengths[static_cast<size_t>(round.accepted)];
    for (int32_t k = 0; k < verified; ++k) {
      const auto at = static_cast<size_t>(k);
      const bool accepted = k < round.accepted;
      ++stats_.verified;
      ++stats_.verified_at[at];
      stats_.accepted += accepted ? 1 : 0;
      stats_.accepted_at[at] += accepted ? 1 : 0;
      stats_.accept_error_sum += std::abs(static_cast<double>(round.accept_prob[at] - sequence.current[at]));
      ++stats_.accept_error_rows;
    }
    // Drafts behind a refused one would have been refused too: their outcome is known.
    double predicted = 0;
    for (int32_t k = 0; k < std::min(round.scheduled, had); ++k) {
      const auto rate = static_cast<double>(sequence.rates[static_cast<size_t>(k)]);
      calibration_.add(k, rate, k < round.accepted);
      predicted += rate;
    }
    recent_.verified(predicted, round.accepted);
    if (on_round_) on_round_({round.sequence, round.temperature, sequence.current, round.scheduled, round.accepted});
  }
  sequence.previous = std::move(sequence.rates);
  sequence.current.assign(round.next_confidences.begin(), round.next_confidences.end());
  sequence.rates = survivals(sequence.current);
  if (!sequence.rates.empty()) recent_.add(sequence.rates);
}

void DraftPlanner::step_done(const DecodeStep& step) {
  if (on_step_) on_step_(step);
  stats_.draft_seconds += step.draft_ms * 1e-3;
  if (drafts_ == 0 || curve_.empty() || step.num_seqs == 0) return;
  const CurvePoint* point = curve_.at(step.rows);
  if (point == nullptr) return;
  // Sampling goes by rows, as the forward pass does; drafting by sequences.
  const double rows_ms = step.forward_ms + step.sample_ms;
  const auto bucket = std::lower_bound(buckets_.begin(), buckets_.end(), step.rows);
  if (step.proposed) {
    draft_cost_.add(step.num_seqs, step.draft_ms);
    runtime_.add(step.num_seqs, bucket == buckets_.end() ? step.rows : *bucket, step.rows, point->ms, rows_ms,
                 step.draft_ms);
  }
  const CurvePoint* plain = curve_.at(step.num_seqs);
  stats_.plain_seconds +=
      static_cast<double>(step.emitted) / step.num_seqs * (plain->ms + runtime_.slope() * step.num_seqs) * 1e-3;
  stats_.speculative_seconds += (rows_ms + step.draft_ms) * 1e-3;
}

SpeculationStats DraftPlanner::stats() const {
  SpeculationStats out = stats_;
  out.calibration_error = calibration_.ece();
  out.slope_ms_per_row = runtime_.slope();
  return out;
}

}  // namespace di::engine
