// What a decode step costs (speculative.md §4.4): a curve over the number of query rows, measured at start, and the
// correction that running steps bring. Times in ms. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace di::engine {

// Sizes of captured steps (engine.md §7): 1, 2, 4, … below the interval, then every `interval` up to `max`, and `max`.
std::vector<int32_t> step_sizes(int32_t max, int32_t interval);

struct CurvePoint {
  int32_t size = 0;  // query rows of the step
  double ms = 0;
};

// Points in strictly increasing size. A step of n rows costs what the smallest size >= n costs.
class CostCurve {
 public:
  CostCurve() = default;
  // Error (kInvalidRequest): sizes that do not increase or times that are not positive; names the point.
  static Result<CostCurve> create(std::vector<CurvePoint> points);

  bool empty() const { return points_.empty(); }
  int32_t max_size() const { return points_.empty() ? 0 : points_.back().size; }
  std::span<const CurvePoint> points() const { return points_; }
  // The point that a step of `rows` rows runs as; nullptr when the curve ends before.
  const CurvePoint* at(int32_t rows) const;
  // Straight lines between the points, one point for every size: for devices that run exactly the rows they get.
  CostCurve dense() const;
  // "1:2.10 2:2.30 …" in ms.
  std::string to_string() const;

 private:
  std::vector<CurvePoint> points_;
};

// Mean of the replays without the fastest and the slowest; at least three.
double trimmed_mean_ms(std::vector<double> replays_ms);

inline constexpr int32_t kCurveReplays = 5;

// Runs every size once to warm up and kCurveReplays times for the clock. `replay` runs one step of that many rows and
// returns its ms; the first error ends the measurement.
Result<CostCurve> measure_curve(std::span<const int32_t> sizes, const std::function<Result<double>(int32_t)>& replay);

// Steps that ran, against the curve.
class RuntimeCost {
 public:
  static constexpr size_t kWindowSteps = 5000;
  static constexpr size_t kMinSamplesPerSize = 10;
  static constexpr size_t kSamplerWindow = 9;
  static constexpr size_t kMinSamplerSamples = 5;

  // `size` groups steps for the medians: the captured size, or the bucket of a device without captured steps.
  void add(int32_t num_seqs, int32_t size, int32_t rows, double curve_ms, double forward_ms, double sampler_ms);
  // ms per row that a step takes beyond the curve, at least 0: median over sizes of the median over steps.
  double slope() const;
  // Time of sampling and drafting for `num_seqs` sequences; 0 while unknown.
  double sampler_ms(int32_t num_seqs) const;

 private:
  struct Sample {
    int32_t size = 0;
    double excess_per_row = 0;
  };
  std::deque<Sample> steps_;
  std::map<int32_t, std::deque<double>> by_size_;
  std::map<int32_t, std::deque<double>> sampler_by_seqs_;
  std::deque<double> sampler_;
  mutable double slope_ = 0;
  mutable bool slope_known_ = true;
};

// What a draft pass costs for every number of sequences, from those that ran; between and beyond them by straight
// lines.
class DraftCost {
 public:
  void add(int32_t num_seqs, double ms);
  // 0 without samples. Beyond the largest known number by the last two, else as that one: too little rather than too
  // much, as trying corrects it.
  double at(int32_t num_seqs) const;

 private:
  static constexpr size_t kWindow = 9;
  std::map<int32_t, std::deque<double>> by_seqs_;
};

}  // namespace di::engine
