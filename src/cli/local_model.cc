#include "cli/local_model.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/log.h"
#include "codec/tokenizer/spelling.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "server/constraint.h"

namespace di::cli {
namespace {

namespace fs = std::filesystem;

std::string mebibytes(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

// A quarter of the machine's memory bounds what is planned for KV when no size is given.
int64_t kv_memory_cap() {
  return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE) / 4;
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

std::string speculation_text(const ModelOptions& options, int32_t drafts) {
  if (options.spec == "off" || options.spec == "0") return "off";
  if (drafts == 0) return "off (the model has no draft module)";
  return options.spec == "dspark" ? fmt::format("up to {} drafts", drafts) : fmt::format("{} drafts", drafts);
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

server::Service LocalModel::service(const Clock& clock) const {
  return {engine.get(), constraints.get(), tokenizer, codec, system_fingerprint, clock.unix_seconds()};
}

std::vector<model::TokenText> token_texts(const codec::Tokenizer& tokenizer) {
  std::vector<model::TokenText> texts;
  texts.reserve(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    texts.push_back({tokenizer.decode(std::span(&id, 1)), codec::token_spelling(tokenizer, id)});
  }
  return texts;
}

// long because it is the order in which a model's parts come up
std::expected<std::unique_ptr<LocalModel>, LoadError> load_model(
    const ModelOptions& options, codec::ApiPolicy policy, const Clock& clock,
    const std::function<void(double, std::string_view)>& progress) {
  const auto stage = [&](double part, std::string_view name) {
    if (progress) progress(part, name);
  };
  const auto started = clock.now_ns();
  auto out = std::make_unique<LocalModel>();
  stage(0.0, "config");
  if (const Result<model::ModelConfig> config = model::load_config(options.folder); !config) {
    return std::unexpected(load_error(config.error()));
  }
  stage(0.1, "tokenizer");
  Result<codec::TokenizerRef> tokenizer = codec::Tokenizer::load(options.folder);
  if (!tokenizer) return std::unexpected(load_error(tokenizer.error()));
  out->tokenizer = std::move(*tokenizer);

  stage(0.3, "weights");
  out->pool = std::make_unique<ThreadPool>(options.threads);
  out->stream = kernels::cpu::make_stream(*out->pool);
  out->device = device::make_host_device();
  const kernels::Ops& ops =
      options.reference_kernels ? kernels::cpu::reference_ops() : kernels::cpu::ops(kernels::cpu::best_isa());
  engine::ModelRunnerOptions runner_options;
  runner_options.max_num_seqs = options.max_num_seqs;
  runner_options.max_model_len = options.max_model_len;
  runner_options.kv_memory_bytes = static_cast<int64_t>(options.kv_memory);
  runner_options.kv_memory_cap_bytes = kv_memory_cap();
  runner_options.kv_quant = options.kv_quant;
  runner_options.numerics = options.numerics == "trained" ? model::NumericMode::kTrained : model::NumericMode::kExact;
  const engine::SpeculationOptions speculation = speculation_options(options);
  runner_options.speculation = speculation.mode != engine::SpeculationMode::kOff;
  runner_options.confidence_temperatures = options.spec_temperature;
  for (const std::string& part : options.ablate) {
    model::Ablation& ablation = runner_options.ablation;
    (part == kAblations[0]   ? ablation.engram
     : part == kAblations[1] ? ablation.selection
     : part == kAblations[2] ? ablation.candidates
                             : ablation.candidate_scores) = false;
  }
  auto runner = engine::load_model_runner(options.folder, runner_options, {ops, *out->stream, *out->device},
                                          [&] { return token_texts(*out->tokenizer); });
  if (!runner) return std::unexpected(load_error(runner.error()));
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

  stage(0.8, "constraints");
  out->constraints = std::make_unique<structured::CompilePool>(server::make_vocabulary(*out->tokenizer),
                                                               structured::CompilePoolOptions{}, clock);
  stage(0.9, "engine");
  engine::EngineOptions engine_options;
  engine_options.max_model_len = options.max_model_len;
  engine_options.max_num_seqs = options.max_num_seqs;
  engine_options.speculation = speculation;
  // A step has room for every sequence's drafts.
  const int32_t drafts = engine::agreed_drafts(speculation, (*runner)->info());
  engine_options.max_num_batched_tokens = std::max(options.max_num_batched_tokens, options.max_num_seqs * (1 + drafts));
  engine_options.max_queue_size = options.max_queue_size;
  engine_options.max_queue_tokens = options.max_queue_tokens;
  auto engine = engine::Engine::create(std::move(*runner), engine_options, clock);
  if (!engine)
    return std::unexpected(
        LoadError{engine.error().code == Errc::kResourceExhausted ? kNoMemory : kUsage, engine.error().message});
  out->engine = std::move(*engine);

  out->codec.policy = policy;
  out->codec.special = codec::SpecialSpellings::for_tokenizer(*out->tokenizer);
  out->codec.models.clear();
  const std::vector<std::string> names = served_names(options);
  for (const std::string& name : names) {
    out->codec.models[name] = v4 ? codec::ModelVersion::kV4 : codec::ModelVersion::kV41;
  }
  out->system_fingerprint = fingerprint(
      options.folder, fmt::format("{} {} {} {}", ops.name, options.numerics, kv_dtype, fmt::join(options.ablate, " ")));
  out->summary = fmt::format(
      "model {} ({}, {} weights) as {}; {} on {} threads, {} activations, {} KV; {} KV in {} blocks of {} tokens and "
      "{} slots; "
      "context {}, {} sequences, {} rows per step; speculation {}; loaded in {:.2f} s",
      options.folder, model::to_string(v4 ? model::Family::kV4 : model::Family::kV41), mebibytes(weight_bytes),
      names[0], ops.name, out->pool->size(), options.numerics, kv_dtype, mebibytes(kv.total_bytes()), kv.n_blocks - 1,
      out->engine->info().block_tokens, kv.n_slots - 1, out->engine->info().max_model_len, options.max_num_seqs,
      engine_options.max_num_batched_tokens, speculation_text(options, out->engine->info().max_drafts),
      static_cast<double>(clock.now_ns() - started) * 1e-9);
  return out;
}

}  // namespace di::cli
