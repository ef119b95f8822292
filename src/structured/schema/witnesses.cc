// Objects that break a rule on their undeclared members: some member does (structured-output.md §4.2: `not`).
#include <algorithm>

#include "structured/schema/schema.h"

namespace di::structured {
namespace {

NodeId names_of(Arena& arena, const ObjectShape& s) {
  std::vector<std::string> names = s.required;
  for (const Property& p : s.props) names.push_back(p.name);
  return arena.literals(std::move(names));
}

bool closed(const RestRule& r) {
  return r.additional == kNeverExpr;
}

}  // namespace

// The ways in which a member that the shape does not declare can be against it.
void Schema::add_witnesses(const ObjectShape& s, std::vector<ObjectShape>& ways) {
  std::vector<std::string> declared;
  for (const Property& p : s.props) declared.push_back(p.name);
  const NodeId open = arena_.other_text(arena_.literals(declared));
  auto some = [&](NodeId names, ExprId value) {
    if (value == kNeverExpr || arena_.is_nothing(names)) return;
    ObjectShape w;
    w.witnesses.push_back({names, value});
    ways.push_back(std::move(w));
  };
  if (s.names != kAllBytes) some(arena_.both(arena_.any_text(), arena_.complement(s.names)), kAnyExpr);
  for (const RestRule& r : s.rest) {
    NodeId rest = open;
    for (const auto& [pattern, value] : r.patterns) {
      some(arena_.both(open, pattern), none(value));
      rest = arena_.both(rest, arena_.complement(pattern));
    }
    some(rest, none(r.additional));
  }
}

// Witnesses among the declared members become alternatives in which those are required; what is left speaks of
// undeclared members alone. One member may be the witness of several.
void Schema::place_witnesses(Lang& lang) {
  if (failed() || std::ranges::all_of(lang.objects, [](const ObjectShape& s) { return s.witnesses.empty(); })) return;
  std::vector<ObjectShape> work = std::move(lang.objects);
  lang.objects.clear();
  for (size_t at = 0; at < work.size(); ++at) {
    if (!arena_.budget().step()) return;
    if (work.size() > limits_.max_shapes) {
      fail("constraint_too_complex", nullptr, "not",
           "more than " + std::to_string(limits_.max_shapes) + " alternatives in a complement");
      return;
    }
    ObjectShape s = work[at];
    auto add = [&](ObjectShape w) {
      if (!shape_empty(w, 1) && std::ranges::find(work, w) == work.end()) work.push_back(std::move(w));
    };
    const NodeId declared = names_of(arena_, s);
    NodeId allowed = arena_.both(s.names, arena_.other_text(declared));
    for (const RestRule& r : s.rest) {
      if (!closed(r)) continue;
      std::vector<NodeId> patterns;
      for (const auto& [pattern, value] : r.patterns) {
        if (value != kNeverExpr) patterns.push_back(pattern);
      }
      allowed = arena_.both(allowed, arena_.alt(std::move(patterns)));
    }
    bool possible = s.required.size() + s.witnesses.size() <= s.max;
    for (size_t i = 0; i < s.witnesses.size(); ++i) {
      const Witness w = s.witnesses[i];
      ObjectShape without = s;
      without.witnesses.erase(without.witnesses.begin() + static_cast<std::ptrdiff_t>(i));
      auto required = [&](ObjectShape& shape, const std::string& name) {
        const auto it = std::ranges::lower_bound(shape.required, name);
        if (it == shape.required.end() || *it != name) shape.required.insert(it, name);
      };
      for (size_t p = 0; p < s.props.size(); ++p) {
        if (s.props[p].value == kNeverExpr || !arena_.matches(w.names, s.props[p].name)) continue;
        ObjectShape found = without;
        found.props[p].value = all({s.props[p].value, w.value});
        required(found, s.props[p].name);
        add(std::move(found));
      }
      for (const std::string& r : s.required) {
        if (std::ranges::any_of(s.props, [&](const Property& p) { return p.name == r; })) continue;
        if (!arena_.matches(w.names, r)) continue;
        ObjectShape found = without;
        found.props.push_back({r, all({undeclared(s, r), w.value})});
        add(std::move(found));
      }
      for (size_t j = 0; j < i; ++j) {
        ObjectShape found = without;
        Witness& other = found.witnesses[j];
        other = {arena_.both(other.names, w.names), all({other.value, w.value})};
        if (!arena_.is_nothing(other.names)) add(std::move(found));
      }
      s.witnesses[i].names = arena_.both(w.names, allowed);
      possible = possible && w.value != kNeverExpr && !arena_.is_nothing(s.witnesses[i].names);
    }
    if (possible && !shape_empty(s, 1) && std::ranges::find(lang.objects, s) == lang.objects.end())
      lang.objects.push_back(std::move(s));
  }
}

}  // namespace di::structured
