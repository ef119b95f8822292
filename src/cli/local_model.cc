#include "cli/local_model.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "cli/test_engine.h"
#include "codec/tokenizer/spelling.h"
#include "engine/engine.h"
#include "engine/engine_pair.h"
#include "engine/model_runner.h"
#include "engine/speculative/curve_cache.h"
#include "server/constraint.h"

namespace di::cli {
namespace {

namespace fs = std::filesystem;

std::string mebibytes(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

// Memory that nobody uses, and caches that give way.
int64_t free_memory() {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    int64_t kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %" SCNd64, &kib) == 1) return kib * 1024;
  }
  return int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

LoadError load_error(const Error& error) {
  return {error.code == Errc::kResourceExhausted ? kNoMemory : kBadModel, error.message};
}

// Equal for equal weights, configuration and arithmetic (server.md §2.2). The weights' names, sizes and times stand for
// them.
std::string fingerprint(const std::string& folder, std::string_view arithmetic) {
  std::string key(arithmetic);
  std::error_code ec;
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ec)) {
    if (!entry.is_regular_file(ec)) continue;
    files.push_back(fmt::format("{} {} {}", entry.path().filename().string(), entry.file_size(ec),
                                entry.last_write_time(ec).time_since_epoch().count()));
  }
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) key += "\n" + file;
  return fmt::format("fp_{:012x}", XXH3_64bits(key.data(), key.size()) & 0xFFFFFFFFFFFFULL);
}

engine::SpeculationOptions speculation_options(const ModelOptions& options) {
  engine::SpeculationOptions out;
  out.length = options.spec_max_len;
  if (options.spec == "off" || options.spec == "0") {
    out.mode = engine::SpeculationMode::kOff;
  } else if (options.spec != "dspark") {
    out.mode = engine::SpeculationMode::kFixed;
    out.length = std::atoi(options.spec.c_str());
  }
  return out;
}

engine::ModelRunnerOptions runner_options(const ModelOptions& options) {
  engine::ModelRunnerOptions out;
  out.max_num_seqs = options.max_num_seqs;
  out.max_model_len = options.max_model_len;
  out.kv_memory_bytes = static_cast<int64_t>(options.kv_memory);
  out.kv_memory_cap_bytes = free_memory() / 2;
  out.kv_quant = options.kv_quant;
  out.numerics = options.numerics == "trained" ? model::NumericMode::kTrained : model::NumericMode::kExact;
  out.truncation_rule = options.truncation_rule == "di" ? model::TruncationRule::kDi : model::TruncationRule::kVl;
  out.speculation = speculation_options(options).mode != engine::SpeculationMode::kOff;
  out.confidence_temperatures = options.spec_temperature;
  for (const std::string& part : options.ablate) {
    model::Ablation& ablation = out.ablation;
    (part == kAblations[0]   ? ablation.engram
     : part == kAblations[1] ? ablation.selection
     : part == kAblations[2] ? ablation.candidates
                             : ablation.candidate_scores) = false;
  }
  return out;
}

std::string speculation_text(const ModelOptions& options, int32_t drafts) {
  if (options.spec == "off" || options.spec == "0") return "off";
  if (drafts == 0) return "off (the model has no draft module)";
  return options.spec == "dspark" ? fmt::format("up to {} drafts", drafts) : fmt::format("{} drafts", drafts);
}

// The codec's part of a served model: names, special tokens, version.
codec::CodecOptions codec_options(const ModelOptions& options, codec::ApiPolicy policy,
                                  const codec::Tokenizer& tokenizer, codec::ModelVersion version) {
  codec::CodecOptions out;
  out.policy = policy;
  out.missing_reasoning =
      options.reject_missing_reasoning ? codec::MissingReasoning::kReject : codec::MissingReasoning::kFillEmpty;
  out.open_sampling = options.open_sampling;
  out.special = codec::SpecialSpellings::for_tokenizer(tokenizer);
  out.models.clear();
  for (const std::string& name : served_names(options)) out.models[name] = version;
  return out;
}

// Rows at a prompt's end that the decoder half needs: 140, or as many as make the last row's answer equal to that of
// all rows (engine.md §6.4).
Result<int32_t> replay_keep(const std::string& text, const model::ModelConfig& config, int32_t boundary) {
  if (text == "fast") return 140;
  const int32_t trimmed = config.num_hidden_layers - boundary - 1;
  if (text == "lossless") {
    return config.sliding_window + std::max(0, trimmed - 1) * (config.sliding_window - 1);
  }
  int32_t rows = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rows);
  if (error != std::errc{} || end != text.data() + text.size() || rows < 1) {
    return fail(Errc::kInvalidRequest, "replay-keep is {}, expected fast, lossless or a number of rows", text);
  }
  return rows;
}

Result<engine::ReuseOptions> reuse_options(const ModelOptions& options, const model::ModelConfig& config) {
  // design.md §7: the approximate modes are for the windows that they were made for.
  const bool large_window = config.sliding_window >= 128;
  engine::ReuseOptions out;
  out.prefix_cache = options.prefix_cache;
  out.replay = options.swa_replay.value_or(large_window);
  out.window_memory_bytes =
      options.swa_memory ? static_cast<int64_t>(*options.swa_memory) : std::min(free_memory() / 4, int64_t{64} << 30);
  out.window_retention_ns = options.swa_retention_ms * kNsPerMs;
  const std::string truncation = !options.prefill_truncation.empty() ? options.prefill_truncation
                                 : large_window                      ? "compact"
                                                                     : "off";
  if (truncation == "off") return out;
  const model::Schedule schedule = DI_TRY(model::make_schedule(config));
  out.replay_keep = DI_TRY(replay_keep(options.replay_keep, config, schedule.boundary));
  out.mask = truncation == "mask";
  return out;
}

engine::EngineOptions engine_options(const ModelOptions& options, const engine::RunnerInfo& runner) {
  engine::EngineOptions out;
  out.max_model_len = options.max_model_len;
  out.max_num_seqs = options.max_num_seqs;
  out.speculation = speculation_options(options);
  // A step has room for every sequence's drafts.
  const int32_t drafts = engine::agreed_drafts(out.speculation, runner);
  out.max_num_batched_tokens = std::max(options.max_num_batched_tokens, options.max_num_seqs * (1 + drafts));
  out.max_queue_size = options.max_queue_size;
  out.max_queue_tokens = options.max_queue_tokens;
  out.max_queue_ms = options.max_queue_ms;
  out.ttft_target_ms = options.ttft_target_ms;
  out.recompute_preempted = options.recompute_preempted;
  out.peak_flops = options.peak_tflops * 1e12;
  out.async_scheduling = options.async_scheduling;
  return out;
}

// Where curves are kept: the folder named, else the user's own; empty: nowhere.
fs::path curve_folder(const std::string& named) {
  if (!named.empty()) return named == "none" ? fs::path() : fs::path(named);
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0')
    return fs::path(cache) / "deepinfer";
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? fs::path() : fs::path(home) / ".cache/deepinfer";
}

// What steps cost on this machine (speculative.md §4.4): as a start within the last hour measured it, or measured now.
// place: the weights and where they are computed.
Result<engine::CostCurve> step_costs(const ModelOptions& options, engine::Runner& runner,
                                     const engine::EngineOptions& settings, const std::string& place,
                                     const Clock& clock) {
  const int32_t drafts = engine::agreed_drafts(settings.speculation, runner.info());
  if (drafts == 0 || settings.speculation.mode != engine::SpeculationMode::kVariable) return engine::CostCurve();
  const std::vector<int32_t> sizes =
      engine::decode_curve_sizes(settings.max_num_seqs, drafts, settings.max_num_batched_tokens);
  const fs::path folder = curve_folder(options.spec_curve_cache);
  const engine::CurveCache cache(folder);
  const std::string key = engine::curve_key(place, sizes);
  if (!folder.empty()) {
    if (auto known = cache.read(key, sizes, clock.unix_seconds())) {
      DI_LOG(kInfo, "decode steps of n rows take (n:ms) {} (measured by an earlier start, {})", known->to_string(),
             folder.string());
      return std::move(*known);
    }
  }
  const int64_t begun = clock.now_ns();
  engine::CostCurve curve = DI_TRY(engine::measure_decode_curve(runner, sizes, drafts, clock));
  DI_LOG(kInfo, "decode steps of n rows take (n:ms) {} (measured in {:.2f} s)", curve.to_string(),
         static_cast<double>(clock.now_ns() - begun) * 1e-9);
  if (folder.empty()) return curve;
  if (const Result<void> kept = cache.write(key, curve, clock.unix_seconds()); !kept) {
    DI_LOG(kWarn, "the cost of steps is not kept for the next start: {}", kept.error().message);
  }
  return curve;
}

// The machine, as far as it matters to the time of a step.
std::string machine() {
  std::string name(256, '\0');
  gethostname(name.data(), name.size() - 1);
  name.resize(std::strlen(name.c_str()));
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) return name + " " + line;
  }
  return name;
}

std::string describe_reuse(const engine::EngineInfo& info, const engine::ReuseOptions& reuse) {
  if (!info.prefix_cache) return "no prefix cache";
  return fmt::format("prefix cache, {} of windows for {} s, replay {}, truncation {}{}",
                     mebibytes(reuse.window_memory_bytes), reuse.window_retention_ns / kNsPerSecond,
                     info.swa_replay ? "on" : "off", info.prefill_truncation,
                     info.replay_keep > 0 ? fmt::format(" (keep {})", info.replay_keep) : "");
}

LoadError engine_error(const Error& error) {
  return {error.code == Errc::kResourceExhausted ? kNoMemory : kUsage, error.message};
}

// With a runner for prompts: two engines, of which the first computes them and hands them over.
std::optional<LoadError> start_engine(LocalModel& out, std::unique_ptr<engine::Runner> runner,
                                      std::unique_ptr<engine::Runner> prompts, const engine::EngineOptions& options,
                                      const ModelOptions& model, const Clock& clock) {
  auto engine = engine::Engine::create(std::move(runner), options, clock);
  if (!engine) return engine_error(engine.error());
  out.engine = std::move(*engine);
  if (prompts == nullptr) return std::nullopt;
  engine::EngineOptions first = options;
  first.speculation.mode = engine::SpeculationMode::kOff;
  first.trace = nullptr;  // of one engine's steps
  first.recorder = nullptr;
  auto prefill = engine::Engine::create(std::move(prompts), first, clock);
  if (!prefill) return engine_error(prefill.error());
  auto pair = engine::EnginePair::create(std::move(*prefill), std::move(out.engine),
                                         {.transfer_timeout_ns = model.test_transfer_timeout_ms * kNsPerMs}, clock);
  if (!pair) return engine_error(pair.error());
  out.engine = std::move(*pair);
  return std::nullopt;
}

// What is written while the engine runs.
Result<void> open_records(const ModelOptions& options, LocalModel& model, engine::EngineOptions& settings) {
  using Keep = engine::Trace::Keep;
  model.trace = std::make_unique<engine::Trace>(options.trace_file.empty() ? Keep::kCaptures : Keep::kAll);
  model.trace_file = options.trace_file;
  settings.trace = model.trace.get();
  if (!options.record_schedule.empty()) {
    model.recorder = DI_TRY(engine::ScheduleRecorder::create(options.record_schedule));
    settings.recorder = model.recorder.get();
  }
  return {};
}

constexpr int64_t kTestContext = 1 << 20;
constexpr int32_t kTestBlockTokens = 128;

// What steps of a mock or script take, known without measuring.
engine::CostCurve test_curve(const engine::ScriptedOptions& script, int32_t rows) {
  const auto ms = [&](int32_t n) { return static_cast<double>(script.step_ns + script.row_ns * n) * 1e-6 + 1e-3; };
  return engine::CostCurve::create({{1, ms(1)}, {std::max(2, rows), ms(rows)}}).value();
}

// Mock and scripted engines: of the model folder, only the tokenizer is used.
std::optional<LoadError> start_test_engine(LocalModel& out, const EngineChoice& choice, const ModelOptions& options,
                                           const Clock& clock) {
  Result<engine::ScriptedOptions> script = test_engine_options(choice, out.tokenizer);
  if (!script) return LoadError{kUsage, script.error().message};
  const int64_t context = options.max_model_len > 0 ? options.max_model_len : kTestContext;
  script->max_positions = context;
  script->block_tokens = kTestBlockTokens;
  script->n_slots = options.max_num_seqs + 1;
  // Room for all sequences at 8k tokens, or for one that fills the context.
  script->n_blocks =
      static_cast<int32_t>(std::max(context, int64_t{options.max_num_seqs} * 8192) / kTestBlockTokens) + 2;
  if (options.test_blocks > 0) script->n_blocks = options.test_blocks + 1;
  out.system_fingerprint = fingerprint(options.folder, options.engine);
  std::unique_ptr<engine::Runner> prompts;
  if (options.test_prefill) prompts = engine::make_scripted_runner(*script, clock);
  std::unique_ptr<engine::Runner> runner = engine::make_scripted_runner(*script, clock);
  engine::EngineOptions settings = engine_options(options, runner->info());
  settings.reuse.prefix_cache = options.prefix_cache;
  settings.reuse.replay = true;  // there is no sliding window to be kept
  settings.speculation.curve = test_curve(*script, settings.max_num_batched_tokens);
  if (const Result<void> ok = open_records(options, out, settings); !ok) return LoadError{kUsage, ok.error().message};
  if (auto error = start_engine(out, std::move(runner), std::move(prompts), settings, options, clock)) return error;
  out.summary =
      fmt::format("engine {} with the tokenizer of {} as {}; context {}, {} sequences", options.engine, options.folder,
                  served_names(options)[0], out.engine->info().max_model_len, options.max_num_seqs);
  return std::nullopt;
}

}  // namespace

std::string default_model_folder() {
  std::error_code ec;
  std::vector<fs::path> starts = {fs::current_path(ec), fs::read_symlink("/proc/self/exe", ec).parent_path()};
  for (fs::path at : starts) {
    for (int up = 0; up < 4 && !at.empty(); ++up, at = at.parent_path()) {
      if (fs::exists(at / "models/tiny/config.json", ec)) return (at / "models/tiny").string();
    }
  }
  return "models/tiny";
}

std::vector<std::string> served_names(const ModelOptions& options) {
  if (!options.served_model_names.empty()) return options.served_model_names;
  std::error_code ec;
  const std::string own = fs::weakly_canonical(options.folder, ec).filename().string();
  std::vector<std::string> names = {own == "tiny" ? "deepinfer-tiny" : own.empty() ? "deepinfer" : own};
  for (const char* name : {"deepseek-v4.1-flash", "DeepSeek-V4.1-Flash", "deepseek-flash", "deepseek-v4-flash",
                           "deepseek-chat", "deepseek-reasoner"}) {
    names.emplace_back(name);
  }
  return names;
}

Result<server::Codec> load_codec(const ModelOptions& options) {
  codec::ModelVersion version = codec::ModelVersion::kV41;
  std::error_code ec;
  if (fs::exists(fs::path(options.folder) / "config.json", ec)) {
    const model::ModelConfig config = DI_TRY(model::load_config(options.folder));
    if (config.family == model::Family::kV4) version = codec::ModelVersion::kV4;
  }
  server::Codec out;
  out.tokenizer = DI_TRY(codec::Tokenizer::load(options.folder));
  out.options = codec_options(options, codec::ApiPolicy::kExtended, *out.tokenizer, version);
  return out;
}

server::Service LocalModel::service(const Clock& clock) const {
  const server::ProfileSource profile{[t = trace.get()] { t->begin_capture(); },
                                      [t = trace.get()] { return t->end_capture(); }};
  return {engine.get(), constraints.get(), tokenizer, codec, system_fingerprint, clock.unix_seconds(), vision, profile};
}

std::vector<model::TokenText> token_texts(const codec::Tokenizer& tokenizer) {
  std::vector<model::TokenText> texts;
  texts.reserve(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    texts.push_back({tokenizer.decode(std::span(&id, 1)), codec::token_spelling(tokenizer, id)});
  }
  return texts;
}

LocalModel::~LocalModel() {
  engine.reset();
  if (trace_file.empty() || trace == nullptr) return;
  if (const Result<void> written = trace->write(trace_file); !written) DI_LOG(kError, "{}", written.error().message);
}

// long because it is the order in which a model's parts come up
std::expected<std::unique_ptr<LocalModel>, LoadError> load_model(const ModelOptions& options, codec::ApiPolicy policy,
                                                                 const Clock& clock, const LoadHooks& hooks) {
  const auto stage = [&](double part, std::string_view name) {
    if (hooks.progress) hooks.progress(part, name);
  };
  const auto started = clock.now_ns();
  auto out = std::make_unique<LocalModel>();
  const Result<EngineChoice> choice = parse_engine_choice(options.engine);
  if (!choice) return std::unexpected(LoadError{kUsage, choice.error().message});
  const bool real = choice->kind == EngineChoice::Kind::kReal;
  codec::ModelVersion version = codec::ModelVersion::kV41;
  stage(0.0, "config");
  if (real) {
    const Result<model::ModelConfig> config = model::load_config(options.folder);
    if (!config) return std::unexpected(load_error(config.error()));
    if (config->family == model::Family::kV4) version = codec::ModelVersion::kV4;
  }
  stage(0.1, "tokenizer");
  Result<codec::TokenizerRef> tokenizer = codec::Tokenizer::load(options.folder);
  if (!tokenizer) return std::unexpected(load_error(tokenizer.error()));
  out->tokenizer = std::move(*tokenizer);
  out->codec = codec_options(options, policy, *out->tokenizer, version);
  // There is no vision tower yet; to the test engines an image is as good as text.
  out->vision = !real && version == codec::ModelVersion::kV41;
  if (hooks.codec) hooks.codec({out->tokenizer, out->codec, out->vision});
  stage(0.2, "constraints");
  out->constraints = std::make_unique<structured::CompilePool>(server::make_vocabulary(*out->tokenizer),
                                                               structured::CompilePoolOptions{}, clock);
  if (!real) {
    if (auto error = start_test_engine(*out, *choice, options, clock)) return std::unexpected(*error);
    return out;
  }

  stage(0.3, "weights");
  const auto open = [&]() -> std::expected<Backend, LoadError> {
    Result<Backend> backend = open_backend(options.device, options.threads, options.reference_kernels);
    if (backend) return std::move(*backend);
    const Errc code = backend.error().code;
    return std::unexpected(LoadError{code == Errc::kUnavailable      ? kNoMemory
                                     : code == Errc::kInvalidRequest ? kUsage
                                                                     : kFailed,
                                     backend.error().message});
  };
  out->backend = DI_TRY(open());
  const kernels::Ops& ops = *out->backend.ops;
  const engine::ModelRunnerOptions wanted = runner_options(options);
  const auto load = [&](const Backend& backend) {
    return engine::load_model_runner(
        options.folder, wanted, {ops, *backend.stream, *backend.device}, [&] { return token_texts(*out->tokenizer); },
        [&](double part) { stage(0.3 + 0.6 * part, "weights"); });
  };
  auto runner = load(out->backend);
  if (!runner) return std::unexpected(load_error(runner.error()));
  std::unique_ptr<engine::Runner> prompts;
  if (options.test_prefill) {
    out->prefill_backend = DI_TRY(open());
    auto second = load(*out->prefill_backend);
    if (!second) return std::unexpected(load_error(second.error()));
    prompts = std::move(*second);
  }
  const model::ModelConfig& config = (*runner)->config();
  if (out->tokenizer->vocab_size() > config.vocab_size) {
    return std::unexpected(
        LoadError{kBadModel, fmt::format("{}/tokenizer.json has {} token ids, config.json's vocab_size is {}",
                                         options.folder, out->tokenizer->vocab_size(), config.vocab_size)});
  }
  const engine::KvPlan kv = (*runner)->kv_plan();
  const std::string_view kv_dtype = (*runner)->kv_dtype();
  const int64_t weight_bytes = (*runner)->weight_bytes();
  const bool v4 = config.family == model::Family::kV4;

  stage(0.9, "engine");
  engine::EngineOptions settings = engine_options(options, (*runner)->info());
  settings.on_device_lost = hooks.device_lost;
  if (const Result<void> ok = open_records(options, *out, settings); !ok) {
    return std::unexpected(LoadError{kUsage, ok.error().message});
  }
  const Result<engine::ReuseOptions> reuse = reuse_options(options, config);
  if (!reuse) return std::unexpected(LoadError{kUsage, reuse.error().message});
  settings.reuse = *reuse;
  out->system_fingerprint = fingerprint(
      options.folder, fmt::format("{} {} {} {}", ops.name, options.numerics, kv_dtype, fmt::join(options.ablate, " ")));
  auto curve =
      step_costs(options, **runner, settings,
                 fmt::format("{} {} {} {}", out->system_fingerprint, DI_VERSION, out->backend.place, machine()), clock);
  if (!curve) return std::unexpected(load_error(curve.error()));
  settings.speculation.curve = std::move(*curve);
  if (auto error = start_engine(*out, std::move(*runner), std::move(prompts), settings, options, clock))
    return std::unexpected(*error);

  out->summary = fmt::format(
      "model {} ({}, {} weights) as {}; {} on {}, {} activations, {} KV; {} KV in {} blocks of {} tokens and "
      "{} slots; {}; "
      "context {}, {} sequences, {} rows per step; speculation {}; loaded in {:.2f} s",
      options.folder, model::to_string(v4 ? model::Family::kV4 : model::Family::kV41), mebibytes(weight_bytes),
      served_names(options)[0], ops.name, out->backend.place, options.numerics, kv_dtype, mebibytes(kv.total_bytes()),
      kv.n_blocks - 1, out->engine->info().block_tokens, kv.n_slots - 1,
      describe_reuse(out->engine->info(), settings.reuse), out->engine->info().max_model_len, options.max_num_seqs,
      settings.max_num_batched_tokens, speculation_text(options, out->engine->info().max_drafts),
      static_cast<double>(clock.now_ns() - started) * 1e-9);
  return out;
}

}  // namespace di::cli
