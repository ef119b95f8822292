#include "model/fixture.h"

#include <cstring>

#include "base/numeric.h"
#include "model/place.h"

namespace di::model {

Result<std::unique_ptr<FixtureModel>> FixtureModel::load(const std::string& dir, const TokenTextLoader& texts,
                                                         device::Device* device, const device::Group* group) {
  auto model = std::make_unique<FixtureModel>();
  model->dir = dir;
  model->config = DI_TRY(load_config(dir));
  model->schedule = DI_TRY(make_schedule(model->config));
  model->checkpoint = std::make_unique<Safetensors>(DI_TRY(Safetensors::open(dir)));
  model->weights = DI_TRY(bind_weights(model->config, model->schedule, *model->checkpoint));
  if (group != nullptr) keep_experts(model->weights, group->rank(), group->size());
  if (device != nullptr) {
    model->placed = DI_TRY(place_weights(model->config, model->schedule, model->weights, *device));
  }
  if (!model->config.engram_layer_ids.empty()) {
    std::vector<TokenText> tokens;
    if (!model->config.engram_identity_map()) tokens = DI_TRY(texts(dir));
    model->engram = DI_TRY(make_engram_tables(model->config, tokens));
  }
  return model;
}

Result<std::unique_ptr<FixtureRun>> FixtureRun::create(const FixtureModel& model, const ConformanceBackend& backend,
                                                       const FixtureOptions& options) {
  std::unique_ptr<FixtureRun> run(new FixtureRun());
  run->model_ = &model;
  run->options_ = options;
  CacheOptions cache;
  cache.kv_quant = options.kv_quant;
  cache.fp4_main = model.config.use_fp4_sparse_kv;
  cache.block_tokens = options.block_tokens;
  const CacheLayout layout = DI_TRY(make_cache_layout(model.config, model.schedule, cache));
  const int32_t n_blocks = (options.max_tokens + options.block_tokens - 1) / options.block_tokens;
  run->cache_ = DI_TRY(KvCache::create(backend.device, layout, n_blocks + 1, 3));
  // Descending ids: a forward that ignored the table would be seen.
  for (int32_t i = 0; i < n_blocks; ++i) run->block_table_.push_back(n_blocks - i);
  ForwardOptions forward;
  forward.numerics = options.numerics;
  forward.draft_context = options.draft_context;
  forward.ablation = options.ablation;
  forward.graphs = options.graphs;
  forward.group = options.group;
  run->forward_ = std::make_unique<Forward>(model.config, model.schedule, model.weights, backend.ops, backend.stream,
                                            backend.device, forward);
  return run;
}

Result<std::vector<float>> FixtureRun::feed(std::span<const int32_t> tokens, int32_t begin, int32_t count,
                                            int32_t logits_begin, const Tap* tap,
                                            const std::function<void(SequenceChunk&)>& plan) {
  SequenceChunk chunk;
  chunk.tokens = tokens;
  chunk.begin = begin;
  chunk.count = count;
  chunk.state_slot = 1;
  chunk.block_table = block_table_;
  chunk.logits_begin = logits_begin;
  if (plan) plan(chunk);
  const EngramTables* engram = model_->engram ? &*model_->engram : nullptr;
  DI_TRY(
      build_batch(model_->config, model_->schedule, engram, options_.rule, options_.block_tokens, {&chunk, 1}, batch_));
  const ForwardResult result = forward_->run(batch_, cache_, tap);
  hidden_ = floats(result.hidden);
  return floats(result.logits);
}

std::vector<float> FixtureRun::floats(const kernels::Tensor& t) const {
  std::vector<std::byte> buffer;
  return to_floats(forward_->on_host(t, buffer));
}

std::vector<float> FixtureRun::entries(const kernels::PageView& pages, int32_t n) const {
  std::vector<float> out(static_cast<size_t>(n) * static_cast<size_t>(pages.width));
  const int64_t data_bytes = kernels::data_bytes(pages.format, pages.width);
  const int64_t scale_bytes = kernels::scale_bytes(pages.format, pages.width);
  std::vector<uint8_t> bytes(static_cast<size_t>(pages.entries_per_block * (data_bytes + scale_bytes)));
  for (int32_t g = 0; g < n; ++g) {
    const int64_t block = block_table_[static_cast<size_t>(g / pages.entries_per_block)];
    const int64_t e = g % pages.entries_per_block;
    if (e == 0) {
      forward_->read(bytes.data(), pages.base + block * pages.block_stride, static_cast<int64_t>(bytes.size()));
    }
    const uint8_t* base = bytes.data();
    const uint8_t* data = base + e * (pages.split_scales ? data_bytes : data_bytes + scale_bytes);
    const uint8_t* scale =
        pages.split_scales ? base + pages.entries_per_block * data_bytes + e * scale_bytes : data + data_bytes;
    decode_record(pages.format, pages.width, data, scale, out.data() + int64_t{g} * pages.width);
  }
  return out;
}

std::vector<float> FixtureRun::main_entries(int32_t plane, int32_t n) const {
  return entries(cache_.main_pages(plane), n);
}
std::vector<float> FixtureRun::index_keys(int32_t plane, int32_t n) const {
  return entries(cache_.index_pages(plane), n);
}

std::vector<float> to_floats(const kernels::Tensor& t) {
  std::vector<float> out(static_cast<size_t>(t.rows * t.cols));
  if (out.empty()) return out;
  for (int64_t r = 0; r < t.rows; ++r) {
    float* to = out.data() + r * t.cols;
    if (t.dtype == kernels::DType::kF32) {
      std::memcpy(to, static_cast<const float*>(t.data) + r * t.stride, static_cast<size_t>(t.cols) * 4);
    } else {
      const auto* from = static_cast<const Bf16*>(t.data) + r * t.stride;
      for (int64_t c = 0; c < t.cols; ++c) to[c] = to_float(from[c]);
    }
  }
  return out;
}

void decode_record(kernels::KvFormat format, int32_t width, const uint8_t* data, const uint8_t* scale, float* out) {
  for (int32_t c = 0; c < width; ++c) {
    const uint32_t nibble = c % 2 == 0 ? data[c / 2] & 15U : static_cast<uint32_t>(data[c / 2]) >> 4;
    switch (format) {
      case kernels::KvFormat::kF32:
        std::memcpy(out + c, data + int64_t{c} * 4, 4);
        break;
      case kernels::KvFormat::kE4m3Ue8m0:
        out[c] = to_float(E4m3{data[c]}) * to_float(E8m0{scale[c / 32]});
        break;
      case kernels::KvFormat::kE2m1E4m3:
        out[c] = e2m1_to_float(nibble) * to_float(E4m3{scale[c / 16]});
        break;
      case kernels::KvFormat::kE2m1Ue8m0:
        out[c] = e2m1_to_float(nibble) * to_float(E8m0{scale[c / 32]});
        break;
    }
  }
}

}  // namespace di::model
