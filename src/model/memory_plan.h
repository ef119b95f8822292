// What a model costs, from its config alone: tensors, parameters, bytes per class, KV bytes, and memory for a given
// context and number of sequences (model.md §3, §7). inspect.h prints it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/cache.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "model/schedule.h"

namespace di::model {

enum class TensorClass : uint8_t {
  kEmbedding,  // embed, head
  kAttention,
  kCompressor,  // compressors and indexers
  kHyperConnection,
  kNorm,
  kRouter,
  kSharedExpert,
  kRoutedExpert,
  kEngramTable,
  kEngramProjection,  // engram.wkv, q_weight, k_weight
  kDraft,             // mtp.*
  kVision,
};
inline constexpr int32_t kTensorClasses = 12;
std::string_view to_string(TensorClass c);

struct ClassTotals {
  int64_t tensors = 0;     // scales counted as tensors of their own
  int64_t parameters = 0;  // weights only
  int64_t bytes = 0;       // as stored, with scales
};

struct ParameterCount {
  std::array<ClassTotals, kTensorClasses> classes;
  int64_t tensors = 0;
  int64_t bytes = 0;
  int64_t backbone = 0;  // parameters without Engram tables, draft and vision
  int64_t engram_tables = 0;
  int64_t draft = 0;
  int64_t vision = 0;
  int64_t active_decode = 0;  // parameters multiplied for a decode token: every layer, its selected experts, the head
  int64_t active_prefill =
      0;  // for a prompt token without logits: the encoder half and the boundary layer's KV projections
};
// With a checkpoint the bytes are those of its tensors, else those of the declared formats (BF16 for unquantised
// weights).
ParameterCount count_parameters(const ModelConfig& config, const Schedule& schedule,
                                const Safetensors* checkpoint = nullptr);

// Arithmetic of one row in FP8 equivalents, the unit of utilisation figures (engine.md §9): per multiply-add 1 in FP4,
// 2 in FP8, 4 in BF16, 8 in fp32, by how the weights are stored; attention counts as BF16 and index scores as FP8. The
// draft module is left out.
struct RowFlops {
  double weights = 0;
  double per_key = 0;        // of one attention layer
  double per_index_key = 0;  // of one index source
};
RowFlops count_row_flops(const ModelConfig& config, const Schedule& schedule);
// Of the row at `position`: the keys that it sees are those of its window, of its selection, and those it scores.
double row_flops(const ModelConfig& config, const Schedule& schedule, const RowFlops& flops, int64_t position);

struct PlanOptions {
  int64_t context = 4096;  // tokens per sequence
  int32_t sequences = 1;
  bool kv_quant = true;  // V4 caches are fp32 whatever this says
  int32_t block_tokens = 128;
  int32_t max_backtracking = -1;  // rows kept for speculative roll-back; -1: dspark_block_size + 1, 0 without a draft
};

// The cache options that belong to these plan options.
CacheOptions cache_options(const ModelConfig& config, const PlanOptions& options);

struct MemoryPlan {
  CacheLayout layout;
  int64_t weight_bytes = 0;       // as stored
  double kv_bytes_per_token = 0;  // Block KV: layout.block_bytes / block_tokens
  int64_t blocks_per_sequence = 0;
  int64_t block_kv_bytes = 0;            // all sequences
  int64_t swa_window_bytes = 0;          // one sequence, backbone layers, without roll-back rows
  int64_t swa_window_encoder_bytes = 0;  // layers before the boundary
  int64_t swa_window_draft_bytes = 0;    // draft layers
  int64_t compressor_state_bytes = 0;    // one sequence, open groups (fp32 value and score) with roll-back rows
  int64_t engram_history_bytes = 0;      // one sequence, look-back token ids
  int64_t sequence_bytes = 0;            // one sequence: state slot (rings and open groups) and history
  int64_t kv_total_bytes = 0;            // blocks and sequence state of all sequences
  int64_t total_bytes = 0;               // with the weights
};
// Fails when the context is not in 1 .. max_position_embeddings, or a size is not positive.
Result<MemoryPlan> plan_memory(const ModelConfig& config, const Schedule& schedule, const PlanOptions& options);

}  // namespace di::model
