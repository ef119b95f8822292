#include "model/step_graphs.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace di::model {
namespace {

using kernels::Ops;
using kernels::Stream;

constexpr int32_t kMaxRows = 512;
constexpr int32_t kRowInterval = 8;  // engine.md §7
constexpr size_t kAlignment = 64;

template <class Args>
void idle(const Args&, Stream&) {}

template <class Args>
void set_idle(void (*&op)(const Args&, Stream&)) {
  op = idle<Args>;
}

}  // namespace

Ops idle_ops(const Ops& backend) {
  Ops ops = backend;
  set_idle(ops.embed);
  set_idle(ops.hc_pre);
  set_idle(ops.hc_post);
  set_idle(ops.hc_head);
  set_idle(ops.hc_head_mix);
  set_idle(ops.linear);
  set_idle(ops.grouped_linear);
  set_idle(ops.rms_norm);
  set_idle(ops.rope_table);
  set_idle(ops.q_rope);
  set_idle(ops.swa_store);
  set_idle(ops.ring_commit);
  set_idle(ops.compress);
  set_idle(ops.compress_v4);
  set_idle(ops.page_store);
  set_idle(ops.index_query);
  set_idle(ops.select);
  set_idle(ops.attention);
  set_idle(ops.router);
  set_idle(ops.moe);
  set_idle(ops.exchange);
  set_idle(ops.moe_parts);
  set_idle(ops.moe_sum);
  set_idle(ops.engram_gather);
  set_idle(ops.engram_gate);
  set_idle(ops.stream_mean);
  set_idle(ops.gather_rows);
  set_idle(ops.gather_table);
  set_idle(ops.confidence);
  set_idle(ops.argmax);
  return ops;
}

Ops growing_ops(const Ops& backend) {
  Ops ops = backend;
  set_idle(ops.exchange);
  set_idle(ops.ring_commit);
  set_idle(ops.compress);
  set_idle(ops.compress_v4);
  set_idle(ops.page_store);
  return ops;
}

const void* StagedInputs::place(const void* data, int64_t bytes) {
  const size_t at = (used_ + kAlignment - 1) / kAlignment * kAlignment;
  used_ = at + static_cast<size_t>(bytes);
  if (host_.size() < used_) host_.resize(used_);
  if (bytes > 0) std::memcpy(host_.data() + at, data, static_cast<size_t>(bytes));
  return device_.data() == nullptr ? nullptr : device_.data() + at;
}

Result<void> StagedInputs::reserve(device::Device& device) {
  if (device_.size() < used_) device_ = DI_TRY(device::Buffer::allocate(device, used_));
  return {};
}

void StagedInputs::send(const Ops& ops, Stream& stream) const {
  DI_CHECK(used_ <= device_.size(), "inputs of {} bytes, the graph has room for {}", used_, device_.size());
  if (used_ > 0) ops.copy_in(device_.data(), host_.data(), static_cast<int64_t>(used_), stream);
}

StepShape step_shape(const Batch& batch) {
  StepShape shape;
  const int32_t rows = batch.all.size();
  if (batch.truncated || rows == 0 || rows > kMaxRows || static_cast<int32_t>(batch.logit_rows.size()) != rows ||
      !batch.all.is_image.empty()) {
    return shape;
  }
  shape.rows = rows < kRowInterval ? static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(rows)))
                                   : (rows + kRowInterval - 1) / kRowInterval * kRowInterval;
  shape.stride = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(std::max(batch.block_table_stride, 4))));
  return shape;
}

namespace {

// Rows at position 1 of sequences in the reserved slot, each the only one of its sequence.
void pad_rows(RowSet& set, int32_t first_sequence, int32_t rows) {
  for (int32_t sequence = first_sequence; set.size() < rows; ++sequence) {
    set.positions.push_back(1);
    set.sequence.push_back(sequence);
    set.window_begin.push_back(0);
    set.window_end.push_back(2);
  }
}

}  // namespace

Batch pad_batch(const ModelConfig& config, const Batch& batch, const StepShape& shape) {
  Batch out = batch;
  const int32_t rows = batch.all.size();
  const auto sequences = static_cast<int32_t>(batch.state_slot.size());
  const auto n = static_cast<size_t>(shape.rows);
  out.ids.resize(n, 0);
  pad_rows(out.all, sequences, shape.rows);
  pad_rows(out.boundary, sequences, shape.rows);
  pad_rows(out.decoder, sequences, shape.rows);
  for (int32_t i = rows; i < shape.rows; ++i) {
    out.fresh_row.push_back(i);
    out.fresh_position.push_back(1);
    out.decoder_fresh_row.push_back(i);
    out.decoder_fresh_position.push_back(1);
    out.logit_rows.push_back(i);
    out.decoder_index.push_back(i);
  }
  // As many sequences as rows; those that no row names are never looked at.
  for (auto* v : {&out.fresh_row, &out.fresh_position, &out.decoder_fresh_row, &out.decoder_fresh_position,
                  &out.state_slot, &out.decoder_index}) {
    v->resize(n, 0);
  }
  out.block_table.assign(n * static_cast<size_t>(shape.stride), 0);
  for (int32_t s = 0; s < sequences; ++s) {
    std::copy_n(batch.block_table.begin() + std::ptrdiff_t{s} * batch.block_table_stride, batch.block_table_stride,
                out.block_table.begin() + std::ptrdiff_t{s} * shape.stride);
  }
  out.block_table_stride = shape.stride;
  for (ClosingRows& closing : out.closing) {
    closing.rows.resize(n, -1);
    closing.group_positions.resize(n, 0);
  }
  for (std::vector<int64_t>& engram : out.engram_rows) {
    engram.resize(n * static_cast<size_t>(config.engram_columns()), 0);
  }
  return out;
}

}  // namespace di::model
