// The DSpark draft module (model.md §8, speculative.md §1): context keys of the draft layers, written with every target
// forward; then per round one parallel pass over γ rows and γ sequential Markov steps.
#include <algorithm>

#include "model/forward_pass.h"

namespace di::model {

using kernels::Tensor;

// The streams at a target layer's attention input, averaged, into that layer's columns.
void Forward::capture_feature(Pass& pass, const LayerPlan& plan) {
  if (pass.features.data == nullptr) return;
  const auto& targets = config_.dspark_target_layer_ids;
  const auto it = std::find(targets.begin(), targets.end(), plan.layer);
  if (it == targets.end()) return;
  ops_.stream_mean({.streams = pass.streams,
                    .hc = config_.hc_mult,
                    .y = pass.features,
                    .column = (it - targets.begin()) * int64_t{config_.hidden_size}},
                   stream_);
}

void Forward::draft_context(Pass& pass) {
  pass.emit("target_features", -1, pass.features);
  const MtpWeights& first = weights_.mtp.front();
  const Tensor main = rms_norm(linear(pass.features, first.main_proj), first.main_norm);
  pass.emit("main", -1, main);
  for (const LayerPlan& plan : schedule_.draft) {
    const Scope scope(workspace_);
    const AttentionWeights& w = weights_.mtp[static_cast<size_t>(plan.layer - config_.num_hidden_layers)].block.attn;
    const kernels::RingView ring = pass.cache.ring(plan.layer);
    const Tensor kv = linear(main, w.wkv);
    auto* fresh = workspace_.array<uint8_t>(kv.rows * kernels::record_bytes(ring.format, ring.width));
    const Tensor entry = pass.tap != nullptr ? fp32(kv.rows, kv.cols) : Tensor{};
    ops_.swa_store({.kv = kv,
                    .norm = w.kv_norm,
                    .norm_eps = eps(),
                    .table = pass.rope_plain,
                    .rope_dim = config_.qk_rope_head_dim,
                    .round_bf16 = numerics_.round_bf16,
                    .format = ring.format,
                    .fresh = fresh,
                    .entry = entry},
                   stream_);
    pass.emit("context_kv", plan.layer, entry);
    ops_.ring_commit({.fresh = fresh, .rows = pass.rows, .ring = ring}, stream_);
  }
}

DraftResult Forward::draft(std::span<const DraftChunk> chunks, KvCache& cache, const Tap* tap) {
  DI_CHECK(options_.draft_context, "a draft needs the context of target forwards");
  const int32_t block_size = config_.dspark_block_size;
  const int32_t window = config_.sliding_window;
  draft_rows_ = {};
  draft_ids_.clear();
  draft_slots_.clear();
  draft_fresh_row_.clear();
  draft_fresh_position_.clear();
  for (size_t s = 0; s < chunks.size(); ++s) {
    const DraftChunk& chunk = chunks[s];
    const int32_t a = chunk.context_position;
    draft_slots_.push_back(chunk.state_slot);
    draft_fresh_row_.push_back(draft_rows_.size());
    draft_fresh_position_.push_back(a + 1);
    for (int32_t k = 0; k < block_size; ++k) {
      draft_ids_.push_back(k == 0 ? chunk.golden : config_.dspark_noise_token_id);
      draft_rows_.positions.push_back(a + 1 + k);
      draft_rows_.sequence.push_back(static_cast<int32_t>(s));
      // Not causal inside the block: every row sees the whole context window and all rows of the block.
      draft_rows_.window_begin.push_back(std::max({0, a - window + 1, chunk.window_start}));
      draft_rows_.window_end.push_back(a + 1 + block_size);
    }
  }

  const auto sequences = static_cast<int64_t>(chunks.size());
  if (options_.group != nullptr && (!agree(kDraftCall, nullptr, draft_rows_.size(), tap) ||
                                    !grow(kDraftCall, [&] { draft_pass(sequences, cache, nullptr); }))) {
    return {};
  }
  return draft_pass(sequences, cache, tap);
}

// Over the rows of draft_rows_.
DraftResult Forward::draft_pass(int64_t sequences, KvCache& cache, const Tap* tap) {
  workspace_.release({});
  Pass pass{.cache = cache, .tap = tap, .forward = this};
  if (sequences == 0) {  // in a group only
    serve(pass, schedule_.draft);
    return {};
  }
  pass.rows.n = draft_rows_.size();
  pass.rows.positions = draft_rows_.positions.data();
  pass.rows.sequence = draft_rows_.sequence.data();
  pass.rows.window_begin = draft_rows_.window_begin.data();
  pass.rows.window_end = draft_rows_.window_end.data();
  pass.rows.state_slot = draft_slots_.data();
  pass.rows = on_device(pass.rows, sequences);
  pass.positions = &draft_rows_.positions;
  pass.fresh_row = on_device(draft_fresh_row_);
  pass.fresh_position = on_device(draft_fresh_position_);
  pass.rope_plain = rope_table(draft_rows_.positions, /*compressed=*/false);
  pass.streams = activation(pass.rows.n, int64_t{config_.hc_mult} * config_.hidden_size);
  pass.mix = fp32(pass.rows.n, config_.hc_mult);
  pass.next_mix = fp32(pass.rows.n, config_.hc_mult);
  ops_.embed({.ids = on_device(draft_ids_),
              .n_tokens = pass.rows.n,
              .table = weights_.embed,
              .override_row = nullptr,
              .overrides = {},
              .hc = config_.hc_mult,
              .streams = pass.streams,
              .mix = static_cast<float*>(pass.mix.data)},
             stream_);
  for (const LayerPlan& plan : schedule_.draft) {
    block(pass, plan, weights_.mtp[static_cast<size_t>(plan.layer - config_.num_hidden_layers)].block);
  }

  DraftResult result;
  result.block = config_.dspark_block_size;
  result.head_hidden = activation(pass.rows.n, config_.hidden_size);
  const Tensor normed = activation(pass.rows.n, config_.hidden_size);
  ops_.hc_head({.streams = pass.streams,
                .mix = static_cast<const float*>(pass.mix.data),
                .hc = config_.hc_mult,
                .norm_eps = eps(),
                .norm = weights_.mtp.back().norm,
                .h = result.head_hidden,
                .y = normed},
               stream_);
  result.base_logits = linear_fp32(normed, weights_.head);
  return result;
}

Tensor Forward::draft_step(const DraftResult& draft, int32_t k, const int32_t* previous, float temperature,
                           float* confidence) {
  const Scope scope(workspace_);
  const MtpWeights& w = weights_.mtp.back();
  const auto n = static_cast<int32_t>(draft.base_logits.rows / draft.block);
  // Row k of every sequence's block, as a strided view.
  const auto every = [&](const Tensor& x) {
    Tensor view = x;
    view.data = static_cast<char*>(x.data) + int64_t{k} * x.stride * kernels::size_of(x.dtype);
    view.rows = n;
    view.stride = x.stride * draft.block;
    return view;
  };
  const Tensor e = activation(n, config_.dspark_markov_rank);
  ops_.gather_table({.table = w.markov_head.embed, .index = on_device(previous, n), .n = n, .y = e}, stream_);
  const Tensor logits = every(draft.base_logits);
  ops_.linear({.x = e, .w = w.markov_head.head, .numerics = numerics_, .accumulate = true, .y = logits}, stream_);
  const bool shared = ops_.copy_out == nullptr;
  float* written = shared ? confidence : workspace_.array<float>(n);
  ops_.confidence({.h = every(draft.head_hidden),
                   .e = e,
                   .w = w.confidence_head_proj,
                   .temperature = temperature,
                   .confidence = written},
                  stream_);
  if (!shared) ops_.copy_out(confidence, written, int64_t{n} * 4, stream_);
  return logits;
}

}  // namespace di::model
