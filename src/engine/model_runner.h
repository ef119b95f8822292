// The model as a runner: checkpoint, caches and forward pass on one backend. The caller chooses the backend (operator
// table, stream, device) and reads the tokenizer, which the engine does not know.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/runner.h"
#include "model/engram.h"
#include "model/forward.h"

namespace di::engine {

// In a model folder: {"temperatures": [T_1, …], …}, written by `deepinfer model calibrate`.
inline constexpr const char* kCalibrationFile = "dspark_calibration.json";

struct ModelRunnerOptions {
  int32_t max_num_seqs = 16;
  int64_t max_model_len = 0;    // 0: the model's positions
  int64_t kv_memory_bytes = 0;  // Block KV and state slots; 0: all sequences at full length, within kv_memory_cap_bytes
  // Of the default; 0: none. On a device with memory of its own: what it leaves. One sequence at full length is planned
  // in any case.
  int64_t kv_memory_cap_bytes = 0;
  bool kv_quant = true;  // the formats of model.md §4.3; off: fp32
  model::NumericMode numerics = model::NumericMode::kExact;
  model::TruncationRule truncation_rule = model::TruncationRule::kVl;
  int32_t block_tokens = 128;
  bool speculation = true;  // the draft module, where the model has one
  // Temperatures of its confidences (speculative.md §5): one per draft or one for all; empty: those of the model folder
  // (kCalibrationFile), else 1.
  std::vector<double> confidence_temperatures;
  model::Ablation ablation;  // parts switched off to see what they are worth
};

// What the caches take.
struct KvPlan {
  int32_t n_blocks = 0;  // with the null block
  int32_t n_slots = 0;   // with the padding slot
  int64_t block_bytes = 0;
  int64_t slot_bytes = 0;
  int64_t total_bytes() const { return int64_t{n_blocks} * block_bytes + int64_t{n_slots} * slot_bytes; }
};

// Error (kResourceExhausted): less memory than one sequence of one block needs; names the bytes.
Result<KvPlan> plan_kv(const model::CacheLayout& layout, int64_t max_positions, const ModelRunnerOptions& options);

// The weights and KV on a device with `free` bytes left, before anything is loaded. Of a size that nobody named a tenth
// of the memory stays free, for workspace and scratch. Error (kResourceExhausted): more than there is; names all sizes
// and the options to lower.
struct DevicePlan {
  int64_t free = 0;
  int64_t weights = 0;
  KvPlan kv;
};
Result<DevicePlan> plan_device(int64_t free, int64_t weights, const model::CacheLayout& layout, int64_t max_positions,
                               const ModelRunnerOptions& options);

struct ModelBackend {
  const kernels::Ops& ops;
  kernels::Stream& stream;
  device::Device& device;
};

class ModelRunner : public Runner {
 public:
  virtual const KvPlan& kv_plan() const = 0;
  virtual const model::ModelConfig& config() const = 0;
  virtual int64_t weight_bytes() const = 0;  // mapped
  virtual std::string_view kv_dtype() const = 0;
};

// Opens a model folder. `texts` gives the text of every token id of its tokenizer; it is called only when the model's
// Engram tables need it; `loaded` is told the part of the weights that a device has. The backend must outlive the
// runner. Errors name file, tensor or field, expected and found; memory that does not suffice is found before weights
// are read.
Result<std::unique_ptr<ModelRunner>> load_model_runner(const std::string& folder, const ModelRunnerOptions& options,
                                                       const ModelBackend& backend,
                                                       const std::function<std::vector<model::TokenText>()>& texts,
                                                       const std::function<void(double)>& loaded = {});

}  // namespace di::engine
