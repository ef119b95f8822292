// Derivatives: what is left of an expression after a byte, the lazily made rows, and the search for emptiness.
#include <algorithm>
#include <unordered_set>

#include "structured/regex/arena.h"

namespace di::structured {
namespace {

// Phases of kJsonString: inside, after a backslash, after \u, \u0, \u00, \u000, \u001.
constexpr uint32_t kInside = 0;
constexpr uint32_t kEscape = 1;
constexpr uint32_t kHex = 2;

int hex_digit(uint8_t b) {
  if (b >= '0' && b <= '9') return b - '0';
  if (b >= 'a' && b <= 'f') return b - 'a' + 10;
  if (b >= 'A' && b <= 'F') return b - 'A' + 10;
  return -1;
}

bool has_short_escape(uint32_t c) {
  return c == 8 || c == 9 || c == 10 || c == 12 || c == 13;
}

int short_escape(uint8_t b) {
  switch (b) {
    case '"':
    case '\\':
      return b;
    case 'b':
      return 8;
    case 't':
      return 9;
    case 'n':
      return 10;
    case 'f':
      return 12;
    case 'r':
      return 13;
    default:
      return -1;
  }
}

}  // namespace

NodeId Arena::json_phase(NodeId text, uint32_t phase) {
  if (text == kNothing) return kNothing;
  Node n;
  n.kind = NodeKind::kJsonString;
  n.a = text;
  n.min = phase;
  // An escape commits to a character that the text may refuse: successors must be looked at even where the text is
  // plain.
  n.boolean = true;
  const NodeId id = intern(n, {});
  if (phase == kInside && life_[text] == Life::kLive) life_[id] = Life::kLive;
  return id;
}

NodeId Arena::derive_json(const Node& n, uint8_t byte) {
  const NodeId text = n.a;
  switch (n.min) {
    case kInside:
      if (byte == '"') return nodes_[text].nullable ? kEmptyText : kNothing;
      if (byte == '\\') return json_phase(text, kEscape);
      if (byte < 0x20) return kNothing;
      return json_phase(raw_row(text)[byte], kInside);
    case kEscape: {
      if (byte == 'u') return json_phase(text, kHex);
      const int c = short_escape(byte);
      return c < 0 ? kNothing : json_phase(raw_row(text)[c], kInside);
    }
    case kHex:
    case kHex + 1:
      return byte == '0' ? json_phase(text, n.min + 1) : kNothing;
    case kHex + 2:
      return byte == '0' || byte == '1' ? json_phase(text, n.min + 1 + (uint32_t{byte} - '0')) : kNothing;
    default: {
      const int d = hex_digit(byte);
      if (d < 0) return kNothing;
      const uint32_t c = static_cast<uint32_t>(d) + (n.min == kHex + 4 ? 16U : 0U);
      return has_short_escape(c) ? kNothing : json_phase(raw_row(text)[c], kInside);
    }
  }
}

NodeId Arena::derive(NodeId id, uint8_t byte) {
  constexpr uint32_t kMany = 4;
  if (raw_[id] != nullptr) return raw_[id]->next[byte];
  const Node& n = nodes_[id];
  if (n.kind == NodeKind::kAlt && n.b > kMany) return raw_row(id)[byte];
  return derive_anew(id, byte);
}

NodeId Arena::derive_anew(NodeId id, uint8_t byte) {
  if (!budget_.step()) return kNothing;
  const Node n = nodes_[id];
  switch (n.kind) {
    case NodeKind::kNever:
    case NodeKind::kEmpty:
      return kNothing;
    case NodeKind::kAnything:
      return kAllBytes;
    case NodeKind::kBytes:
      return sets_[n.a].has(byte) ? kEmptyText : kNothing;
    case NodeKind::kConcat: {
      std::vector<NodeId> parts;
      NodeId at = id;
      while (nodes_[at].kind == NodeKind::kConcat) {
        const Node c = nodes_[at];
        parts.push_back(concat(derive(c.a, byte), c.b));
        if (!nodes_[c.a].nullable) return parts.size() == 1 ? parts[0] : alt(std::move(parts));
        at = c.b;
      }
      parts.push_back(derive(at, byte));
      return alt(std::move(parts));
    }
    case NodeKind::kAlt:
    case NodeKind::kAnd: {
      std::vector<NodeId> parts;
      for (uint32_t i = 0; i < n.b; ++i) {
        const NodeId d = derive(kids_[n.a + i], byte);
        if (n.kind == NodeKind::kAnd && d == kNothing) return kNothing;
        if (d != kNothing) parts.push_back(d);
      }
      return n.kind == NodeKind::kAlt ? alt(std::move(parts)) : both(std::move(parts));
    }
    case NodeKind::kNot:
      return complement(derive(n.a, byte));
    case NodeKind::kRepeat:
      return concat(derive(n.a, byte),
                    repeat(n.a, n.min == 0 ? 0 : n.min - 1, n.max == kNoLimit ? kNoLimit : n.max - 1));
    case NodeKind::kRemainder:
      return derive_remainder(n, byte);
    case NodeKind::kJsonString:
      return derive_json(n, byte);
  }
  return kNothing;
}

void Arena::first_sets(NodeId id, std::vector<ByteSet>& sets) {
  std::vector<NodeId>& stack = stack_;
  stack.assign(1, id);
  // What was met twice is only looked at twice unless there is much of it.
  std::unordered_set<NodeId> seen;
  for (size_t met = 0; !stack.empty(); ++met) {
    const NodeId at = stack.back();
    stack.pop_back();
    if (met > 64 && !seen.insert(at).second) continue;
    const Node& n = nodes_[at];
    switch (n.kind) {
      case NodeKind::kBytes:
        sets.push_back(sets_[n.a]);
        break;
      case NodeKind::kConcat:
        stack.push_back(n.a);
        if (nodes_[n.a].nullable) stack.push_back(n.b);
        break;
      case NodeKind::kAlt:
      case NodeKind::kAnd:
        for (uint32_t i = 0; i < n.b; ++i) stack.push_back(kids_[n.a + i]);
        break;
      case NodeKind::kNot:
      case NodeKind::kRepeat:
        stack.push_back(n.a);
        break;
      case NodeKind::kRemainder:
        for (uint8_t c = '0'; c <= '9'; ++c) sets.push_back(ByteSet::of(c));
        sets.push_back(ByteSet::of('-'));
        sets.push_back(ByteSet::of('.'));
        break;
      case NodeKind::kJsonString:
        if (n.min == kInside) {
          stack.push_back(n.a);
          sets.push_back(ByteSet::range(0, 0x1f));
          sets.push_back(ByteSet::of('"'));
          sets.push_back(ByteSet::of('\\'));
        } else {
          for (const char c : std::string_view("\"\\btnfru0123456789acdeABCDEF"))
            sets.push_back(ByteSet::of(static_cast<uint8_t>(c)));
        }
        break;
      default:
        break;
    }
  }
}

// The row of alternatives that each begin with a byte of a set: texts by their first letter, characters of a class.
bool Arena::alternatives_row(NodeId id, Row& row) {
  if (nodes_[id].kind != NodeKind::kAlt) return false;
  const uint32_t kids = nodes_[id].b;
  auto simple = [&](NodeId kid) {
    return kid == kEmptyText || nodes_[kid].kind == NodeKind::kBytes || begins_with(kid) != nullptr;
  };
  for (uint32_t i = 0; i < kids; ++i) {
    if (!simple(kids_[nodes_[id].a + i])) return false;
  }
  std::vector<std::pair<uint8_t, NodeId>> more;  // where several alternatives go on
  for (uint32_t i = 0; i < kids; ++i) {
    const NodeId kid = kids_[nodes_[id].a + i];
    if (kid == kEmptyText) continue;
    const bool last = nodes_[kid].kind == NodeKind::kBytes;
    const ByteSet& first = last ? sets_[nodes_[kid].a] : *begins_with(kid);
    const NodeId rest = last ? kEmptyText : nodes_[kid].b;
    for (size_t w = 0; w < 4; ++w) {
      for (uint64_t bits = first.words[w]; bits != 0; bits &= bits - 1) {
        const size_t byte = w * 64 + static_cast<size_t>(__builtin_ctzll(bits));
        if (row.next[byte] == kNothing) {
          row.next[byte] = rest;
        } else {
          more.emplace_back(static_cast<uint8_t>(byte), rest);
        }
      }
    }
    row.live |= first;
  }
  std::ranges::sort(more);
  std::vector<NodeId> parts;
  std::vector<NodeId> last_parts;
  NodeId last_value = kNothing;
  for (size_t i = 0; i < more.size();) {
    const uint8_t byte = more[i].first;
    parts.assign(1, row.next[byte]);
    for (; i < more.size() && more[i].first == byte; ++i) parts.push_back(more[i].second);
    if (parts != last_parts) last_value = alt(parts);
    last_parts = parts;
    row.next[byte] = last_value;
  }
  return true;
}

const NodeId* Arena::raw_row(NodeId id) {
  if (raw_[id] != nullptr) return raw_[id]->next;
  auto row = std::make_unique<Row>();
  budget_.take_node(sizeof(Row));
  if (alternatives_row(id, *row)) {
    if (budget_.exhausted()) {
      static const Row kDeadRow{};
      return kDeadRow.next;
    }
    raw_[id] = std::move(row);
    return raw_[id]->next;
  }
  // Bytes that lie in the same first sets have the same successor.
  std::vector<ByteSet> sets = std::move(first_sets_);
  std::vector<ByteSet> classes = std::move(classes_);
  sets.clear();
  first_sets(id, sets);
  classes.assign(1, ByteSet{{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}});
  for (const ByteSet& s : sets) {
    const size_t n = classes.size();
    for (size_t i = 0; i < n && classes.size() < 256; ++i) {
      ByteSet in;
      ByteSet out;
      for (size_t w = 0; w < 4; ++w) {
        in.words[w] = classes[i].words[w] & s.words[w];
        out.words[w] = classes[i].words[w] & ~s.words[w];
      }
      if (in.empty() || out.empty()) continue;
      classes[i] = in;
      classes.push_back(out);
    }
  }
  for (const ByteSet& c : classes) {
    NodeId value = kNothing;
    bool first = true;
    for (size_t w = 0; w < 4; ++w) {
      for (uint64_t bits = c.words[w]; bits != 0; bits &= bits - 1) {
        const size_t byte = w * 64 + static_cast<size_t>(__builtin_ctzll(bits));
        if (first) value = derive_anew(id, static_cast<uint8_t>(byte));
        first = false;
        row->next[byte] = value;
      }
    }
    if (value != kNothing) row->live |= c;
  }
  first_sets_ = std::move(sets);
  classes_ = std::move(classes);
  if (budget_.exhausted()) {
    static const Row kDeadRow{};
    return kDeadRow.next;
  }
  raw_[id] = std::move(row);
  return raw_[id]->next;
}

const NodeId* Arena::row(NodeId id) {
  if (rows_[id] != nullptr) return rows_[id]->next;
  const NodeId* raw = raw_row(id);
  if (!nodes_[id].boolean || same_row_[id]) return raw;
  bool differs = false;
  for (size_t b = 0; b < 256; ++b) {
    if (raw[b] != kNothing && (b == 0 || raw[b] != raw[b - 1])) differs = is_nothing(raw[b]) || differs;
  }
  if (!differs && !budget_.exhausted()) {
    same_row_[id] = true;
    return raw;
  }
  auto row = std::make_unique<Row>();
  budget_.take_node(sizeof(Row));
  for (size_t b = 0; b < 256; ++b) {
    row->next[b] = is_nothing(raw[b]) ? kNothing : raw[b];
    if (row->next[b] != kNothing) row->live.add(static_cast<uint8_t>(b));
  }
  if (budget_.exhausted()) {
    static const Row kDeadRow{};
    return kDeadRow.next;
  }
  rows_[id] = std::move(row);
  return rows_[id]->next;
}

ByteSet Arena::live(NodeId id) {
  if (const ByteSet* first = begins_with(id)) return is_nothing(nodes_[id].b) ? ByteSet{} : *first;
  row(id);
  const Row* r = rows_[id] != nullptr ? rows_[id].get() : raw_[id].get();
  return r != nullptr ? r->live : ByteSet{};
}

// Everything from which a live node was reached is live: follow the search tree back to its root.
void Arena::add_live_path(const std::vector<std::pair<NodeId, uint32_t>>& visited, uint32_t at) {
  for (;;) {
    life_[visited[at].first] = Life::kLive;
    if (visited[at].second == UINT32_MAX) return;
    at = visited[at].second;
  }
}

bool Arena::is_nothing(NodeId id) {
  if (life_[id] != Life::kUnknown) return life_[id] == Life::kDead;
  if (const auto known = large_divisors_ ? no_multiple(id) : std::nullopt) {
    if (!budget_.exhausted()) life_[id] = *known ? Life::kDead : Life::kLive;
    return *known;
  }
  // Breadth first towards a nullable or known live node.
  std::vector<std::pair<NodeId, uint32_t>> visited{{id, UINT32_MAX}};
  std::unordered_set<NodeId> seen{id};
  for (uint32_t i = 0; i < visited.size(); ++i) {
    const NodeId at = visited[i].first;
    if (!budget_.step()) return false;
    const NodeId* raw = raw_row(at);
    if (budget_.exhausted()) return false;
    NodeId last = kNothing;
    for (size_t b = 0; b < 256; ++b) {
      const NodeId to = raw[b];
      if (to == last || to == kNothing) continue;
      last = to;
      if (life_[to] == Life::kLive) {
        add_live_path(visited, i);
        return false;
      }
      if (life_[to] == Life::kUnknown && seen.insert(to).second) visited.emplace_back(to, i);
    }
    if (visited.size() > 100'000) {
      budget_.fail("states");
      return false;
    }
  }
  for (const auto& [node, parent] : visited) life_[node] = Life::kDead;
  return true;
}

}  // namespace di::structured
