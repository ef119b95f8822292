// Inside of a Vocabulary: the byte trie in depth-first order and the slices (structured-output.md §2.4).
#pragma once

#include <array>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "structured/regex/arena.h"
#include "structured/regex/char_set.h"
#include "structured/structured.h"

namespace di::structured {

// Depth-first array: children of node i start at i + 1, skip leads behind its subtree.
struct TrieNode {
  uint32_t skip = 0;
  int32_t token = -1;
  uint32_t first = 0;  // tokens of the subtree: order[first..last)
  uint32_t last = 0;
  uint8_t byte = 0;
  uint8_t depth = 0;   // 0 for children of the root
  uint8_t inside = 0;  // bit k: all tokens of the subtree are texts of slice k
};

struct Trie {
  std::vector<TrieNode> nodes;
  std::vector<TokenId> order;        // tokens in trie order
  std::array<uint32_t, 256> root{};  // node of depth 0 by byte; UINT32_MAX: none

  std::span<const TokenId> below(const TrieNode& n) const {
    return std::span(order).subspan(n.first, n.last - n.first);
  }
};

// Tokens that are whole texts of one character class and at most max_chars long. An automaton state from which
// max_chars characters of the class can always be read takes them all without a walk.
struct Slice {
  CharSet chars;
  uint32_t max_chars = 0;
  std::vector<uint32_t> mask;
};

constexpr size_t kSlices = 4;
constexpr uint32_t kFewChars = 16;

// What can be read inside a JSON string without leaving it, from a place between two characters; what leaves it has a
// quotation mark.
struct StringTokens {
  std::vector<uint32_t> free;                                // every escape (regex/json_content.h)
  std::array<std::vector<uint32_t>, kFewChars + 1> written;  // canonical escapes; [n]: at most n characters
  struct Long {
    TokenId token = -1;
    uint32_t chars = 0;           // as plain text
    uint32_t decoded = kNoLimit;  // of the string, with canonical escapes
  };
  std::vector<Long> longer;  // ordinary tokens of more than kFewChars characters as plain text
  Trie quoted;               // tokens with a quotation mark
};

class VocabularyImpl {
 public:
  VocabularyImpl(std::vector<Vocabulary::Token> tokens, SpecialTokens specials);

  std::vector<Vocabulary::Token> tokens;
  SpecialTokens specials;
  std::unordered_map<std::string, TokenId> special_ids;
  std::vector<uint32_t> ordinary_mask;
  std::vector<uint32_t> no_mask;  // no token
  Trie trie;
  std::array<Slice, kSlices> slices;
  StringTokens strings;
  // The ordinary tokens that are not in slice k; made when first asked for, by any thread.
  const Trie& rest(size_t k) const;

 private:
  Trie build(std::span<const TokenId> sorted) const;
  void build_slices();
  void build_strings();

  mutable std::array<std::once_flag, kSlices> rest_once_;
  mutable std::array<Trie, kSlices> rest_;
};

}  // namespace di::structured
