// What V4 Flash does differently from V4.1 (model.md §10): every compressed layer owns its compressor (ratio 4 with
// overlapping groups, ratio 128 without an indexer), the indexer of a ratio-4 layer has a compressor of its own, and
// the final collapse has a mixer. Not shifted hyper-connections, the per-head query norm and hash routing are switches
// of the shared code.
#include "model/forward_pass.h"

namespace di::model {

using kernels::Tensor;

void Forward::compress_v4(Pass& pass, const LayerPlan& plan, const AttentionWeights& w, const Tensor& y) {
  const ClosingRows& closing = pass.batch->closing_for(plan.ratio);
  const auto n = static_cast<int32_t>(closing.rows.size());
  const int32_t* closing_rows = on_device(closing.rows);
  const float* table = n > 0 ? rope_table(closing.group_positions, /*compressed=*/true) : nullptr;
  const auto store = [&](const CompressorWeights& c, int32_t width, const kernels::CompressorStateView& state,
                         const kernels::PageView& pages) {
    const Tensor latent = activation(n, width);
    ops_.compress_v4({.ratio = plan.ratio,
                      .overlap = plan.kind == LayerKind::kCsa,
                      .v = linear_fp32(y, c.wkv),
                      .s = linear_fp32(y, c.wgate),
                      .ape = c.ape,
                      .norm = c.norm,
                      .norm_eps = eps(),
                      .round_bf16 = numerics_.round_bf16,
                      .rows = pass.rows,
                      .closing = closing_rows,
                      .n_closing = n,
                      .state = state,
                      .latent = latent},
                     stream_);
    if (n == 0) return;
    pass.emit(width == config_.head_dim ? "latent" : "index_latent", plan.layer, latent);
    ops_.page_store({.x = latent,
                     .norm = {},
                     .norm_eps = eps(),
                     .table = table,
                     .rope_dim = config_.qk_rope_head_dim,
                     .ratio = plan.ratio,
                     .rows = pass.rows,
                     .closing = closing_rows,
                     .n_closing = n,
                     .round_bf16 = numerics_.round_bf16,
                     .pages = pages},
                    stream_);
  };
  store(w.compressor, config_.head_dim, pass.cache.state(plan.kv_source_index),
        pass.cache.main_pages(plan.kv_source_index));
  if (plan.kind == LayerKind::kCsa) {
    store(w.indexer.compressor, config_.index_head_dim, pass.cache.index_state(plan.kv_source_index),
          pass.cache.index_pages(plan.kv_source_index));
  }
}

Tensor Forward::head_mix_v4(const Tensor& streams) {
  const Tensor mix = fp32(streams.rows, config_.hc_mult);
  ops_.hc_head_mix({.streams = streams,
                    .hc = config_.hc_mult,
                    .hc_eps = static_cast<float>(config_.hc_eps),
                    .norm_eps = eps(),
                    .fn = weights_.hc_head.fn,
                    .base = weights_.hc_head.base,
                    .scale = weights_.hc_head.scale,
                    .mix = static_cast<float*>(mix.data)},
                   stream_);
  return mix;
}

}  // namespace di::model
