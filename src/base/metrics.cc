#include "base/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <mutex>
#include <sstream>

#include "base/result.h"

namespace di {
namespace {

struct Series {
  MetricLabels labels;
  std::unique_ptr<Counter> counter;
  std::unique_ptr<Gauge> gauge;
  std::unique_ptr<Histogram> histogram;
  std::function<double()> read;
};

struct Family {
  std::string name;
  std::string help;
  prometheus::MetricType type = prometheus::MetricType::Counter;
  std::deque<Series> series;
};

void set_value(prometheus::ClientMetric& metric, prometheus::MetricType type, double value) {
  (type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
}

// Without the value of a series that is read by a function.
prometheus::ClientMetric to_client_metric(const Series& series, prometheus::MetricType type) {
  prometheus::ClientMetric out;
  for (const auto& [name, value] : series.labels) out.label.push_back({name, value});
  if (series.histogram) {
    const std::vector<uint64_t> counts = series.histogram->counts();
    uint64_t total = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      total += counts[i];
      const std::vector<double>& bounds = series.histogram->bounds();
      out.histogram.bucket.push_back({total, i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity()});
    }
    out.histogram.sample_count = total;
    out.histogram.sample_sum = series.histogram->sum();
    return out;
  }
  if (series.read) return out;
  set_value(out, type, series.counter ? static_cast<double>(series.counter->value()) : series.gauge->value());
  return out;
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {
  DI_CHECK(std::is_sorted(bounds_.begin(), bounds_.end()), "bucket bounds must ascend");
}

void Histogram::observe(double v) {
  const auto bucket = static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), v) - bounds_.begin());
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(v, std::memory_order_relaxed);
}

std::vector<uint64_t> Histogram::counts() const {
  std::vector<uint64_t> out;
  out.reserve(counts_.size());
  for (const std::atomic<uint64_t>& c : counts_) out.push_back(c.load(std::memory_order_relaxed));
  return out;
}

struct MetricRegistry::State {
  mutable std::mutex mutex;  // guards the structure of families, not the values
  std::deque<Family> families;

  Series& add(std::string_view name, std::string_view help, prometheus::MetricType type, MetricLabels labels) {
    auto it = std::find_if(families.begin(), families.end(), [&](const Family& f) { return f.name == name; });
    if (it == families.end())
      it = families.insert(families.end(), Family{std::string(name), std::string(help), type, {}});
    DI_CHECK(it->type == type, "metric {} was made with another type", name);
    for (Series& series : it->series) {
      if (series.labels == labels) return series;
    }
    it->series.push_back({});
    it->series.back().labels = std::move(labels);
    return it->series.back();
  }
};

MetricRegistry::MetricRegistry() : state_(std::make_unique<State>()) {}
MetricRegistry::~MetricRegistry() = default;

Counter& MetricRegistry::counter(std::string_view name, std::string_view help, MetricLabels labels) {
  const std::lock_guard lock(state_->mutex);
  Series& series = state_->add(name, help, prometheus::MetricType::Counter, std::move(labels));
  if (!series.counter) series.counter = std::make_unique<Counter>();
  return *series.counter;
}

Gauge& MetricRegistry::gauge(std::string_view name, std::string_view help, MetricLabels labels) {
  const std::lock_guard lock(state_->mutex);
  Series& series = state_->add(name, help, prometheus::MetricType::Gauge, std::move(labels));
  if (!series.gauge) series.gauge = std::make_unique<Gauge>();
  return *series.gauge;
}

Histogram& MetricRegistry::histogram(std::string_view name, std::string_view help, std::vector<double> bounds,
                                     MetricLabels labels) {
  const std::lock_guard lock(state_->mutex);
  Series& series = state_->add(name, help, prometheus::MetricType::Histogram, std::move(labels));
  if (!series.histogram) series.histogram = std::make_unique<Histogram>(std::move(bounds));
  return *series.histogram;
}

void MetricRegistry::gauge_from(std::string_view name, std::string_view help, MetricLabels labels,
                                std::function<double()> read) {
  const std::lock_guard lock(state_->mutex);
  state_->add(name, help, prometheus::MetricType::Gauge, std::move(labels)).read = std::move(read);
}

void MetricRegistry::counter_from(std::string_view name, std::string_view help, MetricLabels labels,
                                  std::function<double()> read) {
  const std::lock_guard lock(state_->mutex);
  state_->add(name, help, prometheus::MetricType::Counter, std::move(labels)).read = std::move(read);
}

std::string MetricRegistry::text() const {
  // Functions that read a value take locks of their own, under which others ask for series: they are called outside
  // ours.
  struct Reader {
    size_t family;
    size_t metric;
    std::function<double()> read;
  };
  std::vector<Reader> readers;
  std::vector<prometheus::MetricFamily> out;
  {
    const std::lock_guard lock(state_->mutex);
    for (const Family& family : state_->families) {
      prometheus::MetricFamily copy{family.name, family.help, family.type, {}};
      for (const Series& series : family.series) {
        if (series.read) readers.push_back({out.size(), copy.metric.size(), series.read});
        copy.metric.push_back(to_client_metric(series, family.type));
      }
      out.push_back(std::move(copy));
    }
  }
  for (const Reader& r : readers) set_value(out[r.family].metric[r.metric], out[r.family].type, r.read());
  std::ostringstream stream;
  prometheus::TextSerializer().Serialize(stream, out);
  return stream.str();
}

}  // namespace di
