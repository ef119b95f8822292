// The host's side of speculation: how many rows each decode sequence gets in the next step and whether drafting pays at
// all, from confidences and measured costs (speculative.md §4). Owned by the engine's thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/runner.h"
#include "engine/speculative/calibration.h"
#include "engine/speculative/cost_curve.h"
#include "engine/speculative/stats.h"
#include "engine/speculative/verify_length.h"

namespace di::engine {

enum class SpeculationMode : uint8_t { kOff, kFixed, kVariable };

// A verified round of a sequence, for calibration and replays.
struct DraftRound {
  uint64_t sequence = 0;
  double temperature = 0;              // of the request
  std::span<const float> confidences;  // of all drafts of the round, as calibrated now
  int32_t scheduled = 0;               // drafts whose rows were computed; all behind a refused one count as refused
  int32_t accepted = 0;
};

// A step without prompt rows.
struct DecodeStep {
  int32_t num_seqs = 0;
  int32_t rows = 0;
  int64_t emitted = 0;  // tokens it gave
  double forward_ms = 0;
  double sample_ms = 0;
  double draft_ms = 0;
  bool proposed = false;  // it drafted for the next one
};

struct SpeculationOptions {
  SpeculationMode mode = SpeculationMode::kVariable;
  int32_t length = 0;  // kFixed: drafts verified per step; kVariable: at most so many. 0: all that the runner offers
  CostCurve curve;     // of decode steps; empty: measured at start (kVariable)
  // Drafting stops while it does not pay (kVariable only).
  bool pause_under_load = true;
  std::function<void(const DraftRound&)> on_round;  // both called by the engine's thread
  std::function<void(const DecodeStep&)> on_step;
};

// Drafts per sequence that options and runner agree on; 0: no speculation.
int32_t agreed_drafts(const SpeculationOptions& options, const RunnerInfo& runner);

// Rows of the steps that are worth timing where any number can run; the last is max_num_seqs·(1 + drafts), or max_rows
// if that is less.
std::vector<int32_t> decode_curve_sizes(int32_t max_num_seqs, int32_t drafts, int32_t max_rows);

// Runs decode steps of these sizes on the runner and times them; called before its first real step. Writes garbage into
// slots and blocks, which every sequence overwrites before it reads.
Result<CostCurve> measure_decode_curve(Runner& runner, std::span<const int32_t> sizes, int32_t drafts,
                                       const Clock& clock);

// What the planner keeps of a running sequence.
struct SequenceConfidences {
  std::vector<float> rates;     // survivals of the drafts that its next step may verify
  std::vector<float> previous;  // of the round before
  std::vector<float> current;   // confidences behind `rates`
  void clear() { *this = {}; }
};

// Survivals of the drafts of late, older ones counting less; how many of them reach which height.
class RecentSurvivals {
 public:
  void add(std::span<const float> survivals);
  // A round's drafts were verified: what their survivals said together, and how many were accepted.
  void verified(double predicted, int32_t accepted);
  uint64_t rounds() const { return rounds_; }
  // From the best down: of `num_seqs` rounds, take(drafts, mean survival) for groups of alike ones.
  template <typename Take>
  void best_first(int32_t num_seqs, Take&& take) const {
    for (size_t b = kBins; b-- > 0;) {
      if (bins_[b].count <= 0) continue;
      const double drafts = bins_[b].count / weight_ * num_seqs;
      for (int32_t i = 0; i < kParts; ++i) take(drafts / kParts, came_true() * bins_[b].sum / bins_[b].count);
    }
  }

 private:
  static constexpr size_t kBins = 64;
  static constexpr int32_t kParts = 4;           // of a bin, as the best budget may lie within it
  static constexpr double kForget = 1.0 / 1024;  // of everything before, a round
  struct Bin {
    double count = 0;
    double sum = 0;
  };
  // What was accepted over what was predicted, as answers end within rounds.
  double came_true() const { return predicted_ < kPredictedLeast ? 1 : accepted_ / predicted_; }

  static constexpr double kPredictedLeast = 32;
  std::array<Bin, kBins> bins_{};
  double weight_ = 0;  // rounds
  double predicted_ = 0;
  double accepted_ = 0;
  uint64_t rounds_ = 0;
};

class DraftPlanner {
 public:
  // `curve` may be empty: every draft is verified.
  DraftPlanner(const SpeculationOptions& options, int32_t drafts, CostCurve curve);

  int32_t drafts() const { return drafts_; }
  SpeculationMode mode() const { return drafts_ == 0 ? SpeculationMode::kOff : mode_; }
  const CostCurve& curve() const { return curve_; }

  // Rows per sequence, at most max_rows together.
  std::vector<int32_t> plan(std::span<const SequenceRates> sequences, int32_t max_rows) const;
  // Whether a step with that many decode sequences should draft for the next one.
  bool propose(int32_t num_seqs);

  // A sequence's step is done.
  struct Round {
    uint64_t sequence = 0;
    double temperature = 0;
    int32_t scheduled = 0;
    int32_t accepted = 0;
    std::span<const float> accept_prob;
    std::span<const float> next_confidences;
  };
  void round_done(const Round& round, SequenceConfidences& sequence);
  void step_done(const DecodeStep& step);

  SpeculationStats stats() const;

 private:
  // While paused one step drafts anyway after so many, then after twice as many each time.
  static constexpr int32_t kFirstProbe = 128;
  static constexpr int32_t kLastProbe = 4096;
  double gain(int32_t num_seqs) const;

  SpeculationMode mode_;
  int32_t drafts_;
  bool pause_under_load_;
  std::function<void(const DraftRound&)> on_round_;
  std::function<void(const DecodeStep&)> on_step_;
  CostCurve curve_;               // dense: devices that run exactly the rows they get
  std::vector<int32_t> buckets_;  // measured sizes, which group the running costs
  RuntimeCost runtime_;           // rows of the decode steps, drafting as its "sampler"
  DraftCost draft_cost_;
  RecentSurvivals recent_;
  bool paused_ = false;
  int32_t paused_steps_ = 0;  // since the last probe
  int32_t probe_after_ = kFirstProbe;
  SpeculationStats stats_;
  CalibrationCounts calibration_;
};

}  // namespace di::engine
