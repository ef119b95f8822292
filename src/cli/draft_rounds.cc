#include "cli/draft_rounds.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>
#include <stop_token>
#include <utility>

#include "base/cpu_time.h"
#include "base/json.h"
#include "codec/prompt/prompt.h"
#include "codec/tokenizer/spelling.h"
#include "codec/tokenizer/tokenizer.h"

namespace di::cli {
namespace {

constexpr int32_t kContext = 8192;

// Processor time of this process as the time; nothing here sleeps by it.
class ProcessorClock final : public Clock {
 public:
  int64_t now_ns() const override { return static_cast<int64_t>(process_cpu_seconds() * 1e9); }
  int64_t unix_seconds() const override { return wall_.unix_seconds(); }
  bool sleep_until(int64_t deadline_ns, std::stop_token stop) const override {
    return wall_.sleep_until(wall_.now_ns() + deadline_ns - now_ns(), std::move(stop));
  }

 private:
  SystemClock wall_;
};

std::vector<model::TokenText> texts_of(const codec::Tokenizer& tokenizer) {
  std::vector<model::TokenText> out;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    out.push_back({tokenizer.decode(std::span(&id, 1)), codec::token_spelling(tokenizer, id)});
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<DraftModel>> DraftModel::open(const std::string& folder, int32_t threads, bool processor_time) {
  auto out = std::make_unique<DraftModel>();
  out->folder_ = folder;
  if (processor_time) {
    out->clock_ = std::make_unique<ProcessorClock>();
  } else {
    out->clock_ = std::make_unique<SystemClock>();
  }
  out->pool_ = std::make_unique<ThreadPool>(threads);
  out->stream_ = kernels::cpu::make_stream(*out->pool_);
  out->device_ = device::make_host_device();
  out->tokenizer_ = DI_TRY(codec::Tokenizer::load(folder));
  out->codec_.special = codec::SpecialSpellings::for_tokenizer(*out->tokenizer_);
  out->codec_.policy = codec::ApiPolicy::kExtended;
  const auto probe = DI_TRY(out->runner(1, true, {}));
  out->drafts_ = probe->info().max_drafts;
  if (out->drafts_ == 0) return fail(Errc::kInvalidRequest, "{}: the model has no draft module", folder);
  return out;
}

Result<std::unique_ptr<engine::ModelRunner>> DraftModel::runner(int32_t sequences, bool drafts,
                                                                const std::vector<double>& temperatures) {
  engine::ModelRunnerOptions options;
  options.max_num_seqs = sequences;
  options.max_model_len = kContext;
  options.speculation = drafts;
  options.confidence_temperatures = temperatures;
  return engine::load_model_runner(folder_, options, {kernels::cpu::ops(kernels::cpu::best_isa()), *stream_, *device_},
                                   [this] { return texts_of(*tokenizer_); });
}

Result<engine::CostCurve> DraftModel::measure_curve(int32_t max_num_seqs) {
  const auto probe = DI_TRY(runner(max_num_seqs, true, {}));
  const auto sizes = engine::decode_curve_sizes(max_num_seqs, drafts_, max_num_seqs * (1 + drafts_));
  return engine::measure_decode_curve(*probe, sizes, drafts_, *clock_);
}

Result<std::vector<DraftPrompt>> DraftModel::read_prompts(const std::string& path, int32_t limit) const {
  std::ifstream in(path);
  if (!in) return fail(Errc::kNotFound, "{}: cannot be read", path);
  std::vector<DraftPrompt> out;
  std::map<std::string, int32_t> taken;
  size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Json body = DI_TRY(parse_json(line));
    DraftPrompt prompt;
    prompt.group = "all";
    if (const Json* id = body.find_value("custom_id"); id != nullptr && id->is_string()) {
      prompt.group = id->as_string().substr(0, id->as_string().rfind('-'));
    }
    if (taken[prompt.group]++ >= limit) continue;
    if (const Json* inner = body.find_value("body")) body = Json(*inner);
    body.set("model", Json(codec_.models.begin()->first));
    const auto request = codec::convert_parsed_request(codec::Api::kChat, body, codec_);
    if (!request) return fail(Errc::kInvalidRequest, "{}: line {}: {}", path, number, request.error().message);
    prompt.tokens =
        DI_TRY(codec::encode_conversation(request->conversation, request->version, *tokenizer_, codec_.special));
    out.push_back(std::move(prompt));
  }
  if (out.empty()) return fail(Errc::kInvalidRequest, "{}: no requests", path);
  return out;
}

Result<Played> DraftModel::play(const std::vector<DraftPrompt>& prompts, const Run& run) {
  Played out;
  out.requests.resize(prompts.size());
  std::map<uint64_t, std::vector<RecordedRound>> rounds;  // by sequence, written by the engine's thread
  const bool drafts = run.speculation.mode != engine::SpeculationMode::kOff;
  auto made = DI_TRY(runner(run.concurrency, drafts, run.confidence_temperatures));
  engine::EngineOptions options;
  options.max_num_seqs = run.concurrency;
  options.max_num_batched_tokens = std::max(512, run.concurrency * (1 + drafts_));
  options.speculation = run.speculation;
  options.speculation.on_round = [&rounds](const engine::DraftRound& r) {
    rounds[r.sequence].push_back({{r.confidences.begin(), r.confidences.end()}, r.scheduled, r.accepted});
  };
  options.speculation.on_step = [&out](const engine::DecodeStep& s) { out.steps.push_back(s); };
  auto engine = DI_TRY(engine::Engine::create(std::move(made), options, *clock_));

  std::mutex mutex;
  std::condition_variable changed;
  size_t open = 0;
  const double cpu = process_cpu_seconds();
  const SystemClock wall;
  const int64_t begin = wall.now_ns();
  for (size_t i = 0; i < prompts.size(); ++i) {
    engine::GenerateRequest r;
    r.prompt = prompts[i].tokens;
    r.max_tokens = run.max_tokens;
    r.sampling.temperature = run.temperature;
    r.sampling.seed = 1 + i;
    r.sampling.seed_given = run.seeded;
    {
      const int32_t most = run.load.empty() ? run.concurrency : std::min(run.load[i], run.concurrency);
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return open < static_cast<size_t>(most); });
      ++open;
    }
    const auto id = engine->submit(std::move(r), [&, i](const engine::Output& o) {
      if (o.finish == engine::FinishReason::kNone) return;
      const std::lock_guard lock(mutex);
      out.requests[i].output_tokens = o.output_tokens;
      --open;
      changed.notify_all();
    });
    if (!id) return std::unexpected(id.error().error);
    out.requests[i].group = prompts[i].group;
  }
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return open == 0; });
  }
  out.seconds = static_cast<double>(wall.now_ns() - begin) * 1e-9;
  out.cpu_seconds = process_cpu_seconds() - cpu;
  out.stats = engine->stats();
  engine.reset();  // its thread is done with `rounds` and the steps
  // Sequences are numbered in the order of submission: one choice each.
  for (auto& [sequence, recorded] : rounds) {
    if (sequence >= 1 && sequence <= out.requests.size()) {
      out.requests[static_cast<size_t>(sequence) - 1].rounds = std::move(recorded);
    }
  }
  return out;
}

std::vector<engine::CalibrationRound> calibration_rounds(const std::vector<RecordedRequest>& requests,
                                                         const std::vector<double>& temperatures) {
  std::vector<engine::CalibrationRound> out;
  for (const RecordedRequest& request : requests) {
    for (const RecordedRound& r : request.rounds) {
      engine::CalibrationRound& c = out.emplace_back();
      for (size_t k = 0; k < static_cast<size_t>(r.decided); ++k) {
        const double p = std::clamp(static_cast<double>(r.confidences[k]), 1e-7, 1 - 1e-7);
        c.logits.push_back(static_cast<float>(std::log(p / (1 - p)) * temperatures[k]));
        c.prefix_labels.push_back(static_cast<int32_t>(k) < r.accepted ? 1.0F : 0.0F);
      }
    }
  }
  return out;
}

}  // namespace di::cli
