// Keywords that assert something by themselves: types, values, numbers, strings, arrays, objects.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "structured/regex/pattern.h"
#include "structured/schema/decimal.h"
#include "structured/schema/format.h"
#include "structured/schema/schema.h"

namespace di::structured {
namespace {

constexpr std::array<std::string_view, 5> kNumberKeywords = {"minimum", "maximum", "exclusiveMinimum",
                                                             "exclusiveMaximum", "multipleOf"};
constexpr std::array<std::string_view, 4> kStringKeywords = {"pattern", "format", "minLength", "maxLength"};
constexpr std::array<std::string_view, 9> kArrayKeywords = {"items",    "prefixItems", "additionalItems",
                                                            "minItems", "maxItems",    "uniqueItems",
                                                            "contains", "minContains", "maxContains"};
constexpr std::array<std::string_view, 7> kObjectKeywords = {
    "properties",    "required",      "additionalProperties", "patternProperties",
    "propertyNames", "minProperties", "maxProperties"};

// They do not say where members stand.
constexpr std::array<std::string_view, 4> kLateKeywords = {"not", "dependencies", "dependentRequired",
                                                           "dependentSchemas"};

bool has_any(const Value& node, std::span<const std::string_view> keys) {
  return std::ranges::any_of(keys, [&](std::string_view k) { return !k.empty() && node.find(k) != nullptr; });
}

bool in(std::span<const std::string_view> keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

}  // namespace

const Value* Schema::typed(const Value& node, std::string_view keyword, Value::Kind kind, std::string_view expected) {
  const Value* v = keyword_of(node, keyword);
  if (v == nullptr || v->kind == kind) return v;
  fail("invalid_json_schema", &node, keyword, fmt::format("must be {}", expected));
  return nullptr;
}

std::optional<uint64_t> Schema::count_of(const Value& node, std::string_view keyword) {
  const Value* v = typed(node, keyword, Value::Kind::kNumber, "a non-negative integer");
  if (v == nullptr) return std::nullopt;
  const auto d = Decimal::parse(v->text);
  if (!d || !d->is_whole() || (d->negative && !d->is_zero())) {
    fail("invalid_json_schema", &node, keyword, fmt::format("must be a non-negative integer, found {}", v->text));
    return std::nullopt;
  }
  if (d->whole.size() > 9) return 1'000'000'000;
  return std::stoull(d->whole);
}

Lang Schema::read(const Value& node) {
  Lang lang = everything();
  if (options_.close_objects && node.find("additionalProperties") == nullptr)
    lang.objects[0].rest.push_back({{}, kNeverExpr, {}});
  if (options_.close_objects && node.find("properties") != nullptr) lang.objects[0].rest.clear();
  read_types(node, lang);
  read_values(node, lang);
  bool arrays = false;
  bool objects = false;
  if (has_any(node, kNumberKeywords)) read_numbers(node, lang);
  if (has_any(node, kStringKeywords)) read_strings(node, lang);
  for (size_t i = 0; i < node.items.size() && !failed(); ++i) {
    const std::string& key = node.keys[i];
    if (in(kArrayKeywords, key)) {
      if (!arrays) read_arrays(node, lang);
      arrays = true;
    } else if (in(kObjectKeywords, key)) {
      // The members take their place where `properties` stands; the rest may come at any time.
      const bool here = key == "properties" || node.find("properties") == nullptr;
      if (here && !objects) read_objects(node, lang);
      objects = objects || here;
    } else if (!in(kLateKeywords, key)) {
      apply_keyword(node, key, node.items[i], lang);
    }
  }
  for (size_t i = 0; i < node.items.size() && !failed(); ++i) {
    if (in(kLateKeywords, node.keys[i])) apply_keyword(node, node.keys[i], node.items[i], lang);
  }
  if (!failed()) apply_if(node, lang);
  if (!failed()) apply_unevaluated(node, lang);
  if (total_shapes_ > limits_.max_alternatives)
    fail("constraint_too_complex", &node, "",
         fmt::format("more than {} alternatives in all", limits_.max_alternatives));
  return lang;
}

void Schema::read_types(const Value& node, Lang& lang) {
  const Value* type = keyword_of(node, "type");
  if (type == nullptr) return;
  std::vector<std::string> names;
  if (type->is_string()) {
    names.push_back(type->text);
  } else if (type->is_array() && !type->items.empty()) {
    for (const Value& t : type->items) names.push_back(t.is_string() ? t.text : "?");
  } else {
    return fail("invalid_json_schema", &node, "type", "must be a type name or a list of type names");
  }
  Lang keep;
  for (const std::string& n : names) {
    if (n == "null") {
      keep.null = true;
    } else if (n == "boolean") {
      keep.bools = 3;
    } else if (n == "number") {
      keep.numbers = {{all_numbers_, false, true}};
    } else if (n == "integer") {
      if (keep.numbers.empty()) keep.numbers = {{all_numbers_, true, true}};
    } else if (n == "string") {
      keep.string = arena_.any_text();
    } else if (n == "array") {
      keep.arrays.resize(1);
    } else if (n == "object") {
      keep.objects.resize(1);
    } else {
      return fail("invalid_json_schema", &node, "type", fmt::format("unknown type \"{}\"", n));
    }
  }
  const Value* nullable = keyword_of(node, "nullable");
  if (nullable != nullptr && nullable->is_bool() && nullable->boolean) keep.null = true;
  intersect(lang, keep);
}

void Schema::read_values(const Value& node, Lang& lang) {
  if (const Value* c = keyword_of(node, "const")) {
    const Lang one = of_constant(*c);
    intersect(lang, one);
  }
  const Value* list = typed(node, "enum", Value::Kind::kArray, "an array");
  if (list == nullptr) return;
  if (list->items.empty()) return fail("unsatisfiable_schema", &node, "enum", "an empty enum allows no value");
  Lang values;
  std::vector<std::string> strings;
  std::vector<NodeId> integers;
  for (const Value& v : list->items) {
    if (v.is_string()) {
      strings.push_back(v.text);
      continue;
    }
    const Lang one = of_constant(v);
    if (v.is_number() && one.numbers[0].integer) {
      integers.push_back(one.numbers[0].set);
      continue;
    }
    unite(values, one);
  }
  values.string = arena_.literals(std::move(strings));
  if (!integers.empty()) values.numbers.push_back({arena_.alt(std::move(integers)), true, false});
  intersect(lang, values);
}

void Schema::read_numbers(const Value& node, Lang& lang) {
  NodeId set = kAllBytes;
  auto decimal = [&](std::string_view key) -> std::optional<Decimal> {
    const Value* v = typed(node, key, Value::Kind::kNumber, "a number");
    if (v == nullptr) return std::nullopt;
    auto d = Decimal::parse(v->text);
    if (!d) fail("constraint_too_complex", &node, key, "a bound of more than 400 digits");
    return d;
  };
  auto bound = [&](std::string_view key, std::string_view exclusive_key, bool low) {
    const Value* exclusive = keyword_of(node, exclusive_key);
    const bool old_form = exclusive != nullptr && exclusive->is_bool();
    auto apply = [&](const Decimal& d, bool excl) {
      const NumberBound b{d, excl};
      set = arena_.both(set, low ? at_least(arena_, b) : at_most(arena_, b));
    };
    if (auto d = decimal(key)) apply(*d, old_form && exclusive->boolean);
    if (exclusive != nullptr && !old_form) {
      if (auto d = decimal(exclusive_key)) apply(*d, true);
    }
  };
  bound("minimum", "exclusiveMinimum", true);
  bound("maximum", "exclusiveMaximum", false);
  if (auto d = decimal("multipleOf")) {
    if (d->is_zero() || d->negative)
      return fail("invalid_json_schema", &node, "multipleOf", "must be greater than zero");
    std::string digits = d->whole + d->fraction;
    digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
    if (digits.size() > 18 || d->fraction.size() > 20) {
      return fail("constraint_too_complex", &node, "multipleOf",
                  "the divisor may have at most 18 digits, 20 of them after the point");
    }
    const uint64_t m = std::stoull(digits);
    set = arena_.both(set, m == 1 && d->is_whole()
                               ? wholes_
                               : arena_.both(plain_, arena_.multiple_of(m, static_cast<uint32_t>(d->fraction.size()))));
  }
  if (set == kAllBytes) return;
  for (NumberPart& n : lang.numbers) {
    n.set = n.any ? set : arena_.both(n.set, set);
    n.any = false;
  }
  std::erase_if(lang.numbers, [&](const NumberPart& n) { return arena_.is_nothing(number_text(n)); });
}

void Schema::read_strings(const Value& node, Lang& lang) {
  NodeId set = arena_.any_text();
  if (const Value* p = typed(node, "pattern", Value::Kind::kString, "a string")) {
    PatternLimits limits;
    limits.max_bytes = limits_.max_regex_bytes;
    auto re = compile_pattern(arena_, p->text, PatternUse::kSearch, limits);
    if (re) {
      set = arena_.both(set, *re);
    } else if (!options_.lenient || re.error().code == "constraint_too_complex") {
      fail(re.error().code, &node, "pattern", re.error().message);
    } else {
      cannot(node, "pattern", re.error().message);
    }
  }
  if (const Value* f = typed(node, "format", Value::Kind::kString, "a string")) {
    if (const auto re = compile_format(arena_, f->text)) {
      set = arena_.both(set, *re);
    } else if (options_.refuse_unknown_formats) {
      fail("unsupported_schema_feature", &node, "format", fmt::format("format \"{}\" is not known", f->text));
    } else if (options_.numeric_formats && (f->text == "int32" || f->text == "int64")) {
      const bool small = f->text == "int32";
      const NodeId range =
          arena_.both(at_least(arena_, {*Decimal::parse(small ? "-2147483648" : "-9223372036854775808"), false}),
                      at_most(arena_, {*Decimal::parse(small ? "2147483647" : "9223372036854775807"), false}));
      for (NumberPart& n : lang.numbers) {
        if (!n.integer) continue;
        n.set = n.any ? range : arena_.both(n.set, range);
        n.any = false;
      }
    } else {
      warnings_.push_back(fmt::format("#{}: format \"{}\" is not enforced", pointer_to(&node), f->text));
    }
  }
  const uint64_t min = count_of(node, "minLength").value_or(0);
  const uint64_t max = count_of(node, "maxLength").value_or(kUnbounded);
  if (min > limits_.max_repeat)
    return fail("constraint_too_complex", &node, "minLength",
                fmt::format("at most {} is accepted", limits_.max_repeat));
  // A text longer than the limit cannot be written anyway: the bound then says nothing.
  const uint32_t high = max > limits_.max_repeat ? kNoLimit : static_cast<uint32_t>(max);
  if (min > 0 || high != kNoLimit) {
    set = min > max ? kNothing : arena_.both(set, arena_.repeat(arena_.any_char(), static_cast<uint32_t>(min), high));
  }
  lang.string = lang.string == kNothing ? kNothing : arena_.both(lang.string, set);
  if (arena_.is_nothing(lang.string)) lang.string = kNothing;
}

void Schema::read_arrays(const Value& node, Lang& lang) {
  ArrayShape s;
  const Value* prefix = typed(node, "prefixItems", Value::Kind::kArray, "an array");
  const Value* items = keyword_of(node, "items");
  const Value* rest = items;
  const Value* behind = keyword_of(node, "additionalItems");  // says nothing but beside a list
  if (items != nullptr && items->is_array()) {
    if (prefix != nullptr)
      return fail("invalid_json_schema", &node, "items", "must be a schema beside prefixItems, not a list");
    prefix = items;
    rest = behind;
  }
  if (prefix != nullptr) {
    for (const Value& v : prefix->items) s.prefix.push_back(schema(v));
  }
  if (rest != nullptr) s.rest = schema(*rest);
  s.all_evaluated = rest != nullptr;
  s.min = count_of(node, "minItems").value_or(0);
  s.max = count_of(node, "maxItems").value_or(kUnbounded);
  if (s.min > limits_.max_repeat)
    return fail("constraint_too_complex", &node, "minItems", fmt::format("at most {} is accepted", limits_.max_repeat));
  if (s.max != kUnbounded && s.max > limits_.max_repeat) s.max = kUnbounded;
  const Value* unique = typed(node, "uniqueItems", Value::Kind::kBool, "a boolean");
  s.unique = unique != nullptr && unique->boolean;
  s.unique_origin = {&node};
  const auto min_contains = count_of(node, "minContains");  // say nothing without contains
  const auto max_contains = count_of(node, "maxContains");
  if (const Value* c = keyword_of(node, "contains")) {
    Contains k;
    k.item = schema(*c);
    k.origin = {&node};
    k.min = min_contains.value_or(1);
    k.max = max_contains.value_or(kUnbounded);
    if (k.min > 0 || k.max != kUnbounded) s.contains.push_back(k);
  }
  Lang l = everything();
  l.arrays = {std::move(s)};
  if (options_.close_objects) l.objects = {ObjectShape{}};
  intersect(lang, l);
}

void Schema::read_rest(const Value& node, ObjectShape& s) {
  RestRule rule;
  rule.origin = {&node};
  if (const Value* pp = typed(node, "patternProperties", Value::Kind::kObject, "an object")) {
    for (size_t i = 0; i < pp->items.size(); ++i) {
      PatternLimits limits;
      limits.max_bytes = limits_.max_regex_bytes;
      auto re = compile_pattern(arena_, pp->keys[i], PatternUse::kSearch, limits);
      if (!re) return fail(re.error().code, &node, "patternProperties", re.error().message);
      rule.patterns.emplace_back(*re, schema(pp->items[i]));
    }
  }
  if (const Value* ap = keyword_of(node, "additionalProperties")) {
    rule.additional = schema(*ap);
    s.all_evaluated = true;
  } else if (options_.close_objects) {
    rule.additional = kNeverExpr;
  }
  for (Property& p : s.props) {
    std::vector<ExprId> parts{p.value};
    for (const auto& [pattern, value] : rule.patterns) {
      if (arena_.matches(pattern, p.name)) parts.push_back(value);
    }
    p.value = all(std::move(parts));
  }
  if (!rule.patterns.empty() || rule.additional != kAnyExpr) s.rest.push_back(std::move(rule));
}

void Schema::read_objects(const Value& node, Lang& lang) {
  ObjectShape s;
  if (const Value* props = typed(node, "properties", Value::Kind::kObject, "an object")) {
    for (size_t i = 0; i < props->items.size(); ++i) s.props.push_back({props->keys[i], schema(props->items[i])});
  }
  if (const Value* required = keyword_of(node, "required")) {
    // Draft 3 and 4 documents in the wild put a boolean beside a property; that is malformed since draft 4.
    if (!required->is_array()) return fail("invalid_json_schema", &node, "required", "must be an array of strings");
    for (const Value& r : required->items) {
      if (!r.is_string()) return fail("invalid_json_schema", &node, "required", "must be an array of strings");
      s.required.push_back(r.text);
    }
    std::ranges::sort(s.required);
    s.required.erase(std::unique(s.required.begin(), s.required.end()), s.required.end());
  }
  read_rest(node, s);
  if (failed()) return;
  if (const Value* names = keyword_of(node, "propertyNames")) {
    const Lang& l = unfold(schema(*names));
    s.names = l.string == arena_.any_text() ? kAllBytes : l.string;
    if (!l.exact) lang.exact = false;
    if (s.names == kNothing) s.max = 0;
  }
  s.min = count_of(node, "minProperties").value_or(0);
  s.max = std::min(s.max, count_of(node, "maxProperties").value_or(kUnbounded));
  if (s.min > limits_.max_repeat)
    return fail("constraint_too_complex", &node, "minProperties",
                fmt::format("at most {} is accepted", limits_.max_repeat));
  if (s.max != kUnbounded && s.max > limits_.max_repeat) s.max = kUnbounded;
  Lang l = everything();
  l.objects = {std::move(s)};
  intersect(lang, l);
}

}  // namespace di::structured
