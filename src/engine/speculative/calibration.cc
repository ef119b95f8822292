#include "engine/speculative/calibration.h"

#include <algorithm>
#include <cmath>

namespace di::engine {
namespace {

constexpr double kSmallestTemperature = 1e-5;

size_t bin_of(double p, int32_t bins) {
  return static_cast<size_t>(std::clamp(static_cast<int32_t>(p * bins), 0, bins - 1));
}

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-std::clamp(x, -60.0, 60.0)));
}

double ece_of(std::span<const double> predicted, std::span<const double> observed, int32_t bins) {
  std::vector<double> difference(static_cast<size_t>(bins), 0.0);
  for (size_t i = 0; i < predicted.size(); ++i) difference[bin_of(predicted[i], bins)] += predicted[i] - observed[i];
  double sum = 0;
  for (const double d : difference) sum += std::abs(d);
  return predicted.empty() ? 0.0 : sum / static_cast<double>(predicted.size());
}

// Chance that a positive lies above a negative, in a histogram; both in one bin count half.
double auc_of(std::span<const double> predicted, std::span<const double> observed, int32_t bins) {
  std::vector<double> positive(static_cast<size_t>(bins), 0.0);
  std::vector<double> negative(static_cast<size_t>(bins), 0.0);
  for (size_t i = 0; i < predicted.size(); ++i) {
    const size_t b = bin_of(predicted[i], bins);
    positive[b] += observed[i];
    negative[b] += 1.0 - observed[i];
  }
  double below = 0;
  double pairs = 0;
  double positives = 0;
  for (size_t b = 0; b < positive.size(); ++b) {
    pairs += positive[b] * (below + 0.5 * negative[b]);
    below += negative[b];
    positives += positive[b];
  }
  return positives > 0 && below > 0 ? pairs / (positives * below) : 0.5;
}

}  // namespace

PrefixMetrics prefix_metrics(std::span<const double> predicted, std::span<const double> observed,
                             const CalibrationBins& bins) {
  PrefixMetrics out;
  const auto n = static_cast<double>(predicted.size());
  out.weight = n;
  if (predicted.empty()) return out;
  for (size_t i = 0; i < predicted.size(); ++i) {
    out.brier += (predicted[i] - observed[i]) * (predicted[i] - observed[i]) / n;
    out.predicted_mean += predicted[i] / n;
    out.observed_mean += observed[i] / n;
  }
  out.ece = ece_of(predicted, observed, bins.coarse);
  out.auc = auc_of(predicted, observed, bins.fine);
  return out;
}

std::vector<PrefixMetrics> calibration_metrics(std::span<const CalibrationRound> rounds,
                                               std::span<const double> temperatures, const CalibrationBins& bins) {
  std::vector<PrefixMetrics> out;
  std::vector<double> survival(rounds.size(), 1.0);
  for (size_t k = 0; k < temperatures.size(); ++k) {
    std::vector<double> predicted;
    std::vector<double> labels;
    for (size_t i = 0; i < rounds.size(); ++i) {
      if (k >= rounds[i].logits.size()) continue;
      survival[i] *= sigmoid(static_cast<double>(rounds[i].logits[k]) / temperatures[k]);
      predicted.push_back(survival[i]);
      labels.push_back(static_cast<double>(rounds[i].prefix_labels[k]));
    }
    out.push_back(prefix_metrics(predicted, labels, bins));
  }
  return out;
}

std::vector<double> temperature_grid() {
  std::vector<double> grid;
  for (int32_t i = 10; i <= 60; ++i) grid.push_back(i / 20.0);
  return grid;
}

std::vector<double> fit_temperatures(std::span<const CalibrationRound> rounds, std::span<const double> grid,
                                     const CalibrationBins& bins) {
  std::vector<double> out;
  if (rounds.empty()) return out;
  size_t positions = 0;
  for (const CalibrationRound& r : rounds) positions = std::max(positions, r.logits.size());
  std::vector<size_t> seen(rounds.size());  // rounds that reach position k
  for (size_t i = 0; i < seen.size(); ++i) seen[i] = i;
  std::vector<double> before(rounds.size(), 1.0);  // of these, survival of the positions before
  for (size_t k = 0; k < positions; ++k) {
    std::vector<double> labels;
    size_t kept = 0;
    for (size_t i = 0; i < seen.size(); ++i) {
      const CalibrationRound& r = rounds[seen[i]];
      if (k >= r.logits.size()) continue;
      labels.push_back(static_cast<double>(r.prefix_labels[k]));
      before[kept] = before[i];
      seen[kept++] = seen[i];
    }
    seen.resize(kept);
    before.resize(kept);
    std::vector<double> survival(kept);
    const auto scale = [&](double t) {
      for (size_t i = 0; i < kept; ++i) {
        survival[i] = before[i] * sigmoid(static_cast<double>(rounds[seen[i]].logits[k]) / t);
      }
    };
    double best_ece = 0;
    double best = 0;
    for (const double t : grid) {
      scale(t);
      const double ece = ece_of(survival, labels, bins.coarse);
      const double distance = std::abs(t - 1);
      const double best_distance = std::abs(best - 1);
      const bool tie = ece == best_ece && (distance < best_distance || (distance == best_distance && t < best));
      if (best == 0 || ece < best_ece || tie) {
        best_ece = ece;
        best = t;
      }
    }
    out.push_back(best);
    scale(best);
    before = survival;
  }
  return out;
}

Result<std::vector<float>> expand_temperatures(std::span<const double> values, int32_t positions) {
  if (values.size() != 1 && values.size() != static_cast<size_t>(positions)) {
    return fail(Errc::kInvalidRequest, "confidence temperatures: {} values, expected 1 or {}", values.size(),
                positions);
  }
  std::vector<float> out;
  for (int32_t k = 0; k < positions; ++k) {
    const double t = values[values.size() == 1 ? 0 : static_cast<size_t>(k)];
    if (!(t >= kSmallestTemperature) || !std::isfinite(t)) {
      return fail(Errc::kInvalidRequest, "confidence temperature {} is {}, expected at least {}", k, t,
                  kSmallestTemperature);
    }
    out.push_back(static_cast<float>(t));
  }
  return out;
}

void CalibrationCounts::add(int32_t position, double predicted, bool observed) {
  if (position < 0 || static_cast<size_t>(position) >= kMaxPositions) return;
  Bin& bin = bins[static_cast<size_t>(position)][bin_of(predicted, kBins)];
  ++bin.count;
  bin.predicted += predicted;
  bin.observed += observed ? 1.0 : 0.0;
}

double CalibrationCounts::ece(int32_t position) const {
  double difference = 0;
  double n = 0;
  for (const Bin& b : bins[static_cast<size_t>(position)]) {
    difference += std::abs(b.predicted - b.observed);
    n += static_cast<double>(b.count);
  }
  return n > 0 ? difference / n : 0.0;
}

double CalibrationCounts::ece() const {
  double difference = 0;
  double n = 0;
  for (const auto& position : bins) {
    for (const Bin& b : position) {
      difference += std::abs(b.predicted - b.observed);
      n += static_cast<double>(b.count);
    }
  }
  return n > 0 ? difference / n : 0.0;
}

uint64_t CalibrationCounts::count() const {
  uint64_t n = 0;
  for (const auto& position : bins) {
    for (const Bin& b : position) n += b.count;
  }
  return n;
}

}  // namespace di::engine
