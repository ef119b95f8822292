// deepinfer bench serve: load on a server of any make, and a report in the form of `vllm bench serve` (server.md §15).
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <span>

#include "base/json.h"
#include "base/sha256.h"
#include "cli/bench_client.h"
#include "cli/bench_dataset.h"
#include "cli/bench_report.h"
#include "cli/local_model.h"

namespace di::cli {
namespace {

Result<std::string> first_model(const HttpTarget& target, const std::vector<std::string>& headers) {
  const auto [status, body] = DI_TRY(http_get(target, "/v1/models", headers));
  const Result<Json> list = parse_json(body);
  const Json* data = list ? list->find_value("data") : nullptr;
  const Json* id = data == nullptr || data->size() == 0 ? nullptr : data->as_array()[0].find_value("id");
  if (id == nullptr || !id->is_string())
    return fail(Errc::kUnavailable, "/v1/models (status {}) names no model; give --model", status);
  return id->as_string();
}

// Other servers have less of it: what they do not answer stays 0.
ServerFigures look_at(const HttpTarget& target, const std::vector<std::string>& headers) {
  const auto metrics = http_get(target, "/metrics", headers);
  ServerFigures out = ServerFigures::of(metrics && metrics->first == 200 ? metrics->second : std::string());
  if (const auto version = http_get(target, "/version", headers); version && version->first == 200)
    out.version = version->second;
  const auto info = http_get(target, "/server_info", headers);
  const Result<Json> config = info && info->first == 200 ? parse_json(info->second) : Result<Json>(Json());
  if (const Json* effective = config ? config->find_value("config") : nullptr) {
    const Sha256 digest = sha256(to_json(*effective));
    for (const uint8_t byte : std::span(digest).first(6)) out.config_hash += fmt::format("{:02x}", byte);
  }
  return out;
}

// Where the result goes: --result-filename, else with --save-result a name of its own, as vLLM makes them; in
// --result-dir.
std::string result_path(const BenchServeOptions& o) {
  std::string name = o.result_filename;
  if (name.empty()) {
    if (!o.save_result) return {};
    char date[32];
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof date, "%Y%m%d-%H%M%S", std::localtime(&now));
    const std::string rate = o.request_rate > 0 ? fmt::format("{}", o.request_rate) : "inf";
    const std::string model = o.model.substr(o.model.rfind('/') + 1);
    name = fmt::format("{}-{}qps-{}-{}.json", o.label.empty() ? o.backend : o.label, rate, model, date);
  }
  return o.result_dir.empty() ? name : (std::filesystem::path(o.result_dir) / name).string();
}

Result<void> save(const BenchRun& run) {
  const std::string path = result_path(run.options);
  if (path.empty()) return {};
  std::error_code ignored;
  if (!run.options.result_dir.empty()) std::filesystem::create_directories(run.options.result_dir, ignored);
  std::ofstream file(path, run.options.append_result ? std::ios::app : std::ios::trunc);
  file << result_json(run) << '\n';
  file.flush();
  if (!file) return fail(Errc::kUnavailable, "cannot write {}", path);
  return {};
}

}  // namespace

Result<BenchRun> run_bench(const BenchServeOptions& options) {
  BenchRun run{.options = options, .report = {}, .summary = {}, .server = {}};
  BenchServeOptions& o = run.options;
  const HttpTarget target = DI_TRY(parse_base_url("--base-url", o.base_url));
  LoadOptions load{.host = target.host, .port = target.port, .headers = o.headers};
  load.max_concurrency = o.max_concurrency;
  load.keep_text = o.save_detailed;
  load.verify = o.verify_stream;
  load.probe_interval_ns = o.probe_livez_ms * kNsPerMs;
  if (o.model.empty()) o.model = DI_TRY(first_model(target, o.headers));
  codec::TokenizerRef tokenizer;
  if (const auto loaded = codec::Tokenizer::load(o.tokenizer.empty() ? default_model_folder() : o.tokenizer))
    tokenizer = *loaded;
  const BenchDataset dataset = DI_TRY(BenchDataset::make(o, tokenizer));
  if (o.num_warmups > 0) {
    std::vector<LoadRequest> warm;
    for (LoadRequest request : dataset.requests()) {
      if (static_cast<int64_t>(warm.size()) == o.num_warmups) break;
      request.send_at_ns = request.abort_after_ns = 0;
      if (request.after < 0) warm.push_back(std::move(request));
    }
    DI_TRY(run_load(load, warm));
  }
  load.next_body = [&](std::size_t request, const LoadResult& before) { return dataset.next_body(request, before); };
  const ServerFigures before = look_at(target, o.headers);
  run.report = DI_TRY(run_load(load, dataset.requests()));
  run.server = look_at(target, o.headers).since(before);
  run.summary = summarize(run.report);
  return run;
}

int bench_serve(const BenchServeOptions& options) {
  const Result<BenchRun> run = run_bench(options);
  if (!run) {
    std::fprintf(stderr, "deepinfer bench serve: %s\n", run.error().message.c_str());
    return run.error().code == Errc::kInvalidRequest ? kUsage : kFailed;
  }
  print_report(*run);
  for (const LoadResult& result : run->report.results) {
    if (result.ok || result.aborted) continue;
    std::fprintf(stderr, "first failure: %s\n", result.error.c_str());
    break;
  }
  if (lag_p99_ms(run->report) > kMostLagMs)
    std::fprintf(stderr, "note: the client itself was late by %.1f ms (P99); the figures are not valid\n",
                 lag_p99_ms(run->report));
  if (const Result<void> saved = save(*run); !saved) {
    std::fprintf(stderr, "deepinfer bench serve: %s\n", saved.error().message.c_str());
    return kFailed;
  }
  return run->summary.failed > 0 ? kFailed : kOk;
}

}  // namespace di::cli
