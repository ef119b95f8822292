#include "engine/speculative/cost_curve.h"

#include <algorithm>
#include <iterator>

namespace di::engine {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

double median(const std::deque<double>& values) {
  return median(std::vector<double>(values.begin(), values.end()));
}

}  // namespace

std::vector<int32_t> step_sizes(int32_t max, int32_t interval) {
  std::vector<int32_t> sizes;
  for (int32_t s = 1; s < interval && s <= max; s *= 2) sizes.push_back(s);
  for (int32_t s = interval; s <= max; s += interval) sizes.push_back(s);
  if (max > 0 && (sizes.empty() || sizes.back() < max)) sizes.push_back(max);
  return sizes;
}

Result<CostCurve> CostCurve::create(std::vector<CurvePoint> points) {
  for (size_t i = 0; i < points.size(); ++i) {
    const int32_t before = i == 0 ? 0 : points[i - 1].size;
    if (points[i].size <= before) {
      return fail(Errc::kInvalidRequest, "cost curve: point {} has size {}, expected more than {}", i, points[i].size,
                  before);
    }
    if (!(points[i].ms > 0)) {
      return fail(Errc::kInvalidRequest, "cost curve: size {} takes {} ms, expected more than 0", points[i].size,
                  points[i].ms);
    }
  }
  CostCurve curve;
  curve.points_ = std::move(points);
  return curve;
}

const CurvePoint* CostCurve::at(int32_t rows) const {
  const auto it =
      std::lower_bound(points_.begin(), points_.end(), rows, [](const CurvePoint& p, int32_t n) { return p.size < n; });
  return it == points_.end() ? nullptr : &*it;
}

CostCurve CostCurve::dense() const {
  CostCurve out;
  for (size_t i = 0; i < points_.size(); ++i) {
    const CurvePoint& b = points_[i];
    const CurvePoint a = i == 0 ? CurvePoint{b.size - 1, b.ms} : points_[i - 1];
    for (int32_t size = a.size + 1; size <= b.size; ++size) {
      const double share = static_cast<double>(size - a.size) / static_cast<double>(b.size - a.size);
      out.points_.push_back({size, a.ms + (b.ms - a.ms) * share});
    }
  }
  return out;
}

std::string CostCurve::to_string() const {
  std::string out;
  for (const CurvePoint& p : points_) {
    fmt::format_to(std::back_inserter(out), "{}{}:{:.2f}", out.empty() ? "" : " ", p.size, p.ms);
  }
  return out;
}

double trimmed_mean_ms(std::vector<double> replays_ms) {
  DI_CHECK(replays_ms.size() >= 3, "{} replays, expected at least 3", replays_ms.size());
  std::sort(replays_ms.begin(), replays_ms.end());
  double sum = 0;
  for (size_t i = 1; i + 1 < replays_ms.size(); ++i) sum += replays_ms[i];
  return sum / static_cast<double>(replays_ms.size() - 2);
}

Result<CostCurve> measure_curve(std::span<const int32_t> sizes, const std::function<Result<double>(int32_t)>& replay) {
  std::vector<CurvePoint> points;
  for (const int32_t size : sizes) {
    static_cast<void>(DI_TRY(replay(size)));  // warms up
    std::vector<double> times;
    for (int32_t i = 0; i < kCurveReplays; ++i) times.push_back(DI_TRY(replay(size)));
    points.push_back({size, trimmed_mean_ms(std::move(times))});
  }
  return CostCurve::create(std::move(points));
}

void RuntimeCost::add(int32_t num_seqs, int32_t size, int32_t rows, double curve_ms, double forward_ms,
                      double sampler_ms) {
  const auto keep = [](std::deque<double>& values, double value) {
    values.push_back(value);
    if (values.size() > kSamplerWindow) values.pop_front();
  };
  keep(sampler_by_seqs_[num_seqs], sampler_ms);
  keep(sampler_, sampler_ms);
  if (rows <= 0) return;
  const double excess = (forward_ms - curve_ms) / rows;
  steps_.push_back({size, excess});
  by_size_[size].push_back(excess);
  if (steps_.size() > kWindowSteps) {
    const auto oldest = by_size_.find(steps_.front().size);
    oldest->second.pop_front();
    if (oldest->second.empty()) by_size_.erase(oldest);
    steps_.pop_front();
  }
  slope_known_ = false;
}

double RuntimeCost::slope() const {
  if (slope_known_) return slope_;
  std::vector<double> medians;
  for (const auto& [size, samples] : by_size_) {
    if (samples.size() >= kMinSamplesPerSize) medians.push_back(median(samples));
  }
  slope_ = medians.empty() ? 0.0 : std::max(0.0, median(std::move(medians)));
  slope_known_ = true;
  return slope_;
}

double RuntimeCost::sampler_ms(int32_t num_seqs) const {
  const auto it = sampler_by_seqs_.find(num_seqs);
  if (it != sampler_by_seqs_.end() && it->second.size() >= kMinSamplerSamples) return median(it->second);
  return sampler_.size() >= kMinSamplerSamples ? median(sampler_) : 0.0;
}

void DraftCost::add(int32_t num_seqs, double ms) {
  std::deque<double>& values = by_seqs_[num_seqs];
  values.push_back(ms);
  if (values.size() > kWindow) values.pop_front();
}

double DraftCost::at(int32_t num_seqs) const {
  if (by_seqs_.empty()) return 0;
  auto above = by_seqs_.lower_bound(num_seqs);
  if (above == by_seqs_.begin()) return median(above->second) * std::min(1.0, 1.0 * num_seqs / above->first);
  if (above == by_seqs_.end()) {
    if (by_seqs_.size() == 1) return median(by_seqs_.begin()->second);
    --above;
  }
  const auto below = std::prev(above);
  const double low = median(below->second);
  const double share = static_cast<double>(num_seqs - below->first) / (above->first - below->first);
  return std::max(low, low + share * (median(above->second) - low));
}

}  // namespace di::engine
