// Tokens of the previous step as input of the next one while the host does not know them yet (engine.md §4.2): the
// functions a device runs on its arrays. `remap[i]` is sequence i's row in the previous step, -1 when it was not there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace di::engine {

// What the previous step left, per sequence of it.
struct StepOutputs {
  std::span<const int32_t> accepted;  // drafts accepted, 0..drafts; -1: nothing, the same rows again
  std::span<const int32_t> sampled;   // the last token
  std::span<const int32_t> drafts;    // [sequences, n_drafts], the next round's
  int32_t n_drafts = 0;
};

// seqlens_k as the host planned them (before this step's rows, every draft of the previous step counted as accepted) ->
// with this step's rows and what was really accepted.
std::vector<int32_t> correct_lengths(std::span<const int32_t> seqlens_k, std::span<const int32_t> seqlens_q,
                                     std::span<const int32_t> remap, const StepOutputs& previous);

// The step's token ids: of a known sequence the last token and the drafts after it, of a fresh one the host's.
// fresh_tokens [sequences, n_drafts + 1].
std::vector<int32_t> gather_tokens(std::span<const int32_t> seqlens_q, std::span<const int32_t> remap,
                                   std::span<const int32_t> fresh_tokens, const StepOutputs& previous);

}  // namespace di::engine
