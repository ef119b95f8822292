#include "server/ui_feed.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace di::server {
namespace {

constexpr std::size_t kMaxCharted = 192;
constexpr std::string_view kKeepAlive = ": keep-alive\n\n";

enum class Merge : uint8_t { kSum, kMax };

// A family whose values the charts show over time: series are merged over every label but those named.
struct Charted {
  std::string_view family;
  std::array<std::string_view, 2> labels;
  Merge merge = Merge::kSum;
};
constexpr Charted kCharted[] = {
    {"deepinfer:http_requests_total", {"code", ""}},
    {"deepinfer:errors_total", {"", ""}},
    {"deepinfer:requests_aborted_total", {"", ""}},
    {"deepinfer:http_connections", {"", ""}},
    {"deepinfer:engine_prompt_tokens_total", {"engine", ""}},
    {"vllm:generation_tokens_total", {"engine", ""}},
    {"vllm:prompt_tokens_total", {"", ""}},
    {"vllm:prompt_tokens_cached_total", {"", ""}},
    {"vllm:num_requests_running", {"", ""}},
    {"vllm:num_requests_waiting", {"", ""}},
    {"vllm:kv_cache_usage_perc", {"", ""}, Merge::kMax},
    {"vllm:num_preemptions_total", {"", ""}},
    {"vllm:spec_decode_num_drafts_total", {"", ""}},
    {"vllm:spec_decode_num_draft_tokens_total", {"", ""}},
    {"vllm:spec_decode_num_accepted_tokens_total", {"", ""}},
    {"deepinfer:step_seconds_sum", {"phase", ""}},
    {"deepinfer:kv_bytes", {"tier", "state"}},
    {"deepinfer:kv_hits_tokens_total", {"tier", ""}},
    {"deepinfer:swa_requests_total", {"result", ""}},
    {"deepinfer:pd_transfer_bytes_total", {"", ""}},
    {"deepinfer:pool_replicas", {"role", "state"}},
    {"process_resident_memory_bytes", {"", ""}},
    {"process_cpu_seconds_total", {"", ""}},
    {"process_open_fds", {"", ""}},
};

struct LatencyFamily {
  std::string_view key;
  std::string_view family;
};
constexpr LatencyFamily kLatencies[] = {
    {"ttft", "vllm:time_to_first_token_seconds"},
    {"itl", "vllm:inter_token_latency_seconds"},
    {"tpot", "vllm:request_time_per_output_token_seconds"},
    {"e2e", "vllm:e2e_request_latency_seconds"},
};
constexpr std::pair<std::string_view, double> kQuantiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}};
constexpr std::size_t kWindows[] = {60, 300, 900};  // seconds

double number_of(std::string_view text) {
  if (text == "+Inf" || text == "Inf") return std::numeric_limits<double>::infinity();
  if (text == "-Inf") return -std::numeric_limits<double>::infinity();
  return std::strtod(std::string(text).c_str(), nullptr);
}

// `{a="x",b="y"}` at the front of the text, which is moved behind it. False when it is not well formed.
bool read_labels(std::string_view& text, std::vector<std::pair<std::string, std::string>>& labels) {
  text.remove_prefix(1);
  while (!text.empty() && text.front() != '}') {
    const std::size_t equals = text.find("=\"");
    if (equals == std::string_view::npos) return false;
    std::string key(text.substr(0, equals));
    text.remove_prefix(equals + 2);
    std::string value;
    while (!text.empty() && text.front() != '"') {
      const bool escaped = text.front() == '\\' && text.size() > 1;
      if (escaped) text.remove_prefix(1);
      value.push_back(escaped && text.front() == 'n' ? '\n' : text.front());
      text.remove_prefix(1);
    }
    if (text.empty()) return false;
    text.remove_prefix(1);
    if (!text.empty() && text.front() == ',') text.remove_prefix(1);
    labels.emplace_back(std::move(key), std::move(value));
  }
  if (text.empty()) return false;
  text.remove_prefix(1);
  return true;
}

// Name with its labels, as in the text format; `model_name` is the same everywhere and left out.
std::string series_name(const MetricSample& sample) {
  std::string out = sample.name;
  char open = '{';
  for (const auto& [key, value] : sample.labels) {
    if (key == "model_name") continue;
    out += open + key + "=\"" + value + "\"";
    open = ',';
  }
  if (open == ',') out += '}';
  return out;
}

std::string charted_name(const Charted& charted, const MetricSample& sample) {
  MetricSample kept{sample.name, {}, 0};
  for (const std::string_view label : charted.labels) {
    if (!label.empty()) kept.labels.emplace_back(label, sample.label(label));
  }
  return series_name(kept);
}

// Buckets of the same bound (of several engines) are added up.
void add_bucket(std::vector<double>& bounds, std::vector<double>& counts, double bound, double count) {
  const auto at = std::find(bounds.begin(), bounds.end(), bound);
  if (at == bounds.end()) {
    bounds.push_back(bound);
    counts.push_back(count);
  } else {
    counts[static_cast<std::size_t>(at - bounds.begin())] += count;
  }
}

std::string event(std::string_view name, std::string_view data) {
  std::string out = "event: ";
  ((out += name) += "\ndata: ") += data;
  out += "\n\n";
  return out;
}

}  // namespace

std::string_view MetricSample::label(std::string_view key) const {
  for (const auto& [other, text] : labels) {
    if (other == key) return text;
  }
  return {};
}

std::vector<MetricSample> parse_metrics_text(std::string_view text) {
  std::vector<MetricSample> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    MetricSample sample;
    const std::size_t name_end = line.find_first_of("{ ");
    if (name_end == std::string_view::npos) continue;
    sample.name = line.substr(0, name_end);
    line.remove_prefix(name_end);
    if (line.front() == '{' && !read_labels(line, sample.labels)) continue;
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    if (line.empty()) continue;
    sample.value = number_of(line.substr(0, line.find(' ')));
    out.push_back(std::move(sample));
  }
  return out;
}

double histogram_quantile(double q, const std::vector<double>& bounds, const std::vector<double>& counts) {
  double total = 0;
  for (const double n : counts) total += n;
  if (total <= 0 || bounds.empty()) return 0;
  const double rank = q * total;
  double below = 0;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    if (below + counts[i] >= rank && counts[i] > 0) {
      const double low = i == 0 ? 0 : bounds[i - 1];
      return low + (bounds[i] - low) * (rank - below) / counts[i];
    }
    below += counts[i];
  }
  return bounds.back();
}

UiFeed::UiFeed(const Clock& clock, Source source) : clock_(clock), source_(std::move(source)) {}

UiFeed::~UiFeed() {
  stop();
}

void UiFeed::start() {
  thread_ = std::jthread([this](const std::stop_token& stop) {
    int64_t next = clock_.now_ns();
    do {
      tick();
      next += kNsPerSecond;
      if (const int64_t now = clock_.now_ns(); next < now) next = now;  // late ones are not made up for
    } while (clock_.sleep_until(next, stop));
  });
}

void UiFeed::stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

bool UiFeed::subscribe(const ExchangeRef& exchange) {
  const std::lock_guard lock(mutex_);
  if (closed_ || subscribers_.size() >= kMaxSubscribers) return false;
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {{"Cache-Control", "no-cache, no-transform"}, {"X-Accel-Buffering", "no"}};
  exchange->begin_stream(std::move(head), std::string(kKeepAlive));
  exchange->write(event("history", history_locked()));
  if (!last_frame_.empty()) exchange->write(last_frame_);
  subscribers_.push_back(exchange);
  return true;
}

void UiFeed::close_streams() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const ExchangeRef& subscriber : subscribers_) subscriber->end_stream();
  subscribers_.clear();
}

void UiFeed::tick() {
  const std::vector<MetricSample> samples = parse_metrics_text(source_.metrics());
  const std::lock_guard lock(mutex_);
  Point point;
  point.unix_ms = source_.unix_ms();
  last_frame_ = event("frame", frame_locked(point, samples));
  points_.push_back(std::move(point));
  if (points_.size() > kKeptSeconds + 1) points_.pop_front();
  std::erase_if(subscribers_, [&](const ExchangeRef& subscriber) {
    if (subscriber->write(last_frame_)) return false;
    subscriber->end_stream();
    return true;
  });
}

void UiFeed::chart_locked(Point& point, const std::string& name, double value) {
  auto at = index_.find(name);
  if (at == index_.end()) {
    if (names_.size() >= kMaxCharted) return;
    at = index_.emplace(name, names_.size()).first;
    names_.push_back(name);
  }
  if (point.values.size() < names_.size()) point.values.resize(names_.size(), std::nan(""));
  point.values[at->second] = value;
}

std::string UiFeed::frame_locked(Point& point, const std::vector<MetricSample>& samples) {
  std::map<std::string, double> charted;
  std::vector<Latency> latencies(std::size(kLatencies));
  std::string series;
  JsonWriter others(series);
  others.begin_object();
  for (const MetricSample& sample : samples) {
    for (const Charted& family : kCharted) {
      if (sample.name != family.family) continue;
      const auto [at, added] = charted.emplace(charted_name(family, sample), sample.value);
      if (!added)
        at->second = family.merge == Merge::kSum ? at->second + sample.value : std::max(at->second, sample.value);
    }
    constexpr std::string_view kBucket = "_bucket";
    if (!sample.name.ends_with(kBucket)) {
      others.key(series_name(sample)).value(sample.value);
      continue;
    }
    const std::string_view family = std::string_view(sample.name).substr(0, sample.name.size() - kBucket.size());
    for (std::size_t i = 0; i < std::size(kLatencies); ++i) {
      if (family != kLatencies[i].family) continue;
      add_bucket(latencies[i].bounds, latencies[i].counts, number_of(sample.label("le")), sample.value);
    }
    // Small histograms that are shown as such.
    if (family.starts_with("deepinfer:spec_")) others.key(series_name(sample)).value(sample.value);
  }
  others.end_object();

  std::string out;
  JsonWriter w(out);
  w.begin_object().key("t").value(point.unix_ms).key("state").begin_object();
  source_.write_state(w);
  w.end_object();
  w.key("latency").begin_object();
  write_latency_locked(w, point, latencies);
  w.end_object();
  for (const auto& [name, value] : charted) chart_locked(point, name, value);
  w.key("charted").begin_object();
  for (std::size_t i = 0; i < point.values.size(); ++i) {
    if (!std::isnan(point.values[i])) w.key(names_[i]).value(point.values[i]);
  }
  w.end_object().key("series").raw(series).end_object();
  return out;
}

// {"ttft":{"60":{"count","p50","p90","p99"},"300":…,"900":…},…}; the percentiles of the last minute are charted too.
void UiFeed::write_latency_locked(JsonWriter& w, Point& point, const std::vector<Latency>& now) {
  for (std::size_t i = 0; i < now.size(); ++i) {
    point.latency_counts.push_back(now[i].counts);
    if (now[i].counts.empty()) continue;
    w.key(kLatencies[i].key).begin_object();
    for (const std::size_t window : kWindows) {
      std::vector<double> counts = now[i].counts;
      if (!points_.empty()) {
        const std::size_t back = std::min(window, points_.size());
        const std::vector<double>& then = points_[points_.size() - back].latency_counts[i];
        for (std::size_t b = 0; b < then.size() && b < counts.size(); ++b) counts[b] -= then[b];
      }
      const double total = counts.back();
      for (std::size_t b = counts.size() - 1; b > 0; --b) counts[b] -= counts[b - 1];
      std::vector<double> bounds = now[i].bounds;
      bounds.pop_back();  // +Inf
      w.key(std::to_string(window)).begin_object().key("count").value(total);
      for (const auto& [name, q] : kQuantiles) {
        const double value = histogram_quantile(q, bounds, counts);
        w.key(name);
        if (total > 0) {
          w.value(value);
        } else {
          w.null();
        }
        if (window == kWindows[0] && total > 0)
          chart_locked(point, std::string(kLatencies[i].key) + "_" + std::string(name), value);
      }
      w.end_object();
    }
    w.end_object();
  }
}

std::string UiFeed::history_locked() const {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("interval_ms").value(1000).key("names").begin_array();
  for (const std::string& name : names_) w.value(name);
  w.end_array().key("t").begin_array();
  for (const Point& point : points_) w.value(point.unix_ms);
  w.end_array().key("values").begin_array();
  for (std::size_t i = 0; i < names_.size(); ++i) {
    w.begin_array();
    for (const Point& point : points_) {
      if (i < point.values.size() && !std::isnan(point.values[i])) {
        w.value(point.values[i]);
      } else {
        w.null();
      }
    }
    w.end_array();
  }
  w.end_array().end_object();
  return out;
}

}  // namespace di::server
