// deepinfer bench model: prefill and decode rates of V4.1's layers at their real widths with random weights, as many as
// fit the device, against the sum of the operators' limits (performance.md §2, §3). Values are random bytes in every
// stored format, written once per format on the device and copied there: no checkpoint is read and nothing large
// crosses the bus.
#include <algorithm>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdio>
#include <random>
#include <thread>

#include "cli/backend.h"
#include "cli/options.h"
#include "model/batch.h"
#include "model/forward.h"
#include "model/memory_plan.h"
#include "model/tensor_list.h"

namespace di::cli {
namespace {

using namespace model;
using kernels::WeightFormat;

constexpr int32_t kPrefillRows = 4096;  // of one call

// The draft module on top of it (model.md §8), with the same share of its 128 experts as the layers have of their 384.
void add_draft_module(ModelConfig& c, bool real, int32_t experts) {
  c.num_nextn_predict_layers = 3;
  c.compress_ratios.insert(c.compress_ratios.end(), 3, 0);
  c.dspark_block_size = 5;
  c.dspark_noise_token_id = real ? 128799 : 5;
  for (int32_t l = std::max(0, c.num_hidden_layers - 3); l < c.num_hidden_layers; ++l) {
    c.dspark_target_layer_ids.push_back(l);
  }
  c.dspark_markov_rank = real ? 256 : 32;
  c.dspark_num_experts_per_tok = real ? 3 : 1;
  c.dspark_n_routed_experts = std::max(c.dspark_num_experts_per_tok, experts / 3);
}

// `real`: V4.1 Flash (model.md §1) with the given layers and experts; else the same topology at toy widths. Engram and
// the vision tower are left out. Fewer than 40 layers: one layer of every kind, in their order.
ModelConfig layers_config(bool real, int32_t layers, int32_t experts, int32_t positions) {
  ModelConfig c;
  c.model_type = "deepseek_v41";
  c.vocab_size = real ? 129280 : 512;
  c.hidden_size = real ? 5120 : 128;
  c.num_hidden_layers = layers;
  c.num_attention_heads = real ? 64 : 4;
  c.head_dim = real ? 512 : 64;
  c.qk_rope_head_dim = real ? 64 : 16;
  c.q_lora_rank = real ? 1280 : 128;
  c.o_lora_rank = real ? 1024 : 64;
  c.o_groups = real ? 8 : 2;
  c.max_position_embeddings = positions;
  c.rms_norm_eps = 1e-20;
  c.swiglu_limit = 10.0;
  c.sliding_window = real ? 128 : 16;
  c.index_n_heads = real ? 32 : 4;
  c.index_head_dim = real ? 128 : 32;
  c.index_topk = real ? 512 : 16;
  c.candidate_topk_blocks = real ? 2048 : 8;
  c.candidate_block_size = 8;
  c.rope_scaling.present = true;
  c.rope_scaling.factor = 16.0;
  c.moe_intermediate_size = real ? 2304 : 128;
  c.n_routed_experts = experts;
  c.num_experts_per_tok = std::min(real ? 6 : 2, experts);
  c.routed_scaling_factor = 1.5;
  c.hc_mult = 4;
  c.hc_sinkhorn_iters = 20;
  c.hc_eps = 1e-6;
  c.bos_token_id = 0;
  c.eos_token_id = 1;
  c.quantization_config.present = true;
  if (layers == 40) {
    for (int32_t l = 0; l < layers; ++l) c.compress_ratios.push_back(l < 2 ? 0 : l < 20 ? 2 : 1);
    c.kv_source_layer_ids = {2, 8, 14, 20};
    c.index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
    c.candidate_source_layer_id = 20;
  } else {  // window, Full r = 2, Reuse, Full r = 1 with candidates, Reuse, Reindex, Reuse …
    for (int32_t l = 0; l < layers; ++l) c.compress_ratios.push_back(l < 1 ? 0 : l < 3 ? 2 : 1);
    c.kv_source_layer_ids = {1, 3};
    c.index_source_layer_ids = {1, 3, 5};
    c.candidate_source_layer_id = 3;
  }
  return c;
}

// Random bytes of one kind on the device, copied to wherever they are wanted.
class Patterns {
 public:
  explicit Patterns(device::Device& device) : device_(device) {}

  enum Kind : uint8_t { kBytes, kE4m3, kScale, kCache, kBf16, kF32, kKinds };

  Result<void> fill(std::byte* to, int64_t bytes, Kind kind) {
    if (sources_[kind].size() == 0) DI_TRY(make(kind));
    for (int64_t done = 0; done < bytes;) {
      // Another beginning every time, so that no two experts are equal.
      const int64_t begin = static_cast<int64_t>(random_() % 4096) * 256;
      const int64_t n = std::min(bytes - done, kBytesHeld - begin);
      DI_TRY(device_.copy(to + done, sources_[kind].data() + begin, static_cast<size_t>(n)));
      done += n;
    }
    return {};
  }

 private:
  static constexpr int64_t kBytesHeld = int64_t{64} << 20;

  Result<void> make(Kind kind) {
    std::vector<uint32_t> host(static_cast<size_t>(kBytesHeld / 4));
    for (uint32_t& v : host) {
      const auto r = static_cast<uint32_t>(random_());
      switch (kind) {
        case kE4m3:  // ±[0.25, 2)
          v = (r & 0x8f8f8f8fU) | 0x28282828U | (r & 0x10101010U);
          break;
        case kScale:  // 2^-7 … 2^-4
          v = 0x78787878U + (r & 0x03030303U);
          break;
        case kCache:  // 2 … 240 as E4M3, 2^-63 … 2^-8 as a scale: usable whatever part of a record it is
          v = (r & 0x37373737U) | 0x40404040U;
          break;
        case kBf16:  // ±[2^-7, 2^-6)
          v = (r & 0x807f807fU) | 0x3c003c00U;
          break;
        case kF32:  // ±[2^-9, 2^-8)
          v = (r & 0x807fffffU) | 0x3b000000U;
          break;
        default:
          v = r;
      }
    }
    sources_[kind] = DI_TRY(device::Buffer::allocate(device_, static_cast<size_t>(kBytesHeld)));
    return device_.load(sources_[kind].data(), reinterpret_cast<const std::byte*>(host.data()),
                        static_cast<size_t>(kBytesHeld));
  }

  device::Device& device_;
  device::Buffer sources_[kKinds];
  std::mt19937 random_{1};
};

struct RandomModel {
  ModelConfig config;
  Schedule schedule;
  ModelWeights weights;
  std::vector<device::Buffer> memory;
  int64_t bytes = 0;
  int64_t expert_bytes = 0;  // one routed expert
  int64_t dense_bytes = 0;   // of the layers, read in every step
  int64_t draft_bytes = 0;   // of the draft module with all its experts
};

Result<std::byte*> take(RandomModel& m, device::Device& device, int64_t bytes) {
  m.memory.push_back(DI_TRY(device::Buffer::allocate(device, static_cast<size_t>(bytes))));
  m.bytes += bytes;
  return m.memory.back().data();
}

// A routed expert of another rank.
bool is_elsewhere(const TensorSlot& slot, int32_t experts, const device::Group* group) {
  constexpr std::string_view kMark = ".ffn.experts.";
  if (group == nullptr || slot.group != TensorClass::kRoutedExpert) return false;
  const size_t at = slot.name.find(kMark);
  return expert_owner(std::atoi(slot.name.c_str() + at + kMark.size()), experts, group->size()) != group->rank();
}

Result<void> bind(RandomModel& m, const TensorSlot& slot, device::Device& device, Patterns& patterns,
                  const device::Group* group) {
  const int64_t n = slot.parameters();
  if (slot.f32 != nullptr) {
    std::byte* data = DI_TRY(take(m, device, n * 4));
    DI_TRY(patterns.fill(data, n * 4, Patterns::kF32));
    *slot.f32 = reinterpret_cast<const float*>(data);
    return {};
  }
  kernels::Weight& w = *slot.weight;
  w.rows = slot.shape.size() > 1 ? slot.shape[0] : 1;
  w.cols = slot.shape.back();
  w.block = 32;
  const bool plain = slot.kind == TensorKind::kBf16;
  const bool fp4 = slot.kind == TensorKind::kFp4Row;
  w.format = plain ? WeightFormat::kBf16 : fp4 ? WeightFormat::kFp4Row : WeightFormat::kFp8Block;
  if (is_elsewhere(slot, m.config.n_routed_experts, group)) return {};
  const int64_t bytes = plain ? n * 2 : fp4 ? n / 2 : n;
  std::byte* data = DI_TRY(take(m, device, bytes));
  DI_TRY(patterns.fill(data, bytes, plain ? Patterns::kBf16 : fp4 ? Patterns::kBytes : Patterns::kE4m3));
  w.data = data;
  if (!slot.has_scale()) return {};
  int64_t scales = 1;
  for (const int64_t s : slot.scale_shape(32)) scales *= s;
  std::byte* scale = DI_TRY(take(m, device, scales));
  DI_TRY(patterns.fill(scale, scales, Patterns::kScale));
  w.scale = reinterpret_cast<const uint8_t*>(scale);
  return {};
}

Result<std::unique_ptr<RandomModel>> make_model(const ModelConfig& config, Backend& backend, Patterns& patterns,
                                                const device::Group* group) {
  auto m = std::make_unique<RandomModel>();
  m->config = config;
  m->schedule = DI_TRY(make_schedule(m->config));
  for (const TensorSlot& slot : list_tensors(m->config, m->schedule, m->weights)) {
    if (slot.optional) continue;
    DI_TRY(bind(*m, slot, *backend.device, patterns, group));
    const int64_t bytes = slot.stored_bytes(32);
    if (slot.group == TensorClass::kRoutedExpert) {
      m->expert_bytes += bytes;
    } else if (slot.group == TensorClass::kDraft) {
      m->draft_bytes += bytes;
    } else if (slot.group != TensorClass::kEmbedding) {
      m->dense_bytes += bytes;
    }
  }
  m->expert_bytes /= int64_t{config.num_hidden_layers} * config.n_routed_experts;
  if (group != nullptr) keep_experts(m->weights, group->rank(), group->size());
  for (FfnWeights* f : all_ffn(m->weights)) {
    f->form = kernels::form_of(f->experts.data(), static_cast<int64_t>(f->experts.size()));
    const auto bytes = static_cast<int64_t>(f->experts.size() * sizeof(ExpertWeights));
    std::byte* table = DI_TRY(take(*m, *backend.device, bytes));
    DI_TRY(
        backend.device->load(table, reinterpret_cast<const std::byte*>(f->experts.data()), static_cast<size_t>(bytes)));
    f->table = reinterpret_cast<const ExpertWeights*>(table);
    if (f->owner.empty()) continue;
    const auto owner_bytes = static_cast<int64_t>(f->owner.size() * sizeof(int32_t));
    std::byte* owner = DI_TRY(take(*m, *backend.device, owner_bytes));
    DI_TRY(backend.device->load(owner, reinterpret_cast<const std::byte*>(f->owner.data()),
                                static_cast<size_t>(owner_bytes)));
    f->owner_table = reinterpret_cast<const int32_t*>(owner);
  }
  return m;
}

// Seconds that the operators of a call of `rows` rows, each with `context` tokens before it, need at the ceilings: of
// each the larger of its bytes over the bandwidth and its products over the matrix rate.
struct Limits {
  double read;    // bytes a second
  double matrix;  // FLOP a second

  double of(double bytes, double flops) const { return std::max(bytes / read, flops / matrix); }
};

// With several ranks: of one of them, the exchange of rows not counted.
double sum_of_limits(const RandomModel& m, const Limits& limits, int64_t rows, int64_t logit_rows, int64_t context,
                     int64_t requests, int32_t ranks) {
  const ModelConfig& c = m.config;
  const auto t = static_cast<double>(rows);
  const auto h = static_cast<double>(c.hidden_size);
  const auto linear = [&](double out, double in, double weight_byte) {
    return limits.of(out * in * weight_byte + t * (in + out) * 2, 2 * t * out * in);
  };
  const double q_rank = c.q_lora_rank;
  const double q = static_cast<double>(c.num_attention_heads) * c.head_dim;
  const double z = static_cast<double>(c.o_groups) * c.o_lora_rank;
  const double inner = c.moe_intermediate_size;
  const double experts = c.n_routed_experts;
  const double hit = experts / ranks * (1 - std::pow(1 - c.num_experts_per_tok / experts, t * ranks));
  const double streams = t * c.hc_mult * h * 2;
  double sum = 0;
  for (const LayerPlan& layer : m.schedule.layers) {
    sum += linear(q_rank + c.head_dim, h, 1) + linear(q, q_rank, 1) +
           limits.of(q / c.o_groups * z + t * (q + z) * 2, 2 * t * z * q / c.o_groups) + linear(h, z, 1);
    const double keys =
        std::min<double>(c.sliding_window, static_cast<double>(context) + 1) +
        (layer.ratio > 0 ? std::min<double>(c.index_topk, static_cast<double>(context + 1) / layer.ratio) : 0);
    const double window_bytes =
        static_cast<double>(std::min<int64_t>(c.sliding_window, context + 1)) * c.head_dim * 33 / 32;
    sum +=
        limits.of(t * (window_bytes + 2 * q * 2 + (keys - c.sliding_window) * c.head_dim * 9 / 16), 4 * t * keys * q);
    if (layer.is_index_source) {
      double visible = static_cast<double>(context + 1) / layer.ratio;
      if (layer.uses_candidates)
        visible = std::min(visible, static_cast<double>(c.candidate_topk_blocks) * c.candidate_block_size);
      const double width = static_cast<double>(c.index_n_heads) * c.index_head_dim;
      // The rows of a request read the same keys: once.
      sum += limits.of(static_cast<double>(requests) * visible * c.index_head_dim * 17 / 32, 2 * t * visible * width) +
             linear(width, q_rank, 1);
    }
    if (layer.is_kv_source) sum += linear(c.head_dim * (layer.ratio == 2 ? 2.0 : 1.0), h, 2);
    sum += linear(experts, h, 2);
    sum += limits.of(hit * static_cast<double>(m.expert_bytes), 6 * t * c.num_experts_per_tok * h * inner) +
           linear(3 * inner, h, 1);
    sum += 2 * limits.of(streams * 2 + streams + 24 * c.hc_mult * h * 4, 0);  // both sites: in, out
  }
  return sum +
         limits.of(static_cast<double>(c.vocab_size) * h * 2, 2 * static_cast<double>(logit_rows) * c.vocab_size * h);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Bench {
  const BenchModelOptions& options;
  Backend& backend;
  device::Group* group;  // null: one device
  std::unique_ptr<RandomModel> model;
  CacheLayout layout;
  Limits limits{};
};

// Random records everywhere; what is read of them is finite in every format.
Result<void> fill_cache(const KvCache& cache, Patterns& patterns) {
  const CacheLayout& layout = cache.layout();
  DI_TRY(patterns.fill(cache.block(0), layout.block_bytes * cache.n_blocks(), Patterns::kCache));
  for (int32_t s = 0; s < cache.n_slots(); ++s) {
    DI_TRY(patterns.fill(cache.slot(s), layout.ring_bytes * layout.n_rings, Patterns::kCache));
  }
  return {};
}

int32_t ranks_of(const Bench& b) {
  return b.group == nullptr ? 1 : b.group->size();
}

struct Sequences {
  std::vector<int32_t> tokens;  // the same for all
  std::vector<std::vector<int32_t>> tables;
};

Sequences make_sequences(const Bench& b, int32_t n, int32_t length) {
  Sequences s;
  std::mt19937 random(3);
  for (int32_t i = 0; i < length; ++i) {
    s.tokens.push_back(3 + static_cast<int32_t>(random() % static_cast<uint32_t>(b.model->config.vocab_size - 3)));
  }
  const int32_t blocks = (length + b.layout.options.block_tokens - 1) / b.layout.options.block_tokens;
  for (int32_t i = 0; i < n; ++i) {
    std::vector<int32_t>& table = s.tables.emplace_back();
    for (int32_t k = 0; k < blocks; ++k) table.push_back(1 + i * blocks + k);
  }
  return s;
}

// One forward pass to its end; the time in seconds.
Result<double> step(Bench& b, Forward& forward, KvCache& cache, const std::vector<SequenceChunk>& chunks, bool check) {
  Batch batch;
  DI_TRY(build_batch(b.model->config, b.model->schedule, nullptr, TruncationRule::kVl, b.layout.options.block_tokens,
                     chunks, batch));
  const auto begin = std::chrono::steady_clock::now();
  const ForwardResult result = forward.run(batch, cache);
  float last = 0;
  const kernels::Tensor& l = result.logits;
  if (l.data != nullptr) forward.read(&last, static_cast<float*>(l.data) + (l.rows - 1) * l.stride, 4);
  const double seconds = seconds_since(begin);
  DI_TRY(forward.status());
  if (b.group != nullptr && b.group->error()) return std::unexpected(*b.group->error());
  if (check && l.data != nullptr) {
    std::vector<float> row(static_cast<size_t>(l.cols));
    forward.read(row.data(), l.data, l.cols * 4);
    for (const float v : row) {
      if (!std::isfinite(v)) return fail(Errc::kInternal, "a logit is not finite");
    }
  }
  return seconds;
}

std::unique_ptr<Forward> make_forward(Bench& b) {
  ForwardOptions options;
  options.numerics = NumericMode::kTrained;
  options.draft_context = b.options.drafts;
  options.group = b.group;
  return std::make_unique<Forward>(b.model->config, b.model->schedule, b.model->weights, *b.backend.ops,
                                   *b.backend.stream, *b.backend.device, options);
}

// Of all ranks together; each has as many rows as rank 0, which prints.
void print_row(const Bench& b, const char* what, int64_t batch, int64_t context, double rate, double seconds,
               double limit) {
  if (b.group != nullptr && b.group->rank() != 0) return;
  rate *= ranks_of(b);
  batch *= ranks_of(b);
  std::printf("| %s | %lld | %lld | %.0f | %.3f | %.3f | %.2f |\n", what, static_cast<long long>(batch),
              static_cast<long long>(context), rate, seconds * 1e3, limit * 1e3, limit / seconds);
  std::fflush(stdout);
}

Result<void> prefill(Bench& b, Forward& forward, Patterns& patterns, int32_t length) {
  const Sequences s = make_sequences(b, 1, length);
  KvCache cache = DI_TRY(KvCache::create(*b.backend.device, b.layout, 1 + static_cast<int32_t>(s.tables[0].size()), 2));
  DI_TRY(fill_cache(cache, patterns));
  double best = 0;
  double limit = 0;
  for (int32_t run = 0; run < 3; ++run) {  // the first grows the memory
    double seconds = 0;
    limit = 0;
    for (int32_t at = 0; at < length; at += kPrefillRows) {
      SequenceChunk chunk;
      chunk.tokens = s.tokens;
      chunk.begin = at;
      chunk.count = std::min(kPrefillRows, length - at);
      chunk.state_slot = 1;
      chunk.block_table = s.tables[0];
      chunk.logits_begin = length - 1;
      seconds += DI_TRY(step(b, forward, cache, {chunk}, run == 0));
      limit += sum_of_limits(*b.model, b.limits, chunk.count, at + chunk.count == length ? 1 : 0, at + chunk.count / 2,
                             1, ranks_of(b));
    }
    best = run == 0 ? seconds : std::min(best, seconds);
  }
  print_row(b, "prefill", 1, length, length / best, best, limit);
  return {};
}

// The middle one of the measured steps, in seconds.
template <class Step>
Result<double> median_of(const Bench& b, const Step& step) {
  for (int32_t i = 0; i < 3; ++i) static_cast<void>(DI_TRY(step(i == 0)));
  std::vector<double> times;
  for (int32_t i = 0; i < b.options.steps; ++i) times.push_back(DI_TRY(step(false)));
  std::nth_element(times.begin(), times.begin() + b.options.steps / 2, times.end());
  return times[static_cast<size_t>(b.options.steps / 2)];
}

// A draft round of all sequences (speculative.md §1.3, §1.4) but for the sampling between its steps: the drafts are the
// golden token. In a group the experts are those of all ranks, and the limit is that of one.
Result<void> draft_round(Bench& b, Forward& forward, KvCache& cache, int32_t batch, int32_t context) {
  const ModelConfig& c = b.model->config;
  std::vector<DraftChunk> chunks;
  for (int32_t i = 0; i < batch; ++i) chunks.push_back({3 + i, context - 1, 1 + i, 0});
  const std::vector<int32_t> previous(static_cast<size_t>(batch), 3);
  std::vector<float> confidences(static_cast<size_t>(batch));
  const auto round = [&](bool check) -> Result<double> {
    const auto begin = std::chrono::steady_clock::now();
    const DraftResult draft = forward.draft(chunks, cache);
    for (int32_t k = 0; k < c.dspark_block_size; ++k) {
      forward.draft_step(draft, k, previous.data(), 1.0F, confidences.data());
    }
    float last = 0;
    forward.read(&last, draft.base_logits.data, 4);
    const double seconds = seconds_since(begin);
    DI_TRY(forward.status());
    if (b.group != nullptr && b.group->error()) return std::unexpected(*b.group->error());
    if (check && !std::isfinite(last)) return fail(Errc::kInternal, "a draft's logit is not finite");
    return seconds;
  };
  const double seconds = DI_TRY(median_of(b, round));
  const auto rows = static_cast<double>(batch) * c.dspark_block_size;
  const double h = c.hidden_size;
  const double markov = static_cast<double>(c.vocab_size) * c.dspark_markov_rank;
  const double hit =
      1 - std::pow(1 - static_cast<double>(c.dspark_num_experts_per_tok) / c.dspark_n_routed_experts, rows);
  const double experts = 3.0 * c.dspark_n_routed_experts * static_cast<double>(b.model->expert_bytes);
  const double logits = rows * c.vocab_size * 4;
  const double dense = static_cast<double>(b.model->draft_bytes) - experts - markov * 4;  // FP8: a byte a weight
  const double products = 2 * rows * (dense + 9.0 * c.dspark_num_experts_per_tok * h * c.moe_intermediate_size);
  double limit = b.limits.of(dense + experts * hit, products);
  limit += b.limits.of(c.vocab_size * h * 2 + logits, 2 * rows * c.vocab_size * h);
  limit += c.dspark_block_size * b.limits.of(markov * 2 + 2 * logits / c.dspark_block_size, 0);
  print_row(b, "draft round", batch, context, batch / seconds, seconds, limit);
  return {};
}

Result<void> decode(Bench& b, Forward& forward, Patterns& patterns, int32_t batch, int32_t context, int32_t rows) {
  const Sequences s = make_sequences(b, batch, context + rows);
  const int64_t blocks = 1 + static_cast<int64_t>(batch) * static_cast<int64_t>(s.tables[0].size());
  auto cache = KvCache::create(*b.backend.device, b.layout, static_cast<int32_t>(blocks), batch + 1);
  if (!cache && cache.error().code == Errc::kResourceExhausted && b.group == nullptr) {
    std::printf("| decode | %d | %d | no room for %.1f GB of KV | | | |\n", batch, context,
                static_cast<double>(blocks * b.layout.block_bytes) * 1e-9);
    return {};
  }
  if (!cache) return std::unexpected(std::move(cache).error());
  DI_TRY(fill_cache(*cache, patterns));
  std::vector<SequenceChunk> chunks(static_cast<size_t>(batch));
  for (int32_t i = 0; i < batch; ++i) {
    SequenceChunk& chunk = chunks[static_cast<size_t>(i)];
    chunk.tokens = s.tokens;
    chunk.begin = context;
    chunk.count = rows;
    chunk.state_slot = 1 + i;
    chunk.block_table = s.tables[static_cast<size_t>(i)];
    chunk.logits_begin = context;
  }
  const double seconds = DI_TRY(median_of(b, [&](bool check) { return step(b, forward, *cache, chunks, check); }));
  const int32_t all = batch * rows;
  print_row(b, rows > 1 ? "verify" : "decode", batch, context, all / seconds, seconds,
            sum_of_limits(*b.model, b.limits, all, all, context, batch, ranks_of(b)));
  if (b.options.drafts && rows == b.options.rows.front()) {
    DI_TRY(draft_round(b, forward, *cache, batch, context));
  }
  return {};
}

Result<void> run_rank(const BenchModelOptions& options, Backend& backend, device::Group* group) {
  Bench b{options, backend, group, nullptr, {}, {}};
  b.limits = {options.read_gbs * 1e9, options.matrix_tflops * 1e12};
  const bool prints = group == nullptr || group->rank() == 0;
  Patterns patterns(*b.backend.device);
  int32_t positions = 0;
  for (const int32_t n : options.contexts) positions = std::max(positions, n + std::ranges::max(options.rows) + 5);
  for (const int32_t n : options.prefill) positions = std::max(positions, n);
  const auto begin = std::chrono::steady_clock::now();
  const bool real = options.shape == "v41";
  ModelConfig config = layers_config(real, options.layers, options.experts, positions);
  if (options.drafts) add_draft_module(config, real, options.experts);
  b.model = DI_TRY(make_model(config, b.backend, patterns, group));
  PlanOptions plan;
  b.layout = DI_TRY(make_cache_layout(b.model->config, b.model->schedule, cache_options(b.model->config, plan)));
  if (prints) {
    std::printf(
        "%s, %d ranks: %d layers, %d experts, %.1f GB of random weights made in %.1f s; a routed expert %.2f MB, dense "
        "%.2f GB\n"
        "limits at %.0f GB/s and %.0f TFLOP/s\n\n"
        "| what | requests | context | tokens/s | ms | sum of limits, ms | limits / measured |\n"
        "|---|---|---|---|---|---|---|\n",
        b.backend.place.c_str(), ranks_of(b), options.layers, options.experts,
        static_cast<double>(b.model->bytes) * 1e-9, seconds_since(begin),
        static_cast<double>(b.model->expert_bytes) * 1e-6, static_cast<double>(b.model->dense_bytes) * 1e-9,
        options.read_gbs, options.matrix_tflops);
  }
  const auto forward = make_forward(b);
  for (const int32_t n : options.prefill) DI_TRY(prefill(b, *forward, patterns, n));
  for (const int32_t batch : options.batches) {
    for (const int32_t context : options.contexts) {
      for (const int32_t rows : options.rows) DI_TRY(decode(b, *forward, patterns, batch, context, rows));
    }
  }
  if (!prints) return {};
  std::printf("\n%lld steps were replayed as graphs\n", static_cast<long long>(forward->replays()));
  if (group != nullptr) return {};
  std::printf(
      "\nThe whole model: t(40 layers) = t_head + (t - t_head)*40/layers with t_head = the head's limit over its "
      "frac;\n"
      "with 48 experts a row is what one of eight expert-parallel cards computes for its own requests' share (the\n"
      "exchange of rows is not in it). Engram is not in it, the draft module only with --drafts.\n");
  return {};
}

// A thread for each rank.
Result<void> run(const BenchModelOptions& options) {
  Ranks ranks = DI_TRY(open_ranks(options.device, options.threads, false, std::chrono::minutes(2)));
  if (ranks.groups.empty()) return run_rank(options, ranks.backends.front(), nullptr);
  std::vector<Result<void>> status(ranks.groups.size());
  {
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < ranks.groups.size(); ++r) {
      threads.emplace_back([&, r] {
        status[r] = run_rank(options, ranks.backends[r], ranks.groups[r].get());
        if (!status[r]) ranks.groups[r]->fail(status[r].error());
      });
    }
  }
  for (const Result<void>& s : status) DI_TRY(s);
  return {};
}

}  // namespace

int bench_model(const BenchModelOptions& options) {
  const Result<void> status = run(options);
  if (status) return 0;
  std::fprintf(stderr, "deepinfer bench model: %s\n", status.error().message.c_str());
  return 1;
}

}  // namespace di::cli
