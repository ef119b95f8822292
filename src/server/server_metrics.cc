#include "server/server_metrics.h"

#include <dirent.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>

#include "base/cpu_time.h"
#include "server/errors.h"
#include "server/speculation_metrics.h"

namespace di::server {
namespace {

const std::vector<double> kFirstTokenBounds = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                               1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const std::vector<double> kTokenGapBounds = {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3,
                                             .4,   .5,    .75,  1,   2.5,  5,   7.5,  10, 20,  40, 80};
const std::vector<double> kRequestBounds = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                            30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kTokenCountBounds = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                               2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
const std::vector<double> kChoiceBounds = {1, 2, 5, 10, 20};
const std::vector<double> kPreemptionBounds = {0, 1, 2, 5, 10, 20};

// Steps of the front end are far below a millisecond.
const std::vector<double> kStageBounds = {.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025,
                                          .005,   .01,     .025,   .05,   .1,     .25,   1,    10};

Histogram& stage_histogram(MetricRegistry& registry, const char* stage) {
  return registry.histogram("deepinfer:frontend_stage_seconds", "Time of a request by stage, outside the model.",
                            kStageBounds, {{"stage", stage}});
}

// Resident memory, open files and CPU time of this process (Linux procfs).
double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double total = 0;
  double resident = 0;
  file >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// When this process was started, Unix time.
double process_start_seconds() {
  std::ifstream stat("/proc/self/stat");
  const std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 2)));
  std::string skipped;
  for (int i = 0; i < 19; ++i) fields >> skipped;  // the state is the first behind the name, the start the 20th
  double ticks = 0;
  fields >> ticks;
  std::ifstream system("/proc/stat");
  for (std::string word; system >> word;) {
    if (word != "btime") continue;
    double booted = 0;
    system >> booted;
    return booted + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  return 0;
}

double open_files() {
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return 0;
  double count = -3;  // ".", ".." and the handle of this listing
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

}  // namespace

MetricLabels engine_labels(const std::string& model_name, MetricLabels more) {
  MetricLabels labels = {{"model_name", model_name}, {"engine", "0"}};
  labels.insert(labels.end(), more.begin(), more.end());
  return labels;
}

ServerMetrics::ServerMetrics(const std::string& model_name)
    : ServerMetrics(model_name, std::make_unique<MetricRegistry>()) {}

ServerMetrics::ServerMetrics(const std::string& model_name, std::unique_ptr<MetricRegistry> registry)
    : time_to_first_token(registry->histogram("vllm:time_to_first_token_seconds",
                                              "First byte of the request to the first token handed to the socket.",
                                              kFirstTokenBounds, engine_labels(model_name))),
      inter_token_latency(registry->histogram("vllm:inter_token_latency_seconds", "Gap between chunks of a stream.",
                                              kTokenGapBounds, engine_labels(model_name))),
      time_per_output_token(registry->histogram("vllm:request_time_per_output_token_seconds",
                                                "Mean time per output token of a request, after the first.",
                                                kTokenGapBounds, engine_labels(model_name))),
      e2e_latency(registry->histogram("vllm:e2e_request_latency_seconds",
                                      "First byte of the request to the last of the answer.", kRequestBounds,
                                      engine_labels(model_name))),
      queue_time(registry->histogram("vllm:request_queue_time_seconds", "Time waiting for the first step.",
                                     kRequestBounds, engine_labels(model_name))),
      inference_time(registry->histogram("vllm:request_inference_time_seconds", "First step to the last token.",
                                         kRequestBounds, engine_labels(model_name))),
      prefill_time(registry->histogram("vllm:request_prefill_time_seconds", "First step to the first token.",
                                       kRequestBounds, engine_labels(model_name))),
      decode_time(registry->histogram("vllm:request_decode_time_seconds", "First token to the last.", kRequestBounds,
                                      engine_labels(model_name))),
      prompt_tokens_per_request(registry->histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.",
                                                    kTokenCountBounds, engine_labels(model_name))),
      generation_tokens_per_request(registry->histogram("vllm:request_generation_tokens", "Output tokens of a request.",
                                                        kTokenCountBounds, engine_labels(model_name))),
      longest_output_per_request(registry->histogram("vllm:request_max_num_generation_tokens",
                                                     "Output tokens of a request's longest choice.", kTokenCountBounds,
                                                     engine_labels(model_name))),
      computed_tokens_per_request(registry->histogram("vllm:request_prefill_kv_computed_tokens",
                                                      "Prompt tokens of a request that no cache had.",
                                                      kTokenCountBounds, engine_labels(model_name))),
      stage_parse(stage_histogram(*registry, "parse")),
      stage_render(stage_histogram(*registry, "render")),
      stage_tokenize(stage_histogram(*registry, "tokenize")),
      stage_queue(stage_histogram(*registry, "queue")),
      stage_detokenize(stage_histogram(*registry, "detokenize")),
      stage_serialize(stage_histogram(*registry, "serialize")),
      max_tokens_param(registry->histogram("vllm:request_params_max_tokens", "max_tokens of a request, resolved.",
                                           kTokenCountBounds, engine_labels(model_name))),
      n_param(
          registry->histogram("vllm:request_params_n", "n of a request.", kChoiceBounds, engine_labels(model_name))),
      preemptions_per_request(registry->histogram("vllm:request_num_preemptions", "Preemptions of a request.",
                                                  kPreemptionBounds, engine_labels(model_name))),
      prompt_tokens(registry->counter("vllm:prompt_tokens_total", "Prompt tokens of finished requests.",
                                      engine_labels(model_name))),
      prompt_tokens_cached(registry->counter("vllm:prompt_tokens_cached_total", "Prompt tokens taken from a cache.",
                                             engine_labels(model_name))),
      generation_tokens(
          registry->counter("vllm:generation_tokens_total", "Tokens generated.", engine_labels(model_name))),
      finished_stop(registry->counter("vllm:request_success_total", "Finished requests by reason.",
                                      engine_labels(model_name, {{"finished_reason", "stop"}}))),
      finished_length(registry->counter("vllm:request_success_total", "",
                                        engine_labels(model_name, {{"finished_reason", "length"}}))),
      finished_abort(registry->counter("vllm:request_success_total", "",
                                       engine_labels(model_name, {{"finished_reason", "abort"}}))),
      finished_error(registry->counter("vllm:request_success_total", "",
                                       engine_labels(model_name, {{"finished_reason", "error"}}))),
      unknown_fields(registry->counter("deepinfer:unknown_request_fields_total",
                                       "Top-level members of request bodies that this server does not know.")),
      tool_call_parse_failures(registry->counter("deepinfer:tool_call_parse_failures_total",
                                                 "Tool calls of finished answers that could not be read as such.")),
      registry_(std::move(registry)),
      model_name_(model_name) {
  load_progress_ = &registry_->gauge("deepinfer:model_load_progress", "Part of the model that is loaded, 0 to 1.");
  registry_->gauge("deepinfer:build_info", "Constant 1; the labels say what runs.", {{"version", DI_VERSION}}).set(1);
  registry_->gauge_from("process_resident_memory_bytes", "Resident memory size in bytes.", {}, resident_bytes);
  registry_->gauge_from("process_open_fds", "Number of open file descriptors.", {}, open_files);
  registry_->counter_from("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", {},
                          process_cpu_seconds);
  const double started = process_start_seconds();
  registry_->gauge("process_start_time_seconds", "Start time of the process since the Unix epoch in seconds.")
      .set(started);
  grammar_compile_ =
      &registry_->histogram("deepinfer:grammar_compile_seconds", "Time to compile a constraint.", kFirstTokenBounds);
  // All series are there with 0 from the start.
  for (const char* reason : {"queue_full", "rate_limit"}) rejection_counter(reason);
  for (int kind = 0; kind <= static_cast<int>(ErrorKind::kDeadline); ++kind)
    error_counter(default_code(static_cast<ErrorKind>(kind)));
  for (const char* phase : {"queue", "prefill", "decode"}) {
    for (const char* reason : {"disconnect", "cancelled"}) abort_counter(phase, reason);
  }
  registry_->counter("vllm:request_success_total", "", engine_labels(model_name, {{"finished_reason", "repetition"}}));
  add_engine_series();
  add_prompt_source_series();
}

// Where the prompts' tokens came from. There is no cache outside the process, so its series stay at 0.
void ServerMetrics::add_prompt_source_series() {
  const char* by_source = "Prompt tokens of finished requests by where their KV came from.";
  const auto labels = [&](const char* source) { return engine_labels(model_name_, {{"source", source}}); };
  registry_->counter_from("vllm:prompt_tokens_by_source_total", by_source, labels("local_compute"), [this] {
    const uint64_t cached = prompt_tokens_cached.value();  // first: it is counted after the whole
    return static_cast<double>(prompt_tokens.value() - cached);
  });
  registry_->counter_from("vllm:prompt_tokens_by_source_total", by_source, labels("local_cache_hit"),
                          [this] { return static_cast<double>(prompt_tokens_cached.value()); });
  registry_->counter("vllm:prompt_tokens_by_source_total", by_source, labels("external_kv_transfer"));
  const char* cached = "Cached prompt tokens by the outermost tier that supplied them.";
  for (const char* source : {"p2p", "disk", "external_unspecified"})
    registry_->counter("vllm:prompt_tokens_cached_by_source_total", cached, labels(source));
  for (const char* name : {"vllm:external_prefix_cache_queries_total", "vllm:external_prefix_cache_hits_total"})
    registry_->counter(name, "Prompt tokens looked up in and found by a cache outside this process.",
                       engine_labels(model_name_));
  for (const char* state : {"awake", "weights_offloaded", "discard_all"}) {
    registry_
        ->gauge("vllm:engine_sleep_state", "1 for the state the engine is in.",
                engine_labels(model_name_, {{"sleep_state", state}}))
        .set(std::string_view(state) == "awake" ? 1 : 0);
  }
}

void ServerMetrics::startup_stage(const std::string& stage, double seconds) {
  registry_->gauge("deepinfer:startup_seconds", "Time of each stage of the start.", {{"stage", stage}}).set(seconds);
}

void ServerMetrics::add_engine_series() {
  const MetricLabels labels = engine_labels(model_name_);
  using Read = double (*)(const engine::EngineStats&);
  const auto reader = [this](Read read) {
    return [this, read] {
      const engine::EngineApi* engine = engine_.load();
      return engine == nullptr ? 0.0 : read(engine->stats());
    };
  };
  const auto gauge = [&](const char* name, const char* help, Read read) {
    registry_->gauge_from(name, help, labels, reader(read));
  };
  const auto counter = [&](const char* name, const char* help, Read read) {
    registry_->counter_from(name, help, labels, reader(read));
  };
  gauge("vllm:num_requests_running", "Sequences in execution.",
        [](const engine::EngineStats& s) { return static_cast<double>(s.running); });
  gauge("vllm:num_requests_waiting", "Sequences waiting.",
        [](const engine::EngineStats& s) { return static_cast<double>(s.waiting); });
  gauge("vllm:kv_cache_usage_perc", "Part of the KV blocks in use, 0 to 1.", [](const engine::EngineStats& s) {
    return s.total_blocks == 0 ? 0.0 : static_cast<double>(s.used_blocks) / static_cast<double>(s.total_blocks);
  });
  gauge("deepinfer:state_slots_used", "State slots in use.",
        [](const engine::EngineStats& s) { return static_cast<double>(s.used_slots); });
  counter("vllm:num_preemptions_total", "Sequences that lost their memory and were computed again.",
          [](const engine::EngineStats& s) { return static_cast<double>(s.preemptions); });
  counter("vllm:corrupted_requests_total", "Requests ended because no finite logits were left.",
          [](const engine::EngineStats& s) { return static_cast<double>(s.corrupted); });
  counter("deepinfer:engine_steps_total", "Forward passes.",
          [](const engine::EngineStats& s) { return static_cast<double>(s.steps); });
  counter("deepinfer:engine_prompt_tokens_total", "Prompt tokens computed, with recomputation.",
          [](const engine::EngineStats& s) { return static_cast<double>(s.prompt_tokens); });
  add_reuse_series();
  add_turn_series();
  add_image_series();
  const char* reasons = "Sequences waiting, by what they wait for.";
  registry_->gauge_from("vllm:num_requests_waiting_by_reason", reasons,
                        engine_labels(model_name_, {{"reason", "capacity"}}),
                        reader([](const engine::EngineStats& s) { return static_cast<double>(s.waiting); }));
  registry_->gauge("vllm:num_requests_waiting_by_reason", reasons,
                   engine_labels(model_name_, {{"reason", "deferred"}}));
  add_pace_series();
}

// How fast and how full the steps are, and what came of the requests (engine.md §9).
void ServerMetrics::add_pace_series() {
  using Stats = engine::EngineStats;
  using Read = double (*)(const Stats&);
  const auto reader = [this](Read read) {
    return [this, read] {
      const engine::EngineApi* engine = engine_.load();
      return engine == nullptr ? 0.0 : read(engine->stats());
    };
  };
  const MetricLabels labels = engine_labels(model_name_);
  const auto gauge = [&](const char* name, const char* help, Read read) {
    registry_->gauge_from(name, help, labels, reader(read));
  };
  const auto counter = [&](const char* name, const char* help, const MetricLabels& own, Read read) {
    registry_->counter_from(name, help, own, reader(read));
  };
  gauge("deepinfer:steps_per_second", "Forward passes, over the last 100, pauses left out.",
        [](const Stats& s) { return s.steps_per_second; });
  gauge("deepinfer:prompt_tokens_per_second", "Prompt tokens computed, the same.",
        [](const Stats& s) { return s.prompt_tokens_per_second; });
  gauge("deepinfer:generated_tokens_per_second", "Tokens generated, the same.",
        [](const Stats& s) { return s.generated_tokens_per_second; });
  gauge("deepinfer:batch_fill", "Rows of a step over the most it may have, mean of the last 100.",
        [](const Stats& s) { return s.batch_fill; });
  gauge("deepinfer:num_requests_chunked", "Running sequences whose prompt is not computed yet.",
        [](const Stats& s) { return static_cast<double>(s.chunked); });
  gauge("deepinfer:state_slots", "State slots there are.",
        [](const Stats& s) { return static_cast<double>(s.total_slots); });
  gauge("deepinfer:ttft_seconds_mean", "Arrival at the engine to the first token, mean.", [](const Stats& s) {
    return s.first_tokens == 0 ? 0.0 : s.ttft_seconds_sum / static_cast<double>(s.first_tokens);
  });
  gauge("deepinfer:ttft_seconds_max", "The same, largest.", [](const Stats& s) { return s.ttft_seconds_max; });
  gauge("deepinfer:input_tokens_mean", "Prompt tokens of the finished choices, mean.", [](const Stats& s) {
    return s.finished == 0 ? 0.0 : static_cast<double>(s.input_tokens) / static_cast<double>(s.finished);
  });
  gauge("deepinfer:output_tokens_mean", "Tokens of the finished choices, mean.", [](const Stats& s) {
    return s.finished == 0 ? 0.0 : static_cast<double>(s.output_tokens) / static_cast<double>(s.finished);
  });
  gauge("deepinfer:gpu_idle_ratio",
        "Part of the time between the first forward pass and the last, pauses left out, in "
        "which the device had nothing to do.",
        [](const Stats& s) {
          const double time = s.times.forward.sum + s.gap_seconds;
          return time > 0 ? s.bubble_seconds / time : 0.0;
        });
  gauge("deepinfer:mfu",
        "Arithmetic of the forward passes over the device's peak (--peak-tflops; 0 without), FP8 "
        "equivalents, over the last 100.",
        [](const Stats& s) { return s.flops_utilisation; });
  counter("deepinfer:model_flops_total", "Arithmetic of the forward passes in FP8 equivalents.", labels,
          [](const Stats& s) { return s.flops; });
  counter("deepinfer:bubble_seconds_total", "Time between forward passes without work for the device.", labels,
          [](const Stats& s) { return s.bubble_seconds; });
  const char* ends = "Choices by how they ended.";
  counter("deepinfer:choices_total", ends, engine_labels(model_name_, {{"end", "finished"}}),
          [](const Stats& s) { return static_cast<double>(s.finished); });
  counter("deepinfer:choices_total", ends, engine_labels(model_name_, {{"end", "aborted"}}),
          [](const Stats& s) { return static_cast<double>(s.aborted); });
  counter("deepinfer:choices_total", ends, engine_labels(model_name_, {{"end", "failed"}}),
          [](const Stats& s) { return static_cast<double>(s.failed); });
}

// Exact replay of turns with tool calls (docs/codec.md).
void ServerMetrics::add_turn_series() {
  using Stats = codec::ReplayStore::Stats;
  const auto reader = [this](double (*read)(const Stats&)) {
    return [this, read] {
      const codec::ReplayStore* turns = turns_.load();
      return turns == nullptr ? 0.0 : read(turns->stats());
    };
  };
  const char* turns = "Turns with tool calls that came back, by whether their own tokens were used.";
  registry_->counter_from("deepinfer:exact_replay_total", turns, {{"result", "hit"}},
                          reader([](const Stats& s) { return static_cast<double>(s.hits); }));
  registry_->counter_from("deepinfer:exact_replay_total", turns, {{"result", "miss"}},
                          reader([](const Stats& s) { return static_cast<double>(s.misses); }));
  registry_->gauge_from("deepinfer:exact_replay_turns", "Turns whose tokens are kept.", {},
                        reader([](const Stats& s) { return static_cast<double>(s.entries); }));
  registry_->gauge_from("deepinfer:exact_replay_bytes", "Memory of the kept turns.", {},
                        reader([](const Stats& s) { return static_cast<double>(s.bytes); }));
}

// Images that were decoded lately (codec/image/cache.h).
void ServerMetrics::add_image_series() {
  using Stats = codec::ImageCache::Stats;
  const auto reader = [this](double (*read)(const Stats&)) {
    return [this, read] {
      const codec::ImageCache* images = images_.load();
      return images == nullptr ? 0.0 : read(images->stats());
    };
  };
  const MetricLabels labels = engine_labels(model_name_);
  registry_->counter_from("vllm:mm_cache_queries_total", "Images looked up among those decoded lately.", labels,
                          reader([](const Stats& s) { return static_cast<double>(s.queries); }));
  registry_->counter_from("vllm:mm_cache_hits_total", "Of these, found.", labels,
                          reader([](const Stats& s) { return static_cast<double>(s.hits); }));
  registry_->gauge_from("deepinfer:image_cache_entries", "Images that are known.", {},
                        reader([](const Stats& s) { return static_cast<double>(s.entries); }));
}

void ServerMetrics::attach(const engine::EngineApi& engine) {
  const engine::EngineInfo& info = engine.info();
  registry_
      ->gauge("vllm:cache_config_info", "Constant 1; the labels say how the KV cache is laid out.",
              engine_labels(model_name_, {{"block_size", std::to_string(info.block_tokens)},
                                          {"num_gpu_blocks", std::to_string(info.n_blocks)},
                                          {"cache_dtype", info.kv_dtype},
                                          {"enable_prefix_caching", info.prefix_cache ? "True" : "False"},
                                          {"swa_replay", info.swa_replay ? "True" : "False"},
                                          {"prefill_truncation", std::string(info.prefill_truncation)},
                                          {"replay_keep", std::to_string(info.replay_keep)}}))
      .set(1);
  engine_.store(&engine);
}

void ServerMetrics::watch(const HttpCounters& counters) {
  registry_->gauge_from("deepinfer:http_connections", "Open connections.", {},
                        [&counters] { return static_cast<double>(counters.connections.load()); });
  registry_->counter_from("deepinfer:http_malformed_total", "Requests that were no valid HTTP, too large or cut.", {},
                          [&counters] { return static_cast<double>(counters.malformed.load()); });
}

void ServerMetrics::watch(const OtlpCounters& counters) {
  const auto counter = [&](const char* result, const std::atomic<uint64_t>& value) {
    registry_->counter_from("deepinfer:traces_total", "Traced requests by what became of their spans.",
                            {{"result", result}}, [&value] { return static_cast<double>(value.load()); });
  };
  counter("sent", counters.sent);
  counter("dropped", counters.dropped);
  counter("failed", counters.failed);
}

void ServerMetrics::watch(structured::CompilePool& constraints) {
  constraints.on_compiled([this](double seconds) { grammar_compile_->observe(seconds); });
  const auto counter = [&](const char* result, uint64_t structured::CompilePoolStats::* member) {
    registry_->counter_from("deepinfer:grammar_cache_total", "Constraints asked for.", {{"result", result}},
                            [&constraints, member] { return static_cast<double>(constraints.stats().*member); });
  };
  counter("hit", &structured::CompilePoolStats::hits);
  counter("miss", &structured::CompilePoolStats::misses);
}

std::string ServerMetrics::text() const {
  const engine::EngineApi* engine = engine_.load();
  const engine::EngineStats stats = engine == nullptr ? engine::EngineStats{} : engine->stats();
  return registry_->text() + engine_histograms_text() + speculation_text(stats.speculation, model_name_);
}

// The same in other words: families of counters are named without `_total`, bounds are floating point numbers, the end
// is marked.
std::string ServerMetrics::open_metrics() const {
  const std::string plain = text();
  std::string out;
  out.reserve(plain.size() + plain.size() / 16);
  for (size_t at = 0; at < plain.size();) {
    const size_t end = std::min(plain.find('\n', at), plain.size());
    const std::string_view line = std::string_view(plain).substr(at, end - at);
    at = end + 1;
    if (line.starts_with("# HELP ") || line.starts_with("# TYPE ")) {
      constexpr std::string_view kTotal = "_total";
      std::string_view name = line.substr(7, line.find(' ', 7) - 7);
      const std::string_view rest = line.substr(7 + name.size());
      // The type stands behind the name, or on the line that follows the help.
      const bool counter =
          line[2] == 'T' ? rest == " counter"
                         : std::string_view(plain).substr(at).starts_with(fmt::format("# TYPE {} counter\n", name));
      if (counter && name.ends_with(kTotal)) name.remove_suffix(kTotal.size());
      fmt::format_to(std::back_inserter(out), "{}{}{}\n", line.substr(0, 7), name, rest);
      continue;
    }
    const size_t bound = line.find("le=\"");
    if (bound == std::string_view::npos) {
      out.append(line) += '\n';
      continue;
    }
    const size_t quote = line.find('"', bound + 4);
    const std::string_view number = line.substr(bound + 4, quote - bound - 4);
    const bool whole = number.find_first_not_of("0123456789") == std::string_view::npos;
    fmt::format_to(std::back_inserter(out), "{}{}{}\n", line.substr(0, quote), whole ? ".0" : "", line.substr(quote));
  }
  return out + "# EOF\n";
}

void ServerMetrics::request_done(const std::string& route, int status, double seconds) {
  registry_
      ->counter("deepinfer:http_requests_total", "Answers by route and status.",
                {{"route", route}, {"code", std::to_string(status)}})
      .add();
  registry_
      ->histogram("deepinfer:http_request_duration_seconds",
                  "Time from the first byte of a request to the end of its answer.", kFirstTokenBounds,
                  {{"route", route}})
      .observe(seconds);
}

void ServerMetrics::tenant_done(const RequestRecord& r) {
  constexpr std::size_t kMostTenants = 100;
  std::string tenant = "other";
  {
    const std::lock_guard lock(tenants_mutex_);
    if (tenants_.size() < kMostTenants || tenants_.contains(r.tenant)) tenant = *tenants_.insert(r.tenant).first;
  }
  const auto add = [&](const char* name, const char* help, int64_t n) {
    registry_->counter(name, help, {{"tenant", tenant}}).add(static_cast<uint64_t>(n));
  };
  registry_
      ->counter("deepinfer:tenant_requests_total", "Requests that reached the engine, by tenant and status.",
                {{"tenant", tenant}, {"code", std::to_string(r.status)}})
      .add();
  add("deepinfer:tenant_prompt_tokens_total", "Prompt tokens by tenant.", r.prompt_tokens);
  add("deepinfer:tenant_cached_tokens_total", "Of these, taken from the cache.", r.cached_tokens);
  add("deepinfer:tenant_generation_tokens_total", "Generated tokens by tenant.", r.output_tokens);
}

Counter& ServerMetrics::error_counter(std::string_view code) {
  return registry_->counter("deepinfer:errors_total", "Errors sent to clients by code.", {{"code", std::string(code)}});
}

void ServerMetrics::error(std::string_view code) {
  error_counter(code).add();
}

Counter& ServerMetrics::abort_counter(std::string_view phase, std::string_view reason) {
  return registry_->counter("deepinfer:requests_aborted_total", "Requests ended before their end.",
                            {{"phase", std::string(phase)}, {"reason", std::string(reason)}});
}

Counter& ServerMetrics::rejection_counter(std::string_view reason) {
  return registry_->counter("vllm:admission_rejections_total", "Requests refused at the door.",
                            engine_labels(model_name_, {{"reason", std::string(reason)}}));
}

void ServerMetrics::aborted(std::string_view phase, std::string_view reason) {
  abort_counter(phase, reason).add();
}

void ServerMetrics::rejected(std::string_view reason) {
  rejection_counter(reason).add();
}

}  // namespace di::server
