#include "engine/handover.h"

#include <algorithm>
#include <cstddef>

#include "base/result.h"

namespace di::engine {

void hand_over(const HandoverRows& rows, const PreviousStep& previous, Handover& out) {
  const auto drafts = static_cast<size_t>(previous.max_drafts);
  out.lengths.clear();
  out.input_ids.clear();
  for (size_t i = 0; i < rows.remap.size(); ++i) {
    const int32_t count = rows.counts[i];
    DI_CHECK(count >= 1 && count <= previous.max_drafts + 1, "sequence {} has {} rows, at most {} can be handed over",
             i, count, previous.max_drafts + 1);
    int32_t length = rows.before[i] + count;
    if (rows.remap[i] < 0) {
      const auto ids = rows.fresh.subspan(i * (drafts + 1), static_cast<size_t>(count));
      out.input_ids.insert(out.input_ids.end(), ids.begin(), ids.end());
    } else {
      const auto group = static_cast<size_t>(rows.remap[i]);
      length -= previous.max_drafts - previous.accepted[group];
      out.input_ids.push_back(previous.sampled[group]);
      const auto ids = previous.drafts.subspan(group * drafts, static_cast<size_t>(count - 1));
      out.input_ids.insert(out.input_ids.end(), ids.begin(), ids.end());
    }
    out.lengths.push_back(length);
  }
}

std::vector<int32_t> graph_buckets(int32_t largest, int32_t interval) {
  std::vector<int32_t> sizes;
  for (int32_t size = 1; size < std::min(interval, largest); size *= 2) sizes.push_back(size);
  for (int32_t size = interval; size < largest; size += interval) sizes.push_back(size);
  sizes.push_back(largest);
  return sizes;
}

}  // namespace di::engine
