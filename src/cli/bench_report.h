// What a load came to, in the words and the JSON members of `vllm bench serve` (server.md §15.2, §15.3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_client.h"
#include "cli/options.h"

namespace di::cli {

// The server's own counters; differences between two looks at /metrics where they are totals.
struct ServerFigures {
  std::string version;      // body of /version
  std::string config_hash;  // of /server_info; empty where that is not answered
  double cpu_s = 0;
  std::map<std::string, double> hit_tokens;  // by where they were found
  double drafts = 0;
  double draft_tokens = 0;
  double accepted_tokens = 0;
  std::vector<double> accepted_at;  // by position

  static ServerFigures of(const std::string& metrics);
  ServerFigures since(const ServerFigures& before) const;
  // Tokens that a verified draft gave, the model's own among them; nothing without drafts.
  std::optional<double> accept_length() const;
};

struct BenchMetric {
  std::string key;             // ttft
  std::string name;            // Time to First Token
  std::string unit;            // TTFT
  std::vector<double> values;  // ms, ascending
};

struct BenchSummary {
  std::size_t completed = 0;
  std::size_t failed = 0;
  std::size_t aborted = 0;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  double duration_s = 0;
  double peak_tokens_per_s = 0;
  std::vector<BenchMetric> metrics;  // ttft, tpot, itl, e2el

  double request_rate() const { return static_cast<double>(completed) / duration_s; }
  double output_rate() const { return static_cast<double>(output_tokens) / duration_s; }
  double total_rate() const { return static_cast<double>(input_tokens + output_tokens) / duration_s; }
};
BenchSummary summarize(const LoadReport& report);

// Linear interpolation between ranks, as numpy does by default; of nothing: 0.
double percentile(const std::vector<double>& sorted, double p);
double mean_of(const std::vector<double>& values);

// The client's own delay makes the result worthless.
inline constexpr double kMostLagMs = 5;
double lag_p99_ms(const LoadReport& report);

struct BenchRun {
  BenchServeOptions options;  // with the model's name
  LoadReport report;
  BenchSummary summary;
  ServerFigures server;
};

void print_report(const BenchRun& run);
std::string result_json(const BenchRun& run);

// bench_serve.cc: warms up, sends, looks at the server before and after.
Result<BenchRun> run_bench(const BenchServeOptions& options);

}  // namespace di::cli
