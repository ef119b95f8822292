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

struct SpeculationOptions {
  SpeculationMode mode = SpeculationMode::kVariable;
  int32_t length = 0;  // kFixed: drafts verified per step; kVariable: at most so many. 0: all that the runner offers
  CostCurve curve;     // of decode steps; empty: measured at start (kVariable)
  // Drafting stops while it does not pay (kVariable only).
  bool pause_under_load = true;
  std::function<void(const DraftRound&)> on_round;  // called by the engine's thread
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
  // A step without prompt rows is done; `emitted`: tokens it gave.
  struct Step {
    int32_t num_seqs = 0;
    int32_t rows = 0;
    int64_t emitted = 0;
    double forward_ms = 0;
    double sample_ms = 0;
    double draft_ms = 0;
    bool proposed = false;
  };
  void step_done(const Step& step);

  SpeculationStats stats() const;

 private:
  static constexpr int32_t kProbeSteps = 128;  // while paused, one step in so many drafts anyway
  double gain(int32_t num_seqs) const;
  double draft_ms(int32_t num_seqs) const;

  SpeculationMode mode_;
  int32_t drafts_;
  bool pause_under_load_;
  std::function<void(const DraftRound&)> on_round_;
  CostCurve curve_;               // dense: devices that run exactly the rows they get
  std::vector<int32_t> buckets_;  // measured sizes, which group the running costs
  RuntimeCost runtime_;           // rows of the decode steps, drafting as its "sampler"
  std::array<double, kMaxDrafts> mean_survival_{};
  uint64_t survivals_seen_ = 0;
  bool paused_ = false;
  int32_t paused_steps_ = 0;
  SpeculationStats stats_;
  CalibrationCounts calibration_;
};

}  // namespace di::engine
