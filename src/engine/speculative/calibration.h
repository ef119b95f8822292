// Calibration of the draft module's confidences (speculative.md §5): how far predicted from observed acceptance lies,
// and sequential temperature scaling, which brings them together. Pure functions; also the running counts a server
// keeps.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace di::engine {

// One draft round: the confidence head's arguments before the temperature, and how many drafts of it were accepted.
// All positions that were verified count, so rounds should verify every draft.
struct CalibrationRound {
  std::vector<float> logits;  // [positions]; fewer where the text ended within the round
  std::vector<float>
      prefix_labels;  // [positions], 1 where this and all drafts before were accepted; may be a probability
};

struct PrefixMetrics {
  double weight = 0;  // rounds
  double ece = 0;     // expected calibration error: Σ over bins of |Σ predicted - Σ observed| / rounds
  double auc = 0.5;   // from a histogram of `fine_bins`, ties half
  double brier = 0;   // mean square
  double predicted_mean = 0;
  double observed_mean = 0;
};

struct CalibrationBins {
  int32_t coarse = 10;
  int32_t fine = 200;
};

// Of predictions in [0, 1] against labels in [0, 1], equally long.
PrefixMetrics prefix_metrics(std::span<const double> predicted, std::span<const double> observed,
                             const CalibrationBins& bins = {});

// Survivals Π sigmoid(logit/T) per position, against the prefix labels. temperatures: one per position.
std::vector<PrefixMetrics> calibration_metrics(std::span<const CalibrationRound> rounds,
                                               std::span<const double> temperatures, const CalibrationBins& bins = {});

// .5, .55, … 3.0
std::vector<double> temperature_grid();

// Position by position the temperature of the grid with the smallest ECE of the survival, those before it being fixed;
// ties: smaller |T-1|, then smaller T.
std::vector<double> fit_temperatures(std::span<const CalibrationRound> rounds, std::span<const double> grid,
                                     const CalibrationBins& bins = {});

// `--spec-temperature` and the file's list: one number for all positions or one for each. Error: another number of
// values or one below 1e-5; names what was found.
Result<std::vector<float>> expand_temperatures(std::span<const double> values, int32_t positions);

// Predicted survivals against outcomes while serving: fixed memory, per position.
class CalibrationCounts {
 public:
  static constexpr int32_t kBins = 10;
  static constexpr size_t kMaxPositions = 16;

  struct Bin {
    uint64_t count = 0;
    double predicted = 0;
    double observed = 0;
  };
  void add(int32_t position, double predicted, bool observed);
  // Over all positions: Σ |Σ predicted - Σ observed| / count. 0 without samples.
  double ece() const;
  double ece(int32_t position) const;
  uint64_t count() const;

  std::array<std::array<Bin, kBins>, kMaxPositions> bins{};
};

}  // namespace di::engine
