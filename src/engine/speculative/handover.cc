#include "engine/speculative/handover.h"

#include <cstddef>

namespace di::engine {

std::vector<int32_t> correct_lengths(std::span<const int32_t> seqlens_k, std::span<const int32_t> seqlens_q,
                                     std::span<const int32_t> remap, const StepOutputs& previous) {
  std::vector<int32_t> out(seqlens_k.begin(), seqlens_k.end());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] += seqlens_q[i];
    if (remap[i] >= 0) out[i] -= previous.n_drafts - previous.accepted[static_cast<size_t>(remap[i])];
  }
  return out;
}

std::vector<int32_t> gather_tokens(std::span<const int32_t> seqlens_q, std::span<const int32_t> remap,
                                   std::span<const int32_t> fresh_tokens, const StepOutputs& previous) {
  std::vector<int32_t> out;
  for (size_t i = 0; i < seqlens_q.size(); ++i) {
    for (int32_t k = 0; k < seqlens_q[i]; ++k) {
      if (remap[i] < 0) {
        out.push_back(fresh_tokens[i * static_cast<size_t>(previous.n_drafts + 1) + static_cast<size_t>(k)]);
      } else if (k == 0) {
        out.push_back(previous.sampled[static_cast<size_t>(remap[i])]);
      } else {
        out.push_back(previous.drafts[static_cast<size_t>(remap[i] * previous.n_drafts + k - 1)]);
      }
    }
  }
  return out;
}

}  // namespace di::engine
