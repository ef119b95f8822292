// What a model costs, from its config alone: tensors, parameters, bytes per class, KV bytes, and memory for a given context and
// number of sequences (model.md §3, §7). `deepinfer model inspect` prints it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/tensor.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "model/schedule.h"

namespace di::model {

enum class TensorClass : uint8_t {
  kEmbedding,         // embed, head
  kAttention,
  kCompressor,        // compressors and indexers
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
  int64_t backbone = 0;       // parameters without Engram tables, draft and vision
  int64_t engram_tables = 0;
  int64_t draft = 0;
  int64_t vision = 0;
  int64_t active_decode = 0;   // parameters multiplied for a decode token: every layer, its selected experts, the head
  int64_t active_prefill = 0;  // for a prompt token without logits: the encoder half and the boundary layer's KV projections
};
ParameterCount count_parameters(const ModelConfig& config, const Schedule& schedule);

struct KvFormats {
  kernels::KvFormat swa = kernels::KvFormat::kE4m3Ue8m0;
  kernels::KvFormat main = kernels::KvFormat::kE2m1E4m3;
  kernels::KvFormat index = kernels::KvFormat::kE2m1Ue8m0;
};
// `quantised` false, or V4: everything kF32. V4.1: the trained formats, main entries by use_fp4_sparse_kv.
KvFormats kv_formats(const ModelConfig& config, bool quantised = true);

inline constexpr int32_t kBlockTokens = 128;  // tokens of one Block KV block

struct PlanOptions {
  int64_t context = 4096;  // tokens per sequence
  int32_t sequences = 1;
  bool quantised_kv = true;
  int32_t rollback_rows = -1;  // rows kept for speculative roll-back; -1: dspark_block_size + 1, 0 without a draft
};

struct MemoryPlan {
  KvFormats formats;
  int64_t weight_bytes = 0;           // as stored
  int64_t kv_bytes_per_block = 0;     // Block KV of kBlockTokens tokens, all KV sources
  double kv_bytes_per_token = 0;      // = kv_bytes_per_block / kBlockTokens
  int64_t blocks_per_sequence = 0;
  int64_t block_kv_bytes = 0;         // all sequences
  int32_t swa_ring_rows = 0;          // window + roll-back rows
  int64_t swa_window_bytes = 0;       // one sequence, window rows only: backbone
  int64_t swa_window_encoder_bytes = 0;
  int64_t swa_window_draft_bytes = 0;
  int64_t swa_ring_bytes = 0;         // one sequence, backbone and draft, whole rings
  int64_t compressor_state_bytes = 0; // one sequence, open groups (fp32 value and score)
  int64_t engram_history_bytes = 0;   // one sequence, look-back token ids
  int64_t sequence_bytes = 0;         // one sequence: rings + state + history
  int64_t kv_total_bytes = 0;         // blocks and sequence state of all sequences
  int64_t total_bytes = 0;            // with the weights
};
Result<MemoryPlan> plan_memory(const ModelConfig& config, const Schedule& schedule, const PlanOptions& options);

struct InspectOptions {
  PlanOptions plan;
  bool json = false;    // one JSON object instead of text
  bool layers = true;   // the layer table
};

// The report of `deepinfer model inspect`. With a checkpoint its tensors are bound and checked too: a violation is the error,
// unknown tensors are listed. `checkpoint` may be null.
Result<std::string> inspect_report(const ModelConfig& config, const Safetensors* checkpoint, const InspectOptions& options);

// Opens DIR (config.json; weights when they are there) and reports.
Result<std::string> inspect_folder(const std::string& folder, const InspectOptions& options);

}  // namespace di::model
