// The layer schedule (model.md §2): what each layer owns and whose data it reads, computed once from the config. The
// forward pass, the weight list and the memory plan branch on this and on nothing else. Plain immutable data.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace di::model {

enum class LayerKind : uint8_t {
  kWindowOnly,  // sliding window only (r = 0)
  kFull,        // V4.1: computes compressed KV, index keys and a selection
  kReindex,     // V4.1: a new selection over the index keys of its KV source
  kReuse,       // V4.1: the selection of its index source, unchanged
  kHca,         // V4, r = 128: own compressed KV, every complete entry is visible
  kCsa,         // V4, r = 4: own compressed KV from overlapping groups, own indexer
};

std::string_view to_string(LayerKind kind);

struct LayerPlan {
  int32_t layer = 0;
  LayerKind kind = LayerKind::kWindowOnly;
  int32_t ratio = 0;                 // r: tokens per compressed entry, 0 = no compressed branch
  int32_t kv_source = -1;            // layer whose compressed KV is read; -1 when r = 0
  int32_t kv_source_index = -1;      // its position in Schedule::kv_sources
  int32_t index_source = -1;         // layer whose selection is used; -1 when r = 0 and for kHca
  bool is_kv_source = false;         // owns a compressor
  bool is_index_source = false;      // owns an indexer (computes a selection)
  bool has_index_keys = false;       // the indexer owns wk and k_norm (V4.1) or its own compressor (V4)
  bool has_compressor_gate = false;  // r = 2 (V4: always): pooling over several tokens
  bool is_candidate_source = false;
  bool uses_candidates = false;  // its selection competes inside the candidate blocks only
  bool has_engram = false;
  int32_t engram_index = -1;  // position in ModelConfig::engram_layer_ids
  bool hash_routing = false;  // V4: experts come from tid2eid
  bool is_decoder = false;    // layer >= Schedule::boundary
  int32_t n_experts = 0;
  int32_t experts_per_token = 0;
};

// One KV source layer: the planes of the paged Block KV that it writes.
struct KvSourcePlan {
  int32_t layer = 0;
  int32_t ratio = 0;
  int32_t main_width = 0;         // channels of a main entry: D
  int32_t index_width = 0;        // channels of an index key: index_head_dim; 0 = no index plane (V4, r = 128)
  int32_t state_width = 0;        // channels of an open-group row (value and score each): D, V4 r = 4: 2·D; 0 for r = 1
  int32_t index_state_width = 0;  // the same of V4's indexer compressor; else 0
  int32_t state_rows = 0;         // open-group rows that a group needs: r, V4 r = 4: 2·r (overlap); 0 for r = 1
};

struct Schedule {
  std::vector<LayerPlan> layers;  // [num_hidden_layers]
  std::vector<LayerPlan> draft;   // [num_nextn_predict_layers], all kWindowOnly
  std::vector<KvSourcePlan> kv_sources;
  // First decoder layer (n_prefill_layer): the first layer with r = 1 = the last KV source of V4.1. Layers before it
  // are the causal encoder. num_hidden_layers when the model has no decoder half (V4, or no layer with r = 1).
  int32_t boundary = 0;
};

// Fails only on configs that parse_config() would have refused, so that a hand-made config is checked as well; messages
// as there.
Result<Schedule> make_schedule(const ModelConfig& config);

}  // namespace di::model
