// deepinfer top: the figures of a running server once a second, from its /metrics, on a terminal in place, else as
// blocks of text or lines of JSON.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <map>

#include "base/clock.h"
#include "base/json.h"
#include "cli/bench_client.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "server/ui_feed.h"

namespace di::cli {
namespace {

// What one scrape says: sums over all series of a name, and the buckets of histograms.
struct Scrape {
  int64_t at_ns = 0;
  std::map<std::string, double> sums;
  std::map<std::string, std::map<double, double>> buckets;  // cumulative counts by upper bound
  std::string model;

  double sum(const char* name) const {
    const auto it = sums.find(name);
    return it == sums.end() ? 0 : it->second;
  }
};

Scrape read(const std::string& text, int64_t at_ns) {
  Scrape out;
  out.at_ns = at_ns;
  constexpr std::string_view kBucket = "_bucket";
  for (const server::MetricSample& sample : server::parse_metrics_text(text)) {
    if (sample.name.ends_with(kBucket)) {
      const std::string bound(sample.label("le"));
      const double upper = bound == "+Inf" ? HUGE_VAL : std::strtod(bound.c_str(), nullptr);
      out.buckets[sample.name.substr(0, sample.name.size() - kBucket.size())][upper] += sample.value;
      continue;
    }
    out.sums[sample.name] += sample.value;
    if (sample.name == "vllm:num_requests_running") out.model = sample.label("model_name");
  }
  return out;
}

// A quantile of what was observed between two scrapes, milliseconds; of nothing: 0.
double quantile_ms(const Scrape& before, const Scrape& now, const char* name, double q) {
  const auto later = now.buckets.find(name);
  if (later == now.buckets.end()) return 0;
  const auto earlier = before.buckets.find(name);
  std::vector<double> bounds;
  std::vector<double> counts;
  double below = 0;
  for (const auto& [bound, cumulative] : later->second) {
    double n = cumulative;
    if (earlier != before.buckets.end()) {
      const auto it = earlier->second.find(bound);
      if (it != earlier->second.end()) n -= it->second;
    }
    if (bound != HUGE_VAL) bounds.push_back(bound);
    counts.push_back(n - below);
    below = n;
  }
  return server::histogram_quantile(q, bounds, counts) * 1e3;
}

struct Figure {
  const char* key;    // in JSON
  const char* label;  // on the screen
  const char* unit;
  double value;
};

std::vector<Figure> figures(const Scrape& before, const Scrape& now) {
  const double seconds = std::max(1e-3, static_cast<double>(now.at_ns - before.at_ns) * 1e-9);
  const auto rate = [&](const char* name) { return (now.sum(name) - before.sum(name)) / seconds; };
  const auto part = [&](const char* of, const char* all) {
    const double whole = now.sum(all) - before.sum(all);
    return whole > 0 ? 100 * (now.sum(of) - before.sum(of)) / whole : 0;
  };
  const double drafts = now.sum("vllm:spec_decode_num_drafts_total") - before.sum("vllm:spec_decode_num_drafts_total");
  const double accepted =
      now.sum("vllm:spec_decode_num_accepted_tokens_total") - before.sum("vllm:spec_decode_num_accepted_tokens_total");
  return {
      {"requests_per_second", "requests", "/s", rate("deepinfer:http_requests_total")},
      {"running", "running", "", now.sum("vllm:num_requests_running")},
      {"waiting", "waiting", "", now.sum("vllm:num_requests_waiting")},
      {"prefill_tokens_per_second", "prefill", "tok/s", rate("deepinfer:engine_prompt_tokens_total")},
      {"decode_tokens_per_second", "decode", "tok/s", rate("vllm:generation_tokens_total")},
      {"ttft_p50_ms", "TTFT p50", "ms", quantile_ms(before, now, "vllm:time_to_first_token_seconds", 0.5)},
      {"ttft_p99_ms", "TTFT p99", "ms", quantile_ms(before, now, "vllm:time_to_first_token_seconds", 0.99)},
      {"itl_p50_ms", "ITL p50", "ms", quantile_ms(before, now, "vllm:inter_token_latency_seconds", 0.5)},
      {"itl_p99_ms", "ITL p99", "ms", quantile_ms(before, now, "vllm:inter_token_latency_seconds", 0.99)},
      {"e2e_p99_ms", "e2e p99", "ms", quantile_ms(before, now, "vllm:e2e_request_latency_seconds", 0.99)},
      {"kv_percent", "KV in use", "%", 100 * now.sum("vllm:kv_cache_usage_perc")},
      {"cache_hit_percent", "cache hits", "%", part("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")},
      {"accept_length", "accept length", "", drafts > 0 ? 1 + accepted / drafts : 0},
      {"preemptions_per_second", "preemptions", "/s", rate("vllm:num_preemptions_total")},
      {"aborts_per_second", "aborts", "/s", rate("deepinfer:requests_aborted_total")},
      {"connections", "connections", "", now.sum("deepinfer:http_connections")},
      {"resident_mib", "resident", "MiB", now.sum("process_resident_memory_bytes") / (1 << 20)},
      {"cpu_percent", "CPU", "%", 100 * rate("process_cpu_seconds_total")},
  };
}

void print_json(const Scrape& now, const std::vector<Figure>& all) {
  std::string line;
  JsonWriter w(line);
  w.begin_object().key("model").value(now.model);
  for (const Figure& f : all) w.key(f.key).value(f.value);
  w.end_object();
  std::printf("%s\n", line.c_str());
}

void print_text(const Scrape& now, const std::vector<Figure>& all, const std::string& url, bool in_place) {
  if (in_place) std::printf("\x1b[H\x1b[J");
  std::printf("%s  %s\n\n", url.c_str(), now.model.c_str());
  const size_t rows = (all.size() + 1) / 2;
  for (size_t i = 0; i < rows; ++i) {
    for (const size_t at : {i, i + rows}) {
      if (at < all.size()) std::printf("  %-14s %12.1f %-6s", all[at].label, all[at].value, all[at].unit);
    }
    std::printf("\n");
  }
  if (!in_place) std::printf("\n");
}

}  // namespace

int top(const TopOptions& options) {
  const auto failed = [](const Error& error, int status) {
    std::fprintf(stderr, "deepinfer top: %s\n", error.message.c_str());
    return status;
  };
  const Result<HttpTarget> target = parse_base_url("--url", options.url, Tls::kOffered, options.ca_cert);
  if (!target) return failed(target.error(), kUsage);
  std::vector<std::string> headers = options.headers;
  if (!options.api_key.empty()) headers.push_back("Authorization: Bearer " + options.api_key);
  const bool in_place = isatty(STDOUT_FILENO) != 0 && !options.json;
  const SystemClock clock;
  catch_interrupts();
  Scrape before;
  for (int64_t shown = -1; options.count == 0 || shown < options.count;) {
    const auto answer = http_get(*target, "/metrics", headers);
    if (!answer) return failed(answer.error(), kFailed);
    if (answer->first != 200)
      return failed(Error{Errc::kUnavailable, fmt::format("{}/metrics answers with {}", options.url, answer->first)},
                    kFailed);
    Scrape now = read(answer->second, clock.now_ns());
    if (++shown > 0) {
      const std::vector<Figure> all = figures(before, now);
      options.json ? print_json(now, all) : print_text(now, all, options.url, in_place);
      std::fflush(stdout);
    }
    before = std::move(now);
    if (options.count != 0 && shown >= options.count) break;
    // In short naps, so that Ctrl-C is heard.
    const int64_t next = before.at_ns + options.interval_ms * kNsPerMs;
    while (clock.now_ns() < next && !interrupt_flag().load())
      clock.sleep_until(std::min(next, clock.now_ns() + 50 * kNsPerMs));
    if (interrupt_flag().load()) break;
  }
  return kOk;
}

}  // namespace di::cli
