// config.json of DeepSeek V4.1 Flash and V4 Flash as one plain struct (model.md §1). Members carry the checkpoint's
// names and are explained here once. V4.1 nests the language model under `text_config` and the vision tower under
// `vision_config`, V4 is flat: both are read, a top-level key wins over a nested one. A ModelConfig that load_config()
// returned satisfies every rule of model.md §1.1, so that nothing behind it checks again. Plain immutable data: reading
// it from several threads is safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace di {
class Json;
}

namespace di::model {

enum class Family : uint8_t { kV41, kV4 };

std::string_view to_string(Family family);

// How the routed experts are stored.
enum class ExpertDtype : uint8_t { kFp4, kFp8 };

struct RopeScaling {
  bool present = false;  // absent: plain rope everywhere
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  int64_t original_max_position_embeddings = 65536;
};

struct QuantizationConfig {
  bool present = false;                          // absent: every weight is plain F32 or BF16
  int32_t weight_block_size = 32;                // B of the B×B tiles of an FP8 weight: 32 (V4.1), 128 (V4)
  ExpertDtype expert_dtype = ExpertDtype::kFp4;  // V4.1 names it here, V4 at the top level
};

struct VisionConfig {
  int32_t num_hidden_layers = 0;
  int32_t hidden_size = 0;
  int32_t num_attention_heads = 0;
  int32_t intermediate_size = 0;
  int32_t patch_size = 0;  // pixels per patch edge; a patch is patch_size² × 3 values
  double rope_theta = 10000.0;
  int32_t downsample_ratio = 0;  // patches per aligner input edge
  int32_t max_image_tokens = 0;
  int64_t min_pixels = 0;
  std::optional<double> max_wh_ratio;  // null: no limit on width : height
};

struct ModelConfig {
  Family family = Family::kV41;
  std::string model_type;  // as written in the file

  // Sizes.
  int32_t vocab_size = 0;           // rows of embed and head
  int32_t hidden_size = 0;          // H
  int32_t num_hidden_layers = 0;    // backbone layers, without the draft
  int32_t num_attention_heads = 0;  // query heads; keys and values are one vector shared by all heads
  int32_t head_dim = 0;             // D, laid out [D - rd without rope | rd with rope]
  int32_t qk_rope_head_dim = 0;     // rd, the last channels of a head
  int32_t q_lora_rank = 0;          // width of the query latent, which the indexer reads too
  int32_t o_lora_rank = 0;          // rank of the output projection per head group
  int32_t o_groups = 0;             // head groups of the output projection
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0.0;  // 1e-20 in V4.1: a normal fp32 number
  double swiglu_limit = 0.0;  // clamp inside every expert and the shared expert

  // Attention.
  int32_t sliding_window = 0;            // W: a query sees the positions (pos-W, pos]
  std::vector<int32_t> compress_ratios;  // tokens per compressed entry; backbone layers, then draft layers (always 0)
  std::vector<int32_t> kv_source_layer_ids;     // layers with a compressor (V4: derived, every layer with r > 0)
  std::vector<int32_t> index_source_layer_ids;  // layers with an indexer (V4: derived, every layer with r = 4)
  int32_t candidate_source_layer_id = -1;       // layer that picks candidate blocks; -1 = off
  int32_t candidate_topk_blocks = 0;            // candidate blocks per query
  int32_t candidate_block_size = 0;             // compressed entries per candidate block
  int32_t index_n_heads = 0;
  int32_t index_head_dim = 0;
  int32_t index_topk = 0;                 // compressed entries a query attends to
  double rope_theta = 10000.0;            // layers with r = 0
  double compress_rope_theta = 160000.0;  // layers with r > 0, together with rope_scaling
  RopeScaling rope_scaling;
  bool use_fp4_sparse_kv = true;  // main compressed KV as FP4; false: MXFP8

  // Experts: every layer is a MoE layer.
  int32_t moe_intermediate_size = 0;
  int32_t n_routed_experts = 0;
  int32_t num_experts_per_tok = 0;
  double routed_scaling_factor = 0.0;
  int32_t num_hash_layers = 0;  // V4: the first layers route by ffn.gate.tid2eid

  // Manifold hyper-connections ("hc"): hc_mult residual streams (model.md §5.2).
  int32_t hc_mult = 0;
  int32_t hc_sinkhorn_iters = 0;
  double hc_eps = 0.0;
  bool hc_shifted = true;  // a site collapses with the mix of the previous site (V4.1); V4 with its own

  // Engram: hashed n-gram tables added before some layers (model.md §5.10). Empty lists: none.
  std::vector<int32_t> engram_layer_ids;
  std::vector<int64_t> engram_num_embeddings;  // table rows of each Engram layer = sum of its bucket primes
  int32_t engram_max_ngram_size = 0;           // n-grams of 2 .. this many tokens
  int64_t engram_vocab_size = 0;               // lower bound of the bucket primes
  int32_t engram_n_heads = 0;                  // hash heads per n-gram order
  int32_t engram_head_dim = 0;                 // table row width
  int32_t engram_pad_token_id = 0;             // raw id; mapped through the compressed vocabulary
  int32_t engram_compressed_vocab_size = 0;    // equal to vocab_size: the map is the identity

  // Draft layers `mtp.*`. dspark_block_size == 0 with draft layers: V4's plain multi-token prediction module.
  int32_t num_nextn_predict_layers = 0;
  int32_t dspark_block_size = 0;  // draft tokens per step
  int32_t dspark_noise_token_id = 0;
  std::vector<int32_t> dspark_target_layer_ids;  // layers whose streams feed the draft
  int32_t dspark_markov_rank = 0;
  int32_t dspark_n_routed_experts = 0;
  int32_t dspark_num_experts_per_tok = 0;

  // Token ids; -1 = the model has none.
  int32_t bos_token_id = -1;
  int32_t eos_token_id = -1;
  int32_t pad_token_id = -1;
  int32_t image_token_id = -1;

  QuantizationConfig quantization_config;
  std::optional<VisionConfig> vision_config;

  // Derived sizes.
  int32_t heads_per_group() const { return num_attention_heads / o_groups; }
  int32_t hc_rows() const { return (2 + hc_mult) * hc_mult; }  // coefficients of one hyper-connection site
  bool has_dspark() const { return dspark_block_size > 0; }
  int32_t engram_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }  // table rows per token
  bool engram_identity_map() const { return engram_compressed_vocab_size == vocab_size; }
};

// Reads and validates config.json; `path` is the file or the folder that holds it. Errors are one line
// "<file>: <field>: expected <what>, found <what>" (kNotFound when there is no file, else kInvalidRequest).
Result<ModelConfig> load_config(const std::string& path);

// The same from parsed JSON; `file` is the name used in errors.
Result<ModelConfig> parse_config(const Json& root, const std::string& file);

}  // namespace di::model
