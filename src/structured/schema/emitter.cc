#include "structured/schema/emitter.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "structured/regex/json_content.h"
#include "structured/regex/pattern.h"
#include "structured/schema/decimal.h"

namespace di::structured {

Emitter::Emitter(Arena& arena, Grammar& grammar, Schema& schema, const SpecOptions& options, const Limits& limits)
    : arena_(arena), grammar_(grammar), schema_(schema), options_(options), limits_(limits) {
  switch (options.whitespace) {
    case Whitespace::kFlexible: {
      ByteSet blank = ByteSet::of(' ');
      blank.add('\t');
      space_ = arena.alt(
          {kEmptyText, arena.byte(' '), arena.concat(arena.byte('\n'), arena.repeat(arena.bytes(blank), 0, 32))});
      break;
    }
    case Whitespace::kCompact:
      space_ = kEmptyText;
      break;
    case Whitespace::kAny: {
      ByteSet blank = ByteSet::of(' ');
      for (const char c : {'\t', '\r', '\n'}) blank.add(static_cast<uint8_t>(c));
      space_ = arena.repeat(arena.bytes(blank), 0, 32);
      break;
    }
    case Whitespace::kPattern: {
      PatternLimits pattern_limits;
      pattern_limits.max_bytes = 256;
      auto re = compile_pattern(arena, options.whitespace_pattern, PatternUse::kWhole, pattern_limits);
      if (!re) {
        error_ = re.error();
        error_->keyword = "whitespace_pattern";
      }
      space_ = re ? arena.optional(*re) : kEmptyText;
      break;
    }
  }
  free_string_ = arena.concat({arena.byte('"'), json_content(arena), arena.byte('"')});
  comma_ = arena.concat({space_, arena.byte(','), space_});
  colon_ = arena.concat({space_, arena.byte(':'), space_});
}

// Made of single bytes in sequence and in alternatives only.
bool Emitter::is_list(NodeId node) const {
  std::vector<NodeId> work{node};
  std::unordered_set<NodeId> seen;
  while (!work.empty()) {
    const NodeId at = work.back();
    work.pop_back();
    if (!seen.insert(at).second) continue;
    const Node& n = arena_.node(at);
    if (n.kind == NodeKind::kAlt) {
      const auto kids = arena_.children(at);
      work.insert(work.end(), kids.begin(), kids.end());
    } else if (n.kind == NodeKind::kConcat) {
      work.push_back(n.a);
      work.push_back(n.b);
    } else if (n.kind != NodeKind::kBytes && n.kind != NodeKind::kEmpty) {
      return false;
    }
  }
  return true;
}

// Few known texts are written out: their automaton is smaller than that of texts seen through escapes.
NodeId Emitter::string_text(NodeId text) {
  constexpr size_t kFew = 2'000;
  if (text == arena_.any_text()) return free_string_;
  std::vector<std::string> texts;
  if (is_list(text) && enumerate(text, kFew, texts)) {
    for (std::string& t : texts) t = quoted(t);
    return arena_.literals(std::move(texts));
  }
  return arena_.concat(arena_.byte('"'), arena_.json_string(text));
}

NodeId Emitter::scalar_of(const Lang& l, bool strings) {
  std::vector<NodeId> parts;
  if (l.null) parts.push_back(arena_.literal("null"));
  if ((l.bools & 1U) != 0) parts.push_back(arena_.literal("false"));
  if ((l.bools & 2U) != 0) parts.push_back(arena_.literal("true"));
  for (const NumberPart& n : l.numbers) parts.push_back(schema_.number_text(n));
  if (strings && l.string != kNothing) parts.push_back(string_text(l.string));
  return arena_.alt(std::move(parts));
}

const ValueParts& Emitter::parts(ExprId expr) {
  const auto it = parts_.find(expr);
  if (it != parts_.end()) return it->second;
  const Lang& l = schema_.unfold(expr);
  ValueParts p;
  p.scalar = scalar_of(l, true);
  for (const ArrayShape& s : l.arrays) {
    p.rules.push_back(grammar_.add_rule(true));
    jobs_.push_back({p.rules.back(), s, std::nullopt});
  }
  for (const ObjectShape& s : l.objects) {
    p.rules.push_back(grammar_.add_rule(true));
    jobs_.push_back({p.rules.back(), std::nullopt, s});
  }
  return parts_.emplace(expr, std::move(p)).first->second;
}

ValueParts Emitter::without_strings(ExprId expr) {
  ValueParts p = parts(expr);
  p.scalar = scalar_of(schema_.unfold(expr), false);
  return p;
}

void Emitter::value_edges(StateId from, StateId to, const ValueParts& p, uint32_t op) {
  grammar_.lexeme(from, p.scalar, to, op);
  for (const RuleId r : p.rules) grammar_.call(from, r, to, op);
}

RuleId Emitter::value_rule(ExprId expr) {
  const auto it = value_rules_.find(expr);
  if (it != value_rules_.end()) return it->second;
  const RuleId rule = grammar_.add_rule();
  value_rules_.emplace(expr, rule);
  const StateId end = grammar_.add_state(rule);
  grammar_.states[end].final = true;
  const ValueParts p = parts(expr);
  value_edges(grammar_.rules[rule].start, end, p);
  return rule;
}

void Emitter::finish() {
  while (!jobs_.empty() && !error_ && !schema_.failed()) {
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    if (job.array) emit_array(job.rule, *job.array);
    if (job.object) emit_object(job.rule, *job.object);
    if (grammar_.states.size() > static_cast<size_t>(limits_.max_nodes))
      refuse_shape({}, "constraint_too_complex", "", fmt::format("more than {} nodes", limits_.max_nodes));
  }
}

void Emitter::refuse_shape(Origin origin, std::string_view code, std::string_view keyword, std::string message) {
  if (error_) return;
  const std::string pointer = origin.at == nullptr ? std::string() : schema_.pointer_to(origin.at);
  error_ = CompileError{std::string(code), pointer, std::string(keyword), std::move(message)};
}

// ---- arrays

// Edges that read one item. With `contains`, an item either counts as found or not.
void Emitter::item_edges(StateId from, StateId to, ExprId item, const ArrayShape& s, uint32_t count_cap) {
  const bool counted = count_cap > 0 || s.max != kUnbounded || !s.contains.empty();
  Operation op;
  op.add_count = counted && (count_cap > 0 || s.max != kUnbounded);
  op.count_cap = s.max != kUnbounded ? kNoLimit : count_cap;
  if (s.contains.empty()) {
    value_edges(from, to, parts(item), op.add_count ? grammar_.add_op(op) : kNone);
    return;
  }
  const Contains& c = s.contains[0];
  Operation found = op;
  found.add_found = true;
  const auto goal = static_cast<uint32_t>(c.min);
  found.found_cap = c.max == kUnbounded ? goal : kNoLimit;
  if (c.max != kUnbounded) found.max_found = static_cast<uint32_t>(std::min<uint64_t>(c.max, kNoLimit)) - 1;
  if (c.max > 0) value_edges(from, to, parts(schema_.all({item, c.item})), grammar_.add_op(found));
  Operation other = op;
  if (s.max != kUnbounded) {
    other.room = static_cast<uint32_t>(s.max) - 1;
    other.found_goal = goal;
  }
  const ExprId rest = c.max == kUnbounded ? item : schema_.all({item, schema_.none(c.item)});
  value_edges(from, to, parts(rest), grammar_.add_op(other));
}

// Lenient: what cannot be enforced is left out with a warning.
void Emitter::emit_array(RuleId rule, const ArrayShape& wanted) {
  ArrayShape s = wanted;
  const auto why_not = [&]() -> std::string {
    if (s.contains.size() > 1) return "only one contains can be enforced at one place";
    const bool negated = !s.contains.empty() && s.contains[0].max != kUnbounded;
    return negated && !schema_.unfold(s.contains[0].item).exact ? "the schema of contains cannot be negated" : "";
  };
  if (std::string why = why_not(); !why.empty()) {
    if (!schema_.cannot(s.contains.back().origin, "contains", std::move(why))) return;
    s.contains.clear();
  }
  if (s.unique && s.max > 1) {
    std::string why = emit_unique(rule, s);
    if (why.empty() || !schema_.cannot(s.unique_origin, "uniqueItems", std::move(why))) return;
  }
  const StateId start = grammar_.rules[rule].start;
  const StateId end = grammar_.add_state(rule);
  grammar_.states[end].final = true;
  const StateId open = grammar_.add_state(rule);
  grammar_.lexeme(start, arena_.concat(arena_.byte('['), space_), open);
  const NodeId close = arena_.concat(space_, arena_.byte(']'));
  const auto goal = s.contains.empty() ? 0U : static_cast<uint32_t>(s.contains[0].min);
  if (s.min == 0 && goal == 0) grammar_.lexeme(open, arena_.byte(']'), end);
  if (s.max == 0) return;
  const size_t k = static_cast<size_t>(std::min<uint64_t>(s.prefix.size(), s.max));
  // The counter counts all items; it saturates where only a lower bound needs it.
  const auto cap = s.min > k || goal > 0 ? static_cast<uint32_t>(s.min) : 0U;
  const bool count = cap > 0 || s.max != kUnbounded;
  Operation enough;
  enough.min_count = count ? static_cast<uint32_t>(s.min) : 0;
  enough.min_found = goal;
  Operation more;
  if (s.max != kUnbounded) more.max_count = static_cast<uint32_t>(s.max) - 1;
  const uint32_t enough_op = count || goal > 0 ? grammar_.add_op(enough) : kNone;
  const uint32_t more_op = s.max != kUnbounded ? grammar_.add_op(more) : kNone;
  // A place of its own: behind a comma the array must not end.
  StateId before = grammar_.add_state(rule);
  grammar_.skip(open, before);
  for (size_t i = 0; i < k; ++i) {
    const StateId after = grammar_.add_state(rule);
    item_edges(before, after, s.prefix[i], s, cap);
    if (i + 1 >= s.min) grammar_.lexeme(after, close, end, enough_op);  // else trim() would not see that it never ends
    if (i + 1 >= s.max) return;
    before = grammar_.add_state(rule);
    grammar_.lexeme(after, comma_, before, more_op);
  }
  if (s.rest == kNeverExpr) return;
  const StateId after = grammar_.add_state(rule);
  item_edges(before, after, s.rest, s, cap);
  grammar_.lexeme(after, close, end, enough_op);
  grammar_.lexeme(after, comma_, before, more_op);
}

// Whether some repeat without end occurs: then enumerating is not worth the try.
bool Emitter::has_endless_repeat(NodeId node) const {
  std::vector<NodeId> work{node};
  std::unordered_set<NodeId> seen;
  while (!work.empty()) {
    const NodeId at = work.back();
    work.pop_back();
    if (!seen.insert(at).second) continue;
    const Node& n = arena_.node(at);
    // Of an intersection one finite side is enough.
    if (n.kind == NodeKind::kAnd) {
      const auto kids = arena_.children(at);
      if (std::ranges::all_of(kids, [&](NodeId k) { return has_endless_repeat(k); })) return true;
      continue;
    }
    if (n.kind == NodeKind::kAnything || n.kind == NodeKind::kNot || (n.kind == NodeKind::kRepeat && n.max == kNoLimit))
      return true;
    if (n.kind == NodeKind::kConcat || n.kind == NodeKind::kRepeat || n.kind == NodeKind::kJsonString)
      work.push_back(n.a);
    if (n.kind == NodeKind::kConcat) work.push_back(n.b);
    if (n.kind == NodeKind::kAlt) {
      const auto kids = arena_.children(at);
      work.insert(work.end(), kids.begin(), kids.end());
    }
  }
  return false;
}

// All texts of a finite expression; false when there are more than `limit`.
bool Emitter::enumerate(NodeId node, size_t limit, std::vector<std::string>& out) {
  if (has_endless_repeat(node)) return false;
  std::vector<std::pair<NodeId, std::string>> work{{node, ""}};
  size_t steps = 0;
  while (!work.empty()) {
    auto [at, text] = std::move(work.back());
    work.pop_back();
    if (arena_.nullable(at)) out.push_back(text);
    if (out.size() > limit || ++steps > 50'000 || text.size() > 4'096) return false;
    const NodeId* row = arena_.row(at);
    for (int b = 255; b >= 0; --b) {
      if (row[b] != kNothing) work.emplace_back(row[b], text + static_cast<char>(static_cast<uint8_t>(b)));
    }
  }
  return true;
}

std::string Emitter::emit_unique(RuleId rule, const ArrayShape& s) {
  constexpr size_t kMost = 64;
  if (!s.contains.empty()) return "not together with contains";
  const size_t k = s.prefix.size();
  std::vector<ExprId> items = s.prefix;
  if (s.rest != kNeverExpr) items.push_back(s.rest);
  // Values and their texts: texts of one number share an index.
  std::vector<std::string> values;
  std::vector<std::vector<std::pair<std::string, uint32_t>>> texts(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const ValueParts p = parts(items[i]);
    std::vector<std::string> found;
    if (!p.rules.empty() || !enumerate(p.scalar, kMost * 48, found)) {
      return "items must come from a finite set of at most 64 scalar values, or maxItems be at most 1";
    }
    for (std::string& t : found) {
      const auto d = t[0] == '-' || (t[0] >= '0' && t[0] <= '9') ? Decimal::parse(t) : std::nullopt;
      const std::string value = d ? d->text() : t;
      auto it = std::ranges::find(values, value);
      if (it == values.end()) it = values.insert(values.end(), value);
      texts[i].emplace_back(std::move(t), static_cast<uint32_t>(it - values.begin()));
    }
  }
  if (values.size() > kMost) return "more than 64 different items";
  const bool too_few = s.min > values.size() || (k > 0 && s.min > 0 && s.rest == kNeverExpr && s.min > k);
  // A prefix could use up what a later place needs: only alike places are followed.
  if (!too_few && k > 0 && s.min > 1 && std::ranges::any_of(items, [&](ExprId e) { return e != items[0]; })) {
    return "items of different schemas with a lower bound";
  }
  const StateId end = grammar_.add_state(rule);
  grammar_.states[end].final = true;
  const StateId open = grammar_.add_state(rule);
  StateId before = grammar_.add_state(rule);
  grammar_.lexeme(grammar_.rules[rule].start, arena_.concat(arena_.byte('['), space_), open);
  if (s.min == 0) grammar_.lexeme(open, arena_.byte(']'), end);
  grammar_.skip(open, before);
  if (too_few) return {};
  auto edges = [&](StateId from, StateId to, size_t item) {
    for (const auto& [text, index] : texts[item]) {
      Operation op;
      op.not_seen = index;
      op.mark = true;
      op.add_count = true;
      grammar_.lexeme(from, arena_.literal(text), to, grammar_.add_op(op));
    }
  };
  Operation enough;
  enough.min_count = static_cast<uint32_t>(s.min);
  const uint32_t enough_op = grammar_.add_op(enough);
  Operation more;
  more.max_count = static_cast<uint32_t>(std::min<uint64_t>(s.max, kMost)) - 1;
  const NodeId close = arena_.concat(space_, arena_.byte(']'));
  for (size_t i = 0; i < items.size(); ++i) {
    const StateId after = grammar_.add_state(rule);
    edges(before, after, i);
    grammar_.lexeme(after, close, end, enough_op);
    const bool last = i + 1 == items.size();
    if (last && s.rest == kNeverExpr) return {};
    const size_t next = last ? i : i + 1;
    // A comma only where some item of the next place is left.
    const StateId gap = last ? before : grammar_.add_state(rule);
    for (const auto& [text, index] : texts[next]) {
      Operation op = more;
      op.not_seen = index;
      grammar_.lexeme(after, comma_, gap, grammar_.add_op(op));
    }
    before = gap;
  }
  return {};
}

}  // namespace di::structured
