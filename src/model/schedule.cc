#include "model/schedule.h"

#include <algorithm>
#include <string>

namespace di::model {
namespace {

// "field: expected what, found what"
std::unexpected<Error> wrong(std::string_view field, std::string_view expected, std::string_view found) {
  return fail(Errc::kInvalidRequest, "{}: expected {}, found {}", field, expected, found);
}

// The last source not above `layer`, -1 when there is none. The list ascends.
int32_t source_of(const std::vector<int32_t>& sources, int32_t layer) {
  const auto above = std::upper_bound(sources.begin(), sources.end(), layer);
  return above == sources.begin() ? -1 : *(above - 1);
}

bool contains(const std::vector<int32_t>& sources, int32_t layer) {
  return std::find(sources.begin(), sources.end(), layer) != sources.end();
}

int32_t ratio_of(const ModelConfig& c, int32_t layer) {
  return c.compress_ratios[static_cast<size_t>(layer)];
}

Result<void> check_ratios(const ModelConfig& c) {
  const size_t backbone = static_cast<size_t>(c.num_hidden_layers);
  const size_t all = backbone + static_cast<size_t>(c.num_nextn_predict_layers);
  const size_t n = c.compress_ratios.size();
  // V4 releases differ in how many draft entries they list.
  const bool v41 = c.family == Family::kV41;
  if (v41 ? n != all : n < backbone) {
    return wrong("compress_ratios",
                 v41 ? fmt::format("{} entries (num_hidden_layers + num_nextn_predict_layers)", all)
                     : fmt::format("at least {} entries (num_hidden_layers)", backbone),
                 fmt::format("{} entries", n));
  }
  for (size_t l = 0; l < n; ++l) {
    const int32_t r = c.compress_ratios[l];
    if (l >= backbone) {
      if (r != 0) {
        return wrong(fmt::format("compress_ratios[{}]", l), fmt::format("0 for draft layer {}", l - backbone),
                     std::to_string(r));
      }
      continue;
    }
    if (v41 ? r != 0 && r != 1 && r != 2 : r != 0 && r != 4 && r != 128) {
      return wrong(fmt::format("compress_ratios[{}]", l),
                   fmt::format("{} for layer {}", v41 ? "0, 1 or 2" : "0, 4 or 128", l), std::to_string(r));
    }
  }
  return {};
}

Result<void> check_source_list(const ModelConfig& c, std::string_view field, const std::vector<int32_t>& sources) {
  for (size_t i = 0; i < sources.size(); ++i) {
    const std::string entry = fmt::format("{}[{}]", field, i);
    if (sources[i] < 0 || sources[i] >= c.num_hidden_layers) {
      return wrong(entry, fmt::format("a layer from 0 to {}", c.num_hidden_layers - 1), std::to_string(sources[i]));
    }
    if (i > 0 && sources[i] <= sources[i - 1]) {
      return wrong(entry, fmt::format("a layer above {} (strictly increasing)", sources[i - 1]),
                   std::to_string(sources[i]));
    }
    if (ratio_of(c, sources[i]) == 0) {
      return wrong(entry, "a layer with compress ratio above 0", fmt::format("layer {} with ratio 0", sources[i]));
    }
  }
  return {};
}

// Every compressed layer reads a source at or before it, of the same ratio.
Result<void> check_reads(const ModelConfig& c, std::string_view field, const std::vector<int32_t>& sources) {
  for (int32_t l = 0; l < c.num_hidden_layers; ++l) {
    const int32_t r = ratio_of(c, l);
    if (r == 0) continue;
    const int32_t source = source_of(sources, l);
    if (source < 0)
      return wrong(field, fmt::format("a source at or before layer {} (compress ratio {})", l, r), "none");
    if (ratio_of(c, source) != r) {
      return wrong(field, fmt::format("a source of compress ratio {} for layer {}", r, l),
                   fmt::format("source {} of ratio {}", source, ratio_of(c, source)));
    }
  }
  return {};
}

Result<void> check_candidates(const ModelConfig& c) {
  const int32_t source = c.candidate_source_layer_id;
  if (source < 0) return {};
  constexpr std::string_view kField = "candidate_source_layer_id";
  if (!contains(c.kv_source_layer_ids, source))
    return wrong(kField, "a layer of kv_source_layer_ids", std::to_string(source));
  if (!contains(c.index_source_layer_ids, source)) {
    return wrong(kField, "a layer of index_source_layer_ids", std::to_string(source));
  }
  const int64_t capacity = int64_t{c.candidate_topk_blocks} * c.candidate_block_size;
  if (capacity < c.index_topk) {
    return wrong("candidate_topk_blocks",
                 fmt::format("at least index_topk = {} entries in {} blocks of candidate_block_size = {}", c.index_topk,
                             c.candidate_topk_blocks, c.candidate_block_size),
                 fmt::format("{} entries", capacity));
  }
  for (const int32_t consumer : c.index_source_layer_ids) {
    if (consumer > source && ratio_of(c, consumer) != ratio_of(c, source)) {
      return wrong(kField,
                   fmt::format("a layer of compress ratio {} (its consumer, index source {}, has it)",
                               ratio_of(c, consumer), consumer),
                   fmt::format("layer {} of ratio {}", source, ratio_of(c, source)));
    }
  }
  return {};
}

Result<void> check_sources(const ModelConfig& c) {
  DI_TRY(check_source_list(c, "kv_source_layer_ids", c.kv_source_layer_ids));
  DI_TRY(check_source_list(c, "index_source_layer_ids", c.index_source_layer_ids));
  if (c.family == Family::kV4) return {};  // every compressed layer is its own source
  for (size_t i = 0; i < c.kv_source_layer_ids.size(); ++i) {
    if (!contains(c.index_source_layer_ids, c.kv_source_layer_ids[i])) {
      return wrong(fmt::format("kv_source_layer_ids[{}]", i), "a layer of index_source_layer_ids",
                   std::to_string(c.kv_source_layer_ids[i]));
    }
  }
  DI_TRY(check_reads(c, "kv_source_layer_ids", c.kv_source_layer_ids));
  DI_TRY(check_reads(c, "index_source_layer_ids", c.index_source_layer_ids));
  return check_candidates(c);
}

LayerKind kind_of(const LayerPlan& p, Family family) {
  if (p.ratio == 0) return LayerKind::kWindowOnly;
  if (family == Family::kV4) return p.ratio == 4 ? LayerKind::kCsa : LayerKind::kHca;
  if (p.is_kv_source) return LayerKind::kFull;
  return p.is_index_source ? LayerKind::kReindex : LayerKind::kReuse;
}

LayerPlan plan_layer(const ModelConfig& c, int32_t layer) {
  const bool v4 = c.family == Family::kV4;
  LayerPlan p;
  p.layer = layer;
  p.ratio = ratio_of(c, layer);
  p.is_kv_source = contains(c.kv_source_layer_ids, layer);
  p.is_index_source = contains(c.index_source_layer_ids, layer);
  p.kind = kind_of(p, c.family);
  if (p.ratio > 0) {
    p.kv_source = v4 ? layer : source_of(c.kv_source_layer_ids, layer);
    const auto at = std::find(c.kv_source_layer_ids.begin(), c.kv_source_layer_ids.end(), p.kv_source);
    p.kv_source_index = static_cast<int32_t>(at - c.kv_source_layer_ids.begin());
    if (!v4) p.index_source = source_of(c.index_source_layer_ids, layer);
    if (v4 && p.is_index_source) p.index_source = layer;
  }
  p.has_index_keys = p.is_kv_source && p.is_index_source;
  p.has_compressor_gate = p.is_kv_source && p.ratio > 1;
  p.is_candidate_source = layer == c.candidate_source_layer_id;
  p.uses_candidates = p.is_index_source && c.candidate_source_layer_id >= 0 && c.candidate_source_layer_id < layer;
  const auto engram = std::find(c.engram_layer_ids.begin(), c.engram_layer_ids.end(), layer);
  p.has_engram = engram != c.engram_layer_ids.end();
  if (p.has_engram) p.engram_index = static_cast<int32_t>(engram - c.engram_layer_ids.begin());
  p.hash_routing = layer < c.num_hash_layers;
  p.n_experts = c.n_routed_experts;
  p.experts_per_token = c.num_experts_per_tok;
  return p;
}

KvSourcePlan plan_source(const ModelConfig& c, const LayerPlan& p) {
  KvSourcePlan s;
  s.layer = p.layer;
  s.ratio = p.ratio;
  s.main_width = c.head_dim;
  s.index_width = p.has_index_keys ? c.index_head_dim : 0;
  if (p.has_compressor_gate) {
    const int32_t overlap = p.kind == LayerKind::kCsa ? 2 : 1;  // a V4 group of 4 also reads the group before it
    s.state_width = overlap * c.head_dim;
    s.state_rows = overlap * p.ratio;
    if (p.kind == LayerKind::kCsa) s.index_state_width = overlap * c.index_head_dim;
  }
  return s;
}

// The decoder half starts at the first layer of ratio 1; it exists only if no KV source follows, so that every later
// layer reads what that layer writes.
int32_t find_boundary(const ModelConfig& c) {
  if (c.family == Family::kV4 || c.kv_source_layer_ids.empty()) return c.num_hidden_layers;
  for (int32_t l = 0; l < c.num_hidden_layers; ++l) {
    if (ratio_of(c, l) == 1) return l == c.kv_source_layer_ids.back() ? l : c.num_hidden_layers;
  }
  return c.num_hidden_layers;
}

}  // namespace

std::string_view to_string(LayerKind kind) {
  switch (kind) {
    case LayerKind::kWindowOnly:
      return "window";
    case LayerKind::kFull:
      return "full";
    case LayerKind::kReindex:
      return "reindex";
    case LayerKind::kReuse:
      return "reuse";
    case LayerKind::kHca:
      return "hca";
    case LayerKind::kCsa:
      return "csa";
  }
  return "?";
}

Result<Schedule> make_schedule(const ModelConfig& c) {
  DI_TRY(check_ratios(c));
  DI_TRY(check_sources(c));
  Schedule s;
  s.boundary = find_boundary(c);
  for (int32_t l = 0; l < c.num_hidden_layers; ++l) {
    LayerPlan p = plan_layer(c, l);
    p.is_decoder = l >= s.boundary;
    if (p.is_kv_source) s.kv_sources.push_back(plan_source(c, p));
    s.layers.push_back(p);
  }
  for (int32_t d = 0; d < c.num_nextn_predict_layers; ++d) {
    LayerPlan p;
    p.layer = c.num_hidden_layers + d;
    p.n_experts = c.has_dspark() ? c.dspark_n_routed_experts : c.n_routed_experts;
    p.experts_per_token = c.has_dspark() ? c.dspark_num_experts_per_tok : c.num_experts_per_tok;
    s.draft.push_back(p);
  }
  return s;
}

}  // namespace di::model
