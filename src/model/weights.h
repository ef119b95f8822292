// The weights of a model as views into the mapped checkpoint, member names as the checkpoint's tensors (model.md §3).
// Large tensors are never copied: kernels read them as stored. Three kinds of small tensors are copied into
// ModelWeights::owned: data that the file does not align to its element size, and V4's tid2eid (to int32, checked
// against the number of experts). A Weight or pointer that a layer does not have is null. Vectors ([n] in the file) are
// Weights of one row. Immutable after binding; the Safetensors it was bound to must outlive it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "model/schedule.h"

namespace di::model {

using kernels::ExpertWeights;
using kernels::Weight;

struct CompressorWeights {
  Weight wkv;                  // [D, H]; V4: [c·D, H], c = 2 for r = 4, else 1
  Weight wgate;                // as wkv; absent for r = 1
  Weight norm;                 // [1, D]
  const float* ape = nullptr;  // V4: [r, c·D]
};

struct IndexerWeights {
  Weight wq_b;                   // [index_n_heads·index_head_dim, q_lora_rank]
  Weight weights_proj;           // [index_n_heads, H]
  Weight wk;                     // V4.1 KV sources: [index_head_dim, D]
  Weight k_norm;                 // V4.1 KV sources: [1, index_head_dim]
  CompressorWeights compressor;  // V4: at index_head_dim channels
};

struct AttentionWeights {
  const float* attn_sink = nullptr;  // [heads]
  Weight wq_a;                       // [q_lora_rank, H]
  Weight q_norm;                     // [1, q_lora_rank]
  Weight wq_b;                       // [heads·D, q_lora_rank]
  Weight wkv;                        // [D, H]
  Weight kv_norm;                    // [1, D]
  Weight wo_a;                       // [o_groups·o_lora_rank, heads/o_groups·D], groups stacked by rows
  Weight wo_b;                       // [H, o_groups·o_lora_rank]
  CompressorWeights compressor;      // LayerPlan::is_kv_source
  IndexerWeights indexer;            // LayerPlan::is_index_source
};

struct GateWeights {
  Weight weight;                     // [experts, H]
  const float* bias = nullptr;       // [experts]; null on V4's hash layers
  const float* bias_vl = nullptr;    // [experts], image tokens; V4.1 only
  const int32_t* tid2eid = nullptr;  // [vocab, experts per token], V4's hash layers
};

struct FfnWeights {
  GateWeights gate;
  ExpertWeights shared_experts;
  std::vector<ExpertWeights> experts;  // [n_routed_experts], contiguous
  kernels::ExpertForm form;
  const ExpertWeights* table = nullptr;  // `experts` where the operators read them
  // With expert parallelism (keep_experts): the rank that has each expert. Those of other ranks keep their shape and
  // have no data. Empty: all are here.
  std::vector<int32_t> owner;            // [n_routed_experts]
  const int32_t* owner_table = nullptr;  // `owner` where the operators read it
};

struct EngramWeights {
  Weight embed;     // [rows, engram_head_dim] kFp8Row
  Weight wkv;       // [(hc+1)·H, columns·engram_head_dim]: hc keys, then the value
  Weight q_weight;  // [hc, H]
  Weight k_weight;  // [hc, H]
};

struct LayerWeights {
  Weight attn_norm;                      // [1, H]
  Weight ffn_norm;                       // [1, H]
  const float* hc_attn_fn = nullptr;     // [(2+hc)·hc, hc·H]: rows pre, post, comb
  const float* hc_attn_base = nullptr;   // [(2+hc)·hc]
  const float* hc_attn_scale = nullptr;  // [3]
  const float* hc_ffn_fn = nullptr;
  const float* hc_ffn_base = nullptr;
  const float* hc_ffn_scale = nullptr;
  AttentionWeights attn;
  FfnWeights ffn;
  EngramWeights engram;  // LayerPlan::has_engram
};

struct HcHeadWeights {
  const float* fn = nullptr;     // hc_head_fn [hc, hc·H]
  const float* base = nullptr;   // hc_head_base [hc]
  const float* scale = nullptr;  // hc_head_scale [1]
};

struct MarkovHeadWeights {
  Weight embed;  // [vocab, dspark_markov_rank]
  Weight head;   // [vocab, dspark_markov_rank]
};

// One draft layer `mtp.S`. The tensors of the module as a whole lie in its first and last layer: main_* in mtp.front(),
// norm, markov_head and confidence_head in mtp.back().
struct MtpWeights {
  LayerWeights block;
  Weight main_proj;  // [H, targets·H]
  Weight main_norm;  // [1, H]
  Weight norm;       // [1, H]
  MarkovHeadWeights markov_head;
  Weight confidence_head_proj;  // [1, H + dspark_markov_rank]
  // V4's plain module.
  Weight e_proj;  // [H, H]
  Weight h_proj;  // [H, H]
  Weight enorm;   // [1, H]
  Weight hnorm;   // [1, H]
  HcHeadWeights hc_head;
};

struct VisionBlockWeights {
  Weight norm1, norm2;     // [1, hidden]
  Weight wqkv, wqkv_bias;  // [3·hidden, hidden], [1, 3·hidden]
  Weight wo, wo_bias;      // [hidden, hidden], [1, hidden]
  Weight w1;               // [2·intermediate, hidden]: gate, then up
  Weight w2;               // [hidden, intermediate]
};

// Present when the config has a vision tower.
struct VisionWeights {
  Weight patch_embed_proj, patch_embed_bias;  // [hidden, 3·patch²], [1, hidden]
  std::vector<VisionBlockWeights> blocks;
  Weight norm;
  Weight aligner_w1, aligner_w1_bias;            // [H, hidden·downsample²], [1, H]
  Weight aligner_w2, aligner_w2_bias;            // [H, H], [1, H]
  Weight image_start, image_end, image_newline;  // [1, H]
};

struct ModelWeights {
  Weight embed;           // [vocab, H]
  Weight head;            // [vocab, H]
  Weight norm;            // [1, H]
  HcHeadWeights hc_head;  // V4
  std::vector<LayerWeights> layers;
  std::vector<MtpWeights> mtp;
  VisionWeights vision;

  std::vector<std::string> unknown_tensors;   // in the checkpoint, not declared: reported, not used
  std::vector<std::vector<std::byte>> owned;  // copies, see above
  int64_t mapped_bytes = 0;                   // declared tensors used in place
  int64_t copied_bytes = 0;                   // declared tensors in `owned`
};

// The expert layers, backbone then draft.
std::vector<FfnWeights*> all_ffn(ModelWeights& weights);

// The rank of `ranks` that has expert e of n: contiguous shares, [r·n/ranks, (r+1)·n/ranks) (distributed.md §1).
int32_t expert_owner(int64_t e, int64_t n, int32_t ranks);
// Leaves the experts of one rank in the weights, before they are placed on a device.
void keep_experts(ModelWeights& weights, int32_t rank, int32_t ranks);

// Binds every declared tensor (model.md §3.1, §3.2) and checks name, dtype, shape and scale of each. Errors
// (kCorruption) name the checkpoint file, tensor, what was expected and what was found.
Result<ModelWeights> bind_weights(const ModelConfig& config, const Schedule& schedule, const Safetensors& checkpoint);

}  // namespace di::model
