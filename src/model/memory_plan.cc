#include "model/memory_plan.h"

#include <algorithm>

#include "model/tensor_list.h"

namespace di::model {
namespace {

// Part of a slot's parameters that one token multiplies: all of a dense tensor, the selected share of the routed
// experts.
int64_t active_parameters(const ModelConfig& c, const TensorSlot& slot) {
  if (slot.group == TensorClass::kEngramTable || slot.name == "embed.weight") return 0;  // rows are looked up
  const int64_t n = slot.parameters();
  return slot.group == TensorClass::kRoutedExpert ? n * c.num_experts_per_tok / c.n_routed_experts : n;
}

// FP8 equivalents of a multiply-add with weights stored in that way.
double flops_per_product(TensorKind kind) {
  switch (kind) {
    case TensorKind::kFp4Row:
      return 1;
    case TensorKind::kFp8Block:
    case TensorKind::kFp8Row:
      return 2;
    case TensorKind::kBf16:
      return 4;
    case TensorKind::kF32:
      return 8;
    case TensorKind::kExpertIds:
      return 0;
  }
  return 0;
}

// The boundary layer's Block KV projections run for every prompt token; its other tensors only for the kept rows.
bool is_kv_projection(const TensorSlot& slot) {
  return slot.name.find(".attn.compressor.") != std::string::npos ||
         slot.name.find(".attn.indexer.wk.") != std::string::npos ||
         slot.name.find(".attn.indexer.k_norm.") != std::string::npos;
}

int64_t checkpoint_bytes(const Safetensors& checkpoint, const TensorSlot& slot) {
  int64_t bytes = 0;
  if (const TensorView* t = checkpoint.find(slot.name)) bytes += t->bytes;
  if (!slot.has_scale()) return bytes;
  if (const TensorView* t = checkpoint.find(slot.scale_name())) bytes += t->bytes;
  return bytes;
}

}  // namespace

std::string_view to_string(TensorClass c) {
  switch (c) {
    case TensorClass::kEmbedding:
      return "embedding and head";
    case TensorClass::kAttention:
      return "attention";
    case TensorClass::kCompressor:
      return "compressor and indexer";
    case TensorClass::kHyperConnection:
      return "hyper-connections";
    case TensorClass::kNorm:
      return "norms";
    case TensorClass::kRouter:
      return "router";
    case TensorClass::kSharedExpert:
      return "shared experts";
    case TensorClass::kRoutedExpert:
      return "routed experts";
    case TensorClass::kEngramTable:
      return "Engram tables";
    case TensorClass::kEngramProjection:
      return "Engram projections";
    case TensorClass::kDraft:
      return "draft";
    case TensorClass::kVision:
      return "vision";
  }
  return "?";
}

ParameterCount count_parameters(const ModelConfig& c, const Schedule& s, const Safetensors* checkpoint) {
  ModelWeights unbound;
  ParameterCount out;
  const int32_t backbone = static_cast<int32_t>(s.layers.size());
  const int32_t boundary = s.boundary;
  for (const TensorSlot& slot : list_tensors(c, s, unbound)) {
    if (slot.optional && (checkpoint == nullptr || checkpoint->find(slot.name) == nullptr)) continue;
    const int64_t n = slot.parameters();
    ClassTotals& totals = out.classes[static_cast<size_t>(slot.group)];
    const int64_t tensors = slot.has_scale() ? 2 : 1;
    const int64_t bytes = checkpoint != nullptr ? checkpoint_bytes(*checkpoint, slot)
                                                : slot.stored_bytes(c.quantization_config.weight_block_size);
    totals.tensors += tensors;
    totals.parameters += n;
    totals.bytes += bytes;
    out.tensors += tensors;
    out.bytes += bytes;
    if (slot.group == TensorClass::kDraft || slot.group == TensorClass::kVision) {
      (slot.group == TensorClass::kDraft ? out.draft : out.vision) += n;
      continue;
    }
    (slot.group == TensorClass::kEngramTable ? out.engram_tables : out.backbone) += n;
    const int64_t active = active_parameters(c, slot);
    out.active_decode += active;
    const bool encoder = slot.layer >= 0 && slot.layer < boundary;
    if (encoder || (slot.layer == boundary && boundary < backbone && is_kv_projection(slot)))
      out.active_prefill += active;
  }
  return out;
}

RowFlops count_row_flops(const ModelConfig& c, const Schedule& s) {
  RowFlops out;
  ModelWeights unbound;
  for (const TensorSlot& slot : list_tensors(c, s, unbound)) {
    if (slot.optional || slot.group == TensorClass::kDraft || slot.group == TensorClass::kVision) continue;
    out.weights += flops_per_product(slot.kind) * static_cast<double>(active_parameters(c, slot));
  }
  // Scores and values.
  out.per_key = 2 * 4.0 * c.num_attention_heads * c.head_dim;
  out.per_index_key = 2.0 * c.index_n_heads * c.index_head_dim;
  return out;
}

double row_flops(const ModelConfig& c, const Schedule& s, const RowFlops& flops, int64_t position) {
  double total = flops.weights;
  for (const LayerPlan& layer : s.layers) {
    int64_t keys = std::min<int64_t>(c.sliding_window, position + 1);
    if (layer.ratio > 0) {
      const int64_t entries = (position + 1) / layer.ratio;
      keys += layer.index_source < 0 ? entries : std::min<int64_t>(c.index_topk, entries);
    }
    total += flops.per_key * static_cast<double>(keys);
    if (!layer.is_index_source) continue;
    int64_t scored = (position + 1) / layer.ratio;
    if (layer.uses_candidates) scored = std::min(scored, int64_t{c.candidate_topk_blocks} * c.candidate_block_size);
    total += flops.per_index_key * static_cast<double>(scored);
  }
  return total;
}

CacheOptions cache_options(const ModelConfig& c, const PlanOptions& o) {
  CacheOptions cache;
  cache.kv_quant = o.kv_quant && c.family == Family::kV41;
  cache.fp4_main = c.use_fp4_sparse_kv;
  cache.block_tokens = o.block_tokens;
  const int32_t draft_rows = c.has_dspark() ? c.dspark_block_size + 1 : c.num_nextn_predict_layers > 0 ? 2 : 0;
  cache.max_backtracking = o.max_backtracking >= 0 ? o.max_backtracking : draft_rows;
  return cache;
}

Result<MemoryPlan> plan_memory(const ModelConfig& c, const Schedule& s, const PlanOptions& o) {
  if (o.context < 1 || o.context > c.max_position_embeddings) {
    return fail(Errc::kInvalidRequest, "context: expected 1 to max_position_embeddings = {} tokens, found {}",
                c.max_position_embeddings, o.context);
  }
  if (o.sequences < 1) return fail(Errc::kInvalidRequest, "sequences: expected 1 or more, found {}", o.sequences);
  if (o.block_tokens < 1)
    return fail(Errc::kInvalidRequest, "block_tokens: expected 1 or more, found {}", o.block_tokens);
  MemoryPlan p;
  p.layout = DI_TRY(make_cache_layout(c, s, cache_options(c, o)));
  const CacheLayout& layout = p.layout;
  p.weight_bytes = count_parameters(c, s).bytes;
  p.kv_bytes_per_token = static_cast<double>(layout.block_bytes) / layout.options.block_tokens;
  p.blocks_per_sequence = (o.context + o.block_tokens - 1) / o.block_tokens;
  p.block_kv_bytes = p.blocks_per_sequence * layout.block_bytes * o.sequences;

  const int64_t window = kernels::record_bytes(layout.swa_format, c.head_dim) * c.sliding_window;
  p.swa_window_bytes = window * c.num_hidden_layers;
  p.swa_window_encoder_bytes = window * s.boundary;
  p.swa_window_draft_bytes = window * c.num_nextn_predict_layers;
  for (size_t i = 0; i < layout.planes.size(); ++i) {
    const int64_t width = layout.state_width[i] + layout.index_state_width[i];
    p.compressor_state_bytes += width * layout.state_rows[i] * 2 * 4;
  }
  if (!c.engram_layer_ids.empty()) p.engram_history_bytes = int64_t{4} * (c.engram_max_ngram_size - 1);
  p.sequence_bytes = layout.slot_bytes + p.engram_history_bytes;
  p.kv_total_bytes = p.block_kv_bytes + p.sequence_bytes * o.sequences;
  p.total_bytes = p.weight_bytes + p.kv_total_bytes;
  return p;
}

}  // namespace di::model
