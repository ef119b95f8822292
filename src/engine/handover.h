// What one decode step hands to the next on the device side of the border (engine.md §4.2): the host schedules step n
// without knowing what step n-1 sampled, so lengths and token ids are put right here, from the outputs of step n-1.
// Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace di::engine {

// Outputs of step n-1 by row group j (one group per sequence of that step).
struct PreviousStep {
  int32_t max_drafts = 0;             // most drafts a sequence may verify in one step
  std::span<const int32_t> accepted;  // [groups]: drafts accepted, 0 … max_drafts
  std::span<const int32_t> sampled;   // [groups]: the token after the last accepted draft
  std::span<const int32_t> drafts;    // [groups, max_drafts]: proposals for the step after
};

// The decode sequences of step n.
struct HandoverRows {
  std::span<const int32_t> remap;   // [n]: its group in step n-1, -1: it was not in it
  std::span<const int32_t> counts;  // [n]: rows, 1 + drafts to verify
  std::span<const int32_t> before;  // [n]: positions before its first row, taking for granted that step n-1 accepts all
  std::span<const int32_t> fresh;   // [n, max_drafts + 1]: token ids of those with remap -1
};

struct Handover {
  std::vector<int32_t> lengths;    // [n]: positions with this step's rows, exact
  std::vector<int32_t> input_ids;  // [sum of counts]
};

void hand_over(const HandoverRows& rows, const PreviousStep& previous, Handover& out);

// Sizes that decode graphs are captured for (engine.md §7): 1, 2, 4, … below the interval, then its multiples, and the
// largest itself.
std::vector<int32_t> graph_buckets(int32_t largest, int32_t interval);

}  // namespace di::engine
