// The forward pass of model.md §5, in the order of the formulas: embed, then per layer
//   Engram · hyper-connection in · attention · hyper-connection out · hyper-connection in · experts · hyper-connection
//   out
// then the head. Every line is one operator of kernels/ops.h; nothing here branches on backend or number format.
#include "model/forward.h"

#include <algorithm>
#include <utility>

#include "model/forward_pass.h"

namespace di::model {

using kernels::DType;
using kernels::Tensor;
using kernels::Weight;

Forward::Forward(const ModelConfig& config, const Schedule& schedule, const ModelWeights& weights,
                 const kernels::Ops& ops, kernels::Stream& stream, device::Device& device, ForwardOptions options)
    : config_(config),
      schedule_(schedule),
      weights_(weights),
      ops_(ops),
      stream_(stream),
      options_(options),
      dtype_(options.numerics == NumericMode::kTrained ? DType::kBf16 : DType::kF32),
      workspace_(device),
      rope_(rope_frequencies(config)) {
  numerics_.round_bf16 = options.numerics == NumericMode::kTrained;
  numerics_.quantise_activations = options.numerics == NumericMode::kTrained;
}

ForwardResult Forward::run(const Batch& batch, KvCache& cache, const Tap* tap) {
  workspace_.release({});
  Pass pass{.batch = &batch, .cache = cache, .tap = tap};
  pass.rows = batch.rows(batch.all);
  pass.positions = &batch.all.positions;
  pass.fresh_row = batch.fresh_row.data();
  pass.fresh_position = batch.fresh_position.data();
  pass.rope_plain = rope_table(batch.all.positions, /*compressed=*/false);
  pass.rope_compressed = rope_table(batch.all.positions, /*compressed=*/true);
  pass.streams = activation(pass.rows.n, int64_t{config_.hc_mult} * config_.hidden_size);
  pass.mix = fp32(pass.rows.n, config_.hc_mult);
  pass.next_mix = fp32(pass.rows.n, config_.hc_mult);
  if (batch.truncated) {
    pass.kept_streams = activation(batch.decoder.size(), pass.streams.cols);
    pass.kept_mix[0] = fp32(batch.decoder.size(), config_.hc_mult);
    pass.kept_mix[1] = fp32(batch.decoder.size(), config_.hc_mult);
    pass.kept_rope_plain = rope_table(batch.decoder.positions, /*compressed=*/false);
    pass.kept_rope_compressed = rope_table(batch.decoder.positions, /*compressed=*/true);
  }
  pass.selection = workspace_.array<int32_t>(int64_t{pass.rows.n} * config_.index_topk);
  pass.candidates = workspace_.array<int32_t>(int64_t{pass.rows.n} * config_.candidate_topk_blocks);
  if (options_.draft_context) {
    pass.features = activation(batch.decoder.size(),
                               static_cast<int64_t>(config_.dspark_target_layer_ids.size()) * config_.hidden_size);
  }

  ops_.embed({.ids = batch.ids.data(),
              .n_tokens = pass.rows.n,
              .table = weights_.embed,
              .override_row = nullptr,
              .overrides = {},
              .hc = config_.hc_mult,
              .streams = pass.streams,
              .mix = static_cast<float*>(pass.mix.data)},
             stream_);
  for (const LayerPlan& plan : schedule_.layers) {
    block(pass, plan, weights_.layers[static_cast<size_t>(plan.layer)]);
    if (pass.rows.n == 0) return {};  // every row of the call stops at the boundary layer (truncated prefill)
    if (pass.in_decoder && plan.layer == schedule_.boundary) {
      pass.rows = batch.rows(batch.decoder);
      pass.fresh_row = batch.decoder_fresh_row.data();
      pass.fresh_position = batch.decoder_fresh_position.data();
    }
  }
  if (options_.draft_context) draft_context(pass);
  return head(pass);
}

// One backbone or draft layer (model.md §5.2, "Block l").
void Forward::block(Pass& pass, const LayerPlan& plan, const LayerWeights& w) {
  const Scope scope(workspace_);
  if (plan.has_engram) engram(pass, plan, w.engram);
  capture_feature(pass, plan);

  Site site = hc_in(pass, w.hc_attn_fn, w.hc_attn_base, w.hc_attn_scale, w.attn_norm);
  pass.emit("attn_in", plan.layer, site.y);
  Tensor out = attention(pass, plan, w.attn, site);
  if (pass.rows.n == 0) return;
  pass.emit("attn_out", plan.layer, out);
  hc_out(pass, site, out);

  site = hc_in(pass, w.hc_ffn_fn, w.hc_ffn_base, w.hc_ffn_scale, w.ffn_norm);
  out = moe(pass, plan, w.ffn, site.y);
  pass.emit("ffn_out", plan.layer, out);
  hc_out(pass, site, out);
  pass.emit("streams", plan.layer, pass.streams);
  pass.emit("pre_mix", plan.layer, pass.mix);
}

// Coefficients of a site and the input of its sub-layer, which is mixed by the previous site's `pre` (shifted, V4.1) or
// by its own (V4). The site's `pre` becomes the mix of the next one.
Forward::Site Forward::hc_in(Pass& pass, const float* fn, const float* base, const float* scale, const Weight& norm) {
  const int32_t n = pass.rows.n;
  const int32_t hc = config_.hc_mult;
  Site site;
  site.y = activation(n, config_.hidden_size);
  site.pre = pass.next_mix;
  site.post = fp32(n, hc);
  site.comb = fp32(n, int64_t{hc} * hc);
  ops_.hc_pre({.streams = pass.streams,
               .mix_in = static_cast<const float*>(pass.mix.data),
               .use_own_pre = !config_.hc_shifted,
               .hc = hc,
               .sinkhorn_iters = config_.hc_sinkhorn_iters,
               .hc_eps = static_cast<float>(config_.hc_eps),
               .norm_eps = eps(),
               .fn = fn,
               .base = base,
               .scale = scale,
               .norm = norm,
               .round_bf16 = numerics_.round_bf16,
               .y = site.y,
               .pre = static_cast<float*>(site.pre.data),
               .post = static_cast<float*>(site.post.data),
               .comb = static_cast<float*>(site.comb.data)},
              stream_);
  return site;
}

void Forward::hc_out(Pass& pass, const Site& site, const Tensor& out) {
  ops_.hc_post({.streams = pass.streams,
                .y = out,
                .post = static_cast<const float*>(site.post.data),
                .comb = static_cast<const float*>(site.comb.data),
                .hc = config_.hc_mult},
               stream_);
  std::swap(pass.mix, pass.next_mix);  // site.pre feeds the next site
}

// X_i += g_i·value of the n-gram embedding (model.md §5.10), before the layer's coefficients are computed.
void Forward::engram(Pass& pass, const LayerPlan& plan, const EngramWeights& w) {
  if (!options_.ablation.engram) return;
  const Scope scope(workspace_);
  const int32_t columns = config_.engram_columns();
  const std::vector<int64_t>& all_rows = pass.batch->engram_rows[static_cast<size_t>(plan.engram_index)];
  std::vector<int64_t> kept_rows;
  if (pass.in_decoder) {
    for (const int32_t row : pass.batch->decoder_index) {
      const auto first = all_rows.begin() + static_cast<std::ptrdiff_t>(row) * columns;
      kept_rows.insert(kept_rows.end(), first, first + columns);
    }
  }
  const Tensor e = activation(pass.rows.n, int64_t{columns} * config_.engram_head_dim);
  ops_.engram_gather({.table = w.embed,
                      .rows = (pass.in_decoder ? kept_rows : all_rows).data(),
                      .n_tokens = pass.rows.n,
                      .columns = columns,
                      .e = e},
                     stream_);
  const Tensor kvp = linear(e, w.wkv);
  const Tensor gate = fp32(pass.rows.n, config_.hc_mult);
  ops_.engram_gate({.streams = pass.streams,
                    .kvp = kvp,
                    .q_weight = w.q_weight,
                    .k_weight = w.k_weight,
                    .hc = config_.hc_mult,
                    .norm_eps = eps(),
                    .copysign_at_zero = options_.engram_copysign,
                    .rows = pass.rows,
                    .gate = static_cast<float*>(gate.data)},
                   stream_);
  pass.emit("engram_gate", plan.layer, gate);
}

// Router and experts (model.md §5.9; V4's hash layers take the experts from the token id).
Tensor Forward::moe(Pass& pass, const LayerPlan& plan, const FfnWeights& w, const Tensor& y) {
  const int32_t n = pass.rows.n;
  const int32_t k = plan.experts_per_token;
  auto* ids = workspace_.array<int32_t>(int64_t{n} * k);
  const Tensor weights = fp32(n, k);
  int32_t* forced = nullptr;
  if (w.gate.tid2eid != nullptr) {
    forced = workspace_.array<int32_t>(int64_t{n} * k);
    for (int32_t t = 0; t < n; ++t) {
      const int64_t id = pass.batch->ids[static_cast<size_t>(t)];
      std::copy_n(w.gate.tid2eid + id * k, k, forced + int64_t{t} * k);
    }
  }
  ops_.router({.y = y,
               .gate = w.gate.weight,
               .bias = w.gate.bias,
               .bias_vl = w.gate.bias_vl,
               .forced_ids = forced,
               .rows = pass.rows,
               .k = k,
               .scale = static_cast<float>(config_.routed_scaling_factor),
               .ids = ids,
               .weights = static_cast<float*>(weights.data)},
              stream_);
  pass.emit_ids("route_idx", plan.layer, ids, n, k);
  pass.emit("route_w", plan.layer, weights);
  const Tensor out = activation(n, config_.hidden_size);
  ops_.moe({.y = y,
            .ids = ids,
            .weights = static_cast<const float*>(weights.data),
            .k = k,
            .experts = w.experts.data(),
            .n_experts = static_cast<int32_t>(w.experts.size()),
            .shared = w.shared_experts,
            .swiglu_limit = static_cast<float>(config_.swiglu_limit),
            .numerics = numerics_,
            .out = out},
           stream_);
  return out;
}

// h = collapse(X, p), RMSNorm, logits in fp32 (model.md §5.2, end), for the rows that want them.
ForwardResult Forward::head(Pass& pass) {
  ForwardResult result;
  if (pass.batch->logit_rows.empty()) return result;
  const Tensor streams = take_rows(pass.streams, pass.batch->logit_rows);
  const Tensor mix = config_.family == Family::kV4 ? head_mix_v4(streams) : take_rows(pass.mix, pass.batch->logit_rows);
  result.hidden = activation(streams.rows, config_.hidden_size);
  ops_.hc_head({.streams = streams,
                .mix = static_cast<const float*>(mix.data),
                .hc = config_.hc_mult,
                .norm_eps = eps(),
                .norm = weights_.norm,
                .h = {},
                .y = result.hidden},
               stream_);
  result.logits = linear_fp32(result.hidden, weights_.head);
  return result;
}

Tensor Forward::activation(int64_t rows, int64_t cols) {
  return workspace_.tensor(rows, cols, dtype_);
}
Tensor Forward::fp32(int64_t rows, int64_t cols) {
  return workspace_.tensor(rows, cols, DType::kF32);
}

Tensor Forward::linear(const Tensor& x, const Weight& w) {
  const Tensor y = activation(x.rows, w.rows);
  ops_.linear({.x = x, .w = w, .numerics = numerics_, .accumulate = false, .y = y}, stream_);
  return y;
}

Tensor Forward::linear_fp32(const Tensor& x, const Weight& w) {
  const Tensor y = fp32(x.rows, w.rows);
  ops_.linear({.x = x, .w = w, .numerics = numerics_, .accumulate = false, .y = y}, stream_);
  return y;
}

Tensor Forward::rms_norm(const Tensor& x, const Weight& w) {
  const Tensor y = activation(x.rows, x.cols);
  ops_.rms_norm({.x = x, .w = w, .eps = eps(), .y = y}, stream_);
  return y;
}

Tensor Forward::take_rows(const Tensor& x, const std::vector<int32_t>& index) {
  const auto n = static_cast<int32_t>(index.size());
  const Tensor y = workspace_.tensor(n, x.cols, x.dtype);
  ops_.gather_rows({.x = x, .index = index.data(), .n = n, .y = y}, stream_);
  return y;
}

const float* Forward::rope_table(const std::vector<int32_t>& positions, bool compressed) {
  const auto n = static_cast<int32_t>(positions.size());
  auto* table = workspace_.array<float>(int64_t{n} * config_.qk_rope_head_dim);
  ops_.rope_table({.positions = positions.data(),
                   .n = n,
                   .inv_freq = (compressed ? rope_.compressed : rope_.plain).data(),
                   .rope_dim = config_.qk_rope_head_dim,
                   .table = table},
                  stream_);
  return table;
}

void Forward::Pass::emit_ids(std::string_view name, int32_t layer, const int32_t* ids, int64_t n,
                             int64_t columns) const {
  if (tap == nullptr) return;
  std::vector<float> values(static_cast<size_t>(n * columns));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(ids[i]);
  (*tap)(name, layer, {values.data(), DType::kF32, n, columns, columns});
}

}  // namespace di::model
