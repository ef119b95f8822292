// The plan of one forward pass: plain data, built on the host by the engine's step from the sequences it scheduled.
// Nothing in the model knows about requests; a row is a token of some sequence, and what the row may see is written
// here.
//
// Row sets (model.md §6)
//   all      every row of the call: encoder layers, and the cache projections of the boundary layer.
//   boundary the rows that go on through the boundary layer and see its whole window (rule `vl`) or the clipped one
//   (`di`). decoder  the same rows in the layers above, with the window clipped at the kept range.
// Without truncation the three are the same rows with the same windows.
//
// Not thread-safe; a Batch is built, used by one forward, and reused.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/tensor.h"
#include "model/config.h"
#include "model/engram.h"
#include "model/schedule.h"

namespace di::model {

// How the decoder layers treat prompt tokens that produce no logits (model.md §6).
enum class TruncationRule : uint8_t { kVl, kDi };  // kVl: the boundary layer keeps its full window

// One sequence's share of a step.
struct SequenceChunk {
  std::span<const int32_t> tokens;    // the whole sequence from position 0, at least begin + count long
  std::span<const uint8_t> is_image;  // same length, or empty = no images
  int32_t begin = 0;                  // first position to compute
  int32_t count = 0;                  // rows
  int32_t state_slot = 0;             // rings and compressor state
  std::span<const int32_t> block_table;
  // Bounded replay: sliding-window entries below window_start count as absent; Block KV of positions below
  // block_write_begin is already stored and is not rewritten.
  int32_t window_start = 0;
  int32_t block_write_begin = 0;
  // Truncated prefill: positions below keep_begin stop at the boundary layer. 0 = exact. `masked`: they go through the
  // decoder layers too, and the kept rows do not see them: the same answer at the price of all rows, for comparison.
  int32_t keep_begin = 0;
  bool masked = false;
  // Positions >= logits_begin get logits. INT32_MAX = none.
  int32_t logits_begin = 0;
};

// Host arrays behind a kernels::Rows.
struct RowSet {
  std::vector<int32_t> positions;
  std::vector<int32_t> sequence;
  std::vector<int32_t> window_begin;
  std::vector<int32_t> window_end;
  std::vector<uint8_t> is_image;  // empty = no image rows

  int32_t size() const { return static_cast<int32_t>(positions.size()); }
};

// Rows whose token completes a compressed group that is to be written, for one ratio.
struct ClosingRows {
  int32_t ratio = 0;
  std::vector<int32_t> rows;             // ascending, indices into `all`
  std::vector<int32_t> group_positions;  // ratio·g: where the entry is rotated
};

struct Batch {
  std::vector<int32_t> ids;
  RowSet all;
  RowSet boundary;
  RowSet decoder;
  bool truncated = false;              // the decoder layers see fewer rows or narrower windows than `all`
  std::vector<int32_t> decoder_index;  // row of `all` for each decoder row

  std::vector<int32_t> state_slot;   // [sequences]
  std::vector<int32_t> block_table;  // [sequences, block_table_stride]
  int32_t block_table_stride = 0;
  std::vector<int32_t> fresh_row;       // [sequences], in `all`
  std::vector<int32_t> fresh_position;  // [sequences]
  std::vector<int32_t> decoder_fresh_row;
  std::vector<int32_t> decoder_fresh_position;

  std::vector<ClosingRows> closing;               // one per ratio > 0 of the schedule
  std::vector<std::vector<int64_t>> engram_rows;  // per Engram layer: [rows, columns] table rows
  std::vector<int32_t> logit_rows;                // indices into `decoder`, ascending

  kernels::Rows rows(const RowSet& set) const;
  const ClosingRows& closing_for(int32_t ratio) const;
};

// `engram` may be null for a model without Engram. The error names the sequence and the limit: a token id outside the
// vocabulary, a position beyond max_position_embeddings, a block table that is too short.
Result<void> build_batch(const ModelConfig& config, const Schedule& schedule, const EngramTables* engram,
                         TruncationRule rule, int32_t block_tokens, std::span<const SequenceChunk> chunks,
                         Batch& batch);

}  // namespace di::model
