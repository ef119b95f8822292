// deepinfer bench latency, bench throughput (server.md §12, §15): the engine alone, without a server, in the words and
// the JSON members of `vllm bench latency` and `vllm bench throughput`. What is counted is checked: every answer must
// have the length asked for, no prompt may come from the cache unless that was asked for.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <random>

#include "base/json.h"
#include "cli/bench_report.h"
#include "cli/local_model.h"

namespace di::cli {
namespace {

struct Totals {
  double seconds = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
};

// Tokens of ordinary text, drawn evenly.
std::vector<int32_t> random_prompt(const codec::Tokenizer& tokenizer, std::mt19937_64& random, int64_t length) {
  std::vector<int32_t> out;
  out.reserve(static_cast<size_t>(length));
  while (static_cast<int64_t>(out.size()) < length) {
    const auto id = static_cast<int32_t>(random() % static_cast<uint64_t>(tokenizer.vocab_size()));
    if (!tokenizer.is_added(id) && !tokenizer.token_bytes(id).empty()) out.push_back(id);
  }
  return out;
}

Result<std::vector<std::vector<int32_t>>> read_prompts(const std::string& path, const codec::Tokenizer& tokenizer,
                                                       int64_t most) {
  std::ifstream file(path);
  if (!file) return fail(Errc::kInvalidRequest, "--dataset-path {}: cannot be read", path);
  std::vector<std::vector<int32_t>> out;
  std::string line;
  for (int64_t number = 1; static_cast<int64_t>(out.size()) < most && std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Result<Json> json = parse_json(line);
    const Json* prompt = json ? json->find_value("prompt") : nullptr;
    if (prompt == nullptr || !prompt->is_string() || prompt->as_string().empty())
      return fail(Errc::kInvalidRequest, "--dataset-path {}:{}: expected an object with a `prompt`", path, number);
    out.push_back(tokenizer.encode_plain(prompt->as_string()));
  }
  if (out.empty()) return fail(Errc::kInvalidRequest, "--dataset-path {}: there is no prompt in it", path);
  return out;
}

// A model, and requests of one kind for it.
class Bench {
 public:
  Bench(const BenchOfflineOptions& options, const SystemClock& clock, std::unique_ptr<LocalModel> model)
      : options_(options), clock_(clock), model_(std::move(model)) {}

  const codec::Tokenizer& tokenizer() const { return *model_->tokenizer; }

  // All at once, from the first submission to the last end.
  Result<Totals> run(const std::vector<std::vector<int32_t>>& prompts) {
    std::mutex mutex;
    std::condition_variable done;
    size_t open = prompts.size() * static_cast<size_t>(options_.n);
    Totals totals;
    std::string problem;
    std::vector<engine::RequestId> ids;
    const int64_t begun = clock_.now_ns();
    for (const std::vector<int32_t>& prompt : prompts) {
      const auto id = model_->engine->submit(request(prompt), [&](engine::Output out) {
        if (out.finish == engine::FinishReason::kNone) return;
        const std::lock_guard lock(mutex);
        if (out.choice == 0) totals.prompt_tokens += out.prompt_tokens;
        if (out.choice == 0) totals.cached_tokens += out.cached_tokens;
        totals.output_tokens += out.output_tokens;
        if (problem.empty() && out.output_tokens != options_.output_len) {
          problem = fmt::format("an answer has {} tokens, expected {} ({}{}{})", out.output_tokens, options_.output_len,
                                to_string(out.finish), out.error.message.empty() ? "" : ": ", out.error.message);
        }
        if (--open == 0) done.notify_all();
      });
      if (!id) {
        for (const engine::RequestId earlier : ids) model_->engine->cancel(earlier);
        const std::lock_guard lock(mutex);
        open -= (prompts.size() - ids.size()) * static_cast<size_t>(options_.n);
        problem = id.error().error.message;
        break;
      }
      ids.push_back(*id);
    }
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return open == 0; });
    totals.seconds = static_cast<double>(clock_.now_ns() - begun) * 1e-9;
    if (!problem.empty()) return fail(Errc::kInvalidRequest, "{}", problem);
    if (totals.cached_tokens > 0 && !options_.model.prefix_cache)
      return fail(Errc::kInternal, "{} prompt tokens came from a cache that is off", totals.cached_tokens);
    return totals;
  }

 private:
  engine::GenerateRequest request(const std::vector<int32_t>& prompt) {
    engine::GenerateRequest out;
    out.prompt = prompt;
    out.n = options_.n;
    out.max_tokens = options_.output_len;
    out.ignore_eos = true;
    out.sampling.seed = ++seed_ + options_.seed;
    return out;
  }

  BenchOfflineOptions options_;
  const SystemClock& clock_;
  std::unique_ptr<LocalModel> model_;
  uint64_t seed_ = 0;
};

Result<void> write_result(const BenchOfflineOptions& options, const Json& result) {
  if (options.json) std::printf("%s\n", to_json(result).c_str());
  if (options.output_json.empty()) return {};
  std::ofstream file(options.output_json);
  file << to_json(result) << '\n';
  file.flush();
  if (!file) return fail(Errc::kUnavailable, "--output-json {}: cannot be written", options.output_json);
  return {};
}

Result<void> measure_latency(Bench& bench, const BenchOfflineOptions& options) {
  std::mt19937_64 random(options.seed);
  std::vector<double> seconds;
  for (int64_t round = -options.warmups; round < options.iterations; ++round) {
    std::vector<std::vector<int32_t>> prompts;
    for (int64_t i = 0; i < options.batch_size; ++i)
      prompts.push_back(random_prompt(bench.tokenizer(), random, options.input_len));
    const Totals totals = DI_TRY(bench.run(prompts));
    if (round >= 0) seconds.push_back(totals.seconds);
  }
  Json::Array latencies(seconds.begin(), seconds.end());
  const double average = mean_of(seconds);
  std::ranges::sort(seconds);
  Json percentiles(Json::Object{});
  if (!options.json) std::printf("Avg latency: %.6f seconds\n", average);
  for (const int p : {10, 25, 50, 75, 90, 99}) {
    percentiles.set(std::to_string(p), Json(percentile(seconds, p)));
    if (!options.json) std::printf("%d%% percentile latency: %.6f seconds\n", p, percentile(seconds, p));
  }
  Json result(Json::Object{});
  result.set("avg_latency", Json(average));
  result.set("latencies", Json(std::move(latencies)));
  result.set("percentiles", std::move(percentiles));
  return write_result(options, result);
}

Result<void> measure_throughput(Bench& bench, const BenchOfflineOptions& o) {
  std::mt19937_64 random(o.seed);
  std::vector<std::vector<int32_t>> prompts;
  if (!o.dataset_path.empty()) prompts = DI_TRY(read_prompts(o.dataset_path, bench.tokenizer(), o.num_prompts));
  while (o.dataset_path.empty() && static_cast<int64_t>(prompts.size()) < o.num_prompts)
    prompts.push_back(random_prompt(bench.tokenizer(), random, o.input_len));
  const Totals totals = DI_TRY(bench.run(prompts));
  const auto requests = static_cast<double>(prompts.size());
  const auto tokens = static_cast<double>(totals.prompt_tokens + totals.output_tokens);
  if (!o.json) {
    std::printf("Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n", requests / totals.seconds,
                tokens / totals.seconds, static_cast<double>(totals.output_tokens) / totals.seconds);
    std::printf("Total num prompt tokens:  %lld\nTotal num output tokens:  %lld\n",
                static_cast<long long>(totals.prompt_tokens), static_cast<long long>(totals.output_tokens));
  }
  Json result(Json::Object{});
  result.set("elapsed_time", Json(totals.seconds));
  result.set("num_requests", Json(static_cast<int64_t>(prompts.size())));
  result.set("total_num_tokens", Json(totals.prompt_tokens + totals.output_tokens));
  result.set("requests_per_second", Json(requests / totals.seconds));
  result.set("tokens_per_second", Json(tokens / totals.seconds));
  result.set("output_tokens", Json(totals.output_tokens));
  result.set("cached_tokens", Json(totals.cached_tokens));
  return write_result(o, result);
}

// Loads the model, measures, and gives the status to end with.
int run(const char* name, const BenchOfflineOptions& options,
        Result<void> (*measure)(Bench&, const BenchOfflineOptions&)) {
  const auto complain = [name](const std::string& message, int status) {
    std::fprintf(stderr, "deepinfer bench %s: %s\n", name, message.c_str());
    return status;
  };
  const SystemClock clock;
  auto model = load_model(options.model, codec::ApiPolicy::kExtended, clock);
  if (!model) return complain(model.error().message, model.error().exit_status);
  Bench bench(options, clock, std::move(*model));
  const Result<void> done = measure(bench, options);
  if (done) return kOk;
  return complain(done.error().message, done.error().code == Errc::kInvalidRequest ? kUsage : kFailed);
}

}  // namespace

int bench_latency(const BenchOfflineOptions& options) {
  return run("latency", options, measure_latency);
}

int bench_throughput(const BenchOfflineOptions& options) {
  BenchOfflineOptions all_wait = options;
  all_wait.model.max_queue_size = std::max(options.model.max_queue_size, options.num_prompts);
  return run("throughput", all_wait, measure_throughput);
}

}  // namespace di::cli
