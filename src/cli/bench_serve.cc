// deepinfer bench serve: load on a server of any make, and a report in the form of `vllm bench serve` (server.md §15).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "base/json.h"
#include "cli/bench_client.h"
#include "cli/local_model.h"

namespace di::cli {
namespace {

// A text of about `tokens` tokens; exactly so for the tokenizer that is given.
class PromptMaker {
 public:
  PromptMaker(codec::TokenizerRef tokenizer, uint64_t seed) : tokenizer_(std::move(tokenizer)), random_(seed) {
    for (TokenId id = 0; tokenizer_ != nullptr && id < tokenizer_->vocab_size(); ++id) {
      const std::string_view bytes = tokenizer_->token_bytes(id);
      if (tokenizer_->is_added(id) || bytes.size() < 4 || bytes[0] != ' ') continue;
      if (std::all_of(bytes.begin() + 1, bytes.end(), [](char c) { return c >= 'a' && c <= 'z'; }))
        words_.push_back(std::string(bytes));
    }
    if (words_.empty()) words_ = {" hello", " world", " time", " house", " water", " people"};
  }
  std::string make(int64_t tokens) {
    std::string out;
    for (int64_t i = 0; i < tokens; ++i) out += words_[random_() % words_.size()];
    return out;
  }

 private:
  codec::TokenizerRef tokenizer_;
  std::mt19937_64 random_;
  std::vector<std::string> words_;
};

std::string request_body(const BenchServeOptions& o, const std::string& prompt, int64_t output_tokens) {
  Json body(Json::Object{});
  body.set("model", Json(o.model));
  body.set("stream", Json(true));
  if (o.temperature >= 0) body.set("temperature", Json(o.temperature));
  Json message(Json::Object{});
  message.set("role", Json("user"));
  message.set("content", Json(prompt));
  Json messages(Json::Array{});
  messages.push_back(std::move(message));
  if (o.backend == "openai") {
    body.set("prompt", Json(prompt));
    body.set("max_tokens", Json(output_tokens));
  } else if (o.backend == "openai-responses") {
    body.set("input", Json(prompt));
    body.set("max_output_tokens", Json(output_tokens));
  } else {
    body.set("messages", std::move(messages));
    body.set("max_tokens", Json(output_tokens));
  }
  if (o.backend.starts_with("openai") && o.backend != "openai-responses") {
    Json options(Json::Object{});
    options.set("include_usage", Json(true));
    body.set("stream_options", std::move(options));
  }
  if (o.ignore_eos) body.set("ignore_eos", Json(true));
  if (const Result<Json> extra = parse_json(o.extra_body.empty() ? "{}" : o.extra_body); extra && extra->is_object()) {
    for (const JsonMember& member : extra->as_object()) body.set(member.key, member.value);
  }
  return to_json(body);
}

std::string endpoint_of(const BenchServeOptions& o) {
  if (!o.endpoint.empty()) return o.endpoint;
  if (o.backend == "openai") return "/v1/completions";
  if (o.backend == "openai-responses") return "/v1/responses";
  return o.backend == "anthropic" ? "/v1/messages" : "/v1/chat/completions";
}

Result<std::vector<LoadRequest>> make_requests(const BenchServeOptions& o, PromptMaker& prompts) {
  std::vector<std::pair<std::string, int64_t>> texts;
  if (o.dataset == "custom") {
    std::ifstream file(o.dataset_path);
    if (!file) return fail(Errc::kNotFound, "--dataset-path: cannot read {}", o.dataset_path);
    for (std::string line; std::getline(file, line);) {
      const Result<Json> json = parse_json(line);
      const Json* prompt = json ? json->find_value("prompt") : nullptr;
      if (prompt == nullptr || !prompt->is_string())
        return fail(Errc::kInvalidRequest, "{}: expected objects with a `prompt` on each line", o.dataset_path);
      texts.emplace_back(prompt->as_string(), o.output_len);
    }
  }
  const std::string prefix = o.dataset == "prefix_repetition" ? prompts.make(o.input_len / 2) : std::string();
  std::mt19937_64 random(o.seed);
  std::gamma_distribution<double> gap(o.burstiness, o.request_rate > 0 ? 1 / (o.request_rate * o.burstiness) : 0);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<LoadRequest> out;
  double at = 0;
  for (int64_t i = 0; i < o.num_prompts; ++i) {
    LoadRequest request;
    request.path = endpoint_of(o);
    const int64_t own = o.dataset == "prefix_repetition" ? o.input_len - o.input_len / 2 : o.input_len;
    const auto& [text, output] = texts.empty() ? std::pair(prefix + prompts.make(own), o.output_len)
                                               : texts[static_cast<size_t>(i) % texts.size()];
    request.body = request_body(o, text, output);
    request.prompt_tokens = o.input_len;
    if (o.request_rate > 0) request.send_at_ns = static_cast<int64_t>((at += gap(random)) * 1e9);
    if (o.abort_ratio > 0 && uniform(random) < o.abort_ratio) request.abort_after_ns = 50'000'000;
    out.push_back(std::move(request));
  }
  return out;
}

// Linear interpolation between ranks, as numpy does by default.
double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const double rank = p / 100 * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(rank);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (rank - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

struct Metric {
  std::string key;             // ttft
  std::string name;            // Time to First Token
  std::string unit;            // TTFT
  std::vector<double> values;  // ms
};

struct Summary {
  size_t completed = 0;
  size_t failed = 0;
  size_t aborted = 0;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  double duration_s = 0;
  double peak_tokens_per_s = 0;
  std::vector<Metric> metrics;
};

Summary summarize(const LoadReport& report) {
  Summary out;
  out.duration_s = static_cast<double>(report.duration_ns) * 1e-9;
  out.metrics = {{"ttft", "Time to First Token", "TTFT", {}},
                 {"tpot", "Time per Output Token (excl. 1st token)", "TPOT", {}},
                 {"itl", "Inter-token Latency", "ITL", {}},
                 {"e2el", "End-to-end Latency", "E2EL", {}}};
  std::vector<double> per_second(static_cast<size_t>(out.duration_s) + 1);
  const auto ms = [](int64_t ns) { return static_cast<double>(ns) * 1e-6; };
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
    for (size_t i = 1; i < r.chunk_ns.size(); ++i)
      out.metrics[2].values.push_back(ms(r.chunk_ns[i] - r.chunk_ns[i - 1]));
    out.metrics[3].values.push_back(ms(r.end_ns - r.sent_ns));
    for (const int64_t at : r.chunk_ns)
      per_second[std::min(per_second.size() - 1, static_cast<size_t>(at / 1'000'000'000))] +=
          static_cast<double>(r.output_tokens) / static_cast<double>(r.chunk_ns.size());
  }
  out.peak_tokens_per_s = *std::max_element(per_second.begin(), per_second.end());
  for (Metric& metric : out.metrics) std::sort(metric.values.begin(), metric.values.end());
  return out;
}

double mean_of(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
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
    const size_t colon = item.find(':');
    if (colon != std::string::npos) limits[item.substr(0, colon)] = std::strtod(item.c_str() + colon + 1, nullptr);
  }
  size_t good = 0;
  for (const LoadResult& r : report.results) {
    if (!r.ok || r.aborted) continue;
    const double ttft = static_cast<double>(r.first_ns - r.sent_ns) * 1e-6;
    const double e2el = static_cast<double>(r.end_ns - r.sent_ns) * 1e-6;
    const double tpot = r.output_tokens > 1 ? (e2el - ttft) / static_cast<double>(r.output_tokens - 1) : 0;
    const auto meets = [&](const char* key, double value) { return !limits.contains(key) || value <= limits[key]; };
    if (meets("ttft", ttft) && meets("tpot", tpot) && meets("e2el", e2el)) ++good;
  }
  return static_cast<double>(good) / duration_s;
}

void line(const std::string& label, double value) {
  std::printf("%-40s %-10.2f\n", label.c_str(), value);
}
void line(const std::string& label, size_t value) {
  std::printf("%-40s %-10zu\n", label.c_str(), value);
}
void banner(const std::string& text, char fill) {
  const size_t width = 50;
  const size_t space = width - std::min(width, text.size() + 2);
  std::printf("%s %s %s\n", std::string(space / 2, fill).c_str(), text.c_str(),
              std::string(space - space / 2, fill).c_str());
}

// Latencies of /livez, milliseconds, ascending.
std::vector<double> probe_ms(const LoadReport& report) {
  std::vector<double> out;
  for (const int64_t ns : report.probe_ns) out.push_back(static_cast<double>(ns) * 1e-6);
  std::sort(out.begin(), out.end());
  return out;
}

void print_report(const BenchServeOptions& o, const LoadReport& report, const Summary& s, double server_cpu_s) {
  banner("Serving Benchmark Result", '=');
  line("Successful requests:", s.completed);
  line("Failed requests:", s.failed);
  if (s.aborted > 0) line("Aborted requests (on purpose):", s.aborted);
  if (o.max_concurrency > 0) line("Maximum request concurrency:", static_cast<size_t>(o.max_concurrency));
  if (o.request_rate > 0) line("Request rate configured (RPS):", o.request_rate);
  line("Benchmark duration (s):", s.duration_s);
  line("Total input tokens:", static_cast<size_t>(s.input_tokens));
  line("Total generated tokens:", static_cast<size_t>(s.output_tokens));
  line("Request throughput (req/s):", static_cast<double>(s.completed) / s.duration_s);
  if (const auto good = goodput(o, report, s.duration_s)) line("Request goodput (req/s):", *good);
  line("Output token throughput (tok/s):", static_cast<double>(s.output_tokens) / s.duration_s);
  line("Peak output token throughput (tok/s):", s.peak_tokens_per_s);
  line("Peak concurrent requests:", static_cast<double>(report.peak_concurrency));
  line("Total token throughput (tok/s):", static_cast<double>(s.input_tokens + s.output_tokens) / s.duration_s);
  for (const Metric& metric : s.metrics) {
    if (!is_shown(o, metric.key)) continue;
    banner(metric.name, '-');
    line(fmt::format("Mean {} (ms):", metric.unit), mean_of(metric.values));
    line(fmt::format("Median {} (ms):", metric.unit), percentile(metric.values, 50));
    for (const double p : o.percentiles)
      line(fmt::format("P{} {} (ms):", p, metric.unit), percentile(metric.values, p));
  }
  if (!report.probe_ns.empty()) {
    const std::vector<double> probes = probe_ms(report);
    banner("/livez under this load", '-');
    line("Median (ms):", percentile(probes, 50));
    line("P99 (ms):", percentile(probes, 99));
  }
  banner("Cost", '-');
  line("Server CPU (s):", server_cpu_s);
  line("Client CPU (s):", report.client_cpu_s);
  line("Client lag, largest (ms):", static_cast<double>(report.max_lag_ns) * 1e-6);
  std::printf("%s\n", std::string(50, '=').c_str());
}

// A counter of /metrics, summed over its series; nothing when the server has none.
std::optional<double> scrape(const std::string& text, std::string_view name) {
  std::optional<double> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view row = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (!row.starts_with(name) || row.size() == name.size() || (row[name.size()] != '{' && row[name.size()] != ' '))
      continue;
    out = out.value_or(0) + std::strtod(std::string(row.substr(row.rfind(' ') + 1)).c_str(), nullptr);
  }
  return out;
}

std::string result_json(const BenchServeOptions& o, const LoadReport& report, const Summary& s, double server_cpu_s,
                        const std::string& version) {
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
  w.key("request_throughput").value(static_cast<double>(s.completed) / s.duration_s);
  w.key("request_goodput").value(goodput(o, report, s.duration_s));
  w.key("output_throughput").value(static_cast<double>(s.output_tokens) / s.duration_s);
  w.key("total_token_throughput").value(static_cast<double>(s.input_tokens + s.output_tokens) / s.duration_s);
  w.key("max_output_tokens_per_s").value(s.peak_tokens_per_s).key("max_concurrent_requests");
  w.value(report.peak_concurrency);
  for (const Metric& metric : s.metrics) {
    w.key("mean_" + metric.key + "_ms").value(mean_of(metric.values));
    w.key("median_" + metric.key + "_ms").value(percentile(metric.values, 50));
    w.key("std_" + metric.key + "_ms").value(deviation_of(metric.values));
    for (const double p : o.percentiles)
      w.key(fmt::format("p{}_{}_ms", p, metric.key)).value(percentile(metric.values, p));
  }
  if (o.save_detailed) {
    const auto list = [&](const char* key, auto value) {
      w.key(key).begin_array();
      for (const LoadResult& r : report.results) w.value(value(r));
      w.end_array();
    };
    const auto s_of = [](int64_t ns) { return static_cast<double>(ns) * 1e-9; };
    list("input_lens", [](const LoadResult& r) { return r.prompt_tokens; });
    list("output_lens", [](const LoadResult& r) { return r.output_tokens; });
    list("ttfts", [&](const LoadResult& r) { return s_of(r.first_ns - r.sent_ns); });
    list("latencies", [&](const LoadResult& r) { return s_of(r.end_ns - r.sent_ns); });
    list("start_times", [&](const LoadResult& r) { return s_of(r.sent_ns); });
    list("generated_texts", [](const LoadResult& r) { return r.text; });
    list("errors", [](const LoadResult& r) { return r.error; });
    w.key("itls").begin_array();
    for (const LoadResult& r : report.results) {
      w.begin_array();
      for (size_t i = 1; i < r.chunk_ns.size(); ++i) w.value(s_of(r.chunk_ns[i] - r.chunk_ns[i - 1]));
      w.end_array();
    }
    w.end_array();
  }
  for (const std::string& pair : o.metadata) {
    const size_t equals = pair.find('=');
    w.key(pair.substr(0, equals)).value(equals == std::string::npos ? std::string() : pair.substr(equals + 1));
  }
  w.key("server").begin_object().key("version").value(version).key("cpu_seconds").value(server_cpu_s).end_object();
  if (!report.probe_ns.empty()) {
    const std::vector<double> probes = probe_ms(report);
    w.key("livez").begin_object().key("p50_ms").value(percentile(probes, 50));
    w.key("p99_ms").value(percentile(probes, 99)).end_object();
  }
  const double lag_ms = static_cast<double>(report.max_lag_ns) * 1e-6;
  w.key("client").begin_object().key("cpu_seconds").value(report.client_cpu_s).key("max_lag_ms").value(lag_ms);
  w.key("valid").value(lag_ms <= 5).end_object().end_object();
  return out;
}

}  // namespace

int bench_serve(const BenchServeOptions& options) {
  BenchServeOptions o = options;
  const auto give_up = [](const Error& error) {
    std::fprintf(stderr, "deepinfer bench serve: %s\n", error.message.c_str());
    return error.code == Errc::kInvalidRequest ? kUsage : kFailed;
  };
  const Result<HttpTarget> target = parse_base_url("--base-url", o.base_url);
  if (!target) return give_up(target.error());
  LoadOptions load{.host = target->host, .port = target->port, .headers = o.headers};
  load.max_concurrency = o.max_concurrency;
  load.keep_text = o.save_detailed;
  load.verify = o.verify_stream;
  load.probe_interval_ns = o.probe_livez_ms * kNsPerMs;
  if (o.model.empty()) {
    const auto models = http_get(target->host, target->port, "/v1/models", o.headers);
    if (!models) return give_up(models.error());
    const Result<Json> list = parse_json(models->second);
    const Json* data = list ? list->find_value("data") : nullptr;
    if (data == nullptr || data->size() == 0)
      return give_up({Errc::kUnavailable, "the server names no model; give --model"});
    o.model = data->as_array()[0].find("id")->as_string();
  }
  codec::TokenizerRef tokenizer;
  if (const auto loaded = codec::Tokenizer::load(o.tokenizer.empty() ? default_model_folder() : o.tokenizer))
    tokenizer = *loaded;
  PromptMaker prompts(tokenizer, o.seed);
  Result<std::vector<LoadRequest>> requests = make_requests(o, prompts);
  if (!requests) return give_up(requests.error());
  if (o.num_warmups > 0) {
    std::vector<LoadRequest> warm(requests->begin(),
                                  requests->begin() + std::min<std::ptrdiff_t>(o.num_warmups, o.num_prompts));
    for (LoadRequest& request : warm) request.send_at_ns = request.abort_after_ns = 0;
    if (const auto done = run_load(load, warm); !done) return give_up(done.error());
  }
  const auto server_cpu = [&] {
    const auto metrics = http_get(target->host, target->port, "/metrics", o.headers);
    return metrics ? scrape(metrics->second, "process_cpu_seconds_total").value_or(0) : 0.0;
  };
  const double cpu_before = server_cpu();
  const Result<LoadReport> report = run_load(load, *requests);
  if (!report) return give_up(report.error());
  const double cpu = server_cpu() - cpu_before;
  const Summary summary = summarize(*report);
  print_report(o, *report, summary, cpu);
  for (const LoadResult& result : report->results) {
    if (result.ok || result.aborted) continue;
    std::fprintf(stderr, "first failure: %s\n", result.error.c_str());
    break;
  }
  if (static_cast<double>(report->max_lag_ns) * 1e-6 > 5)
    std::fprintf(stderr, "note: the client itself was late by up to %.1f ms; the figures are not valid\n",
                 static_cast<double>(report->max_lag_ns) * 1e-6);
  if (!o.result_filename.empty()) {
    std::string version;
    if (const auto answer = http_get(target->host, target->port, "/version", o.headers); answer)
      version = answer->second;
    std::ofstream file(o.result_filename, o.append_result ? std::ios::app : std::ios::trunc);
    file << result_json(o, *report, summary, cpu, version) << '\n';
  }
  return summary.failed > 0 ? kFailed : kOk;
}

}  // namespace di::cli
