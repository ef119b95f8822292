#include "cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <numeric>

#include "base/json.h"
#include "server/ui_feed.h"

namespace di::cli {
namespace {

double ms(int64_t ns) {
  return static_cast<double>(ns) * 1e-6;
}
double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

double deviation_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double v : values) sum += (v - mean) * (v - mean);
  return values.empty() ? 0 : std::sqrt(sum / static_cast<double>(values.size()));
}

bool is_shown(const BenchServeOptions& o, const std::string& key) {
  return ("," + o.percentile_metrics + ",").find("," + key + ",") != std::string::npos;
}

// Goodput in requests per second: those that met every objective.
std::optional<double> goodput(const BenchServeOptions& o, const LoadReport& report, double duration_s) {
  if (o.goodput.empty()) return std::nullopt;
  std::map<std::string, double> limits;
  for (const std::string& item : o.goodput) {
    const std::size_t colon = item.find(':');
    if (colon != std::string::npos) limits[item.substr(0, colon)] = std::strtod(item.c_str() + colon + 1, nullptr);
  }
  std::size_t good = 0;
  for (const LoadResult& r : report.results) {
    if (!r.ok || r.aborted) continue;
    const double ttft = ms(r.first_ns - r.sent_ns);
    const double e2el = ms(r.end_ns - r.sent_ns);
    const double tpot = r.output_tokens > 1 ? (e2el - ttft) / static_cast<double>(r.output_tokens - 1) : 0;
    const auto meets = [&](const char* key, double value) { return !limits.contains(key) || value <= limits[key]; };
    if (meets("ttft", ttft) && meets("tpot", tpot) && meets("e2el", e2el)) ++good;
  }
  return static_cast<double>(good) / duration_s;
}

void line(const std::string& label, double value) {
  std::printf("%-40s %-10.2f\n", label.c_str(), value);
}
void line(const std::string& label, std::size_t value) {
  std::printf("%-40s %-10zu\n", label.c_str(), value);
}
void banner(const std::string& text, char fill) {
  const std::size_t width = 50;
  const std::size_t space = width - std::min(width, text.size() + 2);
  std::printf("%s %s %s\n", std::string(space / 2, fill).c_str(), text.c_str(),
              std::string(space - space / 2, fill).c_str());
}

// Latencies of /livez, milliseconds, ascending.
std::vector<double> probe_ms(const LoadReport& report) {
  std::vector<double> out;
  for (const int64_t ns : report.probe_ns) out.push_back(ms(ns));
  std::sort(out.begin(), out.end());
  return out;
}

void print_latencies(const BenchRun& run) {
  for (const BenchMetric& metric : run.summary.metrics) {
    if (!is_shown(run.options, metric.key)) continue;
    banner(metric.name, '-');
    line(fmt::format("Mean {} (ms):", metric.unit), mean_of(metric.values));
    line(fmt::format("Median {} (ms):", metric.unit), percentile(metric.values, 50));
    for (const double p : run.options.percentiles)
      line(fmt::format("P{} {} (ms):", p, metric.unit), percentile(metric.values, p));
  }
}

void print_speculation(const ServerFigures& s) {
  if (s.drafts <= 0) return;
  banner("Speculative Decoding", '-');
  line("Acceptance rate (%):", s.draft_tokens > 0 ? 100 * s.accepted_tokens / s.draft_tokens : 0.0);
  line("Acceptance length:", *s.accept_length());
  line("Drafts:", static_cast<std::size_t>(s.drafts));
  line("Draft tokens:", static_cast<std::size_t>(s.draft_tokens));
  line("Accepted tokens:", static_cast<std::size_t>(s.accepted_tokens));
  std::printf("Per-position acceptance (%%):\n");
  for (std::size_t i = 0; i < s.accepted_at.size(); ++i)
    line(fmt::format("  Position {}:", i), 100 * s.accepted_at[i] / s.drafts);
}

void write_details(JsonWriter& w, const LoadReport& report) {
  const auto list = [&](const char* key, auto value) {
    w.key(key).begin_array();
    for (const LoadResult& r : report.results) w.value(value(r));
    w.end_array();
  };
  list("input_lens", [](const LoadResult& r) { return r.prompt_tokens; });
  list("output_lens", [](const LoadResult& r) { return r.output_tokens; });
  list("ttfts", [](const LoadResult& r) { return seconds(r.first_ns - r.sent_ns); });
  list("latencies", [](const LoadResult& r) { return seconds(r.end_ns - r.sent_ns); });
  list("start_times", [](const LoadResult& r) { return seconds(r.sent_ns); });
  list("queue_times", [](const LoadResult& r) { return seconds(r.sent_ns - r.due_ns); });
  list("generated_texts", [](const LoadResult& r) { return r.text; });
  list("errors", [](const LoadResult& r) { return r.error; });
  w.key("itls").begin_array();
  for (const LoadResult& r : report.results) {
    w.begin_array();
    for (std::size_t i = 1; i < r.chunk_ns.size(); ++i) w.value(seconds(r.chunk_ns[i] - r.chunk_ns[i - 1]));
    w.end_array();
  }
  w.end_array();
}

void write_server(JsonWriter& w, const ServerFigures& s) {
  w.key("server").begin_object().key("version").value(s.version).key("config_hash");
  s.config_hash.empty() ? w.null() : w.value(s.config_hash);
  w.key("cpu_seconds").value(s.cpu_s).key("hit_tokens").begin_object();
  for (const auto& [source, tokens] : s.hit_tokens) w.key(source).value(tokens);
  w.end_object().key("accept_length").value(s.accept_length()).end_object();
}

}  // namespace

double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const double rank = p / 100 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(rank);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (rank - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

double mean_of(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double lag_p99_ms(const LoadReport& report) {
  return ms(report.p99_lag_ns);
}

ServerFigures ServerFigures::of(const std::string& metrics) {
  ServerFigures out;
  for (const server::MetricSample& sample : server::parse_metrics_text(metrics)) {
    const std::string& name = sample.name;
    if (name == "process_cpu_seconds_total") out.cpu_s += sample.value;
    if (name == "vllm:prompt_tokens_cached_by_source_total")
      out.hit_tokens[std::string(sample.label("source"))] += sample.value;
    if (name == "vllm:spec_decode_num_drafts_total") out.drafts += sample.value;
    if (name == "vllm:spec_decode_num_draft_tokens_total") out.draft_tokens += sample.value;
    if (name == "vllm:spec_decode_num_accepted_tokens_total") out.accepted_tokens += sample.value;
    if (name != "vllm:spec_decode_num_accepted_tokens_per_pos_total") continue;
    const auto at = std::strtoul(std::string(sample.label("position")).c_str(), nullptr, 10);
    if (at >= 64) continue;
    if (out.accepted_at.size() <= at) out.accepted_at.resize(at + 1);
    out.accepted_at[at] += sample.value;
  }
  return out;
}

ServerFigures ServerFigures::since(const ServerFigures& before) const {
  ServerFigures out = *this;
  out.cpu_s -= before.cpu_s;
  for (const auto& [source, tokens] : before.hit_tokens) out.hit_tokens[source] -= tokens;
  out.drafts -= before.drafts;
  out.draft_tokens -= before.draft_tokens;
  out.accepted_tokens -= before.accepted_tokens;
  for (std::size_t i = 0; i < std::min(out.accepted_at.size(), before.accepted_at.size()); ++i)
    out.accepted_at[i] -= before.accepted_at[i];
  return out;
}

std::optional<double> ServerFigures::accept_length() const {
  if (drafts <= 0) return std::nullopt;
  return 1 + accepted_tokens / drafts;
}

BenchSummary summarize(const LoadReport& report) {
  BenchSummary out;
  out.duration_s = seconds(report.duration_ns);
  out.metrics = {{"ttft", "Time to First Token", "TTFT", {}},
                 {"tpot", "Time per Output Token (excl. 1st token)", "TPOT", {}},
                 {"itl", "Inter-token Latency", "ITL", {}},
                 {"e2el", "End-to-end Latency", "E2EL", {}}};
  std::vector<double> per_second(static_cast<std::size_t>(out.duration_s) + 1);
  for (const LoadResult& r : report.results) {
    if (r.aborted) {
      ++out.aborted;
      continue;
    }
    if (!r.ok) {
      ++out.failed;
      continue;
    }
    ++out.completed;
    out.input_tokens += r.prompt_tokens;
    out.output_tokens += r.output_tokens;
    out.metrics[0].values.push_back(ms(r.first_ns - r.sent_ns));
    if (r.output_tokens > 1)
      out.metrics[1].values.push_back(ms(r.end_ns - r.first_ns) / static_cast<double>(r.output_tokens - 1));
    for (std::size_t i = 1; i < r.chunk_ns.size(); ++i)
      out.metrics[2].values.push_back(ms(r.chunk_ns[i] - r.chunk_ns[i - 1]));
    out.metrics[3].values.push_back(ms(r.end_ns - r.sent_ns));
    for (const int64_t at : r.chunk_ns)
      per_second[std::min(per_second.size() - 1, static_cast<std::size_t>(at / 1'000'000'000))] +=
          static_cast<double>(r.output_tokens) / static_cast<double>(r.chunk_ns.size());
  }
  out.peak_tokens_per_s = *std::max_element(per_second.begin(), per_second.end());
  for (BenchMetric& metric : out.metrics) std::sort(metric.values.begin(), metric.values.end());
  return out;
}

void print_report(const BenchRun& run) {
  const BenchServeOptions& o = run.options;
  const LoadReport& report = run.report;
  const BenchSummary& s = run.summary;
  banner("Serving Benchmark Result", '=');
  line("Successful requests:", s.completed);
  line("Failed requests:", s.failed);
  if (s.aborted > 0) line("Aborted requests (on purpose):", s.aborted);
  if (o.max_concurrency > 0) line("Maximum request concurrency:", static_cast<std::size_t>(o.max_concurrency));
  if (o.request_rate > 0) line("Request rate configured (RPS):", o.request_rate);
  line("Benchmark duration (s):", s.duration_s);
  line("Total input tokens:", static_cast<std::size_t>(s.input_tokens));
  line("Total generated tokens:", static_cast<std::size_t>(s.output_tokens));
  line("Request throughput (req/s):", s.request_rate());
  if (const auto good = goodput(o, report, s.duration_s)) line("Request goodput (req/s):", *good);
  line("Output token throughput (tok/s):", s.output_rate());
  line("Peak output token throughput (tok/s):", s.peak_tokens_per_s);
  line("Peak concurrent requests:", static_cast<double>(report.peak_concurrency));
  line("Total token throughput (tok/s):", s.total_rate());
  print_latencies(run);
  print_speculation(run.server);
  if (!report.probe_ns.empty()) {
    const std::vector<double> probes = probe_ms(report);
    banner("/livez under this load", '-');
    line("Median (ms):", percentile(probes, 50));
    line("P99 (ms):", percentile(probes, 99));
  }
  banner("Cost", '-');
  line("Server CPU (s):", run.server.cpu_s);
  line("Client CPU (s):", report.client_cpu_s);
  line("Client lag, P99 (ms):", lag_p99_ms(report));
  line("Client lag, largest (ms):", ms(report.max_lag_ns));
  std::printf("%s\n", std::string(50, '=').c_str());
}

std::string result_json(const BenchRun& run) {
  const BenchServeOptions& o = run.options;
  const BenchSummary& s = run.summary;
  std::string out;
  JsonWriter w(out);
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y%m%d-%H%M%S", std::localtime(&now));
  w.begin_object().key("date").value(date).key("endpoint_type").value(o.backend).key("backend").value(o.backend);
  w.key("label").value(o.label).key("model_id").value(o.model).key("tokenizer_id").value(o.tokenizer);
  w.key("num_prompts").value(o.num_prompts).key("request_rate");
  o.request_rate > 0 ? w.value(o.request_rate) : w.value("inf");
  w.key("burstiness").value(o.burstiness).key("max_concurrency");
  o.max_concurrency > 0 ? w.value(o.max_concurrency) : w.null();
  w.key("duration").value(s.duration_s).key("completed").value(s.completed).key("failed").value(s.failed);
  w.key("total_input_tokens").value(s.input_tokens).key("total_output_tokens").value(s.output_tokens);
  w.key("request_throughput").value(s.request_rate());
  w.key("request_goodput").value(goodput(o, run.report, s.duration_s));
  w.key("output_throughput").value(s.output_rate()).key("total_token_throughput").value(s.total_rate());
  w.key("max_output_tokens_per_s").value(s.peak_tokens_per_s).key("max_concurrent_requests");
  w.value(run.report.peak_concurrency);
  for (const BenchMetric& metric : s.metrics) {
    w.key("mean_" + metric.key + "_ms").value(mean_of(metric.values));
    w.key("median_" + metric.key + "_ms").value(percentile(metric.values, 50));
    w.key("std_" + metric.key + "_ms").value(deviation_of(metric.values));
    for (const double p : o.percentiles)
      w.key(fmt::format("p{}_{}_ms", p, metric.key)).value(percentile(metric.values, p));
  }
  if (o.save_detailed) write_details(w, run.report);
  for (const std::string& pair : o.metadata) {
    const std::size_t equals = pair.find('=');
    w.key(pair.substr(0, equals)).value(equals == std::string::npos ? std::string() : pair.substr(equals + 1));
  }
  write_server(w, run.server);
  if (!run.report.probe_ns.empty()) {
    const std::vector<double> probes = probe_ms(run.report);
    w.key("livez").begin_object().key("p50_ms").value(percentile(probes, 50));
    w.key("p99_ms").value(percentile(probes, 99)).end_object();
  }
  w.key("client").begin_object().key("cpu_seconds").value(run.report.client_cpu_s);
  w.key("lag_p99_ms").value(lag_p99_ms(run.report)).key("max_lag_ms").value(ms(run.report.max_lag_ns));
  w.key("valid").value(lag_p99_ms(run.report) <= kMostLagMs).end_object().end_object();
  return out;
}

}  // namespace di::cli
