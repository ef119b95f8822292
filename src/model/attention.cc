// Attention of one layer (model.md §5.4–5.8): query and window entry, compressor and indexer where the layer owns them,
// one softmax over window and selected entries, grouped output projection. At the boundary layer of a truncated prefill
// the cache projections run on every row and the rest on the kept rows (model.md §6).
#include <algorithm>
#include <cmath>

#include "model/forward_pass.h"

namespace di::model {

using kernels::DType;
using kernels::Tensor;

namespace {

float* floats(const Tensor& t) {
  return static_cast<float*>(t.data);
}

}  // namespace

Tensor Forward::attention(Pass& pass, const LayerPlan& plan, const AttentionWeights& w, Site& site) {
  // Window entries of all rows.
  const int32_t ring = plan.layer;
  const kernels::RingView ring_view = pass.cache.ring(ring);
  const Tensor kv = linear(site.y, w.wkv);
  auto* fresh = workspace_.array<uint8_t>(kv.rows * kernels::record_bytes(ring_view.format, ring_view.width));
  const Tensor entry = pass.tap != nullptr ? fp32(kv.rows, kv.cols) : Tensor{};
  ops_.swa_store({.kv = kv,
                  .norm = w.kv_norm,
                  .norm_eps = eps(),
                  .table = pass.rope_for(plan),
                  .rope_dim = config_.qk_rope_head_dim,
                  .round_bf16 = numerics_.round_bf16,
                  .format = ring_view.format,
                  .fresh = fresh,
                  .entry = entry},
                 stream_);
  pass.emit("swa_kv", plan.layer, entry);
  const kernels::FreshView fresh_view{.records = fresh, .row = pass.fresh_row, .position = pass.fresh_position};
  const kernels::Rows stored_rows = pass.rows;

  // Compressed entries of all rows, before anything reads them.
  if (plan.is_kv_source) {
    if (config_.family == Family::kV4) {
      compress_v4(pass, plan, w, site.y);
    } else {
      compress(pass, plan, w, site.y);
    }
  }

  if (pass.batch != nullptr && pass.batch->truncated && plan.layer == schedule_.boundary) enter_decoder(pass, site);
  Tensor out;
  if (pass.rows.n > 0) {
    const Tensor qa = rms_norm(linear(site.y, w.wq_a), w.q_norm);
    const Tensor q = linear(qa, w.wq_b);
    ops_.q_rope({.q = q,
                 .heads = config_.num_attention_heads,
                 .table = pass.rope_for(plan),
                 .rope_dim = config_.qk_rope_head_dim,
                 .head_norm_eps = config_.family == Family::kV4 ? eps() : 0.F},
                stream_);
    if (plan.is_index_source) select(pass, plan, w.indexer, site.y, qa);

    const Tensor o = activation(q.rows, q.cols);
    ops_.attention({.q = q,
                    .heads = config_.num_attention_heads,
                    .scale = 1.F / std::sqrt(static_cast<float>(config_.head_dim)),
                    .sink = w.attn_sink,
                    .table = pass.rope_for(plan),
                    .rope_dim = config_.qk_rope_head_dim,
                    .rows = pass.rows,
                    .fresh = fresh_view,
                    .ring = ring_view,
                    .ratio = plan.ratio,
                    .pages = plan.ratio > 0 ? pass.cache.main_pages(plan.kv_source_index) : kernels::PageView{},
                    .selection = plan.index_source >= 0 ? pass.selection : nullptr,
                    .topk = config_.index_topk,
                    .round_bf16 = numerics_.round_bf16,
                    .o = o},
                   stream_);
    const Tensor z = activation(q.rows, int64_t{config_.o_groups} * config_.o_lora_rank);
    ops_.grouped_linear({.x = o, .w = w.wo_a, .groups = config_.o_groups, .numerics = numerics_, .y = z}, stream_);
    out = linear(z, w.wo_b);
  }
  // Draft rows never reach the rings: their keys are of proposals, not of the text (draft.cc stores the context).
  if (pass.batch != nullptr) {
    ops_.ring_commit({.fresh = fresh, .rows = stored_rows, .ring = ring_view}, stream_);
  }
  return out;
}

// Main entries and index keys of a KV source layer (model.md §5.6, §5.7 "K").
void Forward::compress(Pass& pass, const LayerPlan& plan, const AttentionWeights& w, const Tensor& y) {
  const ClosingRows& closing = pass.batch->closing_for(plan.ratio);
  const auto n = static_cast<int32_t>(closing.rows.size());
  const int32_t* closing_rows = on_device(closing.rows);
  const kernels::CompressorStateView state = pass.cache.state(plan.kv_source_index);
  const bool gated = plan.has_compressor_gate;
  const Tensor v = gated ? linear_fp32(y, w.compressor.wkv) : linear(y, w.compressor.wkv);
  const Tensor s = gated ? linear_fp32(y, w.compressor.wgate) : Tensor{};
  const Tensor latent = activation(n, config_.head_dim);
  ops_.compress({.ratio = plan.ratio,
                 .v = v,
                 .s = s,
                 .norm = w.compressor.norm,
                 .norm_eps = eps(),
                 .round_bf16 = numerics_.round_bf16,
                 .rows = pass.rows,
                 .closing = closing_rows,
                 .n_closing = n,
                 .state = state,
                 .latent = latent},
                stream_);
  if (n == 0) return;
  pass.emit("latent", plan.layer, latent);
  const float* table = rope_table(closing.group_positions, /*compressed=*/true);
  kernels::PageStoreArgs store{.x = latent,
                               .norm = {},
                               .norm_eps = eps(),
                               .table = table,
                               .rope_dim = config_.qk_rope_head_dim,
                               .ratio = plan.ratio,
                               .rows = pass.rows,
                               .closing = closing_rows,
                               .n_closing = n,
                               .round_bf16 = numerics_.round_bf16,
                               .pages = pass.cache.main_pages(plan.kv_source_index)};
  ops_.page_store(store, stream_);
  store.x = linear(latent, w.indexer.wk);
  store.norm = w.indexer.k_norm;
  store.pages = pass.cache.index_pages(plan.kv_source_index);
  ops_.page_store(store, stream_);
}

// The selection of an index source layer, and the candidate blocks of the candidate source (model.md §5.7, §5.8).
void Forward::select(Pass& pass, const LayerPlan& plan, const IndexerWeights& w, const Tensor& y, const Tensor& qa) {
  const Tensor q = linear(qa, w.wq_b);
  ops_.index_query({.q = q,
                    .heads = config_.index_n_heads,
                    .table = pass.rope_compressed,
                    .rope_dim = config_.qk_rope_head_dim,
                    .quantise = pass.cache.layout().options.kv_quant},
                   stream_);
  const Tensor weights = linear(y, w.weights_proj);
  const bool score = pass.tap != nullptr;
  int64_t visible = 0;
  if (score) {
    for (const int32_t position : *pass.positions) visible = std::max<int64_t>(visible, (position + 1) / plan.ratio);
  }
  const Tensor scores = score ? fp32(pass.rows.n, visible) : Tensor{};
  const bool filter = plan.uses_candidates && options_.ablation.candidates;
  ops_.select({.q = q,
               .w = weights,
               .scale = 1.F / std::sqrt(static_cast<float>(config_.index_head_dim)) /
                        std::sqrt(static_cast<float>(config_.index_n_heads)),
               .heads = config_.index_n_heads,
               .ratio = plan.ratio,
               .topk = config_.index_topk,
               .rows = pass.rows,
               .keys = pass.cache.index_pages(plan.kv_source_index),
               .candidate_block = config_.candidate_block_size,
               .candidate_topk = config_.candidate_topk_blocks,
               .candidate_in = filter ? pass.candidates : nullptr,
               .candidate_out = plan.is_candidate_source ? pass.candidates : nullptr,
               .selection = pass.selection,
               .scores = score ? floats(scores) : nullptr,
               .scores_stride = visible},
              stream_);
  if (!options_.ablation.selection) select_newest(pass, plan);
  if (plan.is_candidate_source && !options_.ablation.candidate_scores) newest_candidates(pass, plan);
  pass.emit("index_score", plan.layer, scores);
  pass.emit_ids("topk", plan.layer, pass.selection, pass.rows.n, config_.index_topk);
  if (plan.is_candidate_source) {
    pass.emit_ids("candidates", plan.layer, pass.candidates, pass.rows.n, config_.candidate_topk_blocks);
  }
}

// Ablation: the newest entries instead of the scored ones.
void Forward::select_newest(Pass& pass, const LayerPlan& plan) {
  const int32_t topk = config_.index_topk;
  edit_ids(pass.selection, int64_t{pass.rows.n} * topk, [&](int32_t* selection) {
    for (int32_t t = 0; t < pass.rows.n; ++t) {
      const int32_t visible = ((*pass.positions)[static_cast<size_t>(t)] + 1) / plan.ratio;
      const int32_t first = std::max(0, visible - topk);
      for (int32_t i = 0; i < topk; ++i) selection[int64_t{t} * topk + i] = first + i < visible ? first + i : -1;
    }
  });
}

// Ablation: the newest blocks instead of the scored ones; where every block is a candidate nothing changes.
void Forward::newest_candidates(Pass& pass, const LayerPlan& plan) {
  const int32_t topk = config_.candidate_topk_blocks;
  edit_ids(pass.candidates, int64_t{pass.rows.n} * topk, [&](int32_t* candidates) {
    for (int32_t t = 0; t < pass.rows.n; ++t) {
      int32_t* row = candidates + int64_t{t} * topk;
      if (topk == 0 || row[0] == -2) continue;
      const int32_t visible = ((*pass.positions)[static_cast<size_t>(t)] + 1) / plan.ratio;
      const int32_t blocks = (visible + config_.candidate_block_size - 1) / config_.candidate_block_size;
      const int32_t first = std::max(0, blocks - topk);
      for (int32_t i = 0; i < topk; ++i) row[i] = first + i < blocks ? first + i : -1;
    }
  });
}

// From here on only the kept rows exist: the streams, the site's coefficients and the sub-layer's input are gathered.
void Forward::enter_decoder(Pass& pass, Site& site) {
  const Batch& batch = *pass.batch;
  const auto n = static_cast<int32_t>(batch.decoder_index.size());
  const int32_t* index = on_device(batch.decoder_index);
  const auto take_into = [&](const Tensor& x, const Tensor& y) {
    ops_.gather_rows({.x = x, .index = index, .n = n, .y = y}, stream_);
  };
  pass.rows = on_device(batch.rows(batch.boundary), static_cast<int64_t>(batch.state_slot.size()));
  pass.positions = &batch.decoder.positions;
  pass.in_decoder = true;
  if (n == 0) return;
  take_into(pass.streams, pass.kept_streams);
  take_into(site.pre, pass.kept_mix[1]);
  site.y = take_rows(site.y, batch.decoder_index);
  site.post = take_rows(site.post, batch.decoder_index);
  site.comb = take_rows(site.comb, batch.decoder_index);
  site.pre = pass.kept_mix[1];
  pass.streams = pass.kept_streams;
  pass.mix = pass.kept_mix[0];
  pass.next_mix = pass.kept_mix[1];
  pass.rope_plain = pass.kept_rope_plain;
  pass.rope_compressed = pass.kept_rope_compressed;
}

}  // namespace di::model
