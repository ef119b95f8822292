// What can always be read from a set of items, whatever its characters are: subtrees of the vocabulary's trie made of
// such characters need no walk (structured-output.md §2.4).
#include <algorithm>
#include <bit>

#include "structured/grammar/parser.h"

namespace di::structured {
namespace {

// Of JSON strings: raw, without a backslash.
TextKind unescaped(TextKind k) {
  TextKind quoted;
  for (uint32_t c = 0; c < 0x20; ++c) quoted.add_ascii(c);
  quoted.add_ascii('"');
  quoted.add_ascii('\\');
  for (size_t w = 0; w < 2; ++w) k.ascii[w] &= ~quoted.ascii[w];
  return k;
}

bool none(const TextKind& k) {
  return (k.ascii[0] | k.ascii[1]) == 0 && !k.wide;
}

bool covered(const Loop& loop, const std::vector<Loop>& by) {
  return std::ranges::any_of(by, [&](const Loop& l) { return loop.limit <= l.limit && loop.chars.within(l.chars); });
}

}  // namespace

// The characters that one round of a repeated expression may be.
const TextKind& Parser::chars_of(NodeId body) {
  const auto [it, fresh] = chars_of_.try_emplace(body);
  if (!fresh) return it->second;
  TextKind k;
  const NodeId* row = arena_.row(body);
  for (uint32_t c = 0; c < 0x80; ++c) {
    if (row[c] == kEmptyText) k.add_ascii(c);
  }
  if (row[0xe4] != kNothing) {
    if (wide_ == kNothing) wide_ = utf8_class(arena_, wide_chars());
    k.wide = arena_.included(wide_, body) && !arena_.budget().exhausted();
  }
  return chars_of_[body] = k;
}

// ASCII characters after which the expression is the same again.
TextKind Parser::returning(NodeId id) {
  TextKind k;
  const NodeId* row = arena_.row(id);
  for (uint32_t c = 0; c < 0x80; ++c) {
    if (row[c] == id) k.add_ascii(c);
  }
  return k;
}

// Of a conjunction: what every part can read without losing its end.
Loop Parser::common_loop(NodeId id) {
  Loop loop{{{UINT64_MAX, UINT64_MAX}, false, false, 0}, kNoLimit};
  for (uint32_t i = 0; i < arena_.node(id).b; ++i) {
    const NodeId kid = arena_.children(id)[i];
    const Node n = arena_.node(kid);
    TextKind k;
    if (n.kind == NodeKind::kRepeat && !n.boolean) {
      k = chars_of(n.a);
      loop.limit = std::min(loop.limit, n.max);
    } else if (n.nullable) {
      k = returning(kid);
    }
    for (size_t w = 0; w < 2; ++w) loop.chars.ascii[w] &= k.ascii[w];
    if ((loop.chars.ascii[0] | loop.chars.ascii[1]) == 0) break;
  }
  return loop;
}

void Parser::add_loops(NodeId id, bool in_string, int depth, std::vector<Loop>& out) {
  constexpr size_t kMost = 4;
  constexpr int kDeepest = 8;
  if (depth > kDeepest || out.size() >= kMost) return;
  const Node n = arena_.node(id);
  switch (n.kind) {
    case NodeKind::kAnything:
      out.push_back({{{UINT64_MAX, UINT64_MAX}, true, false, 0}, kNoLimit});
      break;
    case NodeKind::kRepeat: {
      if (n.boolean) break;
      Loop loop{chars_of(n.a), n.max};
      if (in_string) loop.chars = unescaped(loop.chars);
      if (!none(loop.chars) && !covered(loop, out)) out.push_back(loop);
      break;
    }
    case NodeKind::kConcat:
      if (arena_.node(n.b).boolean && arena_.is_nothing(n.b)) break;
      add_loops(n.a, in_string, depth + 1, out);
      if (arena_.nullable(n.a)) add_loops(n.b, in_string, depth + 1, out);
      break;
    case NodeKind::kAlt:
      for (uint32_t i = 0; i < n.b; ++i) add_loops(arena_.children(id)[i], in_string, depth + 1, out);
      break;
    case NodeKind::kAnd: {
      Loop loop = common_loop(id);
      if (in_string) loop.chars = unescaped(loop.chars);
      if (!none(loop.chars) && !covered(loop, out)) out.push_back(loop);
      break;
    }
    case NodeKind::kJsonString:
      if (n.min == 0 && !in_string) add_loops(n.a, true, depth + 1, out);
      break;
    default:
      break;
  }
}

// Whether the expression is the same again after any one character of wide_chars().
bool Parser::wide_chars_return(NodeId lexeme) {
  if (arena_.row(lexeme)[0xe4] == kNothing) return false;
  if (wide_ == kNothing) wide_ = utf8_class(arena_, wide_chars());
  // Pairs of the class's automaton and the lexeme's, byte by byte.
  std::vector<std::pair<NodeId, NodeId>> work{{wide_, lexeme}};
  for (size_t i = 0; i < work.size(); ++i) {
    const NodeId* chars = arena_.row(work[i].first);
    const NodeId* row = arena_.row(work[i].second);
    if (arena_.budget().exhausted()) return false;
    for (size_t b = 0x80; b < 256; ++b) {
      if (chars[b] == kNothing) continue;
      if (row[b] == kNothing || (chars[b] == kEmptyText && row[b] != lexeme)) return false;
      if (chars[b] == kEmptyText) continue;
      if (const std::pair pair{chars[b], row[b]}; std::ranges::find(work, pair) == work.end()) work.push_back(pair);
    }
  }
  return true;
}

const std::vector<Loop>& Parser::loops_of(NodeId lexeme) {
  const auto [it, fresh] = loops_.try_emplace(lexeme);
  if (!fresh) return it->second;
  std::vector<Loop> found;
  add_loops(lexeme, false, 0, found);
  Loop same{returning(lexeme), kNoLimit};
  const int characters = std::popcount(same.chars.ascii[0]) + std::popcount(same.chars.ascii[1]);
  same.chars.wide = true;
  if (characters > 1 && !covered(same, found)) {
    same.chars.wide = wide_chars_return(lexeme);
    if (!covered(same, found)) found.push_back(same);
  }
  std::vector<Loop>& kept = loops_[lexeme];
  if (!arena_.budget().exhausted()) kept = std::move(found);
  return kept;
}

const ItemSet& Parser::with_loops(SetId id) {
  constexpr size_t kMost = 6;
  ItemSet& s = *sets_[id];
  if (s.loops_made) return s;
  for (const Item& i : s.lexemes) {
    for (const Loop& l : loops_of(i.what)) {
      if (s.loops.size() < kMost && !covered(l, s.loops)) s.loops.push_back(l);
    }
  }
  for (size_t k = 0; k < kSlices; ++k) {
    const Slice& slice = vocabulary_.slices[k];
    if (covered({slice.chars, slice.max_chars}, s.loops)) s.slices |= static_cast<uint8_t>(1U << k);
  }
  s.loops_made = true;
  return s;
}

// Whether every token below can be read to its end, from this byte on.
bool Parser::takes(const ItemSet& s, const Trie& trie, const TrieNode& n) const {
  if ((n.inside & s.slices) != 0) return true;
  if (n.kind == kNoKind) return false;
  const TextKind& kind = trie.kinds[n.kind];
  return std::ranges::any_of(s.loops, [&](const Loop& l) { return kind.chars <= l.limit && kind.within(l.chars); });
}

}  // namespace di::structured
