#include "model/tensor_list.h"

#include <fmt/format.h>

namespace di::model {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Adds tensors under a prefix of names; one per layer.
class Lister {
 public:
  Lister(const ModelConfig& config, std::vector<TensorSlot>& out) : c_(config), out_(out) {}

  void enter(std::string prefix, int32_t layer, bool draft) {
    prefix_ = std::move(prefix);
    layer_ = layer;
    draft_ = draft;
  }

  void bf16(std::string_view name, TensorClass group, std::vector<int64_t> shape, Weight& w) {
    add(name, TensorKind::kBf16, group, std::move(shape)).weight = &w;
  }
  void f32(std::string_view name, TensorClass group, std::vector<int64_t> shape, const float*& p) {
    add(name, TensorKind::kF32, group, std::move(shape)).f32 = &p;
  }
  // A dense FP8 weight, plain when the checkpoint is not quantised.
  void fp8(std::string_view name, TensorClass group, int64_t rows, int64_t cols, Weight& w) {
    const bool quantised = c_.quantization_config.present;
    add(name, quantised ? TensorKind::kFp8Block : TensorKind::kBf16, group, {rows, cols}).weight = &w;
  }
  void expert(std::string_view name, int64_t rows, int64_t cols, Weight& w) {
    const QuantizationConfig& q = c_.quantization_config;
    const TensorKind kind = !q.present                            ? TensorKind::kBf16
                            : q.expert_dtype == ExpertDtype::kFp4 ? TensorKind::kFp4Row
                                                                  : TensorKind::kFp8Block;
    add(name, kind, TensorClass::kRoutedExpert, {rows, cols}).weight = &w;
  }
  TensorSlot& add(std::string_view name, TensorKind kind, TensorClass group, std::vector<int64_t> shape) {
    TensorSlot& slot = out_.emplace_back();
    slot.name = fmt::format("{}{}", prefix_, name);
    slot.kind = kind;
    slot.group = draft_ ? TensorClass::kDraft : group;
    slot.layer = layer_;
    slot.shape = std::move(shape);
    return slot;
  }

 private:
  const ModelConfig& c_;
  std::vector<TensorSlot>& out_;
  std::string prefix_;
  int32_t layer_ = -1;
  bool draft_ = false;
};

void list_attention(Lister& l, const ModelConfig& c, AttentionWeights& a) {
  constexpr TensorClass kGroup = TensorClass::kAttention;
  const int64_t h = c.hidden_size;
  const int64_t heads = c.num_attention_heads;
  const int64_t d = c.head_dim;
  const int64_t o = int64_t{c.o_groups} * c.o_lora_rank;
  l.f32("attn.attn_sink", kGroup, {heads}, a.attn_sink);
  l.fp8("attn.wq_a.weight", kGroup, c.q_lora_rank, h, a.wq_a);
  l.bf16("attn.q_norm.weight", TensorClass::kNorm, {c.q_lora_rank}, a.q_norm);
  l.fp8("attn.wq_b.weight", kGroup, heads * d, c.q_lora_rank, a.wq_b);
  l.fp8("attn.wkv.weight", kGroup, d, h, a.wkv);
  l.bf16("attn.kv_norm.weight", TensorClass::kNorm, {d}, a.kv_norm);
  l.fp8("attn.wo_a.weight", kGroup, o, c.heads_per_group() * d, a.wo_a);
  l.fp8("attn.wo_b.weight", kGroup, h, o, a.wo_b);
}

// `width` channels out of H: V4 pools r tokens with a positional bias, twice as wide where groups overlap.
void list_compressor(Lister& l, const std::string& name, int64_t h, int64_t width, const LayerPlan& p,
                     CompressorWeights& w) {
  constexpr TensorClass kGroup = TensorClass::kCompressor;
  const bool v4 = p.kind == LayerKind::kCsa || p.kind == LayerKind::kHca;
  const int64_t out = p.kind == LayerKind::kCsa ? 2 * width : width;
  l.bf16(name + "wkv.weight", kGroup, {out, h}, w.wkv);
  if (p.has_compressor_gate) l.bf16(name + "wgate.weight", kGroup, {out, h}, w.wgate);
  if (v4) l.f32(name + "ape", kGroup, {p.ratio, out}, w.ape);
  l.bf16(name + "norm.weight", kGroup, {width}, w.norm);
}

void list_compressed_branch(Lister& l, const ModelConfig& c, const LayerPlan& p, AttentionWeights& a) {
  constexpr TensorClass kGroup = TensorClass::kCompressor;
  if (p.is_kv_source) list_compressor(l, "attn.compressor.", c.hidden_size, c.head_dim, p, a.compressor);
  if (!p.is_index_source) return;
  l.fp8("attn.indexer.wq_b.weight", kGroup, int64_t{c.index_n_heads} * c.index_head_dim, c.q_lora_rank, a.indexer.wq_b);
  l.bf16("attn.indexer.weights_proj.weight", kGroup, {c.index_n_heads, c.hidden_size}, a.indexer.weights_proj);
  if (!p.has_index_keys) return;
  if (c.family == Family::kV4) {
    list_compressor(l, "attn.indexer.compressor.", c.hidden_size, c.index_head_dim, p, a.indexer.compressor);
  } else {
    l.bf16("attn.indexer.wk.weight", kGroup, {c.index_head_dim, c.head_dim}, a.indexer.wk);
    l.bf16("attn.indexer.k_norm.weight", kGroup, {c.index_head_dim}, a.indexer.k_norm);
  }
}

void list_ffn(Lister& l, const ModelConfig& c, const LayerPlan& p, FfnWeights& f) {
  const int64_t h = c.hidden_size;
  const int64_t i = c.moe_intermediate_size;
  l.bf16("ffn.gate.weight", TensorClass::kRouter, {p.n_experts, h}, f.gate.weight);
  if (p.hash_routing) {
    l.add("ffn.gate.tid2eid", TensorKind::kExpertIds, TensorClass::kRouter, {c.vocab_size, p.experts_per_token}).ids =
        &f.gate.tid2eid;
  } else {
    l.f32("ffn.gate.bias", TensorClass::kRouter, {p.n_experts}, f.gate.bias);
    if (c.family == Family::kV41) l.f32("ffn.gate.bias_vl", TensorClass::kRouter, {p.n_experts}, f.gate.bias_vl);
  }
  l.fp8("ffn.shared_experts.w1.weight", TensorClass::kSharedExpert, i, h, f.shared_experts.w1);
  l.fp8("ffn.shared_experts.w3.weight", TensorClass::kSharedExpert, i, h, f.shared_experts.w3);
  l.fp8("ffn.shared_experts.w2.weight", TensorClass::kSharedExpert, h, i, f.shared_experts.w2);
  f.experts.resize(static_cast<size_t>(p.n_experts));
  for (size_t e = 0; e < f.experts.size(); ++e) {
    l.expert(fmt::format("ffn.experts.{}.w1.weight", e), i, h, f.experts[e].w1);
    l.expert(fmt::format("ffn.experts.{}.w3.weight", e), i, h, f.experts[e].w3);
    l.expert(fmt::format("ffn.experts.{}.w2.weight", e), h, i, f.experts[e].w2);
  }
}

void list_engram(Lister& l, const ModelConfig& c, const LayerPlan& p, EngramWeights& e) {
  const int64_t h = c.hidden_size;
  const int64_t hc = c.hc_mult;
  const int64_t rows = c.engram_num_embeddings[static_cast<size_t>(p.engram_index)];
  // The tables are FP8 rows in every checkpoint: their gather has no other form.
  l.add("engram.embed.weight", TensorKind::kFp8Row, TensorClass::kEngramTable, {rows, c.engram_head_dim}).weight =
      &e.embed;
  l.fp8("engram.wkv.weight", TensorClass::kEngramProjection, (hc + 1) * h,
        int64_t{c.engram_columns()} * c.engram_head_dim, e.wkv);
  l.bf16("engram.q_weight", TensorClass::kEngramProjection, {hc, h}, e.q_weight);
  l.bf16("engram.k_weight", TensorClass::kEngramProjection, {hc, h}, e.k_weight);
}

void list_block(Lister& l, const ModelConfig& c, const LayerPlan& p, LayerWeights& w) {
  constexpr TensorClass kGroup = TensorClass::kHyperConnection;
  const int64_t h = c.hidden_size;
  const int64_t rows = c.hc_rows();
  l.bf16("attn_norm.weight", TensorClass::kNorm, {h}, w.attn_norm);
  l.bf16("ffn_norm.weight", TensorClass::kNorm, {h}, w.ffn_norm);
  l.f32("hc_attn_fn", kGroup, {rows, c.hc_mult * h}, w.hc_attn_fn);
  l.f32("hc_attn_base", kGroup, {rows}, w.hc_attn_base);
  l.f32("hc_attn_scale", kGroup, {3}, w.hc_attn_scale);
  l.f32("hc_ffn_fn", kGroup, {rows, c.hc_mult * h}, w.hc_ffn_fn);
  l.f32("hc_ffn_base", kGroup, {rows}, w.hc_ffn_base);
  l.f32("hc_ffn_scale", kGroup, {3}, w.hc_ffn_scale);
  list_attention(l, c, w.attn);
  list_compressed_branch(l, c, p, w.attn);
  list_ffn(l, c, p, w.ffn);
  if (p.has_engram) list_engram(l, c, p, w.engram);
}

void list_hc_head(Lister& l, const ModelConfig& c, bool optional, HcHeadWeights& w) {
  const auto add = [&](std::string_view name, std::vector<int64_t> shape, const float*& p) {
    TensorSlot& slot = l.add(name, TensorKind::kF32, TensorClass::kHyperConnection, std::move(shape));
    slot.f32 = &p;
    slot.optional = optional;
  };
  add("hc_head_fn", {c.hc_mult, int64_t{c.hc_mult} * c.hidden_size}, w.fn);
  add("hc_head_base", {c.hc_mult}, w.base);
  add("hc_head_scale", {1}, w.scale);
}

void list_draft(Lister& l, const ModelConfig& c, const Schedule& s, std::vector<MtpWeights>& mtp) {
  constexpr TensorClass kGroup = TensorClass::kDraft;
  const int64_t h = c.hidden_size;
  mtp.resize(s.draft.size());
  for (size_t i = 0; i < mtp.size(); ++i) {
    MtpWeights& w = mtp[i];
    l.enter(fmt::format("mtp.{}.", i), s.draft[i].layer, true);
    list_block(l, c, s.draft[i], w.block);
    if (!c.has_dspark()) {
      l.fp8("e_proj.weight", kGroup, h, h, w.e_proj);
      l.fp8("h_proj.weight", kGroup, h, h, w.h_proj);
      l.bf16("enorm.weight", kGroup, {h}, w.enorm);
      l.bf16("hnorm.weight", kGroup, {h}, w.hnorm);
      l.bf16("norm.weight", kGroup, {h}, w.norm);
      list_hc_head(l, c, false, w.hc_head);
      continue;
    }
    if (i == 0) {
      l.fp8("main_proj.weight", kGroup, h, static_cast<int64_t>(c.dspark_target_layer_ids.size()) * h, w.main_proj);
      l.bf16("main_norm.weight", kGroup, {h}, w.main_norm);
    }
    if (i + 1 == mtp.size()) {
      const int64_t rank = c.dspark_markov_rank;
      l.bf16("norm.weight", kGroup, {h}, w.norm);
      // V4's releases with this set are not documented tensor by tensor.
      if (c.family == Family::kV4) list_hc_head(l, c, true, w.hc_head);
      l.bf16("markov_head.embed.weight", kGroup, {c.vocab_size, rank}, w.markov_head.embed);
      l.bf16("markov_head.head.weight", kGroup, {c.vocab_size, rank}, w.markov_head.head);
      l.bf16("confidence_head.proj.weight", kGroup, {1, h + rank}, w.confidence_head_proj);
    }
  }
}

void list_vision(Lister& l, const ModelConfig& c, VisionWeights& w) {
  if (!c.vision_config) return;
  constexpr TensorClass kGroup = TensorClass::kVision;
  const VisionConfig& v = *c.vision_config;
  const int64_t h = c.hidden_size;
  const int64_t d = v.hidden_size;
  const int64_t folded = d * v.downsample_ratio * v.downsample_ratio;
  l.bf16("image_start", kGroup, {h}, w.image_start);
  l.bf16("image_end", kGroup, {h}, w.image_end);
  l.bf16("image_newline", kGroup, {h}, w.image_newline);
  l.bf16("aligner.w1.weight", kGroup, {h, folded}, w.aligner_w1);
  l.bf16("aligner.w1.bias", kGroup, {h}, w.aligner_w1_bias);
  l.bf16("aligner.w2.weight", kGroup, {h, h}, w.aligner_w2);
  l.bf16("aligner.w2.bias", kGroup, {h}, w.aligner_w2_bias);
  l.bf16("vision.patch_embed.proj.weight", kGroup, {d, int64_t{3} * v.patch_size * v.patch_size}, w.patch_embed_proj);
  l.bf16("vision.patch_embed.proj.bias", kGroup, {d}, w.patch_embed_bias);
  l.bf16("vision.norm.weight", kGroup, {d}, w.norm);
  w.blocks.resize(static_cast<size_t>(v.num_hidden_layers));
  for (size_t i = 0; i < w.blocks.size(); ++i) {
    VisionBlockWeights& b = w.blocks[i];
    const std::string name = fmt::format("vision.blocks.{}.", i);
    l.bf16(name + "norm1.weight", kGroup, {d}, b.norm1);
    l.bf16(name + "norm2.weight", kGroup, {d}, b.norm2);
    l.bf16(name + "attn.wqkv.weight", kGroup, {3 * d, d}, b.wqkv);
    l.bf16(name + "attn.wqkv.bias", kGroup, {3 * d}, b.wqkv_bias);
    l.bf16(name + "attn.wo.weight", kGroup, {d, d}, b.wo);
    l.bf16(name + "attn.wo.bias", kGroup, {d}, b.wo_bias);
    l.bf16(name + "mlp.w1.weight", kGroup, {int64_t{2} * v.intermediate_size, d}, b.w1);
    l.bf16(name + "mlp.w2.weight", kGroup, {d, v.intermediate_size}, b.w2);
  }
}

}  // namespace

std::string TensorSlot::scale_name() const {
  return name.substr(0, name.rfind('.')) + ".scale";
}

std::vector<int64_t> TensorSlot::stored_shape() const {
  return kind == TensorKind::kFp4Row ? std::vector<int64_t>{shape[0], shape[1] / 2} : shape;
}

std::vector<int64_t> TensorSlot::scale_shape(int32_t block) const {
  if (kind == TensorKind::kFp8Block) return {ceil_div(shape[0], block), ceil_div(shape[1], block)};
  return {shape[0], ceil_div(shape[1], 32)};
}

int64_t TensorSlot::parameters() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return kind == TensorKind::kExpertIds ? 0 : n;
}

int64_t TensorSlot::stored_bytes(int32_t block) const {
  const int64_t n = parameters();
  int64_t bytes = 0;
  switch (kind) {
    case TensorKind::kBf16:
      bytes = 2 * n;
      break;
    case TensorKind::kF32:
      bytes = 4 * n;
      break;
    case TensorKind::kFp8Block:
    case TensorKind::kFp8Row:
      bytes = n;
      break;
    case TensorKind::kFp4Row:
      bytes = n / 2;
      break;
    case TensorKind::kExpertIds:
      bytes = 8 * shape[0] * shape[1];
      break;
  }
  if (has_scale()) {
    const std::vector<int64_t> scale = scale_shape(block);
    bytes += scale[0] * scale[1];
  }
  return bytes;
}

std::vector<TensorSlot> list_tensors(const ModelConfig& c, const Schedule& s, ModelWeights& w) {
  std::vector<TensorSlot> out;
  Lister l(c, out);
  l.enter("", -1, false);
  l.bf16("embed.weight", TensorClass::kEmbedding, {c.vocab_size, c.hidden_size}, w.embed);
  l.bf16("head.weight", TensorClass::kEmbedding, {c.vocab_size, c.hidden_size}, w.head);
  l.bf16("norm.weight", TensorClass::kNorm, {c.hidden_size}, w.norm);
  if (c.family == Family::kV4) list_hc_head(l, c, false, w.hc_head);
  list_vision(l, c, w.vision);
  w.layers.resize(s.layers.size());
  for (size_t i = 0; i < w.layers.size(); ++i) {
    l.enter(fmt::format("layers.{}.", i), s.layers[i].layer, false);
    list_block(l, c, s.layers[i], w.layers[i]);
  }
  list_draft(l, c, s, w.mtp);
  return out;
}

void tabulate_experts(ModelWeights& weights) {
  for (FfnWeights* f : all_ffn(weights)) {
    f->form = kernels::form_of(f->experts.data(), static_cast<int64_t>(f->experts.size()));
    f->table = f->experts.data();
  }
}

}  // namespace di::model
