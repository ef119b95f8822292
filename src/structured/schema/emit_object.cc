// Objects: members in the schema's order, or in any order with a set of seen ones (structured-output.md §4.5).
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "structured/schema/emitter.h"

namespace di::structured {
namespace {

void append_canonical(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    const auto b = static_cast<uint8_t>(c);
    constexpr std::string_view kFrom = "\"\\\b\f\n\r\t";
    constexpr std::string_view kTo = "\"\\bfnrt";
    if (const size_t i = kFrom.find(c); i != std::string_view::npos) {
      out.push_back('\\');
      out.push_back(kTo[i]);
    } else if (b < 0x20) {
      out += "\\u00";
      out.push_back(kHex[b >> 4U]);
      out.push_back(kHex[b & 15U]);
    } else {
      out.push_back(c);
    }
  }
}

}  // namespace

std::string Emitter::quoted(std::string_view text) {
  std::string out = "\"";
  append_canonical(out, text);
  out += '"';
  return out;
}

NodeId Emitter::key_text(const std::string& name) const {
  return arena_.concat(arena_.literal(quoted(name)), colon_);
}

std::vector<Emitter::Named> Emitter::members_of(const ObjectShape& s) {
  std::vector<Named> out;
  std::unordered_set<std::string> declared;
  auto required = [&](const std::string& n) { return std::ranges::binary_search(s.required, n); };
  for (const Property& p : s.props) {
    declared.insert(p.name);
    ExprId value = p.value;
    if (s.names != kAllBytes && !arena_.matches(s.names, p.name)) value = kNeverExpr;
    if (value != kNeverExpr || required(p.name)) out.push_back({p.name, value, required(p.name), false});
  }
  for (const std::string& r : s.required) {
    if (!declared.contains(r)) out.push_back({r, schema_.undeclared(s, r), true, true});
  }
  return out;
}

std::vector<Emitter::NameClass> Emitter::name_classes(const ObjectShape& s, const std::vector<std::string>& declared) {
  struct Part {
    NodeId names;
    std::vector<NodeId> matched;
  };
  bool none = false;
  std::vector<NodeId> patterns;
  for (const RestRule& r : s.rest) {
    none = none || (r.additional == kNeverExpr && r.patterns.empty());
    for (const auto& [p, value] : r.patterns) {
      if (std::ranges::find(patterns, p) == patterns.end()) patterns.push_back(p);
    }
  }
  if (none || s.names == kNothing) return {};
  std::vector<Part> parts{{arena_.both(arena_.other_text(arena_.literals(declared)), s.names), {}}};
  for (const NodeId p : patterns) {
    std::vector<Part> next;
    for (const Part& part : parts) {
      Part in = part;
      in.names = arena_.both(part.names, p);
      in.matched.push_back(p);
      if (!arena_.is_nothing(in.names)) next.push_back(std::move(in));
      Part out = part;
      out.names = arena_.both(part.names, arena_.complement(p));
      if (!arena_.is_nothing(out.names)) next.push_back(std::move(out));
    }
    parts = std::move(next);
    if (parts.size() > 64) {
      refuse_shape(s.rest[0].origin, "constraint_too_complex", "patternProperties",
                   "the patterns divide the names into more than 64 classes");
      return {};
    }
  }
  std::vector<NameClass> out;
  for (const Part& part : parts) {
    std::vector<ExprId> values;
    for (const RestRule& r : s.rest) {
      bool matched = false;
      for (const auto& [p, value] : r.patterns) {
        if (std::ranges::find(part.matched, p) == part.matched.end()) continue;
        matched = true;
        values.push_back(value);
      }
      if (!matched) values.push_back(r.additional);
    }
    const ExprId value = schema_.all(std::move(values));
    if (value == kNeverExpr || schema_.is_empty(value, 1)) continue;
    // Names that are treated alike share one lexeme.
    const auto it = std::ranges::find(out, value, &NameClass::value);
    if (it != out.end()) {
      it->names = arena_.alt(it->names, part.names);
    } else if (!arena_.is_nothing(part.names)) {
      out.push_back({part.names, value});
    }
  }
  return out;
}

void Emitter::emit_object(RuleId rule, const ObjectShape& s) {
  const std::vector<Named> members = members_of(s);
  std::vector<std::string> declared;
  for (const Named& m : members) declared.push_back(m.name);
  for (const Property& p : s.props) declared.push_back(p.name);
  Others others{name_classes(s, declared), {}};
  for (const Witness& w : s.witnesses) {
    ObjectShape narrow = s;
    narrow.names = arena_.both(s.names, w.names);
    narrow.rest.push_back({{}, w.value, {}});
    others.witnesses.push_back(name_classes(narrow, declared));
    if (others.witnesses.back().empty()) return;
  }
  if (error_) return;
  const bool any_order = options_.property_order == PropertyOrder::kAny || s.any_order;
  if (any_order && members.size() <= 4'096 && members.size() + others.rest.size() > 1) {
    emit_any_order(rule, s, members, others);
  } else {
    emit_ordered(rule, s, members, others);
  }
}

void Emitter::other_members(StateId from, StateId to, const std::vector<NameClass>& classes, uint32_t op) {
  for (const NameClass& c : classes) {
    const StateId value = grammar_.add_state(grammar_.states[from].rule);
    grammar_.lexeme(from, arena_.concat({arena_.byte('"'), arena_.json_string(c.names), colon_}), value, op);
    value_edges(value, to, parts(c.value));
  }
}

// long because the states of all members are wired in one pass over shared tables.
// State i: the next member is i or a later one, behind the last declared one those of `rest`. Without bounds on the
// number of members no counter is kept.
void Emitter::emit_ordered(RuleId rule, const ObjectShape& s, const std::vector<Named>& members, const Others& others) {
  const std::vector<NameClass>& rest = others.rest;
  const auto tail = std::ranges::find(members, true, &Named::tail);
  const auto n = static_cast<size_t>(tail - members.begin());
  const auto named_tails = static_cast<uint32_t>(members.end() - tail);
  const auto tails = named_tails + static_cast<uint32_t>(others.witnesses.size());
  const bool bounded = s.min > 0 || s.max != kUnbounded;
  std::vector<uint32_t> required_from(n + 1, tails);  // required members from i on
  std::vector<uint32_t> possible_from(n + 1, tails);
  for (size_t i = n; i > 0; --i) {
    required_from[i - 1] = required_from[i] + (members[i - 1].required ? 1 : 0);
    const bool possible = s.min == 0 || !schema_.is_empty(members[i - 1].value, 2);
    possible_from[i - 1] = possible_from[i] + (possible ? 1 : 0);
  }
  if (s.min > possible_from[0] && rest.empty()) return;
  const auto min = static_cast<uint32_t>(s.min);
  const auto max = static_cast<uint32_t>(std::min<uint64_t>(s.max, kNoLimit));
  auto member_op = [&](size_t next) {
    if (!bounded) return kNone;
    Operation op;
    op.add_count = true;
    op.count_cap = s.max == kUnbounded ? min : kNoLimit;
    if (rest.empty() && min > 1 + possible_from[next]) op.min_count = min - 1 - possible_from[next];
    if (s.max != kUnbounded) {
      if (max < 1 + required_from[next]) return kNone - 1;
      op.max_count = max - 1 - required_from[next];
    }
    return grammar_.add_op(op);
  };
  const StateId end = grammar_.add_state(rule);
  grammar_.states[end].final = true;
  std::vector<StateId> key(n + 1);
  std::vector<StateId> after(n + 1);
  for (size_t i = 0; i <= n; ++i) {
    key[i] = grammar_.add_state(rule);
    after[i] = grammar_.add_state(rule);
  }
  const StateId open = grammar_.add_state(rule);
  grammar_.lexeme(grammar_.rules[rule].start, arena_.concat(arena_.byte('{'), space_), open);
  if (required_from[0] == 0 && s.min == 0) grammar_.lexeme(open, arena_.byte('}'), end);
  grammar_.skip(open, key[0]);
  const NodeId close = arena_.concat(space_, arena_.byte('}'));
  uint32_t enough_op = kNone;
  uint32_t more_op = kNone;
  if (bounded) {
    Operation enough;
    enough.min_count = min;
    enough_op = grammar_.add_op(enough);
  }
  if (s.max != kUnbounded && max > 0) {
    Operation more;
    more.max_count = max - 1;
    more_op = grammar_.add_op(more);
  }
  if (max == 0) return;
  // Behind the declared members: required names that are not declared, and names of `rest`, in any order.
  std::vector<uint64_t> bits((tails + 63) / 64, 0);
  for (uint32_t t = 0; t < tails; ++t) bits[t / 64] |= uint64_t{1} << (t % 64);
  const uint32_t required_tail = tails > 0 ? grammar_.add_set(bits) : kNone;
  uint32_t tail_enough = enough_op;
  uint32_t tail_more = more_op;
  if (tails > 0) {
    Operation enough;
    enough.min_count = bounded ? min : 0;
    enough.required = required_tail;
    tail_enough = grammar_.add_op(enough);
    Operation more;
    if (rest.empty()) more.not_all_seen = tails;
    if (s.max != kUnbounded) more.max_count = max - 1;
    tail_more = grammar_.add_op(more);
  }
  for (size_t i = 0; i <= n; ++i) {
    if (i < n && !members[i].required) grammar_.skip(key[i], key[i + 1]);
    if (i < n) {
      const uint32_t op = member_op(i + 1);
      const ValueParts& p = parts(members[i].value);
      if (op != kNone - 1 && (p.scalar != kNothing || !p.rules.empty())) {
        const StateId value = grammar_.add_state(rule);
        grammar_.lexeme(key[i], key_text(members[i].name), value, op);
        value_edges(value, after[i + 1], p);
      }
    }
    if (i < n && i > 0) {
      if (required_from[i] == 0) grammar_.lexeme(after[i], close, end, enough_op);
      grammar_.lexeme(after[i], comma_, key[i], more_op);
    } else if (i == n) {
      grammar_.lexeme(after[n], close, end, tail_enough);
      grammar_.lexeme(after[n], comma_, key[n], tail_more);
    }
  }
  for (uint32_t t = 0; t < tails; ++t) {
    Operation op;
    op.not_seen = t;
    op.mark = true;
    op.add_count = bounded;
    op.count_cap = s.max == kUnbounded ? min : kNoLimit;
    if (t >= named_tails) {
      other_members(key[n], after[n], others.witnesses[t - named_tails], grammar_.add_op(op));
      continue;
    }
    const StateId value = grammar_.add_state(rule);
    grammar_.lexeme(key[n], key_text(members[n + t].name), value, grammar_.add_op(op));
    value_edges(value, after[n], parts(members[n + t].value));
  }
  uint32_t op = kNone;
  if (!rest.empty() && bounded) {
    Operation other;
    other.add_count = true;
    other.count_cap = s.max == kUnbounded ? min : kNoLimit;
    if (s.max != kUnbounded) other.max_count = max - 1;
    if (s.max != kUnbounded && tails > 0) {
      other.missing_of = required_tail;
      other.missing_room = max - 1;
    }
    op = grammar_.add_op(other);
  }
  other_members(key[n], after[n], rest, op);
}

void Emitter::emit_any_order(RuleId rule, const ObjectShape& s, const std::vector<Named>& members,
                             const Others& others) {
  const std::vector<NameClass>& rest = others.rest;
  const size_t n = members.size();
  const bool bounded = s.min > 0 || s.max != kUnbounded;
  const auto min = static_cast<uint32_t>(s.min);
  const auto max = static_cast<uint32_t>(std::min<uint64_t>(s.max, kNoLimit));
  const size_t all = n + others.witnesses.size();
  std::vector<uint64_t> bits((all + 63) / 64, 0);
  for (size_t i = n; i < all; ++i) bits[i / 64] |= uint64_t{1} << (i % 64);
  uint32_t possible = 0;
  for (size_t i = 0; i < n; ++i) {
    if (members[i].required) bits[i / 64] |= uint64_t{1} << (i % 64);
    if (!schema_.is_empty(members[i].value, 2)) ++possible;
  }
  if (max == 0 || (rest.empty() && s.min > possible)) {
    if (s.min > 0) return;
  }
  const uint32_t required = grammar_.add_set(bits);
  const StateId end = grammar_.add_state(rule);
  grammar_.states[end].final = true;
  const StateId open = grammar_.add_state(rule);
  const StateId key = grammar_.add_state(rule);
  const StateId after = grammar_.add_state(rule);
  grammar_.lexeme(grammar_.rules[rule].start, arena_.concat(arena_.byte('{'), space_), open);
  if (s.min == 0 && others.witnesses.empty() && std::ranges::none_of(members, &Named::required))
    grammar_.lexeme(open, arena_.byte('}'), end);
  if (max == 0) return;
  grammar_.skip(open, key);
  Operation enough;
  enough.required = required;
  enough.min_count = bounded ? min : 0;
  grammar_.lexeme(after, arena_.concat(space_, arena_.byte('}')), end, grammar_.add_op(enough));
  Operation more;
  if (rest.empty()) more.not_all_seen = possible;
  if (s.max != kUnbounded) more.max_count = max - 1;
  grammar_.lexeme(after, comma_, key, grammar_.add_op(more));
  auto count = [&](Operation& op) {
    op.add_count = bounded;
    op.count_cap = s.max == kUnbounded ? min : kNoLimit;
  };
  for (size_t i = 0; i < n; ++i) {
    Operation op;
    op.not_seen = static_cast<uint32_t>(i);
    op.mark = true;
    count(op);
    // Optional members leave room for the required ones.
    if (s.max != kUnbounded && !members[i].required) {
      op.missing_of = required;
      op.missing_room = max - 1;
    }
    const StateId value = grammar_.add_state(rule);
    grammar_.lexeme(key, key_text(members[i].name), value, grammar_.add_op(op));
    value_edges(value, after, parts(members[i].value));
  }
  for (size_t i = n; i < all; ++i) {
    Operation op;
    op.not_seen = static_cast<uint32_t>(i);
    op.mark = true;
    count(op);
    other_members(key, after, others.witnesses[i - n], grammar_.add_op(op));
  }
  Operation op;
  count(op);
  if (s.max != kUnbounded) {
    op.missing_of = required;
    op.missing_room = max - 1;
  }
  other_members(key, after, rest, grammar_.add_op(op));
}

}  // namespace di::structured
