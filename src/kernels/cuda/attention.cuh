// What the forms of attention share: the entries of a row, and how tiles of entries become one softmax.
#pragma once

#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/ops.h"

namespace di::kernels::cuda {

// The entries of a row in the order of the sum: the window ascending, then the compressed ones ascending.
struct Entries {
  int64_t begin;
  int64_t window;
  int64_t total;
};

__device__ __forceinline__ Entries entries_of(const AttentionArgs& a, int64_t t) {
  Entries e;
  e.begin = a.rows.window_begin[t];
  e.window = a.rows.window_end[t] > e.begin ? a.rows.window_end[t] - e.begin : 0;
  const int64_t visible = a.ratio > 0 ? (int64_t{a.rows.positions[t]} + 1) / a.ratio : 0;
  e.total = e.window + (a.ratio == 0 ? 0 : a.selection != nullptr ? a.topk : visible);
  return e;
}

inline constexpr int kTile = 64;                // entries of a tile
inline constexpr float kEntryFactor = 0x1p60F;  // widened entries are this much too small
inline constexpr int kWindowSlack = 64;  // entries of a window beyond the rows of its ring that splits make room for

// Halves of two registers: the low ones, or the high ones.
__device__ __forceinline__ uint32_t low_halves(uint32_t a, uint32_t b) {
  return (a & 0xffffU) | b << 16;
}
__device__ __forceinline__ uint32_t high_halves(uint32_t a, uint32_t b) {
  return a >> 16 | (b & 0xffff0000U);
}

// What a block of one tile leaves for the merge: [rows, tiles, heads] values of a head's width, and its largest score
// and sum. Null: the block has all tiles of its row.
struct Parts {
  float* values;
  float2* states;  // max, sum
  int tiles;       // room for
};

// Bf16 queries over quantised records, 64 heads of width 512 a block (attention_wide.cu).
bool attends_wide(const AttentionArgs& a);
void attention_wide(const AttentionArgs& a, Stream& stream);

}  // namespace di::kernels::cuda
