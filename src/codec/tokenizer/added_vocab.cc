#include "codec/tokenizer/added_vocab.h"

#include <algorithm>

namespace di::codec {

uint32_t SpellingFinder::child(uint32_t node, char byte) const {
  const auto& edges = nodes_[node].edges;
  const auto at = std::lower_bound(edges.begin(), edges.end(), byte, [](const Edge& e, char b) { return e.byte < b; });
  return at != edges.end() && at->byte == byte ? at->node : 0;
}

void SpellingFinder::add(std::string_view spelling, TokenId id) {
  if (spelling.empty()) return;
  uint32_t node = 0;
  for (const char byte : spelling) {
    uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      auto& edges = nodes_[node].edges;
      const auto at =
          std::lower_bound(edges.begin(), edges.end(), byte, [](const Edge& e, char b) { return e.byte < b; });
      edges.insert(at, Edge{byte, next});
      if (node == 0) root_[static_cast<unsigned char>(byte)] = next;
    }
    node = next;
  }
  if (nodes_[node].id < 0) nodes_[node].id = id;  // of equal spellings the first one counts
}

SpellingFinder::Match SpellingFinder::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    uint32_t node = root_[static_cast<unsigned char>(text[begin])];
    if (node == 0) [[likely]]
      continue;
    Match best;
    for (size_t at = begin + 1;; ++at) {
      if (nodes_[node].id >= 0) best = {begin, at, nodes_[node].id};
      if (at == text.size()) break;
      node = child(node, text[at]);
      if (node == 0) break;
    }
    if (best.id >= 0) return best;
  }
  return {text.size(), text.size(), -1};
}

}  // namespace di::codec
