// Masks: a walk of the vocabulary's trie with the parser's automaton, shortened by slices (structured-output.md §2.4).
#include <algorithm>

#include "structured/grammar/parser.h"

namespace di::structured {
namespace {

constexpr uint8_t kEndless = 255;
constexpr uint32_t kLookedAt = 16;  // characters

// Bytes of a character still to come after `byte`, given those due before it.
uint32_t pending_after(uint8_t byte, uint32_t before) {
  if (byte < 0x80) return 0;
  if (byte < 0xc0) return before > 0 ? before - 1 : 0;
  return byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : 1;
}

}  // namespace

bool Parser::holds_class(NodeId node, size_t slice) {
  const auto it = class_memo_[slice].find(node);
  if (it != class_memo_[slice].end()) return it->second;
  const bool yes = arena_.included(slice_chars_[slice], node);
  class_memo_[slice].emplace(node, yes);
  return yes;
}

uint8_t Parser::reach_node(NodeId node, size_t slice, int depth) {
  if (node <= kEmptyText) return 0;
  if (node == kAllBytes) return kEndless;
  if (depth > 24) return 0;
  const auto it = reach_memo_[slice].find(node);
  if (it != reach_memo_[slice].end()) return it->second;
  const uint8_t r = reach_of(node, slice, depth);
  reach_memo_[slice].emplace(node, r);
  return r;
}

// A lower bound for the number of characters of the class that can be read whatever they are, with a way on after each.
uint8_t Parser::reach_of(NodeId id, size_t slice, int depth) {
  const Node n = arena_.node(id);
  auto capped = [](uint64_t v) { return static_cast<uint8_t>(std::min<uint64_t>(v, 200)); };
  switch (n.kind) {
    case NodeKind::kRepeat:
      if (n.boolean || !holds_class(n.a, slice)) return 0;
      return n.max == kNoLimit ? kEndless : capped(n.max);
    case NodeKind::kConcat: {
      const uint8_t head = reach_node(n.a, slice, depth + 1);
      if (head == kEndless) return kEndless;
      uint8_t tail = 0;
      if (arena_.nullable(n.a)) tail = reach_node(n.b, slice, depth + 1);
      return std::max(head, tail);
    }
    case NodeKind::kAlt: {
      uint8_t best = 0;
      for (uint32_t i = 0; i < n.b && best != kEndless; ++i) {
        best = std::max(best, reach_node(arena_.children(id)[i], slice, depth + 1));
      }
      return best;
    }
    case NodeKind::kJsonString:
      return n.min == 0 ? reach_node(n.a, slice, depth + 1) : uint8_t{0};
    default:
      return 0;
  }
}

// The nodes after one character of the class, whatever it is; nothing when some character cannot be read.
const std::vector<NodeId>* Parser::after_char(NodeId node, size_t slice) {
  const auto it = after_char_[slice].find(node);
  if (it != after_char_[slice].end()) return it->second.empty() ? nullptr : &it->second;
  std::vector<NodeId> found;
  // Pairs of the class's automaton (one character) and the lexeme's, byte by byte.
  std::vector<std::pair<NodeId, NodeId>> work{{slice_chars_[slice], node}};
  bool whole = true;
  for (size_t i = 0; i < work.size() && whole; ++i) {
    const NodeId* chars = arena_.row(work[i].first);
    const NodeId* row = arena_.row(work[i].second);
    for (size_t b = 0; b < 256 && whole; ++b) {
      if (chars[b] == kNothing) continue;
      if (row[b] <= kEmptyText) {
        whole = false;
      } else if (chars[b] == kEmptyText) {
        if (std::ranges::find(found, row[b]) == found.end()) found.push_back(row[b]);
      } else if (const std::pair pair{chars[b], row[b]}; std::ranges::find(work, pair) == work.end()) {
        work.push_back(pair);
      }
    }
    whole = whole && !arena_.budget().exhausted();
  }
  if (!whole) found.clear();
  const auto& kept = after_char_[slice].emplace(node, std::move(found)).first->second;
  return kept.empty() ? nullptr : &kept;
}

// Whether any `chars` characters of the class can be read from here. Recursion is as deep as that: at most 16.
bool Parser::can_read(NodeId node, size_t slice, uint32_t chars) {
  if (chars == 0 || node == kAllBytes) return true;
  Readable& known = readable_[slice][node];
  if (chars <= known.yes) return true;
  if (chars >= known.no) return false;
  const std::vector<NodeId>* next = after_char(node, slice);
  bool all = next != nullptr;
  for (size_t i = 0; all && i < next->size(); ++i) all = can_read((*next)[i], slice, chars - 1);
  Readable& again = readable_[slice][node];
  if (all) again.yes = std::max(again.yes, static_cast<uint8_t>(chars));
  if (!all) again.no = std::min(again.no, static_cast<uint8_t>(chars));
  return all;
}

// A conjunction with a bound on the length: every place has states of its own.
bool Parser::has_length_bound(NodeId id) const {
  Node n = arena_.node(id);
  if (n.kind == NodeKind::kJsonString) {
    id = n.a;
    n = arena_.node(id);
  }
  return n.kind == NodeKind::kAnd && std::ranges::any_of(arena_.children(id), [&](NodeId kid) {
           const Node& k = arena_.node(kid);
           return k.kind == NodeKind::kRepeat && k.max != kNoLimit;
         });
}

uint32_t Parser::reach(SetId id, size_t slice, uint32_t pending) {
  ItemSet& s = *sets_[id];
  const size_t slot = pending == 0 ? slice : kSlices + slice;
  if (s.reach_known[slot]) return s.reach[slot];
  uint8_t best = 0;
  // Every slice has these letters.
  const auto takes = [&](uint8_t letter) { return step(id, letter) != kDeadSet; };
  if (pending == 0 && takes('q') && takes('e') && takes('z')) {
    for (size_t i = 0; i < s.lexemes.size() && best != kEndless; ++i) {
      best = std::max(best, reach_node(s.lexemes[i].what, slice, 0));
    }
    // What its form does not show, a look at the successors may: patterns with lengths, formats.
    const uint32_t wanted = vocabulary_.slices[slice].max_chars;
    for (size_t i = 0; i < s.lexemes.size() && best < wanted && wanted <= kLookedAt; ++i) {
      if (has_length_bound(s.lexemes[i].what)) continue;  // costly; known by its form
      if (can_read(s.lexemes[i].what, slice, wanted)) best = static_cast<uint8_t>(wanted);
    }
  } else if (pending > 0) {
    // Inside a character: every way to finish it must reach as far.
    best = kEndless;
    for (uint32_t b = 0x80; b <= 0xbf && best != 0; ++b) {
      const SetId to = step(id, static_cast<uint8_t>(b));
      best = to == kDeadSet ? uint8_t{0} : std::min(best, static_cast<uint8_t>(reach(to, slice, pending - 1)));
    }
  }
  ItemSet& again = *sets_[id];
  again.reach[slot] = best;
  again.reach_known[slot] = true;
  return best;
}

// slice >= 0: the draft holds that slice already, refused tokens are taken out again.
void Parser::walk(const Trie& trie, SetId from, int slice) {
  std::array<SetId, 257> path{};
  std::array<const ItemSet*, 257> sets{};
  std::array<uint8_t, 257> pending{};
  path[0] = from;
  sets[0] = sets_[from];
  step(from, 0);  // opens it
  const auto& nodes = trie.nodes;
  for (const uint32_t top : trie.root) {
    for (uint32_t i = top; i < (top == UINT32_MAX ? 0 : nodes[top].skip);) {
      const TrieNode& n = nodes[i];
      const SetId to = sets[n.depth]->live.has(n.byte) ? step(path[n.depth], n.byte) : kDeadSet;
      if (to == kDeadSet) {
        if (failed_) return;
        if (slice >= 0) draft_.clear(trie.below(n));
        i = n.skip;
        continue;
      }
      path[n.depth + 1U] = to;
      sets[n.depth + 1U] = sets_[to];
      pending[n.depth + 1U] = static_cast<uint8_t>(pending_after(n.byte, pending[n.depth]));
      if (n.token >= 0) draft_.set(n.token);
      if (n.inside != 0 && n.last - n.first > 1 && (slice >= 0 || n.last - n.first > 24)) {
        bool whole = false;
        for (size_t k = 0; k < kSlices && !whole; ++k) {
          if (((n.inside >> k) & 1U) == 0 || reach(to, k, pending[n.depth + 1U]) < vocabulary_.slices[k].max_chars)
            continue;
          whole = true;
          if (slice != static_cast<int>(k)) draft_.set(trie.below(n));
        }
        if (whole) {
          i = n.skip;
          continue;
        }
      }
      ++i;
    }
  }
}

// The slice to start from when most of its tokens go through after their first byte, else -1.
int Parser::pick_slice(SetId from) {
  const Trie& trie = vocabulary_.trie;
  std::array<size_t, 2> good{};
  size_t possible = 0;
  step(from, 0);  // opens it
  for (const uint32_t top : trie.root) {
    if (top != UINT32_MAX && sets_[from]->live.has(trie.nodes[top].byte))
      possible += trie.nodes[top].last - trie.nodes[top].first;
  }
  if (possible <= trie.order.size() / 2) return -1;
  for (uint32_t i = 0; i < trie.nodes.size(); i = trie.nodes[i].skip) {
    const TrieNode& n = trie.nodes[i];
    const SetId to = step(from, n.byte);
    if (to == kDeadSet) continue;
    for (size_t k = 0; k < 2; ++k) {
      if (reach(to, k, pending_after(n.byte, 0)) >= vocabulary_.slices[k].max_chars) good[k] += n.last - n.first;
    }
  }
  for (size_t k = 0; k < 2; ++k) {
    if (good[k] > trie.order.size() / 2) return static_cast<int>(k);
  }
  return -1;
}

bool Parser::walk_all(SetId id) {
  for (size_t k = 0; k < kSlices; ++k) {
    const Slice& s = vocabulary_.slices[k];
    if (reach(id, k, 0) < s.max_chars) continue;
    draft_.start(&s.mask);
    walk(vocabulary_.rest(k), id, -1);
    return !failed_;
  }
  const int slice = pick_slice(id);
  draft_.start(slice >= 0 ? &vocabulary_.slices[static_cast<size_t>(slice)].mask : nullptr);
  walk(vocabulary_.trie, id, slice);
  return !failed_;
}

bool Parser::make_mask(SetId id) {
  if (sets_[id]->mask_made) return true;
  if (takes_everything(id)) {
    draft_.start(&vocabulary_.ordinary_mask);
  } else if (sets_[id]->lexemes.empty()) {
    draft_.start(nullptr);
  } else if (!mask_in_string(id) && !mask_of_bounded(id) && !mask_near_wide(id) && !walk_all(id)) {
    return false;
  }
  if (failed_) return false;
  for (const Item& t : sets_[id]->tokens) {
    for (const TokenId token : grammar_.token_sets[t.what]) {
      if (token >= 0 && static_cast<size_t>(token) < vocabulary_.tokens.size()) draft_.set(token);
    }
  }
  ItemSet& s = *sets_[id];
  s.mask_made = true;
  s.base = draft_.base();
  constexpr size_t kMany = 1024;
  if (draft_.touched() >= 4 * kMany) {
    s.dense = std::make_unique<std::vector<uint32_t>>(draft_.take_whole());
    s.base = s.dense.get();
    bytes_ += static_cast<int64_t>(4 * s.dense->size() + 24);
    return true;
  }
  s.changed = draft_.take_changes();
  bytes_ += static_cast<int64_t>(4 * s.changed.size());
  return true;
}

void Parser::read_mask(SetId id, std::span<uint32_t> row) const {
  const ItemSet& s = *sets_[id];
  const size_t known = s.base != nullptr ? std::min(row.size(), s.base->size()) : 0;
  if (known > 0) std::copy_n(s.base->begin(), known, row.begin());
  std::fill(row.begin() + static_cast<std::ptrdiff_t>(known), row.end(), 0U);
  for (const TokenId token : s.changed) {
    const auto i = static_cast<uint32_t>(token);
    if (i >> 5U < row.size()) row[i >> 5U] ^= 1U << (i & 31U);
  }
}

}  // namespace di::structured
