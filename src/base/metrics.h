// Counters, gauges and histograms for /metrics. Values are plain atomics: observing never locks, a scrape copies them
// (server.md §10). Series are made at start-up and live as long as the registry; references stay valid.
// Thread-safe, except that series are added before the first scrape or by one thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace di {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class Counter {
 public:
  void add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Gauge {
 public:
  void set(double v) { value_.store(v, std::memory_order_relaxed); }
  void add(double v) { value_.fetch_add(v, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Histogram {
 public:
  // Upper bounds, ascending; the bucket +Inf is added.
  explicit Histogram(std::vector<double> bounds);
  void observe(double v);
  const std::vector<double>& bounds() const { return bounds_; }
  // Not cumulative; one more than bounds().
  std::vector<uint64_t> counts() const;
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<uint64_t>> counts_;
  std::atomic<double> sum_{0};
};

// A histogram of one thread, copied as a whole: bounds as of Histogram, the sum beside the counts.
template <const auto& kBounds>
struct Buckets {
  std::array<uint64_t, kBounds.size() + 1> counts{};
  double sum = 0;
  void observe(double v) {
    const auto at = std::lower_bound(kBounds.begin(), kBounds.end(), v);
    ++counts[static_cast<std::size_t>(at - kBounds.begin())];
    sum += v;
  }
};

class MetricRegistry {
 public:
  MetricRegistry();
  ~MetricRegistry();
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  // The same name may be asked for again with other labels (one family); help and type are those of the first call.
  Counter& counter(std::string_view name, std::string_view help, MetricLabels labels = {});
  Gauge& gauge(std::string_view name, std::string_view help, MetricLabels labels = {});
  Histogram& histogram(std::string_view name, std::string_view help, std::vector<double> bounds,
                       MetricLabels labels = {});
  // Values read at scrape time, by text() and outside the registry's lock: `read` may lock and may use the registry.
  void gauge_from(std::string_view name, std::string_view help, MetricLabels labels, std::function<double()> read);
  void counter_from(std::string_view name, std::string_view help, MetricLabels labels, std::function<double()> read);

  // Prometheus text format 0.0.4.
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace di
