// Union, intersection and complement of Lang values.
#include <algorithm>
#include <unordered_map>

#include "structured/schema/decimal.h"
#include "structured/schema/schema.h"

namespace di::structured {
namespace {

template <class T>
void add_distinct(std::vector<T>& to, T value) {
  if (std::ranges::find(to, value) == to.end()) to.push_back(std::move(value));
}

bool has_name(const std::vector<std::string>& sorted, const std::string& name) {
  return std::ranges::binary_search(sorted, name);
}

void add_name(std::vector<std::string>& sorted, const std::string& name) {
  const auto it = std::ranges::lower_bound(sorted, name);
  if (it == sorted.end() || *it != name) sorted.insert(it, name);
}

}  // namespace

Lang Schema::everything() {
  Lang l;
  l.null = true;
  l.bools = 3;
  l.numbers.push_back({all_numbers_, false, true});
  l.string = arena_.any_text();
  l.arrays.emplace_back();
  l.objects.emplace_back();
  if (options_.close_objects) l.objects[0] = ObjectShape{};
  return l;
}

Lang Schema::of_constant(const Value& value) {
  Lang l;
  switch (value.kind) {
    case Value::Kind::kNull:
      l.null = true;
      break;
    case Value::Kind::kBool:
      l.bools = value.boolean ? 2 : 1;
      break;
    case Value::Kind::kNumber: {
      const auto d = Decimal::parse(value.text);
      if (!d) {
        l.numbers.push_back({arena_.literal(value.text), false, false});
        l.exact = false;
        break;
      }
      const bool written_whole = value.text.find_first_of(".eE") == std::string::npos;
      l.numbers.push_back({number_equal(arena_, *d), d->is_whole() && written_whole, false});
      break;
    }
    case Value::Kind::kString:
      l.string = arena_.literal(value.text);
      break;
    case Value::Kind::kArray: {
      ArrayShape s;
      for (const Value& v : value.items) s.prefix.push_back(constant(v));
      s.rest = kNeverExpr;
      s.all_evaluated = true;
      s.min = s.max = value.items.size();
      l.arrays.push_back(std::move(s));
      break;
    }
    case Value::Kind::kObject: {
      ObjectShape s;
      for (size_t i = 0; i < value.items.size(); ++i) {
        s.props.push_back({value.keys[i], constant(value.items[i])});
        add_name(s.required, value.keys[i]);
      }
      s.rest.push_back({{}, kNeverExpr, {}});
      s.all_evaluated = true;
      s.any_order = true;
      l.objects.push_back(std::move(s));
      break;
    }
  }
  return l;
}

void Schema::unite(Lang& a, const Lang& b) {
  a.null = a.null || b.null;
  a.bools = a.bools | b.bools;
  for (const NumberPart& n : b.numbers) add_distinct(a.numbers, n);
  a.string = arena_.alt(a.string, b.string);
  for (const ArrayShape& s : b.arrays) add_distinct(a.arrays, s);
  for (const ObjectShape& s : b.objects) add_distinct(a.objects, s);
  a.exact = a.exact && b.exact;
}

ArrayShape Schema::meet(const ArrayShape& a, const ArrayShape& b) {
  ArrayShape out;
  const size_t n = std::max(a.prefix.size(), b.prefix.size());
  for (size_t i = 0; i < n; ++i) {
    out.prefix.push_back(all({i < a.prefix.size() ? a.prefix[i] : a.rest, i < b.prefix.size() ? b.prefix[i] : b.rest}));
  }
  out.rest = all({a.rest, b.rest});
  out.min = std::max(a.min, b.min);
  out.max = std::min(a.max, b.max);
  out.unique = a.unique || b.unique;
  out.unique_origin = a.unique ? a.unique_origin : b.unique_origin;
  out.contains = a.contains;
  for (const Contains& c : b.contains) add_distinct(out.contains, c);
  out.all_evaluated = a.all_evaluated || b.all_evaluated;
  return out;
}

ExprId Schema::undeclared(const ObjectShape& shape, const std::string& name) {
  std::vector<ExprId> parts;
  if (shape.names != kAllBytes && !arena_.matches(shape.names, name)) return kNeverExpr;
  for (const RestRule& r : shape.rest) {
    bool matched = false;
    for (const auto& [pattern, value] : r.patterns) {
      if (!arena_.matches(pattern, name)) continue;
      matched = true;
      parts.push_back(value);
    }
    if (!matched) parts.push_back(r.additional);
  }
  return all(std::move(parts));
}

ObjectShape Schema::meet(const ObjectShape& a, const ObjectShape& b) {
  ObjectShape out;
  std::unordered_map<std::string, ExprId> in_b;
  for (const Property& p : b.props) in_b.emplace(p.name, p.value);
  std::unordered_map<std::string, bool> in_a;
  for (const Property& p : a.props) {
    in_a.emplace(p.name, true);
    const auto it = in_b.find(p.name);
    out.props.push_back({p.name, all({p.value, it != in_b.end() ? it->second : undeclared(b, p.name)})});
  }
  for (const Property& p : b.props) {
    if (!in_a.contains(p.name)) out.props.push_back({p.name, all({p.value, undeclared(a, p.name)})});
  }
  out.rest = a.rest;
  for (const RestRule& r : b.rest) add_distinct(out.rest, r);
  out.required = a.required;
  for (const std::string& r : b.required) add_name(out.required, r);
  out.names = arena_.both(a.names, b.names);
  out.witnesses = a.witnesses;
  for (const Witness& w : b.witnesses) add_distinct(out.witnesses, w);
  out.min = std::max(a.min, b.min);
  out.max = std::min(a.max, b.max);
  out.all_evaluated = a.all_evaluated || b.all_evaluated;
  out.any_order = a.any_order || b.any_order;
  return out;
}

void Schema::intersect(Lang& a, const Lang& b, size_t most) {
  if (most == 0) most = limits_.max_shapes;
  a.null = a.null && b.null;
  a.bools = a.bools & b.bools;
  std::vector<NumberPart> numbers;
  for (const NumberPart& x : a.numbers) {
    for (const NumberPart& y : b.numbers) {
      NumberPart n;
      n.integer = x.integer || y.integer;
      n.any = x.any && y.any;
      n.set = x.any ? y.set : y.any ? x.set : arena_.both(x.set, y.set);
      if (n.set != kNothing) add_distinct(numbers, n);
    }
  }
  a.numbers = std::move(numbers);
  a.string = arena_.both(a.string, b.string);
  if (a.arrays.size() * b.arrays.size() > most || a.objects.size() * b.objects.size() > most) {
    fail("constraint_too_complex", nullptr, "allOf",
         "more than " + std::to_string(most) + " combinations of alternatives");
    a = Lang{};
    return;
  }
  std::vector<ArrayShape> arrays;
  for (const ArrayShape& x : a.arrays) {
    for (const ArrayShape& y : b.arrays) {
      ArrayShape s = x == ArrayShape{} ? y : y == ArrayShape{} ? x : meet(x, y);
      if (!shape_empty(s, 0)) add_distinct(arrays, std::move(s));
    }
  }
  a.arrays = std::move(arrays);
  std::vector<ObjectShape> objects;
  for (const ObjectShape& x : a.objects) {
    for (const ObjectShape& y : b.objects) {
      if (!arena_.budget().step()) return;
      ObjectShape s = x == ObjectShape{} ? y : y == ObjectShape{} ? x : meet(x, y);
      if (!shape_empty(s, 0)) add_distinct(objects, std::move(s));
    }
  }
  a.objects = std::move(objects);
  a.exact = a.exact && b.exact;
  total_shapes_ += a.objects.size() + a.arrays.size();
}

Lang Schema::complement(const Lang& a, const std::vector<std::string>* names) {
  Lang out;
  out.null = !a.null;
  out.bools = static_cast<uint8_t>(~a.bools & 3U);
  NodeId numbers = kNothing;
  for (const NumberPart& n : a.numbers) {
    if (n.any && !n.integer) {
      numbers = kAllBytes;
    } else {
      const NodeId set = n.any ? wholes_ : n.integer ? arena_.both(n.set, wholes_) : n.set;
      numbers = arena_.alt(numbers, set);
    }
  }
  if (a.numbers.empty()) {
    out.numbers.push_back({all_numbers_, false, true});
  } else if (numbers != kAllBytes) {
    out.numbers.push_back({arena_.both(plain_, arena_.complement(numbers)), false, false});
  }
  out.string = arena_.other_text(a.string);
  complement_arrays(a, out);
  complement_objects(a, names, out);
  return out;
}

void Schema::complement_arrays(const Lang& a, Lang& out) {
  // The complement of a union is the intersection of complements; each is a union of single violations.
  std::vector<ArrayShape> left{ArrayShape{}};
  for (const ArrayShape& s : a.arrays) {
    std::vector<ArrayShape> ways;
    ArrayShape w;
    if (s.min > 0) {
      w.max = s.min - 1;
      ways.push_back(w);
    }
    if (s.max != kUnbounded) {
      w = {};
      w.min = s.max + 1;
      ways.push_back(w);
    }
    for (size_t i = 0; i < s.prefix.size(); ++i) {
      if (s.prefix[i] == kAnyExpr) continue;
      w = {};
      w.prefix.assign(i, kAnyExpr);
      w.prefix.push_back(none(s.prefix[i]));
      w.min = i + 1;
      ways.push_back(w);
    }
    if (s.rest != kAnyExpr) {
      if (s.prefix.empty()) {
        w = {};
        w.contains.push_back({none(s.rest), 1, kUnbounded, {}});
        ways.push_back(w);
      } else if (s.rest == kNeverExpr) {
        w = {};
        w.min = s.prefix.size() + 1;
        ways.push_back(w);
      } else {
        out.exact = false;
      }
    }
    for (const Contains& c : s.contains) {
      if (c.min > 0) {
        w = {};
        w.contains.push_back({c.item, 0, c.min - 1, c.origin});
        ways.push_back(w);
      }
      if (c.max != kUnbounded) {
        w = {};
        w.contains.push_back({c.item, c.max + 1, kUnbounded, c.origin});
        ways.push_back(w);
      }
    }
    if (s.unique) out.exact = false;
    std::vector<ArrayShape> next;
    for (const ArrayShape& x : left) {
      for (const ArrayShape& y : ways) {
        ArrayShape m = meet(x, y);
        if (!shape_empty(m, 0)) add_distinct(next, std::move(m));
      }
    }
    if (next.size() > limits_.max_shapes)
      fail("constraint_too_complex", nullptr, "not",
           "more than " + std::to_string(limits_.max_shapes) + " alternatives in a complement");
    left = std::move(next);
    if (failed()) return;
  }
  out.arrays = std::move(left);
}

void Schema::complement_objects(const Lang& a, const std::vector<std::string>* names, Lang& out) {
  std::vector<ObjectShape> left{ObjectShape{}};
  for (const ObjectShape& s : a.objects) {
    std::vector<ObjectShape> ways;
    auto with = [&](const std::string& name, ExprId value) {
      ObjectShape w;
      w.props.push_back({name, value});
      w.required.push_back(name);
      ways.push_back(std::move(w));
    };
    for (const std::string& r : s.required) {
      ObjectShape w;
      w.props.push_back({r, kNeverExpr});
      ways.push_back(std::move(w));
    }
    for (const Property& p : s.props) {
      if (p.value != kAnyExpr) with(p.name, none(p.value));
    }
    for (const Witness& witness : s.witnesses) {
      ObjectShape w;
      w.rest.push_back({{{witness.names, none(witness.value)}}, kAnyExpr, {}});
      ways.push_back(std::move(w));
    }
    if (names == nullptr) {
      add_witnesses(s, ways);
    } else {
      for (const std::string& n : *names) {
        if (std::ranges::any_of(s.props, [&](const Property& p) { return p.name == n; })) continue;
        const ExprId v = undeclared(s, n);
        if (v != kAnyExpr) with(n, none(v));
      }
      if (!s.rest.empty() || s.names != kAllBytes) out.exact = false;
    }
    ObjectShape w;
    if (s.min > 0) {
      w.max = s.min - 1;
      ways.push_back(w);
    }
    if (s.max != kUnbounded) {
      w = {};
      w.min = s.max + 1;
      ways.push_back(w);
    }
    std::vector<ObjectShape> next;
    for (const ObjectShape& x : left) {
      for (const ObjectShape& y : ways) {
        ObjectShape m = meet(x, y);
        if (!shape_empty(m, 1)) add_distinct(next, std::move(m));
      }
    }
    if (next.size() > limits_.max_shapes)
      fail("constraint_too_complex", nullptr, "not",
           "more than " + std::to_string(limits_.max_shapes) + " alternatives in a complement");
    left = std::move(next);
    if (failed()) return;
  }
  out.objects = std::move(left);
}

bool Schema::shape_empty(const ArrayShape& s, int depth) {
  if (s.min > s.max) return true;
  if (s.rest == kNeverExpr && s.min > s.prefix.size()) return true;
  for (size_t i = 0; i < s.prefix.size() && i < s.min; ++i) {
    if (s.prefix[i] == kNeverExpr || (depth > 0 && is_empty(s.prefix[i], depth - 1))) return true;
  }
  if (s.min > s.prefix.size() && depth > 0 && is_empty(s.rest, depth - 1)) return true;
  return std::ranges::any_of(s.contains, [&](const Contains& c) {
    return c.min > c.max || c.min > s.max || (c.min > 0 && c.item == kNeverExpr);
  });
}

bool Schema::shape_empty(const ObjectShape& s, int depth) {
  if (s.min > s.max || s.required.size() > s.max) return true;
  for (const Property& p : s.props) {
    if (!has_name(s.required, p.name)) continue;
    if (p.value == kNeverExpr || (depth > 0 && is_empty(p.value, depth - 1))) return true;
  }
  if (s.rest.empty() && s.names == kAllBytes) return false;
  for (const std::string& r : s.required) {
    if (std::ranges::any_of(s.props, [&](const Property& p) { return p.name == r; })) continue;
    const ExprId v = undeclared(s, r);
    if (v == kNeverExpr || (depth > 0 && is_empty(v, depth - 1))) return true;
  }
  return false;
}

NodeId Schema::number_text(const NumberPart& part) {
  if (!part.integer) return part.set;
  return part.any ? integers_ : arena_.both(part.set, integers_);
}

bool Schema::lang_empty(const Lang& l, int depth) {
  if (l.null || l.bools != 0) return false;
  for (const NumberPart& n : l.numbers) {
    if (!arena_.is_nothing(number_text(n))) return false;
  }
  if (!arena_.is_nothing(l.string)) return false;
  for (const ArrayShape& s : l.arrays) {
    if (!shape_empty(s, depth)) return false;
  }
  for (const ObjectShape& s : l.objects) {
    if (!shape_empty(s, depth)) return false;
  }
  return true;
}

bool Schema::is_empty(ExprId id, int depth) {
  if (id == kAnyExpr) return false;
  if (id == kNeverExpr) return true;
  if (failed() || in_progress_[id]) return false;
  return lang_empty(unfold(id), depth);
}

bool Schema::disjoint(const Lang& a, const Lang& b) {
  Lang both = a;
  intersect(both, b);
  return !failed() && lang_empty(both, 4);
}

const std::vector<std::string>& Schema::property_names(const Lang& lang, std::vector<std::string>& store) {
  for (const ObjectShape& s : lang.objects) {
    for (const Property& p : s.props) {
      if (p.value != kNeverExpr) add_name(store, p.name);
    }
    for (const std::string& r : s.required) add_name(store, r);
  }
  return store;
}

}  // namespace di::structured
