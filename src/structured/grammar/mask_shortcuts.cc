// Masks that need no walk of the whole vocabulary: inside strings, under a bound on the length, and near a set whose
// mask is known (structured-output.md §2.4).
#include <algorithm>

#include "structured/grammar/parser.h"

namespace di::structured {
namespace {

NodeId head_of(const Arena& arena, NodeId lexeme) {
  const Node& n = arena.node(lexeme);
  return n.kind == NodeKind::kConcat ? n.a : lexeme;
}

// The lexeme with another head.
NodeId with_head(Arena& arena, NodeId lexeme, NodeId head) {
  const Node n = arena.node(lexeme);
  return n.kind == NodeKind::kConcat ? arena.concat(head, n.b) : head;
}

// A head that stands between two characters of a JSON string.
bool between_chars(const Node& head) {
  return head.kind == NodeKind::kJsonString && head.min == 0;
}

}  // namespace

// The only lexeme stands in a string that takes any characters, or any up to a number: the vocabulary knows what stays
// inside, only tokens with a quotation mark are walked.
bool Parser::mask_in_string(SetId id) {
  if (sets_[id]->lexemes.size() != 1) return false;
  const NodeId head = head_of(arena_, sets_[id]->lexemes[0].what);
  const StringTokens& strings = vocabulary_.strings;
  uint32_t room = kNoLimit;
  if (head == free_content_) {
    draft_.start(&strings.free);
  } else {
    if (!between_chars(arena_.node(head))) return false;
    const Node& text = arena_.node(arena_.node(head).a);
    if (text.kind != NodeKind::kRepeat || text.a != arena_.any_char()) return false;
    room = text.max;
    draft_.start(&strings.written[std::min(room, kFewChars)]);
  }
  if (head != free_content_ && room > kFewChars) {
    for (const StringTokens::Long& t : strings.longer) {
      if (t.decoded <= room && t.decoded != kNoLimit) draft_.set(t.token);
    }
  }
  walk(strings.quoted, id, -1, false);
  return true;
}

// The only lexeme is an expression together with a bound on the length of the string. The mask is that of the
// expression alone but for tokens that do not leave room for its end; far from the bound these are long ones.
bool Parser::mask_of_bounded(SetId id) {
  if (sets_[id]->lexemes.size() != 1) return false;
  Item item = sets_[id]->lexemes[0];
  if (item.origin == kHere) return false;
  const NodeId head = head_of(arena_, item.what);
  const bool quoted = between_chars(arena_.node(head));
  const NodeId text = quoted ? arena_.node(head).a : head;
  if (arena_.node(text).kind != NodeKind::kAnd) return false;
  uint32_t room = kNoLimit;
  std::vector<NodeId> others;
  for (const NodeId kid : arena_.children(text)) {
    const Node& n = arena_.node(kid);
    if (n.kind == NodeKind::kRepeat && n.a == arena_.any_char()) {
      if (n.min != 0 || n.max == kNoLimit) return false;
      room = n.max;
    } else {
      others.push_back(kid);
    }
  }
  if (room == kNoLimit) return false;
  const NodeId loose_text = arena_.both(std::move(others));
  const uint32_t ends = arena_.node(loose_text).ends;
  if (ends == kNoLimit || arena_.node(loose_text).boolean) return false;
  item.what = with_head(arena_, item.what, quoted ? arena_.json_string(loose_text) : loose_text);
  if (!quoted && uint64_t{room} < uint64_t{kFewChars} + ends) return false;
  const SetId loose = only({&item, 1});
  if (failed_ || loose == kDeadSet || !make_mask(loose)) return false;
  // With little room left most tokens are too long: then those that fit are looked for, not those that do not.
  constexpr uint32_t kLittle = 3;
  const bool little = quoted && room < kLittle + ends;
  if (little) {
    draft_.start(nullptr);
  } else {
    draft_.start(sets_[loose]->base, sets_[loose]->changed);
  }
  if (quoted) {
    walk_counted(id, loose, room, ends, little);
    return true;
  }
  for (const StringTokens::Long& t : vocabulary_.strings.longer) {
    if (!draft_.has(t.token) || uint64_t{t.chars} + ends <= room) continue;
    if (step_bytes(id, vocabulary_.tokens[static_cast<size_t>(t.token)].bytes) == kDeadSet) draft_.clear(t.token);
  }
  return true;
}

// Follows the set without the bound and counts characters beside it. Where the count alone does not decide, the bounded
// set does. from_nothing: the draft is empty; otherwise it holds what goes without the bound.
void Parser::walk_counted(SetId id, SetId loose, uint32_t room, uint32_t ends, bool from_nothing) {
  struct At {
    SetId set = kDeadSet;
    uint32_t chars = 0;
    bool inside = true;   // the string has not ended
    bool between = true;  // not within an escape
  };
  std::array<At, 257> path{};
  path[0].set = loose;
  const Trie& trie = vocabulary_.trie;
  const auto& nodes = trie.nodes;
  for (uint32_t i = 0; i < nodes.size();) {
    const TrieNode& n = nodes[i];
    const At& from = path[n.depth];
    // Escapes take more bytes than characters: a string never has more of these than the token.
    if (!from_nothing && (!from.inside || uint64_t{from.chars} + n.chars + ends <= room)) {
      i = n.skip;
      continue;
    }
    At to = from;
    to.set = step(from.set, n.byte);
    NodeId text = kNothing;
    if (to.set != kDeadSet && from.inside) {
      if (from.between && n.byte == '"') {
        to.inside = to.between = false;
      } else {
        if (from.between && (n.byte & 0xc0U) != 0x80) ++to.chars;
        const NodeId head = head_of(arena_, sets_[to.set]->lexemes[0].what);
        to.between = between_chars(arena_.node(head));
        if (to.between) text = arena_.node(head).a;
      }
    }
    if (to.set == kDeadSet || to.chars > room) {
      if (failed_) return;
      if (!from_nothing && to.set != kDeadSet) draft_.clear(trie.below(n));
      i = n.skip;
      continue;
    }
    path[n.depth + 1U] = to;
    if (n.token >= 0) {
      const bool fits = !to.inside || fits_room(text, room - to.chars, ends, id, n.token);
      if (fits && from_nothing) draft_.set(n.token);
      if (!fits && !from_nothing) draft_.clear(n.token);
    }
    ++i;
  }
}

// Whether the rest of a string, `text` where it is known, has an end within `room` characters.
bool Parser::fits_room(NodeId text, uint32_t room, uint32_t ends, SetId bounded, TokenId token) {
  if (ends <= room) return true;
  if (text != kNothing) {
    const Node& n = arena_.node(text);
    if (n.shortest != kNoLimit && n.shortest <= room) return true;
    if (n.min_chars > room) return false;
  }
  return step_bytes(bounded, vocabulary_.tokens[static_cast<size_t>(token)].bytes) != kDeadSet;
}

// The lexeme without the texts that it excludes; of alternatives the one that takes any string. kNothing: no such part.
NodeId Parser::without_exceptions(NodeId lexeme) {
  const Node n = arena_.node(lexeme);
  if (n.kind == NodeKind::kAlt) {
    for (uint32_t i = 0; i < n.b; ++i) {
      const NodeId kid = arena_.children(lexeme)[i];
      const NodeId head = head_of(arena_, kid);
      if (head == free_content_ || between_chars(arena_.node(head))) return without_exceptions(kid);
    }
    return kNothing;
  }
  const NodeId head = head_of(arena_, lexeme);
  if (head == free_content_) return lexeme;
  if (!between_chars(arena_.node(head))) return kNothing;
  const NodeId text = arena_.node(head).a;
  if (arena_.node(text).kind != NodeKind::kAnd) return lexeme;
  std::vector<NodeId> kept{arena_.any_text()};
  for (const NodeId kid : arena_.children(text)) {
    if (arena_.node(kid).kind != NodeKind::kNot) kept.push_back(kid);
  }
  return with_head(arena_, lexeme, arena_.json_string(arena_.both(std::move(kept))));
}

// Whether a lexeme without the particular texts that it excludes takes the same as long as the string goes on: a text
// can always be made longer than those.
bool Parser::same_inside(NodeId lexeme) const {
  if (arena_.node(lexeme).kind == NodeKind::kAlt) {
    return std::ranges::all_of(arena_.children(lexeme),
                               [&](NodeId kid) { return plain_name(kid) || same_inside(kid); });
  }
  const NodeId head = head_of(arena_, lexeme);
  if (head == free_content_) return true;
  if (!between_chars(arena_.node(head))) return false;
  const NodeId text = arena_.node(head).a;
  if (arena_.node(text).kind != NodeKind::kAnd) return true;
  return std::ranges::all_of(arena_.children(text), [&](NodeId kid) {
    const Node& n = arena_.node(kid);
    return kid == arena_.any_text() || (n.kind == NodeKind::kNot && arena_.node(n.a).max_chars != kNoLimit);
  });
}

// A particular text up to a quotation mark, with nothing in it that is written in another way.
bool Parser::plain_name(NodeId lexeme) const {
  for (NodeId at = lexeme;; at = arena_.node(at).b) {
    const ByteSet* first = arena_.begins_with(at);
    if (first == nullptr) return false;
    if (*first == ByteSet::of('"')) return true;
    if (first->words[0] << 32U != 0 || first->has('"') || first->has('\\')) return false;
  }
}

// Some of the lexemes take (nearly) any string, the others are particular texts: names of members beside any other
// name. The mask is that of the former alone but along the particular texts.
bool Parser::mask_near_wide(SetId id) {
  const ItemSet& s = *sets_[id];
  if (!s.waiting.empty()) return false;
  std::vector<Item> wide;
  bool exact = true;
  bool all = false;  // one takes any string
  bool same = true;  // only what has a quotation mark can differ
  for (const Item& item : s.lexemes) {
    const NodeId loose = without_exceptions(item.what);
    exact = exact && loose == item.what;
    if (loose == kNothing) {
      same = same && plain_name(item.what);
      continue;
    }
    if (item.origin == kHere) return false;
    const NodeId head = head_of(arena_, loose);
    all = all || head == free_content_ || arena_.node(head).a == arena_.any_text();
    same = same && (loose == item.what || same_inside(item.what));
    wide.push_back(item);
    wide.back().what = loose;
  }
  if (wide.empty() || exact) return false;
  const SetId other = only(wide);
  if (failed_ || other == kDeadSet || other == id || !make_mask(other)) return false;
  draft_.start(sets_[other]->base, sets_[other]->changed);
  walk_difference(same && all ? vocabulary_.strings.quoted : vocabulary_.trie, id, other);
  return true;
}

// The only lexeme is a multiple of a large divisor. The mask is that of its other parts but for tokens after which no
// multiple fits, which needs no states of the remainders: these would be new for each number.
bool Parser::mask_of_multiple(SetId id) {
  if (sets_[id]->lexemes.size() != 1) return false;
  Item item = sets_[id]->lexemes[0];
  const auto m = arena_.multiple(item.what);
  if (!m || item.origin == kHere) return false;
  item.what = m->others;
  const SetId loose = only({&item, 1});
  if (failed_ || loose == kDeadSet || !make_mask(loose)) return false;
  draft_.start(sets_[loose]->base, sets_[loose]->changed);
  struct At {
    NodeId others = kNothing;
    Remainder at;
  };
  std::array<At, 257> path{};
  path[0] = {m->others, m->at};
  const Trie& trie = vocabulary_.trie;
  for (uint32_t i = 0; i < trie.nodes.size();) {
    const TrieNode& n = trie.nodes[i];
    const At& from = path[n.depth];
    const auto next = Arena::after(m->divisor, from.at, n.byte);
    const NodeId others = next ? arena_.step(from.others, n.byte) : kNothing;
    if (others == kNothing) {
      // Nowhere, or past the end of the number; that does not end before the first byte.
      const bool nowhere = n.depth == 0 && sets_[loose]->live.has(n.byte);
      if (nowhere) draft_.clear(trie.below(n));
      for (const TokenId token : n.depth == 0 ? std::span<const TokenId>{} : trie.below(n)) {
        if (draft_.has(token) && step_bytes(id, vocabulary_.tokens[static_cast<size_t>(token)].bytes) == kDeadSet)
          draft_.clear(token);
      }
      i = n.skip;
      continue;
    }
    path[n.depth + 1U] = {others, *next};
    if (n.token >= 0 && draft_.has(n.token) && !arena_.multiple_fits(others, m->divisor, *next)) draft_.clear(n.token);
    failed_ = failed_ || arena_.budget().exhausted();
    if (failed_) return true;
    ++i;
  }
  return true;
}

// Turns the mask of `other` into that of `from`: only where both lead to different sets is there anything to do.
void Parser::walk_difference(const Trie& trie, SetId from, SetId other) {
  std::array<std::pair<SetId, SetId>, 257> path{};
  path[0] = {from, other};
  for (uint32_t i = 0; i < trie.nodes.size();) {
    const TrieNode& n = trie.nodes[i];
    const auto [from_a, from_b] = path[n.depth];
    // A set whose bytes are all open has a table; others have no loops worth a look.
    if (sets_[from_a]->next != nullptr && takes(with_loops(from_a), trie, n)) {
      if (!takes(with_loops(from_b), trie, n)) draft_.set(trie.below(n));
      i = n.skip;
      continue;
    }
    const SetId a = step(from_a, n.byte);
    const SetId b = step(from_b, n.byte);
    if (failed_) return;
    if (a == b || a == kDeadSet) {
      if (a != b) {
        draft_.clear(trie.below(n));
      }
      i = n.skip;
      continue;
    }
    path[n.depth + 1U] = {a, b};
    if (n.token >= 0) draft_.set(n.token);
    ++i;
  }
}

}  // namespace di::structured
