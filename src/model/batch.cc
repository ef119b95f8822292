#include "model/batch.h"

#include <algorithm>
#include <climits>

namespace di::model {
namespace {

void clear(RowSet& set) {
  set.positions.clear();
  set.sequence.clear();
  set.window_begin.clear();
  set.window_end.clear();
  set.is_image.clear();
}

void add_row(RowSet& set, int32_t position, int32_t sequence, int32_t window_begin, bool is_image) {
  set.positions.push_back(position);
  set.sequence.push_back(sequence);
  set.window_begin.push_back(window_begin);
  set.window_end.push_back(position + 1);
  set.is_image.push_back(is_image ? 1 : 0);
}

void drop_image_flags_if_unused(RowSet& set) {
  if (std::find(set.is_image.begin(), set.is_image.end(), 1) == set.is_image.end()) set.is_image.clear();
}

Result<void> check_chunk(const ModelConfig& config, int32_t block_tokens, const SequenceChunk& chunk, size_t index) {
  const int64_t end = int64_t{chunk.begin} + chunk.count;
  if (chunk.begin < 0 || chunk.count <= 0 || end > static_cast<int64_t>(chunk.tokens.size())) {
    return fail(Errc::kInternal, "sequence {} of the step: rows [{}, {}) of {} tokens", index, chunk.begin, end,
                chunk.tokens.size());
  }
  if (end > config.max_position_embeddings) {
    return fail(Errc::kInvalidRequest, "sequence {} of the step reaches position {}, the model has {}", index, end,
                config.max_position_embeddings);
  }
  if (static_cast<int64_t>(chunk.block_table.size()) * block_tokens < end) {
    return fail(Errc::kInternal, "sequence {} of the step needs {} tokens of blocks, its table has {}", index, end,
                chunk.block_table.size() * static_cast<size_t>(block_tokens));
  }
  for (int64_t p = chunk.begin; p < end; ++p) {
    const int32_t id = chunk.tokens[static_cast<size_t>(p)];
    if (id < 0 || id >= config.vocab_size) {
      return fail(Errc::kInvalidRequest, "token {} at position {} is outside the vocabulary of {}", id, p,
                  config.vocab_size);
    }
  }
  return {};
}

void add_closing_rows(ClosingRows& closing, const SequenceChunk& chunk, int32_t first_row) {
  for (int32_t i = 0; i < chunk.count; ++i) {
    const int32_t position = chunk.begin + i;
    if ((position + 1) % closing.ratio != 0 || position < chunk.block_write_begin) continue;
    closing.rows.push_back(first_row + i);
    closing.group_positions.push_back(position + 1 - closing.ratio);
  }
}

}  // namespace

kernels::Rows Batch::rows(const RowSet& set) const {
  kernels::Rows view;
  view.n = set.size();
  view.positions = set.positions.data();
  view.sequence = set.sequence.data();
  view.window_begin = set.window_begin.data();
  view.window_end = set.window_end.data();
  view.is_image = set.is_image.empty() ? nullptr : set.is_image.data();
  view.state_slot = state_slot.data();
  view.block_table = block_table.data();
  view.block_table_stride = block_table_stride;
  return view;
}

const ClosingRows& Batch::closing_for(int32_t ratio) const {
  const auto it = std::find_if(closing.begin(), closing.end(), [&](const ClosingRows& c) { return c.ratio == ratio; });
  DI_CHECK(it != closing.end(), "no closing rows for ratio {}", ratio);
  return *it;
}

Result<void> build_batch(const ModelConfig& config, const Schedule& schedule, const EngramTables* engram,
                         TruncationRule rule, int32_t block_tokens, std::span<const SequenceChunk> chunks,
                         Batch& batch) {
  batch.ids.clear();
  for (RowSet* set : {&batch.all, &batch.boundary, &batch.decoder}) clear(*set);
  batch.truncated = false;
  batch.decoder_index.clear();
  batch.state_slot.clear();
  batch.fresh_row.clear();
  batch.fresh_position.clear();
  batch.decoder_fresh_row.clear();
  batch.decoder_fresh_position.clear();
  batch.logit_rows.clear();
  batch.closing.clear();
  for (const LayerPlan& layer : schedule.layers) {
    const bool known = std::any_of(batch.closing.begin(), batch.closing.end(),
                                   [&](const ClosingRows& c) { return c.ratio == layer.ratio; });
    if (layer.ratio > 0 && !known) batch.closing.push_back({layer.ratio, {}, {}});
  }
  batch.block_table_stride = 0;
  for (const SequenceChunk& chunk : chunks) {
    batch.block_table_stride = std::max(batch.block_table_stride, static_cast<int32_t>(chunk.block_table.size()));
  }
  batch.block_table.assign(chunks.size() * static_cast<size_t>(batch.block_table_stride), 0);

  const int32_t window = config.sliding_window;
  for (size_t s = 0; s < chunks.size(); ++s) {
    const SequenceChunk& chunk = chunks[s];
    DI_TRY(check_chunk(config, block_tokens, chunk, s));
    const auto sequence = static_cast<int32_t>(s);
    const int32_t first_row = batch.all.size();
    batch.state_slot.push_back(chunk.state_slot);
    std::copy(chunk.block_table.begin(), chunk.block_table.end(),
              batch.block_table.begin() + static_cast<std::ptrdiff_t>(s) * batch.block_table_stride);
    batch.fresh_row.push_back(first_row);
    batch.fresh_position.push_back(chunk.begin);
    batch.decoder_fresh_row.push_back(batch.decoder.size());
    batch.decoder_fresh_position.push_back(chunk.masked ? chunk.begin : std::max(chunk.begin, chunk.keep_begin));
    for (int32_t i = 0; i < chunk.count; ++i) {
      const int32_t position = chunk.begin + i;
      const bool image = !chunk.is_image.empty() && chunk.is_image[static_cast<size_t>(position)] != 0;
      const int32_t full = std::max({0, position - window + 1, chunk.window_start});
      batch.ids.push_back(chunk.tokens[static_cast<size_t>(position)]);
      add_row(batch.all, position, sequence, full, image);
      const bool kept = position >= chunk.keep_begin;
      if (!kept) batch.truncated = true;
      if (!kept && !chunk.masked) continue;
      const int32_t clipped = kept ? std::max(full, chunk.keep_begin) : full;
      if (clipped != full) batch.truncated = true;
      if (position >= chunk.logits_begin) batch.logit_rows.push_back(batch.decoder.size());
      batch.decoder_index.push_back(first_row + i);
      add_row(batch.boundary, position, sequence, rule == TruncationRule::kVl ? full : clipped, image);
      add_row(batch.decoder, position, sequence, clipped, image);
    }
    for (ClosingRows& closing : batch.closing) add_closing_rows(closing, chunk, first_row);
  }
  for (RowSet* set : {&batch.all, &batch.boundary, &batch.decoder}) drop_image_flags_if_unused(*set);

  batch.engram_rows.assign(engram == nullptr ? 0 : engram->layers.size(), {});
  for (size_t e = 0; e < batch.engram_rows.size(); ++e) {
    std::vector<int64_t>& rows = batch.engram_rows[e];
    rows.resize(batch.ids.size() * static_cast<size_t>(engram->columns));
    size_t row = 0;
    for (const SequenceChunk& chunk : chunks) {
      const int32_t history = std::min(chunk.begin, engram->lookback());
      const auto ids =
          chunk.tokens.subspan(static_cast<size_t>(chunk.begin - history), static_cast<size_t>(history + chunk.count));
      const size_t values = static_cast<size_t>(chunk.count) * static_cast<size_t>(engram->columns);
      engram_rows(*engram, static_cast<int32_t>(e), ids, history, std::span(rows).subspan(row, values));
      row += values;
    }
  }
  return {};
}

}  // namespace di::model
