#include "structured/regex/arena.h"

#include <algorithm>

#include "structured/regex/char_set.h"

namespace di::structured {
namespace {

uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15ULL + (h << 6U) + (h >> 2U);
  return h * 0xff51afd7ed558ccdULL;
}

// Sums and products of lengths; kNoLimit stays.
uint32_t add(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(std::min<uint64_t>(uint64_t{a} + b, kNoLimit));
}
uint32_t times(uint32_t n, uint32_t a) {
  return a == 0 ? 0 : static_cast<uint32_t>(std::min<uint64_t>(uint64_t{n} * a, kNoLimit));
}

}  // namespace

Arena::Arena(Budget& budget) : budget_(budget) {
  slots_.assign(1024, 0);
  const Node nothing{};
  Node empty;
  empty.kind = NodeKind::kEmpty;
  empty.nullable = true;
  Node all;
  all.kind = NodeKind::kAnything;
  all.nullable = true;
  empty.max_chars = empty.shortest = empty.ends = 0;
  all.shortest = all.ends = 0;
  for (const Node& n : {nothing, empty, all}) {
    nodes_.push_back(n);
    hashes_.push_back(0);
    life_.push_back(n.kind == NodeKind::kNever ? Life::kDead : Life::kLive);
    raw_.emplace_back();
    rows_.emplace_back();
    same_row_.push_back(false);
  }
  any_char_ = utf8_class(*this, CharSet::all());
  // What is left of a character after some of its bytes has a row and an id below any_text_: see fits_length().
  std::vector<NodeId> work{any_char_};
  for (size_t i = 0; i < work.size(); ++i) {
    if (raw_[work[i]] != nullptr) continue;
    const NodeId* row = raw_row(work[i]);
    for (size_t b = 0; b < 256; ++b) {
      if (row[b] > kEmptyText && (b == 0 || row[b] != row[b - 1])) work.push_back(row[b]);
    }
  }
  any_text_ = star(any_char_);
}

void Arena::measure(Node& n) const {
  switch (n.kind) {
    case NodeKind::kBytes: {
      // A continuation byte belongs to a character counted before.
      const ByteSet& s = sets_[n.a];
      const bool begins = (s.words[0] | s.words[1] | s.words[3]) != 0;
      n.min_chars = s.words[2] == 0 ? 1 : 0;
      n.max_chars = n.shortest = n.ends = begins ? 1 : 0;
      break;
    }
    case NodeKind::kConcat: {
      const Node& a = nodes_[n.a];
      const Node& b = nodes_[n.b];
      n.min_chars = add(a.min_chars, b.min_chars);
      n.max_chars = add(a.max_chars, b.max_chars);
      n.shortest = add(a.shortest, b.shortest);
      n.ends = std::max(add(a.ends, b.shortest), b.ends);
      break;
    }
    case NodeKind::kAlt:
      n.min_chars = n.shortest = kNoLimit;
      n.max_chars = n.ends = 0;
      for (uint32_t i = 0; i < n.b; ++i) {
        const Node& kid = nodes_[kids_[n.a + i]];
        n.min_chars = std::min(n.min_chars, kid.min_chars);
        n.max_chars = std::max(n.max_chars, kid.max_chars);
        n.shortest = std::min(n.shortest, kid.shortest);
        n.ends = std::max(n.ends, kid.ends);
      }
      break;
    case NodeKind::kAnd:
      for (uint32_t i = 0; i < n.b; ++i) {
        const Node& kid = nodes_[kids_[n.a + i]];
        n.min_chars = std::max(n.min_chars, kid.min_chars);
        n.max_chars = std::min(n.max_chars, kid.max_chars);
      }
      break;
    case NodeKind::kRepeat: {
      const Node& body = nodes_[n.a];
      n.min_chars = times(n.min, body.min_chars);
      n.max_chars = n.max == kNoLimit ? kNoLimit : times(n.max, body.max_chars);
      n.shortest = times(n.min, body.shortest);
      n.ends = add(body.ends, n.min > 1 ? times(n.min - 1, body.shortest) : 0);
      break;
    }
    default:
      break;
  }
  if (n.nullable) n.shortest = n.min_chars = 0;
}

// Whether a conjunction has a text because one expression has a text that the other parts, which only bound the number
// of characters, leave room for. Spares the search through the product.
bool Arena::fits_length(const Node& n) const {
  if (n.kind != NodeKind::kAnd) return false;
  uint32_t room = kNoLimit;
  NodeId other = kNothing;
  for (uint32_t i = 0; i < n.b; ++i) {
    const NodeId id = kids_[n.a + i];
    const Node& kid = nodes_[id];
    NodeId length = id;
    if (kid.kind == NodeKind::kConcat) {
      // Inside a character: what is left of any character, then the rest of the bound.
      bool rest = false;
      for (NodeId at = 3; at < any_text_ && !rest; ++at) {
        rest = raw_[at] != nullptr && std::ranges::find(raw_[at]->next, kid.a) != std::end(raw_[at]->next);
      }
      if (rest) length = kid.b;
    }
    const Node& bound = nodes_[length];
    if (bound.kind == NodeKind::kRepeat && bound.a == any_char_ && bound.min == 0) {
      room = std::min(room, bound.max);
    } else if (other == kNothing && !kid.boolean) {
      other = id;
    } else {
      return false;
    }
  }
  return other != kNothing && nodes_[other].shortest != kNoLimit && nodes_[other].shortest <= room;
}

std::span<const NodeId> Arena::children(NodeId id) const {
  const Node& n = nodes_[id];
  if (n.kind != NodeKind::kAlt && n.kind != NodeKind::kAnd) return {};
  return {kids_.data() + n.a, n.b};
}

NodeId Arena::intern(Node n, std::span<const NodeId> kids) {
  uint64_t h = mix(static_cast<uint64_t>(n.kind), n.min);
  h = mix(h, n.max);
  if (kids.empty()) {
    h = mix(mix(h, n.a), n.b);
  } else {
    for (const NodeId k : kids) h = mix(h, k);
  }
  if (h == 0) h = 1;
  size_t mask = slots_.size() - 1;
  size_t at = h & mask;
  for (; slots_[at] != 0; at = (at + 1) & mask) {
    const NodeId id = slots_[at];
    if (hashes_[id] != h) continue;
    const Node& o = nodes_[id];
    if (o.kind != n.kind || o.min != n.min || o.max != n.max) continue;
    if (kids.empty() ? (o.a == n.a && o.b == n.b) : std::ranges::equal(children(id), kids)) return id;
  }
  if (!budget_.take_node(static_cast<int64_t>(sizeof(Node) + 40 + 4 * kids.size()))) return kNothing;
  if (!kids.empty()) {
    n.a = static_cast<uint32_t>(kids_.size());
    n.b = static_cast<uint32_t>(kids.size());
    kids_.insert(kids_.end(), kids.begin(), kids.end());
  }
  measure(n);
  const auto id = static_cast<NodeId>(nodes_.size());
  nodes_.push_back(n);
  hashes_.push_back(h);
  life_.push_back(n.nullable || !n.boolean || fits_length(n) ? Life::kLive : Life::kUnknown);
  raw_.emplace_back();
  rows_.emplace_back();
  same_row_.push_back(false);
  slots_[at] = id;
  if (nodes_.size() * 2 > slots_.size()) {
    slots_.assign(slots_.size() * 2, 0);
    mask = slots_.size() - 1;
    for (NodeId i = 3; i < nodes_.size(); ++i) {
      size_t p = hashes_[i] & mask;
      while (slots_[p] != 0) p = (p + 1) & mask;
      slots_[p] = i;
    }
  }
  return id;
}

NodeId Arena::bytes(const ByteSet& set) {
  if (set.empty()) return kNothing;
  // Few distinct sets exist in one grammar; the newest are the likeliest.
  uint32_t index = 0;
  for (size_t i = sets_.size(); i > 0 && index == 0; --i) {
    if (sets_[i - 1] == set) index = static_cast<uint32_t>(i);
    if (sets_.size() - i > 512) break;
  }
  if (index == 0) {
    sets_.push_back(set);
    index = static_cast<uint32_t>(sets_.size());
  }
  Node n;
  n.kind = NodeKind::kBytes;
  n.a = index - 1;
  return intern(n, {});
}

NodeId Arena::literal(std::string_view text) {
  NodeId r = kEmptyText;
  for (size_t i = text.size(); i > 0; --i) r = concat(byte(static_cast<uint8_t>(text[i - 1])), r);
  return r;
}

NodeId Arena::literals(std::vector<std::string> texts) {
  std::ranges::sort(texts);
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  if (texts.empty()) return kNothing;
  // A trie from sorted texts without recursion: nodes are closed from the deepest on.
  struct Open {
    std::vector<NodeId> parts;  // finished branches below this prefix
    bool end = false;
  };
  std::vector<Open> open(1);
  std::string prefix;
  auto close_to = [&](size_t depth) {
    while (prefix.size() > depth) {
      Open top = std::move(open.back());
      open.pop_back();
      if (top.end) top.parts.push_back(kEmptyText);
      open.back().parts.push_back(concat(byte(static_cast<uint8_t>(prefix.back())), alt(std::move(top.parts))));
      prefix.pop_back();
    }
  };
  for (const std::string& t : texts) {
    size_t common = 0;
    while (common < prefix.size() && common < t.size() && prefix[common] == t[common]) ++common;
    close_to(common);
    for (size_t i = common; i < t.size(); ++i) {
      prefix.push_back(t[i]);
      open.emplace_back();
    }
    open.back().end = true;
  }
  close_to(0);
  if (open.back().end) open.back().parts.push_back(kEmptyText);
  return alt(std::move(open.back().parts));
}

NodeId Arena::concat(std::initializer_list<NodeId> parts) {
  NodeId r = kEmptyText;
  for (const NodeId* p = parts.end(); p != parts.begin();) r = concat(*--p, r);
  return r;
}

NodeId Arena::concat(NodeId a, NodeId b) {
  if (a == kNothing || b == kNothing) return kNothing;
  if (a == kEmptyText) return b;
  if (b == kEmptyText) return a;
  if (a == kAllBytes && b == kAllBytes) return a;
  std::vector<NodeId> spine;
  while (nodes_[a].kind == NodeKind::kConcat) {
    spine.push_back(nodes_[a].a);
    a = nodes_[a].b;
  }
  spine.push_back(a);
  NodeId r = b;
  for (size_t i = spine.size(); i > 0 && r != kNothing; --i) {
    const NodeId head = spine[i - 1];
    // X* X* = X*
    if (nodes_[head].kind == NodeKind::kRepeat && nodes_[head].max == kNoLimit && nodes_[head].min == 0) {
      if (r == head || (nodes_[r].kind == NodeKind::kConcat && nodes_[r].a == head)) continue;
    }
    Node n;
    n.kind = NodeKind::kConcat;
    n.a = head;
    n.b = r;
    n.nullable = nodes_[head].nullable && nodes_[r].nullable;
    n.boolean = nodes_[head].boolean || nodes_[r].boolean;
    r = intern(n, {});
  }
  return r;
}

NodeId Arena::alt(NodeId a, NodeId b) {
  if (a == kNothing || a == b) return b;
  if (b == kNothing) return a;
  return alt(std::vector<NodeId>{a, b});
}

// X{a,b} T | X{c,d} T = X{min,max} T when the intervals touch; single bytes become one set.
void Arena::merge_alternatives(std::vector<NodeId>& parts) {
  struct Piece {
    NodeId body, tail;
    uint32_t min, max;
  };
  std::vector<Piece> pieces;
  std::vector<NodeId> rest;
  ByteSet set;
  for (const NodeId id : parts) {
    const Node& n = nodes_[id];
    if (n.kind == NodeKind::kBytes) {
      set |= sets_[n.a];
    } else if (n.kind == NodeKind::kRepeat) {
      pieces.push_back({n.a, kEmptyText, n.min, n.max});
    } else if (n.kind == NodeKind::kConcat && nodes_[n.a].kind == NodeKind::kRepeat) {
      pieces.push_back({nodes_[n.a].a, n.b, nodes_[n.a].min, nodes_[n.a].max});
    } else {
      rest.push_back(id);
    }
  }
  if (!set.empty()) rest.push_back(bytes(set));
  if (pieces.size() == 1) {
    rest.push_back(concat(repeat(pieces[0].body, pieces[0].min, pieces[0].max), pieces[0].tail));
  } else if (!pieces.empty()) {
    std::ranges::sort(pieces, [](const Piece& x, const Piece& y) {
      return std::tie(x.body, x.tail, x.min, x.max) < std::tie(y.body, y.tail, y.min, y.max);
    });
    Piece now = pieces[0];
    for (size_t i = 1; i <= pieces.size(); ++i) {
      if (i < pieces.size() && pieces[i].body == now.body && pieces[i].tail == now.tail &&
          (now.max == kNoLimit || pieces[i].min <= now.max + 1)) {
        now.max = std::max(now.max, pieces[i].max);
        continue;
      }
      rest.push_back(concat(repeat(now.body, now.min, now.max), now.tail));
      if (i < pieces.size()) now = pieces[i];
    }
  }
  parts = std::move(rest);
}

NodeId Arena::alt(std::vector<NodeId> parts) {
  std::vector<NodeId> flat;
  for (const NodeId p : parts) {
    if (p == kNothing) continue;
    if (p == kAllBytes) return p;
    if (nodes_[p].kind == NodeKind::kAlt) {
      const auto kids = children(p);
      flat.insert(flat.end(), kids.begin(), kids.end());
    } else {
      flat.push_back(p);
    }
  }
  auto tidy = [&] {
    std::ranges::sort(flat);
    flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  };
  tidy();
  if (flat.size() > 1) {
    merge_alternatives(flat);
    std::erase(flat, kNothing);
    tidy();
  }
  if (flat.empty()) return kNothing;
  if (std::ranges::binary_search(flat, any_text_) && any_text_ != kNothing) return any_text_;
  bool nullable = false;
  bool boolean = false;
  for (const NodeId p : flat) {
    if (p != kEmptyText) nullable = nullable || nodes_[p].nullable;
    boolean = boolean || nodes_[p].boolean;
  }
  if (nullable) std::erase(flat, kEmptyText);
  if (flat.size() == 1) return flat[0];
  Node n;
  n.kind = NodeKind::kAlt;
  n.nullable = nullable || flat[0] == kEmptyText;
  n.boolean = boolean;
  return intern(n, flat);
}

NodeId Arena::both(NodeId a, NodeId b) {
  if (a == kNothing || b == kNothing) return kNothing;
  if (a == kAllBytes || a == b) return b;
  if (b == kAllBytes) return a;
  return both(std::vector<NodeId>{a, b});
}

NodeId Arena::both(std::vector<NodeId> parts) {
  std::vector<NodeId> flat;
  for (const NodeId p : parts) {
    if (p == kNothing) return kNothing;
    if (p == kAllBytes) continue;
    if (nodes_[p].kind == NodeKind::kAnd) {
      const auto kids = children(p);
      flat.insert(flat.end(), kids.begin(), kids.end());
    } else {
      flat.push_back(p);
    }
  }
  merge_divisors(flat);
  std::ranges::sort(flat);
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.empty()) return kAllBytes;
  // Lengths: any_char{a,b} & any_char{c,d}. What the other parts' own lengths ensure need not be counted, and any_text
  // adds nothing beside an expression made of characters.
  uint32_t low = 0;
  uint32_t high = kNoLimit;
  uint32_t own_low = 0;
  uint32_t own_high = kNoLimit;
  size_t lengths = 0;
  bool positive = false;
  for (const NodeId p : flat) {
    const Node& n = nodes_[p];
    if (n.kind == NodeKind::kRepeat && n.a == any_char_) {
      low = std::max(low, n.min);
      high = std::min(high, n.max);
      ++lengths;
      continue;
    }
    own_low = std::max(own_low, n.min_chars);
    own_high = std::min(own_high, n.max_chars);
    positive = positive || n.kind != NodeKind::kNot;
  }
  if (low > high) return kNothing;
  if (lengths > 0) {
    if (own_low > high || own_high < low) return kNothing;
    if (low <= own_low) low = 0;
    if (high >= own_high) high = kNoLimit;
    std::erase_if(flat, [&](NodeId p) { return nodes_[p].kind == NodeKind::kRepeat && nodes_[p].a == any_char_; });
    if (low != 0 || high != kNoLimit || !positive) {
      flat.push_back(repeat(any_char_, low, high));
      std::ranges::sort(flat);
    }
  }
  for (const NodeId p : flat) {
    if (p == kEmptyText) {
      return std::ranges::all_of(flat, [&](NodeId q) { return nodes_[q].nullable; }) ? kEmptyText : kNothing;
    }
    if (nodes_[p].kind == NodeKind::kNot && std::ranges::binary_search(flat, nodes_[p].a)) return kNothing;
  }
  if (flat.size() == 1) return flat[0];
  Node n;
  n.kind = NodeKind::kAnd;
  n.nullable = std::ranges::all_of(flat, [&](NodeId p) { return nodes_[p].nullable; });
  n.boolean = true;
  return intern(n, flat);
}

NodeId Arena::complement(NodeId a) {
  if (a == kNothing) return kAllBytes;
  if (a == kAllBytes) return kNothing;
  if (nodes_[a].kind == NodeKind::kNot) return nodes_[a].a;
  Node n;
  n.kind = NodeKind::kNot;
  n.a = a;
  n.nullable = !nodes_[a].nullable;
  n.boolean = true;
  return intern(n, {});
}

NodeId Arena::repeat(NodeId a, uint32_t min, uint32_t max) {
  if (max == 0 || a == kEmptyText) return kEmptyText;
  if (a == kNothing) return min == 0 ? kEmptyText : kNothing;
  if (a == kAllBytes) return a;
  const Node& body = nodes_[a];
  if (body.nullable) min = 0;
  if (min == 1 && max == 1) return a;
  if (body.kind == NodeKind::kRepeat && body.min == 0 && body.max == kNoLimit) return a;
  Node n;
  n.kind = NodeKind::kRepeat;
  n.a = a;
  n.min = min;
  n.max = max;
  n.nullable = min == 0;
  n.boolean = body.boolean;
  return intern(n, {});
}

NodeId Arena::json_string(NodeId text) {
  return json_phase(text, 0);
}

bool Arena::matches(NodeId id, std::string_view text) {
  for (const char c : text) {
    id = step(id, static_cast<uint8_t>(c));
    if (id == kNothing) return false;
  }
  return nullable(id);
}

}  // namespace di::structured
