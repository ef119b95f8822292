// Rows of a prefill step over context-parallel ranks (distributed.md §1.1). Every sequence is cut into 2·ranks pieces;
// rank r computes pieces r and 2·ranks-1-r, so that causal work is equal. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace di::engine {

// What one rank computes of a step whose tokens are numbered over all sequences.
struct MirrorShare {
  std::vector<int32_t> rows;  // token of every local row, -1 = padding
  // Per ratio and local row: compressed keys [first, end) that it sees, in the order of all sequences' keys. Padding
  // rows see none.
  std::vector<std::vector<int32_t>> key_begin;
  std::vector<std::vector<int32_t>> key_end;
};

// seqlens_q: tokens of the step, seqlens_k: with those before.
MirrorShare mirror_share(std::span<const int32_t> seqlens_q, std::span<const int32_t> seqlens_k, int32_t ranks,
                         int32_t rank, std::span<const int32_t> ratios);

// For every token its row in the concatenation of all ranks' rows.
std::vector<int32_t> mirror_inverse(std::span<const int32_t> seqlens_q, int32_t ranks);

// Rows that move on at the boundary layer of a truncated prefill: the last keep_lens[s] tokens of every sequence.
struct BoundaryExchange {
  std::vector<std::vector<int32_t>> rows_of_rank;  // local rows that a rank hands in, ascending
  int32_t padded_rows = 0;                         // of every rank in the gathered array
  std::vector<int32_t> inverse;                    // per kept token, in order: its row in the gathered array
};
BoundaryExchange boundary_exchange(std::span<const int32_t> seqlens_q, std::span<const int32_t> keep_lens,
                                   int32_t ranks);

}  // namespace di::engine
