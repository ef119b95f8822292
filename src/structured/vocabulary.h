// Inside of a Vocabulary: the byte trie in depth-first order and the slices (structured-output.md §2.4).
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "structured/regex/arena.h"
#include "structured/regex/char_set.h"
#include "structured/structured.h"

namespace di::structured {

// What texts are made of: ASCII characters, other characters by the two classes below, or more than that.
struct TextKind {
  std::array<uint64_t, 2> ascii{};
  bool wide = false;   // of wide_chars(), the last one perhaps only begun
  bool other = false;  // any other character, or a later part of one
  uint8_t chars = 0;   // so many characters at most

  void add_ascii(uint32_t c) { ascii[c >> 6U] |= uint64_t{1} << (c & 63U); }
  bool has_ascii(uint32_t c) const { return ((ascii[c >> 6U] >> (c & 63U)) & 1U) != 0; }
  // The characters of this are among those of `all`, whatever their number.
  bool within(const TextKind& all) const {
    return !other && (ascii[0] & ~all.ascii[0]) == 0 && (ascii[1] & ~all.ascii[1]) == 0 && (!wide || all.wide);
  }
};

// Beyond ASCII, but for what patterns treat apart: spaces, line separators, the byte order mark.
const CharSet& wide_chars();

constexpr uint32_t kNoKind = UINT32_MAX;

// Depth-first array: children of node i start at i + 1, skip leads behind its subtree.
struct TrieNode {
  uint32_t skip = 0;
  int32_t token = -1;
  uint32_t first = 0;  // tokens of the subtree: order[first..last)
  uint32_t last = 0;
  uint32_t kind = kNoKind;  // index in Trie::kinds for the rest of its tokens from this byte on; not for small subtrees
  uint8_t byte = 0;
  uint8_t depth = 0;   // 0 for children of the root
  uint8_t inside = 0;  // bit k: these rests are texts of slice k
  uint8_t chars = 0;   // characters that begin in them, at most
};

struct Trie {
  std::vector<TrieNode> nodes;
  std::vector<TokenId> order;  // tokens in trie order
  std::vector<TextKind> kinds;
  std::array<uint32_t, 256> root{};  // node of depth 0 by byte; UINT32_MAX: none

  std::span<const TokenId> below(const TrieNode& n) const {
    return std::span(order).subspan(n.first, n.last - n.first);
  }
};

// Tokens that are whole texts of one character class and at most max_chars long. An automaton state from which
// max_chars characters of the class can always be read takes them all without a walk.
struct Slice {
  TextKind chars;
  uint32_t max_chars = 0;
  std::vector<uint32_t> mask;
  std::array<uint32_t, 256> by_byte{};  // tokens of it that begin so
  uint32_t tokens = 0;
};

constexpr size_t kSlices = 5;
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

 private:
  Trie build(std::span<const TokenId> sorted) const;
  void find_kinds(Trie& t) const;
  void build_slices();
  void build_strings();
};

}  // namespace di::structured
