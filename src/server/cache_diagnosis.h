// Why a Responses request found less of its prompt in a cache than the one it is compared with (server.md §6,
// `prompt_cache_options.comparison_response_id`): told from hashes of both, without a word of either.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace di::server {

// What is kept of a prompt.
struct PromptMarks {
  static constexpr int64_t kSegmentTokens = 64;

  std::vector<uint64_t> segments;  // hash of the tokens up to the end of each whole segment
  int64_t tokens = 0;
  // Hashes of what the request says of these; 0: nothing.
  uint64_t model = 0;
  uint64_t cache_key = 0;
  uint64_t tools = 0;
  uint64_t text_format = 0;
  uint64_t effort = 0;
  uint64_t verbosity = 0;
  uint64_t service_tier = 0;
  bool compacted = false;  // its input holds an item that stands for others
};

// Of a Responses body and its prompt.
PromptMarks prompt_marks(const Json& body, std::span<const int32_t> prompt);

// {"type":"cache_hit"} where all of the earlier prompt's segments begin this one too (the shorter of both counts), else
// the reason and how many tokens come after the last common segment.
Json cache_diagnosis(const PromptMarks& earlier, const PromptMarks& now);

// The latest prompts of all tenants, oldest first out. Thread-safe.
class PromptHistory {
 public:
  explicit PromptHistory(int64_t most) : most_(most) {}
  bool enabled() const { return most_ > 0; }
  void put(std::string id, std::string tenant, PromptMarks marks);
  // Of that tenant only.
  std::optional<PromptMarks> get(std::string_view tenant, std::string_view id) const;

 private:
  struct Entry {
    std::string id;
    std::string tenant;
    PromptMarks marks;
  };
  const int64_t most_;
  mutable std::mutex mutex_;  // guards entries_
  std::deque<Entry> entries_;
};

}  // namespace di::server
