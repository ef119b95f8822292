// The forward pass of model.md §5, in the order of the formulas: embed, then per layer
//   Engram · hyper-connection in · attention · hyper-connection out · hyper-connection in · experts · hyper-connection
//   out
// then the head. Every line is one operator of kernels/ops.h; nothing here branches on backend or number format.
#include "model/forward.h"

#include <algorithm>
#include <cstring>
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
      backend_(ops),
      ops_(ops),
      stream_(stream),
      device_(device),
      options_(options),
      dtype_(options.numerics == NumericMode::kTrained ? DType::kBf16 : DType::kF32),
      workspace_(device),
      rope_(rope_frequencies(config)) {
  numerics_.round_bf16 = options.numerics == NumericMode::kTrained;
  numerics_.quantise_activations = options.numerics == NumericMode::kTrained;
  if (backend_.refuse != nullptr) {
    workspace_.on_full([this](const Error& error) { backend_.refuse(error.message.c_str(), stream_); });
  }
}

bool Forward::has_failed() const {
  return backend_.failure != nullptr && backend_.failure(stream_).what != nullptr;
}

Result<void> Forward::status() const {
  if (!has_failed()) return {};
  const kernels::StreamFailure failure = backend_.failure(stream_);
  Error error{failure.memory ? Errc::kResourceExhausted : Errc::kUnavailable, failure.what};
  backend_.recover(stream_);
  return std::unexpected(std::move(error));
}

Forward::~Forward() {
  for (const auto& c : captured_) {
    if (c->graph != nullptr) backend_.drop(c->graph);
  }
}

ForwardResult Forward::run(const Batch& batch, KvCache& cache, const Tap* tap) {
  if (options_.group != nullptr) {
    if (!agree(kRunCall, &batch, batch.all.size(), tap)) return {};
    StepShape shape = agreed_.shape;
    shape.cache = cache.block(0);
    const bool captured = agreed_.captured;
    const bool grown =
        grow(kRunCall, [&] { run_rows(captured ? pad_batch(config_, batch, shape) : batch, cache, nullptr); });
    if (!grown) return {};
    return captured ? run_captured(batch, cache, shape) : run_rows(batch, cache, tap);
  }
  if (may_capture(tap)) {
    StepShape shape = step_shape(batch);
    shape.cache = cache.block(0);
    if (shape.rows > 0) return run_captured(batch, cache, shape);
  }
  return run_rows(batch, cache, tap);
}

// V4's hash layers and the ablations look at values on the host in the midst of a step.
bool Forward::may_capture(const Tap* tap) const {
  const Ablation& a = options_.ablation;
  return options_.graphs && backend_.capture != nullptr && tap == nullptr && config_.family == Family::kV41 &&
         a.engram && a.selection && a.candidates && a.candidate_scores;
}

// The first step of a shape runs as it is, so that the memory it needs is there; the second is captured.
ForwardResult Forward::run_captured(const Batch& batch, KvCache& cache, const StepShape& shape) {
  const Batch padded = pad_batch(config_, batch, shape);
  auto it = std::find_if(captured_.begin(), captured_.end(), [&](const auto& c) { return c->shape == shape; });
  if (it != captured_.end() && (*it)->graph != nullptr && (*it)->scratch_version != backend_.scratch_version(stream_)) {
    backend_.drop((*it)->graph);
    captured_.erase(it);
    it = captured_.end();
  }
  ForwardResult result;
  enum : int64_t { kNew, kSeen, kHasGraph };
  int64_t state = it == captured_.end() ? kNew : (*it)->graph == nullptr ? kSeen : kHasGraph;
  if (state == kNew) {
    captured_.push_back(std::make_unique<Captured>());
    captured_.back()->shape = shape;
    it = std::prev(captured_.end());
  }
  if (options_.group != nullptr && !agree_on_graph(&state)) return {};
  if (state == kNew) {
    result = run_rows(padded, cache, nullptr);
    if (has_failed()) captured_.erase(it);  // the memory is not there
  } else {
    Captured& c = **it;
    run_staged(padded, cache, c.inputs, idle_ops(backend_));
    if (c.graph == nullptr) {
      if (const Result<void> room = c.inputs.reserve(device_); !room) {
        backend_.refuse(room.error().message.c_str(), stream_);
        return {};
      }
      struct Call {
        Forward& forward;
        const Batch& batch;
        KvCache& cache;
        Captured& captured;
      } call{*this, padded, cache, c};
      c.scratch_version = backend_.scratch_version(stream_);
      c.graph = backend_.capture(
          [](void* argument) {
            Call& self = *static_cast<Call*>(argument);
            self.captured.result =
                self.forward.run_staged(self.batch, self.cache, self.captured.inputs, self.forward.backend_);
          },
          &call, stream_);
      // No room for the graph: the step runs as it is, and the next one tries again.
      if (c.graph == nullptr && options_.group != nullptr) backend_.refuse("no room for a step's graph", stream_);
      if (c.graph == nullptr && has_failed()) return {};
    }
    // Nobody replays while another rank still makes its graph (grow says why).
    if (options_.group != nullptr && state == kSeen && !options_.group->gather({})) return {};
    if (c.graph == nullptr) {
      result = run_rows(padded, cache, nullptr);
    } else {
      c.inputs.send(backend_, stream_);
      backend_.replay(*c.graph, stream_);
      ++replays_;
      result = c.result;
    }
  }
  // Without the rows of the padding.
  result.logits.rows = result.hidden.rows = static_cast<int64_t>(batch.logit_rows.size());
  return result;
}

ForwardResult Forward::run_staged(const Batch& batch, KvCache& cache, StagedInputs& inputs, const kernels::Ops& ops) {
  inputs.begin();
  staged_ = &inputs;
  ops_ = ops;
  const ForwardResult result = run_rows(batch, cache, nullptr);
  ops_ = backend_;
  staged_ = nullptr;
  return result;
}

ForwardResult Forward::run_rows(const Batch& batch, KvCache& cache, const Tap* tap) {
  workspace_.release({});
  Pass pass{.batch = &batch, .cache = cache, .tap = tap, .forward = this};
  if (batch.all.size() == 0) {  // in a group only
    serve(pass, schedule_.layers);
    return {};
  }
  const auto sequences = static_cast<int64_t>(batch.state_slot.size());
  pass.rows = on_device(batch.rows(batch.all), sequences);
  pass.positions = &batch.all.positions;
  pass.fresh_row = on_device(batch.fresh_row);
  pass.fresh_position = on_device(batch.fresh_position);
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

  ops_.embed({.ids = on_device(batch.ids),
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
    if (pass.rows.n == 0) {  // every row of the call stops at the boundary layer (truncated prefill)
      if (options_.group != nullptr) serve(pass, std::span(schedule_.layers).subspan(static_cast<size_t>(plan.layer)));
      return {};
    }
    if (pass.in_decoder && plan.layer == schedule_.boundary) {
      pass.rows = on_device(batch.rows(batch.decoder), sequences);
      pass.fresh_row = on_device(batch.decoder_fresh_row);
      pass.fresh_position = on_device(batch.decoder_fresh_position);
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
                      .rows = on_device(pass.in_decoder ? kept_rows : all_rows),
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
  std::vector<int32_t> forced;
  if (w.gate.tid2eid != nullptr) {
    for (int32_t t = 0; t < n; ++t) {
      const int64_t id = pass.batch->ids[static_cast<size_t>(t)];
      forced.insert(forced.end(), w.gate.tid2eid + id * k, w.gate.tid2eid + (id + 1) * k);
    }
  }
  ops_.router({.y = y,
               .gate = w.gate.weight,
               .bias = w.gate.bias,
               .bias_vl = w.gate.bias_vl,
               .forced_ids = forced.empty() ? nullptr : on_device(forced),
               .rows = pass.rows,
               .k = k,
               .scale = static_cast<float>(config_.routed_scaling_factor),
               .ids = ids,
               .weights = static_cast<float*>(weights.data)},
              stream_);
  pass.emit_ids("route_idx", plan.layer, ids, n, k);
  pass.emit("route_w", plan.layer, weights);
  if (options_.group != nullptr) {
    return moe_of_group(pass, plan, w, y, ids, static_cast<const float*>(weights.data));
  }
  const Tensor out = activation(n, config_.hidden_size);
  ops_.moe({.y = y,
            .ids = ids,
            .weights = static_cast<const float*>(weights.data),
            .k = k,
            .experts = w.table,
            .n_experts = static_cast<int32_t>(w.experts.size()),
            .form = w.form,
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

kernels::Rows Forward::on_device(const kernels::Rows& rows, int64_t sequences) {
  kernels::Rows out = rows;
  out.positions = on_device(rows.positions, rows.n);
  out.sequence = on_device(rows.sequence, rows.n);
  out.window_begin = on_device(rows.window_begin, rows.n);
  out.window_end = on_device(rows.window_end, rows.n);
  out.is_image = on_device(rows.is_image, rows.n);
  out.state_slot = on_device(rows.state_slot, sequences);
  out.block_table = on_device(rows.block_table, sequences * rows.block_table_stride);
  return out;
}

void Forward::edit_ids(int32_t* ids, int64_t n, const std::function<void(int32_t*)>& edit) {
  if (ops_.copy_in == nullptr) return edit(ids);
  std::vector<int32_t> copy(static_cast<size_t>(n));
  read(copy.data(), ids, n * 4);
  edit(copy.data());
  ops_.copy_in(ids, copy.data(), n * 4, stream_);
}

void Forward::read(void* to, const void* from, int64_t bytes) const {
  if (bytes == 0) return;
  if (ops_.copy_out == nullptr) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  } else {
    ops_.copy_out(to, from, bytes, stream_);
  }
}

void Forward::write(void* to, const void* from, int64_t bytes) const {
  if (bytes == 0) return;
  if (ops_.copy_in == nullptr) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  } else {
    ops_.copy_in(to, from, bytes, stream_);
  }
}

Tensor Forward::on_host(const Tensor& t, std::vector<std::byte>& buffer) const {
  if (ops_.copy_out == nullptr || t.data == nullptr || t.rows == 0) return t;
  // With the gaps between the rows, but none behind the last.
  const int64_t bytes = ((t.rows - 1) * t.stride + t.cols) * kernels::size_of(t.dtype);
  buffer.resize(static_cast<size_t>(bytes));
  read(buffer.data(), t.data, bytes);
  Tensor copy = t;
  copy.data = buffer.data();
  return copy;
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
  ops_.gather_rows({.x = x, .index = on_device(index), .n = n, .y = y}, stream_);
  return y;
}

const float* Forward::rope_table(const std::vector<int32_t>& positions, bool compressed) {
  const auto n = static_cast<int32_t>(positions.size());
  auto* table = workspace_.array<float>(int64_t{n} * config_.qk_rope_head_dim);
  ops_.rope_table({.positions = on_device(positions),
                   .n = n,
                   .inv_freq = on_device(compressed ? rope_.compressed : rope_.plain),
                   .rope_dim = config_.qk_rope_head_dim,
                   .table = table},
                  stream_);
  return table;
}

void Forward::Pass::emit_ids(std::string_view name, int32_t layer, const int32_t* ids, int64_t n,
                             int64_t columns) const {
  if (tap == nullptr) return;
  // As a matrix of 4-byte elements, whatever they are.
  std::vector<std::byte> buffer;
  const Tensor read = forward->on_host({const_cast<int32_t*>(ids), DType::kF32, n, columns, columns}, buffer);
  std::vector<float> values(static_cast<size_t>(n * columns));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<const int32_t*>(read.data)[i]);
  (*tap)(name, layer, {values.data(), DType::kF32, n, columns, columns});
}

}  // namespace di::model
