// Expert parallelism's operators on the CPU (kernels/ops.h): one form for all tables, over the table's own `moe`.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace di::kernels::cpu {

// The expanded layout of distributed.md §3.1: one row for each (token, expert that is here), grouped by expert, each
// group beginning at a multiple of `alignment`.
struct ExpandedRows {
  std::vector<int32_t> experts;  // those that have rows here, ascending
  std::vector<int64_t> begin;    // of their groups; and one past the last, aligned
  std::vector<int64_t> psum;     // begin of the group + its true number of rows
  std::vector<int64_t> pair;     // [begin.back()] t·k + j of each row; -1 in the gaps
};

ExpandedRows expand_rows(const int32_t* ids, int64_t pairs, const int32_t* owner, int32_t n_experts, int32_t rank,
                         int64_t alignment);

void exchange(const ExchangeArgs& a, Stream& stream);
void run_moe_parts(const MoePartsArgs& a, void (*moe)(const MoeArgs&, Stream&), Stream& stream);
void moe_sum(const MoeSumArgs& a, Stream& stream);

}  // namespace di::kernels::cpu
