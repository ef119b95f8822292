// Decode steps as captured graphs (engine.md §7). A step of few rows costs a backend more in launches than in work, so
// that a step whose shapes are known is captured once and replayed with one call. Shapes come in buckets: rows, and the
// length of the block tables; what is missing is filled with rows of the reserved state slot and block, whose results
// nobody reads.
//
// How a step is replayed: its code runs as always, with operators that do nothing, and the host arrays that it hands
// down are collected instead of copied (StagedInputs). They go to the device in one piece, in front of the graph, whose
// operators read them where they lay when it was captured. The workspace gives the same addresses for the same shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "kernels/ops.h"
#include "model/batch.h"

namespace di::model {

// The backend's table with operators that do nothing; copies and graphs are its own.
kernels::Ops idle_ops(const kernels::Ops& backend);
// The backend's table for a step that only makes memory grow: it stores nothing and exchanges nothing.
kernels::Ops growing_ops(const kernels::Ops& backend);

// Host arrays in the order in which a step hands them down.
class StagedInputs {
 public:
  void begin() { used_ = 0; }
  // Where the operators find the bytes.
  const void* place(const void* data, int64_t bytes);
  // Makes the device's memory large enough for what was placed since begin().
  Result<void> reserve(device::Device& device);
  void send(const kernels::Ops& ops, kernels::Stream& stream) const;

 private:
  std::vector<std::byte> host_;
  size_t used_ = 0;
  device::Buffer device_;
};

// What steps of one graph have in common.
struct StepShape {
  int32_t rows = 0;    // also sequences
  int32_t stride = 0;  // blocks of a table
  const std::byte* cache = nullptr;
  bool operator==(const StepShape&) const = default;
};

// The bucket of a batch; rows = 0 when it is none: a prompt is in it, rows want no logits, or it is too large.
StepShape step_shape(const Batch& batch);
// The batch with rows, sequences, table length and closing rows of the bucket.
Batch pad_batch(const ModelConfig& config, const Batch& batch, const StepShape& shape);

}  // namespace di::model
