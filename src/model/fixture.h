// A checkpoint with caches and a forward pass, as conformance runs and tests need it: whole sequences fed in chosen
// pieces, in `exact` numerics. Not for serving (the engine has its own).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/conformance.h"
#include "model/forward.h"

namespace di::model {

// Loaded once per folder; the pieces refer to each other, so it stays where it is.
struct FixtureModel {
  std::string dir;
  ModelConfig config;
  Schedule schedule;
  std::unique_ptr<Safetensors> checkpoint;
  ModelWeights weights;
  std::optional<EngramTables> engram;

  device::Buffer placed;  // the weights, where the device does not read the mapped checkpoint

  // With a group: the experts of its rank only.
  static Result<std::unique_ptr<FixtureModel>> load(const std::string& dir, const TokenTextLoader& texts,
                                                    device::Device* device = nullptr,
                                                    const device::Group* group = nullptr);
};

struct FixtureOptions {
  bool kv_quant = false;
  bool draft_context = false;
  NumericMode numerics = NumericMode::kExact;
  TruncationRule rule = TruncationRule::kVl;
  int32_t block_tokens = 128;
  int32_t max_tokens = 4096;  // capacity of the one sequence
  Ablation ablation;
  bool graphs = true;              // ForwardOptions::graphs
  device::Group* group = nullptr;  // ForwardOptions::group
};

// One sequence in state slot 1 (2 is free for a replay), blocks 1… (0 is left unused, as the engine reserves it).
class FixtureRun {
 public:
  static Result<std::unique_ptr<FixtureRun>> create(const FixtureModel& model, const ConformanceBackend& backend,
                                                    const FixtureOptions& options);

  // Computes positions [begin, begin + count) of `tokens`; logits for positions >= logits_begin, row-major [rows,
  // vocab]. `plan` may change the chunk before it runs (truncation, replay).
  Result<std::vector<float>> feed(std::span<const int32_t> tokens, int32_t begin, int32_t count,
                                  int32_t logits_begin = 0, const Tap* tap = nullptr,
                                  const std::function<void(SequenceChunk&)>& plan = {});
  // The normed hidden state of the last feed's logit rows.
  const std::vector<float>& hidden() const { return hidden_; }

  Forward& forward() { return *forward_; }
  // A result of the forward pass as fp32.
  std::vector<float> floats(const kernels::Tensor& t) const;
  KvCache& cache() { return cache_; }
  const Batch& batch() const { return batch_; }
  // Main entries (or index keys) of a KV source plane as read back, [n, width].
  std::vector<float> main_entries(int32_t plane, int32_t n) const;
  std::vector<float> index_keys(int32_t plane, int32_t n) const;

 private:
  FixtureRun() = default;
  std::vector<float> entries(const kernels::PageView& pages, int32_t n) const;

  const FixtureModel* model_ = nullptr;
  FixtureOptions options_;
  KvCache cache_;
  std::unique_ptr<Forward> forward_;
  std::vector<int32_t> block_table_;
  Batch batch_;
  std::vector<float> hidden_;
};

// A tensor as fp32, rows made contiguous.
std::vector<float> to_floats(const kernels::Tensor& t);
// One stored cache record as fp32 (model.md §4.3).
void decode_record(kernels::KvFormat format, int32_t width, const uint8_t* data, const uint8_t* scale, float* out);

}  // namespace di::model
