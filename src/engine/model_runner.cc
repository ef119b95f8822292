#include "engine/model_runner.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/json.h"
#include "base/log.h"
#include "base/sha256.h"
#include "engine/scheduler.h"
#include "engine/speculative/calibration.h"
#include "model/batch.h"
#include "model/cache.h"
#include "model/config.h"
#include "model/memory_plan.h"
#include "model/place.h"
#include "model/safetensors.h"
#include "model/schedule.h"
#include "model/weights.h"
#include "model/window.h"

namespace di::engine {
namespace {

using namespace model;

// Loaded once; the parts refer to each other, so it stays where it is.
struct Parts {
  ModelConfig config;
  Schedule schedule;
  std::unique_ptr<Safetensors> checkpoint;
  ModelWeights weights;
  device::Buffer placed;  // the weights, where the device does not read the mapped checkpoint
  std::optional<EngramTables> engram;
};

Result<std::unique_ptr<Parts>> open_parts(const std::string& folder) {
  auto parts = std::make_unique<Parts>();
  parts->config = DI_TRY(load_config(folder));
  parts->schedule = DI_TRY(make_schedule(parts->config));
  parts->checkpoint = std::make_unique<Safetensors>(DI_TRY(Safetensors::open(folder)));
  parts->weights = DI_TRY(bind_weights(parts->config, parts->schedule, *parts->checkpoint));
  return parts;
}

Result<void> load_parts(Parts& parts, const DevicePlan& plan, device::Device& device,
                        const std::function<std::vector<TokenText>()>& texts,
                        const std::function<void(double)>& loaded) {
  device::LoadOptions options;
  options.read = [&file = *parts.checkpoint](std::byte* to, const std::byte* from, size_t bytes) {
    return file.read(to, from, bytes);
  };
  if (loaded) {
    options.progress = [&](int64_t done) { loaded(static_cast<double>(done) / static_cast<double>(plan.weights)); };
  }
  parts.placed = DI_TRY(place_weights(parts.config, parts.schedule, parts.weights, device, options));
  if (parts.config.engram_layer_ids.empty()) return {};
  std::vector<TokenText> tokens;
  if (!parts.config.engram_identity_map()) tokens = texts();
  parts.engram = DI_TRY(make_engram_tables(parts.config, tokens));
  return {};
}

// One temperature per draft; none when there is nothing to draft with.
Result<std::vector<float>> draft_temperatures(const std::string& folder, const ModelConfig& config,
                                              const ModelRunnerOptions& options) {
  if (!options.speculation || !config.has_dspark()) return std::vector<float>{};
  std::vector<double> values = options.confidence_temperatures;
  const std::string file = folder + "/" + kCalibrationFile;
  std::error_code ec;
  if (values.empty() && std::filesystem::exists(file, ec)) {
    const Json root = DI_TRY(parse_json_file(file));
    const Json* list = DI_TRY(json_member(root, "temperatures"));
    if (!list->is_array()) {
      return fail(Errc::kInvalidRequest, "{}: `temperatures` is {}, expected a list of numbers", file,
                  describe_json(*list));
    }
    for (const Json& v : list->as_array()) values.push_back(v.to_double().value_or(0));
  }
  if (values.empty()) values = {1.0};
  return expand_temperatures(values, config.dspark_block_size);
}

ForwardOptions forward_options(const ModelRunnerOptions& options) {
  ForwardOptions out;
  out.numerics = options.numerics;
  out.ablation = options.ablation;
  out.draft_context = options.speculation;
  return out;
}

class LoadedModelRunner final : public ModelRunner {
 public:
  LoadedModelRunner(std::unique_ptr<Parts> parts, KvCache cache, const KvPlan& plan, const ModelRunnerOptions& options,
                    std::vector<float> temperatures, const ModelBackend& backend, int64_t max_positions)
      : parts_(std::move(parts)),
        cache_(std::move(cache)),
        plan_(plan),
        rule_(options.truncation_rule),
        temperatures_(std::move(temperatures)),
        forward_(parts_->config, parts_->schedule, parts_->weights, backend.ops, backend.stream, backend.device,
                 forward_options(options)) {
    info_.vocab_size = parts_->config.vocab_size;
    info_.eos_token_id = parts_->config.eos_token_id;
    info_.max_positions = max_positions;
    info_.block_tokens = cache_.layout().options.block_tokens;
    info_.n_blocks = plan.n_blocks;
    info_.n_slots = plan.n_slots;
    info_.block_bytes = cache_.layout().block_bytes;
    info_.slot_bytes = cache_.layout().slot_bytes;
    info_.max_drafts = static_cast<int32_t>(temperatures_.size());
    info_.kv_dtype = cache_.layout().main_format == kernels::KvFormat::kE2m1E4m3    ? "fp4"
                     : cache_.layout().main_format == kernels::KvFormat::kE4m3Ue8m0 ? "fp8"
                                                                                    : "fp32";
    info_.backend = backend.ops.name;
    info_.copies = info_.transfers = true;
    info_.state_form =
        fmt::format("window {}, {} rings of {}, drafts {}", parts_->config.sliding_window, cache_.layout().n_rings,
                    kernels::record_bytes(cache_.layout().swa_format, parts_->config.head_dim), info_.max_drafts);
    flops_ = model::count_row_flops(parts_->config, parts_->schedule);
    info_.backtracking = cache_.layout().options.max_backtracking;
    set_windows();
    set_identity(options);
  }

  const RunnerInfo& info() const override { return info_; }
  const KvPlan& kv_plan() const override { return plan_; }
  const ModelConfig& config() const override { return parts_->config; }
  int64_t weight_bytes() const override { return parts_->checkpoint->file_bytes(); }
  std::string_view kv_dtype() const override { return info_.kv_dtype; }
  double row_flops(int64_t position) const override {
    return model::row_flops(parts_->config, parts_->schedule, flops_, position);
  }

  Result<LogitsView> forward(std::span<const SequenceChunk> chunks, std::span<const SequenceTag>) override {
    const EngramTables* engram = parts_->engram ? &*parts_->engram : nullptr;
    DI_TRY(build_batch(parts_->config, parts_->schedule, engram, rule_, info_.block_tokens, chunks, batch_));
    const ForwardResult result = forward_.run(batch_, cache_);
    const kernels::Tensor logits = forward_.on_host(result.logits, logits_);
    DI_TRY(forward_.status());
    return LogitsView{static_cast<float*>(logits.data), logits.rows, logits.stride};
  }

  void copy(std::span<const CopyPair> blocks, std::span<const CopyPair> slots) override {
    const CacheLayout& layout = cache_.layout();
    for (const CopyPair& p : blocks) copy_bytes(cache_.block(p.to), cache_.block(p.from), layout.block_bytes);
    for (const CopyPair& p : slots) copy_bytes(cache_.slot(p.to), cache_.slot(p.from), layout.slot_bytes);
  }

  void save_window(int32_t slot, kv::SwaEntry& entry) override {
    model::save_window(
        cache_, form(entry.layers), slot, entry.position, entry.bytes,
        [this](void* to, const void* from, size_t n) { forward_.read(to, from, static_cast<int64_t>(n)); });
  }
  void load_window(int32_t slot, const kv::SwaEntry& entry) override {
    model::load_window(
        cache_, form(entry.layers), slot, entry.position, entry.bytes,
        [this](void* to, const void* from, size_t n) { forward_.write(to, from, static_cast<int64_t>(n)); });
  }

  std::vector<std::byte> read_block(int32_t block) override {
    std::vector<std::byte> out(static_cast<size_t>(info_.block_bytes));
    forward_.read(out.data(), cache_.block(block), info_.block_bytes);
    return out;
  }
  Result<void> write_block(int32_t block, std::span<const std::byte> bytes) override {
    DI_TRY(check_size("block", bytes, info_.block_bytes));
    forward_.write(cache_.block(block), bytes.data(), info_.block_bytes);
    return {};
  }
  std::vector<std::byte> read_state(int32_t slot, int32_t position) override {
    const WindowForm whole = form(kv::SwaLayers::kAll);
    std::vector<std::byte> out(static_cast<size_t>(model::window_bytes(cache_.layout(), whole, position)));
    model::save_window(cache_, whole, slot, position, out, [this](void* to, const void* from, size_t n) {
      forward_.read(to, from, static_cast<int64_t>(n));
    });
    return out;
  }
  Result<void> write_state(int32_t slot, int32_t position, std::span<const std::byte> bytes) override {
    const WindowForm whole = form(kv::SwaLayers::kAll);
    DI_TRY(check_size("state", bytes, model::window_bytes(cache_.layout(), whole, position)));
    model::load_window(cache_, whole, slot, position, bytes, [this](void* to, const void* from, size_t n) {
      forward_.write(to, from, static_cast<int64_t>(n));
    });
    return {};
  }

  Result<void> draft(std::span<const DraftStart> starts) override {
    draft_chunks_.clear();
    for (const DraftStart& s : starts) {
      draft_chunks_.push_back({s.golden, s.context_position, s.state_slot, s.window_start});
    }
    draft_ = forward_.draft(draft_chunks_, cache_);
    return forward_.status();
  }

  Result<LogitsView> draft_step(int32_t k, std::span<const int32_t> previous, std::span<float> confidences) override {
    const kernels::Tensor logits = forward_.on_host(
        forward_.draft_step(draft_, k, previous.data(), temperatures_[static_cast<size_t>(k)], confidences.data()),
        draft_logits_);
    DI_TRY(forward_.status());
    return LogitsView{static_cast<float*>(logits.data), logits.rows, logits.stride};
  }

 private:
  static Result<void> check_size(const char* what, std::span<const std::byte> bytes, int64_t expected) {
    if (static_cast<int64_t>(bytes.size()) == expected) return {};
    return fail(Errc::kInternal, "a {} of {} bytes was handed over, expected {}", what, bytes.size(), expected);
  }
  // Inside the caches, by way of the host where it cannot reach them.
  void copy_bytes(std::byte* to, const std::byte* from, int64_t n) {
    copy_.resize(static_cast<size_t>(n));
    forward_.read(copy_.data(), from, n);
    forward_.write(to, copy_.data(), n);
  }
  // The boundary layer sees its whole window under rule `vl`, so its ring belongs to the encoder half's there.
  WindowForm form(kv::SwaLayers layers) const {
    const int32_t encoder = parts_->schedule.boundary + (rule_ == TruncationRule::kVl ? 1 : 0);
    return {parts_->config.sliding_window, layers == kv::SwaLayers::kAll ? cache_.layout().n_rings : encoder};
  }

  void set_windows() {
    info_.window = parts_->config.sliding_window;
    info_.window_bytes = window_bytes(cache_.layout(), form(kv::SwaLayers::kAll));
    if (parts_->schedule.boundary < parts_->config.num_hidden_layers) {
      info_.window_bytes_encoder = window_bytes(cache_.layout(), form(kv::SwaLayers::kEncoder));
    }
  }

  // kv-cache.md §2.2. The weights' digest is left to what leaves this process: there they do not change.
  void set_identity(const ModelRunnerOptions& options) {
    const Sha256 layout = sha256(layout_descriptor(cache_.layout()));
    info_.identity.model_id = parts_->config.model_type;
    info_.identity.layout_digest = std::string(layout.begin(), layout.end());
    info_.identity.numerics = options.numerics == NumericMode::kTrained ? "ds41-trained/1" : "ds41/1";
    info_.identity.block_tokens = info_.block_tokens;
  }

  std::unique_ptr<Parts> parts_;
  KvCache cache_;
  KvPlan plan_;
  TruncationRule rule_;
  std::vector<float> temperatures_;  // of the draft module's confidences; empty: no drafts
  Forward forward_;
  std::vector<DraftChunk> draft_chunks_;
  DraftResult draft_;
  Batch batch_;
  std::vector<std::byte> logits_;  // read back from a device
  std::vector<std::byte> draft_logits_;
  std::vector<std::byte> copy_;
  RunnerInfo info_;
  model::RowFlops flops_;
};

}  // namespace

Result<KvPlan> plan_kv(const CacheLayout& layout, int64_t max_positions, const ModelRunnerOptions& options) {
  KvPlan plan;
  plan.block_bytes = layout.block_bytes;
  plan.slot_bytes = layout.slot_bytes;
  plan.n_slots = options.max_num_seqs + 1;
  const int64_t slot_bytes = int64_t{plan.n_slots} * plan.slot_bytes;
  const int64_t sequence_blocks = blocks_for(max_positions, layout.options.block_tokens);
  int64_t blocks = sequence_blocks * options.max_num_seqs;
  const int64_t limit = options.kv_memory_bytes > 0 ? options.kv_memory_bytes : options.kv_memory_cap_bytes;
  if (limit > 0 && plan.block_bytes > 0) {
    const int64_t fitting = (limit - slot_bytes) / plan.block_bytes - 1;
    if (options.kv_memory_bytes > 0) {
      blocks = fitting;
    } else {
      blocks = std::clamp(fitting, std::min(sequence_blocks, blocks), blocks);
    }
  }
  if (blocks < 1) {
    return fail(Errc::kResourceExhausted,
                "kv-memory is {} bytes; {} state slots of {} bytes and at least 2 blocks of {} bytes are needed",
                options.kv_memory_bytes, plan.n_slots, plan.slot_bytes, plan.block_bytes);
  }
  plan.n_blocks = static_cast<int32_t>(std::min<int64_t>(blocks, INT32_MAX - 1)) + 1;
  return plan;
}

Result<DevicePlan> plan_device(int64_t free, int64_t weights, const CacheLayout& layout, int64_t max_positions,
                               const ModelRunnerOptions& options) {
  DevicePlan plan{free, weights, {}};
  const bool named = options.kv_memory_bytes > 0;
  const int64_t usable = named ? free : free - free / 10;
  ModelRunnerOptions within = options;
  within.kv_memory_cap_bytes = std::max<int64_t>(1, usable - weights);
  plan.kv = DI_TRY(plan_kv(layout, max_positions, within));
  if (plan.kv.total_bytes() <= usable - weights) return plan;
  return fail(
      Errc::kResourceExhausted,
      "the device has {} bytes free{}; the weights take {} and KV takes {}: {} blocks of {} tokens and {} slots "
      "of {} bytes; lower --max-model-len (now {}), --max-num-seqs (now {}) or --kv-memory",
      free, named ? "" : ", of which a tenth is for the work", weights, plan.kv.total_bytes(), plan.kv.n_blocks,
      layout.options.block_tokens, plan.kv.n_slots, plan.kv.slot_bytes, max_positions, options.max_num_seqs);
}

Result<std::unique_ptr<ModelRunner>> load_model_runner(const std::string& folder, const ModelRunnerOptions& options,
                                                       const ModelBackend& backend,
                                                       const std::function<std::vector<TokenText>()>& texts,
                                                       const std::function<void(double)>& loaded) {
  std::unique_ptr<Parts> parts = DI_TRY(open_parts(folder));
  int64_t positions = parts->config.max_position_embeddings;
  if (options.max_model_len > positions) {
    return fail(Errc::kInvalidRequest, "max-model-len is {}, the model has {} positions", options.max_model_len,
                positions);
  }
  if (options.max_model_len > 0) positions = options.max_model_len;
  std::vector<float> temperatures = DI_TRY(draft_temperatures(folder, parts->config, options));
  CacheOptions cache_form =
      cache_options(parts->config, PlanOptions{.kv_quant = options.kv_quant, .block_tokens = options.block_tokens});
  cache_form.max_backtracking = std::max(1, cache_form.max_backtracking);  // a fork goes back by one row
  const CacheLayout layout = DI_TRY(make_cache_layout(parts->config, parts->schedule, cache_form));
  DevicePlan plan;
  if (backend.device.kind() == device::Kind::kHost) {
    plan.kv = DI_TRY(plan_kv(layout, positions, options));
  } else {
    const int64_t weights = placed_bytes(parts->config, parts->schedule, parts->weights, backend.device);
    const int64_t free = DI_TRY(backend.device.free_bytes());
    plan = DI_TRY(plan_device(free, weights, layout, positions, options));
    DI_LOG(kInfo, "{} of {} bytes free on the device are for the weights, {} for KV: {} blocks of {} tokens, {} slots",
           plan.weights, plan.free, plan.kv.total_bytes(), plan.kv.n_blocks, layout.options.block_tokens,
           plan.kv.n_slots);
  }
  DI_TRY(load_parts(*parts, plan, backend.device, texts, loaded));
  KvCache cache = DI_TRY(KvCache::create(backend.device, layout, plan.kv.n_blocks, plan.kv.n_slots));
  ModelRunnerOptions used = options;
  used.speculation = !temperatures.empty();
  return std::make_unique<LoadedModelRunner>(std::move(parts), std::move(cache), plan.kv, used, std::move(temperatures),
                                             backend, positions);
}

}  // namespace di::engine
