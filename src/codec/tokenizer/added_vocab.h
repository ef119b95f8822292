// Finds added-token spellings in text: leftmost, longest (recipe.md §1.2, "Full" encoding). Immutable after building.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "codec/token.h"

namespace di::codec {

class SpellingFinder {
 public:
  SpellingFinder() = default;

  void add(std::string_view spelling, TokenId id);
  bool empty() const { return nodes_.size() <= 1; }

  struct Match {
    size_t begin = 0;
    size_t end = 0;  // begin == end: none
    TokenId id = -1;
  };
  // First match at or after `from`.
  Match find(std::string_view text, size_t from) const;

 private:
  struct Edge {
    char byte;
    uint32_t node;
  };
  struct Node {
    std::vector<Edge> edges;  // sorted by byte
    TokenId id = -1;
  };
  uint32_t child(uint32_t node, char byte) const;  // 0: none

  std::vector<Node> nodes_ = std::vector<Node>(1);
  uint32_t root_[256] = {};
};

}  // namespace di::codec
