// The figures behind the dashboard (server.md §14.2): once a second the text of /metrics is read back, the series that
// charts show are kept for 15 minutes, latencies become percentiles over the last 1, 5 and 15 minutes, and every
// subscriber gets the result as server-sent events:
//
//   event: history   {"interval_ms","names":[…],"t":[unix ms,…],"values":[[one per t] per name]}    once, at the start
//   event: frame     {"t","state":{…},"charted":{name:value},"latency":{…},"series":{name:value}}   every second
//
// `charted` and the history hold the same names; `series` holds every sample of /metrics but histogram buckets, as they
// stood at `t`. What /metrics does not have is not in the feed. One thread; all members are thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "server/http.h"

namespace di::server {

// A line of the Prometheus text format.
struct MetricSample {
  std::string name;
  std::vector<std::pair<std::string, std::string>> labels;  // unescaped
  double value = 0;

  // Empty when there is no such label.
  std::string_view label(std::string_view key) const;
};
// Comments and lines that are no samples are left out.
std::vector<MetricSample> parse_metrics_text(std::string_view text);

// Value below which the part `q` of the observations lies, linear within a bucket, as Prometheus' histogram_quantile;
// `counts` per bucket, the last one without an upper bound. Of none: 0.
double histogram_quantile(double q, const std::vector<double>& bounds, const std::vector<double>& counts);

class UiFeed {
 public:
  struct Source {
    std::function<std::string()> metrics;          // text of /metrics
    std::function<void(JsonWriter&)> write_state;  // members of "state"
    std::function<int64_t()> unix_ms;
  };
  static constexpr int64_t kKeptSeconds = 900;
  static constexpr std::size_t kMaxSubscribers = 64;

  UiFeed(const Clock& clock, Source source);
  ~UiFeed();
  UiFeed(const UiFeed&) = delete;
  UiFeed& operator=(const UiFeed&) = delete;

  // Begins to read; without it there are no frames.
  void start();
  // The source is not called any more after this.
  void stop();
  // Streams to it until it goes away. False, with nothing sent, when there are too many or close_streams() was called.
  bool subscribe(const ExchangeRef& exchange);
  // Ends the streams, for good: a server that drains waits for open answers.
  void close_streams();

 private:
  struct Point {
    int64_t unix_ms = 0;
    std::vector<double> values;                       // one per name of names_ as it was then; NaN: no such series
    std::vector<std::vector<double>> latency_counts;  // cumulative counts per bucket, one per latency family
  };
  struct Latency {
    std::vector<double> bounds;
    std::vector<double> counts;  // cumulative
  };

  void tick();
  void chart_locked(Point& point, const std::string& name, double value);
  std::string frame_locked(Point& point, const std::vector<MetricSample>& samples);
  void write_latency_locked(JsonWriter& w, Point& point, const std::vector<Latency>& now);
  std::string history_locked() const;

  const Clock& clock_;
  const Source source_;

  std::mutex mutex_;  // guards the members below
  std::vector<std::string> names_;
  std::map<std::string, std::size_t, std::less<>> index_;  // of names_
  std::deque<Point> points_;
  std::string last_frame_;
  std::vector<ExchangeRef> subscribers_;
  bool closed_ = false;

  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace di::server
