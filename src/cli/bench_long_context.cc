// deepinfer bench long-context: what a decoded token costs at growing contexts, against the arithmetic of the config
// (performance.md §2), and the memory that the contexts take against the plan. The bundled model computes its prompt;
// for contexts beyond its positions a model of random weights with V4.1's window, selection and candidate sizes is
// given a cache of random entries, since only the sizes matter here.
#include <sys/resource.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <ctime>
#include <random>

#include "base/cpu_time.h"
#include "base/thread_pool.h"
#include "cli/local_model.h"
#include "kernels/cpu/cpu.h"
#include "model/fixture.h"
#include "model/memory_plan.h"
#include "model/tensor_list.h"

namespace di::cli {
namespace {

using namespace model;

// Decoded tokens per context, of which the median counts.
constexpr int32_t kTokens = 9;

double resident_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

// Index keys that one token scores, over all index sources.
int64_t index_keys(const ModelConfig& c, const Schedule& s, int64_t context) {
  int64_t keys = 0;
  for (const LayerPlan& layer : s.layers) {
    if (!layer.is_index_source) continue;
    const int64_t visible = context / layer.ratio;
    keys +=
        layer.uses_candidates ? std::min(visible, int64_t{c.candidate_topk_blocks} * c.candidate_block_size) : visible;
  }
  return keys;
}

// Two per multiply-add: weights, attention core, indexer scores.
double flops(const ModelConfig& c, const Schedule& s, int64_t context) {
  double total = 2.0 * static_cast<double>(count_parameters(c, s).active_decode);
  for (const LayerPlan& layer : s.layers) {
    int64_t keys = std::min<int64_t>(c.sliding_window, context);
    if (layer.ratio > 0) keys += std::min<int64_t>(c.index_topk, context / layer.ratio);
    total += 4.0 * static_cast<double>(c.num_attention_heads) * c.head_dim * static_cast<double>(keys);
  }
  return total + 2.0 * c.index_n_heads * c.index_head_dim * static_cast<double>(index_keys(c, s, context));
}

// A model of a config without a checkpoint: every tensor in its format, values of a usable size.
struct RandomModel {
  std::vector<std::vector<uint8_t>> bytes;
  std::mt19937 random{1};

  uint8_t* take(int64_t n) { return bytes.emplace_back(static_cast<size_t>(n)).data(); }
  const float* floats(int64_t n) {
    auto* out = static_cast<float*>(static_cast<void*>(take(n * 4)));
    for (int64_t i = 0; i < n; ++i) out[i] = (static_cast<float>(random() % 2001) - 1000.F) * 1e-5F;
    return out;
  }
  // E4M3 of magnitude 2^-1 … 2 (never a NaN), or any two E2M1.
  void fill(uint8_t* out, int64_t n, bool fp4) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(fp4 ? random() : (random() & 0x87U) | 0x30U);
  }

  void bind(const ModelConfig& config, const TensorSlot& slot) {
    const int64_t n = slot.parameters();
    if (slot.f32 != nullptr) *slot.f32 = floats(n);
    if (slot.weight == nullptr) return;
    kernels::Weight& w = *slot.weight;
    w.rows = slot.shape.size() > 1 ? slot.shape[0] : 1;
    w.cols = slot.shape.back();
    if (slot.kind == TensorKind::kBf16 || slot.kind == TensorKind::kF32) {
      w.format = kernels::WeightFormat::kF32;
      w.data = floats(n);
      return;
    }
    const int32_t block = config.quantization_config.weight_block_size;
    const bool fp4 = slot.kind == TensorKind::kFp4Row;
    w.format = fp4                                ? kernels::WeightFormat::kFp4Row
               : slot.kind == TensorKind::kFp8Row ? kernels::WeightFormat::kFp8Row
                                                  : kernels::WeightFormat::kFp8Block;
    w.block = block;
    uint8_t* data = take(fp4 ? n / 2 : n);
    fill(data, fp4 ? n / 2 : n, fp4);
    w.data = data;
    int64_t scales = 1;
    for (const int64_t s : slot.scale_shape(block)) scales *= s;
    uint8_t* scale = take(scales);
    std::fill_n(scale, scales, uint8_t{120});  // 2^-7
    w.scale = scale;
  }
};

ModelConfig long_config(const ModelConfig& bundled, int32_t positions) {
  ModelConfig c = bundled;
  c.max_position_embeddings = positions;
  c.sliding_window = 128;
  c.index_topk = 512;
  c.candidate_topk_blocks = 2048;
  c.candidate_block_size = 8;
  c.engram_layer_ids.clear();
  c.engram_num_embeddings.clear();
  return c;
}

Result<std::unique_ptr<FixtureModel>> random_model(const ModelConfig& bundled, int32_t positions, RandomModel& parts) {
  auto model = std::make_unique<FixtureModel>();
  model->config = long_config(bundled, positions);
  model->schedule = DI_TRY(make_schedule(model->config));
  for (const TensorSlot& slot : list_tensors(model->config, model->schedule, model->weights)) {
    if (slot.group != TensorClass::kVision && !slot.optional) parts.bind(model->config, slot);
  }
  tabulate_experts(model->weights);
  return model;
}

// Entries as a quantiser could have made them: any E2M1 and E4M3 values, scales of 1 and less.
void fill_records(uint8_t* at, int64_t data, int64_t scales, kernels::KvFormat format, std::mt19937& random) {
  for (int64_t i = 0; i < data; ++i) {
    at[i] = static_cast<uint8_t>(format == kernels::KvFormat::kE4m3Ue8m0 ? (random() & 0x87U) | 0x30U : random());
  }
  const uint8_t one = format == kernels::KvFormat::kE2m1E4m3 ? 0x30 : 126;
  std::fill_n(at + data, scales, one);
}

void fill_cache(KvCache& cache, std::mt19937& random) {
  const CacheLayout& layout = cache.layout();
  const int64_t main_data = kernels::data_bytes(layout.main_format, layout.head_dim);
  const int64_t main_scale = kernels::scale_bytes(layout.main_format, layout.head_dim);
  for (int32_t b = 1; b < cache.n_blocks(); ++b) {
    auto* block = static_cast<uint8_t*>(static_cast<void*>(cache.block(b)));
    for (const CacheLayout::Plane& plane : layout.planes) {
      for (int32_t e = 0; e < plane.entries; ++e) {
        fill_records(block + plane.main_offset + e * (main_data + main_scale), main_data, main_scale,
                     layout.main_format, random);
      }
      if (plane.index_offset < 0) continue;
      const int64_t data = kernels::data_bytes(layout.index_format, layout.index_head_dim) * plane.entries;
      const int64_t scale = kernels::scale_bytes(layout.index_format, layout.index_head_dim) * plane.entries;
      fill_records(block + plane.index_offset, data, scale, layout.index_format, random);
    }
  }
  auto* slot = static_cast<uint8_t*>(static_cast<void*>(cache.slot(1)));
  const int64_t data = kernels::data_bytes(layout.swa_format, layout.head_dim);
  const int64_t scale = kernels::scale_bytes(layout.swa_format, layout.head_dim);
  for (int32_t ring = 0; ring < layout.n_rings; ++ring) {
    for (int32_t row = 0; row < layout.ring_rows; ++row) {
      fill_records(slot + layout.ring_bytes * ring + row * (data + scale), data, scale, layout.swa_format, random);
    }
  }
}

struct Row {
  int64_t context = 0;
  double ms = 0;
  double prefill_s = -1;
};

Result<Row> measure(const FixtureModel& model, const ConformanceBackend& backend, int32_t context, bool prefill) {
  FixtureOptions options;
  options.kv_quant = true;
  options.max_tokens = context + 128;
  const std::unique_ptr<FixtureRun> run = DI_TRY(FixtureRun::create(model, backend, options));
  std::mt19937 random(3);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < context + kTokens; ++i) {
    tokens.push_back(3 + static_cast<int32_t>(random() % static_cast<uint32_t>(model.config.vocab_size / 2)));
  }
  Row row{.context = context};
  if (prefill) {
    const double begin = process_cpu_seconds();
    for (int32_t at = 0; at < context; at += 512) {
      DI_TRY(run->feed(tokens, at, std::min(512, context - at), INT_MAX));
    }
    row.prefill_s = process_cpu_seconds() - begin;
  } else {
    fill_cache(run->cache(), random);
  }
  std::vector<double> times;
  for (int32_t i = 0; i < kTokens; ++i) {
    const double begin = process_cpu_seconds();
    const std::vector<float> logits = DI_TRY(run->feed(tokens, context + i, 1, context + i));
    times.push_back(process_cpu_seconds() - begin);
    if (!std::all_of(logits.begin(), logits.end(), [](float v) { return v == v && v < 1e30F && v > -1e30F; })) {
      return fail(Errc::kInternal, "a logit at context {} is not finite", context);
    }
  }
  std::nth_element(times.begin(), times.begin() + kTokens / 2, times.end());
  row.ms = times[kTokens / 2] * 1e3;
  return row;
}

Result<void> table(const char* name, const FixtureModel& model, const ConformanceBackend& backend,
                   const std::vector<int32_t>& contexts, bool prefill) {
  std::printf("\n%s, %s\n\n", name, prefill ? "prompt computed" : "cache filled with random entries");
  std::printf(
      "| context | Block KV planned | index keys per token | MFLOP per token | CPU ms per token | "
      "predicted ratio | measured ratio | ns per further index key |\n|---|---|---|---|---|---|---|---|\n");
  Row first;
  for (const int32_t context : contexts) {
    const Row row = DI_TRY(measure(model, backend, context, prefill));
    if (first.context == 0) first = row;
    PlanOptions plan_options;
    plan_options.context = context;
    const MemoryPlan plan = DI_TRY(plan_memory(model.config, model.schedule, plan_options));
    const int64_t keys = index_keys(model.config, model.schedule, context);
    const int64_t more = keys - index_keys(model.config, model.schedule, first.context);
    std::printf("| %d | %.1f MiB | %lld | %.1f | %.3f | %.2f | %.2f | %s |\n", context,
                static_cast<double>(plan.block_kv_bytes) / (1 << 20), static_cast<long long>(keys),
                flops(model.config, model.schedule, context) * 1e-6, row.ms,
                flops(model.config, model.schedule, context) / flops(model.config, model.schedule, first.context),
                row.ms / first.ms,
                more > 0 ? fmt::format("{:.2f}", (row.ms - first.ms) * 1e6 / static_cast<double>(more)).c_str() : "–");
    if (prefill) std::fprintf(stderr, "prompt of %d: %.1f CPU s\n", context, row.prefill_s);
    std::fflush(stdout);
  }
  std::printf("\nLargest resident size so far: %.0f MiB\n", resident_mib());
  return {};
}

Result<void> bench(const BenchLongContextOptions& options) {
  const codec::TokenizerRef tokenizer = DI_TRY(codec::Tokenizer::load(options.folder));
  const auto model = DI_TRY(FixtureModel::load(
      options.folder, [&](const std::string&) -> Result<std::vector<TokenText>> { return token_texts(*tokenizer); }));
  ThreadPool pool(1);
  const kernels::cpu::StreamPtr stream = kernels::cpu::make_stream(pool);
  const auto device = device::make_host_device();
  const ConformanceBackend backend{kernels::cpu::ops(kernels::cpu::best_isa()), *stream, *device};
  std::vector<int32_t> own;
  for (const int32_t context : options.contexts) {
    if (context + kTokens <= model->config.max_position_embeddings) own.push_back(context);
  }
  DI_TRY(table("The model of the folder", *model, backend, own, true));
  const int32_t longest = *std::max_element(options.contexts.begin(), options.contexts.end());
  RandomModel parts;
  const auto random = DI_TRY(random_model(model->config, longest + 128, parts));
  return table("Random weights; window 128, selection 512, candidates 2048 blocks of 8", *random, backend,
               options.contexts, false);
}

}  // namespace

int bench_long_context(const BenchLongContextOptions& options) {
  if (const Result<void> done = bench(options); !done) {
    std::fprintf(stderr, "deepinfer bench long-context: %s\n", done.error().message.c_str());
    return kFailed;
  }
  return kOk;
}

}  // namespace di::cli
