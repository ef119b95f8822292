// How many drafts of each sequence a step verifies (speculative.md §4). Pure functions of confidences and the cost
// curve: server, tests and replays of recorded confidences call the same code.
//
// A verify length may depend only on what was known before the drafts it concerns were drawn, or the output's
// distribution changes (§3). Hence the two ways that are offered: Algorithm 1, which stops early, and the deployed one,
// whose total comes from confidences two rounds old.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/speculative/cost_curve.h"

namespace di::engine {

// Lengths without the anchor row, one per sequence, and the throughput τ·SPS(B) they promise.
struct VerifyLengths {
  std::vector<int32_t> lengths;
  double theta = 0;
};

// Drafts in the order of survival a_{r,j} = c_1·…·c_j, ties by lower sequence, then position; steps_per_second[B] for
// B >= 1 rows, the search ends where it ends.
//   early_stop  Algorithm 1: ends at the first draft that does not raise τ·SPS; may be used on current confidences
//   otherwise   the best of all prefixes; on current confidences it is NOT lossless, it exists for comparison
VerifyLengths search_lengths(std::span<const std::vector<double>> confidences, std::span<const double> steps_per_second,
                             bool early_stop);

// What the host knows of a sequence when it plans a step.
struct SequenceRates {
  int32_t num_drafts = 0;
  bool has_draft_info = false;
  int64_t process_count = 0;              // steps whose results have been taken
  int64_t schedule_count = 0;             // steps scheduled; one more than process_count: the newest is still running
  std::span<const float> rates;           // survivals of the newest round that is known
  std::span<const float> previous_rates;  // of the round before
};

struct VerifyPlan {
  std::vector<int32_t> rows;  // per sequence, >= 1: the anchor and its drafts
  int32_t total = 0;          // Σ rows
};

// §4.2: total from survivals two rounds old, shares from the newest. An empty curve gives every draft to everyone.
// Errors (kInvalidRequest): the curve does not reach one row per sequence.
Result<VerifyPlan> plan_lengths(std::span<const SequenceRates> sequences, const CostCurve& curve,
                                const RuntimeCost& runtime);

// §4.3, the device's half when steps overlap: shares of `total_rows` by the newest confidences. remap[i]: row of
// sequence i in the previous step, -1 = fresh. confidences [previous sequences, drafts].
std::vector<int32_t> allocate_rows(int32_t total_rows, std::span<const int32_t> remap,
                                   std::span<const float> confidences, int32_t drafts);

// §4.5: ranks that meet in collectives run the size of the largest. Rows that this rank may use: its own total, filled
// up to the common size.
int32_t agreed_rows(std::span<const int32_t> totals_of_ranks, std::span<const int32_t> sizes, int32_t num_seqs,
                    int32_t drafts);

// c_1, c_1·c_2, … in float, left to right.
std::vector<float> survivals(std::span<const float> confidences);

}  // namespace di::engine
