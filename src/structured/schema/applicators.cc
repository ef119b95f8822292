// Keywords that combine subschemas: references, allOf, anyOf, oneOf, not, if, dependencies, unevaluated*.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "structured/schema/schema.h"

namespace di::structured {
namespace {

// Read elsewhere, or annotations.
constexpr std::array<std::string_view, 31> kSilent = {"type",
                                                      "enum",
                                                      "const",
                                                      "minimum",
                                                      "maximum",
                                                      "exclusiveMinimum",
                                                      "exclusiveMaximum",
                                                      "multipleOf",
                                                      "pattern",
                                                      "format",
                                                      "minLength",
                                                      "maxLength",
                                                      "nullable",
                                                      "if",
                                                      "then",
                                                      "else",
                                                      "unevaluatedProperties",
                                                      "unevaluatedItems",
                                                      "title",
                                                      "description",
                                                      "default",
                                                      "example",
                                                      "examples",
                                                      "deprecated",
                                                      "readOnly",
                                                      "writeOnly",
                                                      "$comment",
                                                      "contentMediaType",
                                                      "contentEncoding",
                                                      "contentSchema",
                                                      "$schema"};
constexpr std::array<std::string_view, 10> kStructural = {
    "$defs",          "definitions",      "$def",        "$id",          "id", "$anchor",
    "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "discriminator"};

}  // namespace

void Schema::apply_keyword(const Value& node, const std::string& key, const Value& value, Lang& lang) {
  if (std::ranges::find(kSilent, key) != kSilent.end() || std::ranges::find(kStructural, key) != kStructural.end())
    return;
  if (key == "$ref" || key == "$dynamicRef" || key == "$recursiveRef") return apply_reference(node, key, value, lang);
  if (key == "allOf" || key == "anyOf" || key == "oneOf") {
    visit(node, key);
    if (!value.is_array() || value.items.empty())
      return fail("invalid_json_schema", &node, key, "must be a non-empty array");
    if (key == "oneOf") return apply_one_of(node, value, lang);
    if (key == "allOf") {
      for (const Value& v : value.items) {
        const ExprId e = schema(v);
        if (failed()) return;
        intersect(lang, unfold(e));
      }
      return;
    }
    Lang any;
    for (const Value& v : value.items) {
      const ExprId e = schema(v);
      if (failed()) return;
      unite(any, unfold(e));
    }
    return intersect(lang, any);
  }
  if (key == "not") {
    visit(node, key);
    if (const Value* twice = value.is_object() && value.items.size() == 1 ? value.find("not") : nullptr) {
      visit(value, key);
      const ExprId same = schema(*twice);
      if (failed()) return;
      return intersect(lang, unfold(same));
    }
    const ExprId e = schema(value);
    if (failed()) return;
    const uint32_t cuts_before = cuts_;
    const Lang& inner = unfold(e);
    if (failed()) return;
    if (cuts_ != cuts_before)
      return fail("ref_cycle", &node, "not", "what is negated reaches itself through a reference");
    Lang out = complement(inner, nullptr);
    if (!inner.exact || !out.exact) {
      cannot(node, "not", "only types, values, strings, numbers, required, sizes and members can be negated exactly");
      return;
    }
    return intersect(lang, out);
  }
  if (key == "dependentRequired" || key == "dependentSchemas" || key == "dependencies")
    return apply_dependencies(node, key, value, lang);
}

void Schema::apply_reference(const Value& node, const std::string& key, const Value& value, Lang& lang) {
  visit(node, key);
  if (!value.is_string()) return fail("invalid_json_schema", &node, key, "must be a string");
  const Value* target = resolve(node, value.text);
  if (key == "$dynamicRef" && target != nullptr) {
    const size_t hash = value.text.find('#');
    const auto it =
        hash == std::string::npos ? dynamic_anchors_.end() : dynamic_anchors_.find(value.text.substr(hash + 1));
    if (it != dynamic_anchors_.end() && it->second.size() > 1) {
      cannot(node, key, "several targets are possible");
      return;
    }
  }
  if (key == "$recursiveRef" && root_.find("$recursiveAnchor") == nullptr && target == nullptr) target = &root_;
  if (target == nullptr) {
    return fail("unresolvable_ref", &node, key,
                fmt::format("\"{}\" is not in this document; nothing is fetched", value.text));
  }
  const ExprId e = schema(*target);
  if (failed()) return;
  intersect(lang, unfold(e));
}

void Schema::apply_one_of(const Value& node, const Value& branches, Lang& lang) {
  const size_t n = branches.items.size();
  std::vector<Lang> langs;
  for (const Value& v : branches.items) {
    const ExprId e = schema(v);
    if (failed()) return;
    // What the siblings refuse need not be told apart. Members of theirs come first.
    langs.push_back(lang);
    intersect(langs.back(), unfold(e));
  }
  Lang out;
  for (size_t i = 0; i < n && !failed(); ++i) {
    Lang only = langs[i];
    for (size_t j = 0; j < n && !failed(); ++j) {
      if (i == j || disjoint(only, langs[j])) continue;
      if (!langs[j].exact) {
        if (!cannot(node, "oneOf",
                    fmt::format("branches {} and {} overlap; use anyOf or add a const discriminator", i, j)))
          return;
        continue;
      }
      std::vector<std::string> names;
      const Lang other = complement(langs[j], &property_names(only, names));
      intersect(only, other);
    }
    unite(out, only);
  }
  if (failed()) return;
  if (lang_empty(out, 2) && !std::ranges::all_of(langs, [&](const Lang& l) { return lang_empty(l, 2); })) {
    if (!cannot(node, "oneOf",
                "the branches overlap everywhere or cannot be told apart; use anyOf or add a const discriminator"))
      return;
    for (const Lang& l : langs) unite(out, l);
  }
  lang = std::move(out);
}

void Schema::apply_if(const Value& node, Lang& lang) {
  const Value* condition = keyword_of(node, "if");
  const Value* then = keyword_of(node, "then");
  const Value* otherwise = keyword_of(node, "else");
  if (condition == nullptr || (then == nullptr && otherwise == nullptr)) return;
  const ExprId c = schema(*condition);
  if (failed()) return;
  const Lang yes_part = unfold(c);
  if (failed()) return;
  Lang yes = lang;
  intersect(yes, yes_part);
  if (then != nullptr) {
    const ExprId e = schema(*then);
    if (failed()) return;
    intersect(yes, unfold(e));
  }
  Lang no = lang;
  if (!yes_part.exact) {
    cannot(node, "if", "the condition cannot be negated");
    return;
  }
  std::vector<std::string> names;
  intersect(no, complement(yes_part, &property_names(lang, names)));
  if (otherwise != nullptr) {
    const ExprId e = schema(*otherwise);
    if (failed()) return;
    intersect(no, unfold(e));
  }
  unite(yes, no);
  lang = std::move(yes);
}

void Schema::apply_dependencies(const Value& node, const std::string& key, const Value& value, Lang& lang) {
  visit(node, key);
  if (!value.is_object()) return fail("invalid_json_schema", &node, key, "must be an object");
  constexpr size_t kMostTriggers = 12;
  if (value.items.size() > kMostTriggers)
    return fail("constraint_too_complex", &node, key, fmt::format("more than {} triggers", kMostTriggers));
  // Each trigger doubles the alternatives. Members in order tell them apart as they come; in any order all of them stay
  // open at once, which is more than decoding can follow.
  const bool ordered = options_.property_order == PropertyOrder::kSchema;
  const size_t most = limits_.max_shapes * (ordered ? size_t{1} << (kMostTriggers - 8) : 1);
  for (size_t i = 0; i < value.items.size() && !failed(); ++i) {
    const Value& then = value.items[i];
    Lang with = everything();
    ObjectShape have;
    have.required.push_back(value.keys[i]);
    if (then.is_array() && key != "dependentSchemas") {
      for (const Value& r : then.items) {
        if (!r.is_string()) return fail("invalid_json_schema", &node, key, "lists must hold strings");
        have.required.push_back(r.text);
      }
      std::ranges::sort(have.required);
      have.required.erase(std::unique(have.required.begin(), have.required.end()), have.required.end());
      with.objects = {have};
    } else if (key == "dependentRequired") {
      return fail("invalid_json_schema", &node, key, "values must be lists of strings");
    } else {
      with.objects = {have};
      const ExprId e = schema(then);
      if (failed()) return;
      Lang held = everything();
      held.objects = unfold(e).objects;
      held.exact = unfold(e).exact;
      intersect(with, held);
    }
    ObjectShape without;
    without.props.push_back({value.keys[i], kNeverExpr});
    with.objects.push_back(std::move(without));
    intersect(lang, with, most);
  }
}

// Closed per alternative: names and items that the alternative's own keywords speak of are evaluated. An alternative
// may admit less than the standard (another anyOf branch that happens to hold too could evaluate more), never more.
void Schema::apply_unevaluated(const Value& node, Lang& lang) {
  const Value* props = keyword_of(node, "unevaluatedProperties");
  const Value* items = keyword_of(node, "unevaluatedItems");
  if (props == nullptr && items == nullptr) return;
  for (const char* key : {"not", "if", "oneOf", "dependentSchemas", "$dynamicRef", "$recursiveRef", "contains"}) {
    if (node.find(key) != nullptr) {
      cannot(node, props != nullptr ? "unevaluatedProperties" : "unevaluatedItems",
             fmt::format("not together with \"{}\"", key));
      return;
    }
  }
  const Value* any = node.find("anyOf");
  if (any != nullptr && any->is_array() && any->items.size() > 1) {
    // Where two branches can hold at once, what is evaluated depends on the value.
    for (size_t i = 0; i < any->items.size() && !failed(); ++i) {
      for (size_t j = i + 1; j < any->items.size() && !failed(); ++j) {
        const Lang a = unfold(schema(any->items[i]));
        if (failed() || disjoint(a, unfold(schema(any->items[j])))) continue;
        cannot(node, props != nullptr ? "unevaluatedProperties" : "unevaluatedItems",
               fmt::format("branches {} and {} of anyOf can hold at once", i, j));
        return;
      }
    }
  }
  lang.exact = false;
  if (props != nullptr) {
    const ExprId e = schema(*props);
    for (ObjectShape& s : lang.objects) {
      if (s.all_evaluated) continue;
      s.all_evaluated = true;
      if (e == kAnyExpr) continue;
      RestRule rule;
      for (const RestRule& r : s.rest) {
        for (const auto& [pattern, value] : r.patterns) rule.patterns.emplace_back(pattern, kAnyExpr);
      }
      rule.additional = e;
      s.rest.push_back(std::move(rule));
    }
  }
  if (items != nullptr) {
    const ExprId e = schema(*items);
    for (ArrayShape& s : lang.arrays) {
      if (!s.all_evaluated && s.rest == kAnyExpr) s.rest = e;
      s.all_evaluated = true;
    }
  }
}

}  // namespace di::structured
