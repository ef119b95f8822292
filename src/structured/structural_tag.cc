// Structural tags (structured-output.md §6), the old form (structures, triggers) and the new one (format).
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "structured/regex/pattern.h"
#include "structured/tag_parts.h"

namespace di::structured {
namespace {

class TagGrammar {
 public:
  TagGrammar(Build& b, const SpecOptions& options) : b_(b), g_(b.grammar), a_(b.arena), options_(options) {}

  Expected<RuleId> run(const Value& doc) {
    if (!doc.is_object()) return bad("a structural tag must be an object");
    if (const Value* f = doc.find("format")) return format(*f, 0);
    return old_form(doc);
  }

 private:
  struct Tag {
    std::string begin;
    std::vector<std::string> ends;
    RuleId content = 0;
  };

  static std::unexpected<CompileError> bad(std::string message) {
    return refuse("invalid_grammar", std::move(message));
  }

  Expected<std::string> text(const Value& v, std::string_view key) const {
    const Value* m = v.find(key);
    if (m == nullptr || !m->is_string()) return bad(fmt::format("\"{}\" must be a string", key));
    return m->text;
  }

  Expected<std::vector<std::string>> texts(const Value& v, std::string_view key, bool needed) const {
    std::vector<std::string> out;
    const Value* m = v.find(key);
    if (m == nullptr && !needed) return out;
    if (m == nullptr || !m->is_array()) return bad(fmt::format("\"{}\" must be an array of strings", key));
    for (const Value& s : m->items) {
      if (!s.is_string()) return bad(fmt::format("\"{}\" must be an array of strings", key));
      out.push_back(s.text);
    }
    return out;
  }

  bool flag(const Value& v, std::string_view key) const {
    const Value* m = v.find(key);
    return m != nullptr && m->is_bool() && m->boolean;
  }

  StateId start(RuleId r) const { return g_.rules[r].start; }
  StateId final_state(RuleId r) {
    const StateId s = g_.add_state(r);
    g_.states[s].final = true;
    return s;
  }

  // What of a stop text can be watched for in bytes: all of it, or the part before its first special token. A stop that
  // begins with a special token needs no watching: free text never holds one.
  std::vector<std::string> watched(const std::vector<std::string>& stops) const {
    std::vector<std::string> out;
    for (const std::string& s : stops) {
      if (text_before_special(b_, s) == s) out.push_back(s);
    }
    return out;
  }

  RuleId tag_rule(const Tag& t) {
    const RuleId rule = g_.add_rule();
    const StateId inside = g_.add_state(rule);
    const StateId done = g_.add_state(rule);
    const StateId end = final_state(rule);
    text_with_specials(b_, start(rule), inside, t.begin);
    g_.call(inside, t.content, done);
    for (const std::string& e : t.ends) text_with_specials(b_, done, end, e);
    return rule;
  }

  Expected<Tag> tag(const Value& v, int depth) {
    Tag t;
    auto begin = text(v, "begin");
    if (!begin) return std::unexpected(begin.error());
    t.begin = *begin;
    const Value* end = v.find("end");
    if (end != nullptr && end->is_string()) {
      t.ends.push_back(end->text);
    } else {
      auto ends = texts(v, "end", true);
      if (!ends) return std::unexpected(ends.error());
      t.ends = *ends;
    }
    if (t.ends.empty()) return bad("\"end\" must not be empty");
    const Value* content = v.find("content");
    if (content == nullptr) return bad("a tag needs \"content\"");
    // Free text inside a tag stops before its end.
    const Value* type = content->find("type");
    if (type != nullptr && type->is_string() && type->text == "any_text") {
      auto stops = texts(*content, "excludes", false);
      if (!stops) return std::unexpected(stops.error());
      for (const std::string& e : t.ends) {
        if (!e.empty()) stops->push_back(e);
      }
      t.content = lexeme_rule(b_, text_without(b_, watched(*stops)));
      return t;
    }
    auto rule = format(*content, depth + 1);
    if (!rule) return std::unexpected(rule.error());
    t.content = *rule;
    return t;
  }

  Expected<std::vector<Tag>> tags(const Value& v, int depth) {
    const Value* list = v.find("tags");
    if (list == nullptr || !list->is_array() || list->items.empty()) return bad("\"tags\" must be a non-empty array");
    std::vector<Tag> out;
    for (const Value& t : list->items) {
      auto one = tag(t, depth);
      if (!one) return std::unexpected(one.error());
      out.push_back(std::move(*one));
    }
    return out;
  }

  // (text tag)* text, where no trigger occurs in the text but as the beginning of a tag.
  Expected<RuleId> triggered(const std::vector<Tag>& all, const std::vector<std::string>& triggers,
                             const std::vector<std::string>& excludes, bool at_least_one, bool stop_after_first) {
    if (triggers.empty()) return bad("\"triggers\" must not be empty");
    for (const Tag& t : all) {
      if (std::ranges::none_of(triggers, [&](const std::string& x) { return t.begin.starts_with(x); })) {
        return bad(fmt::format("no trigger begins the tag \"{}\"", t.begin));
      }
    }
    std::vector<std::string> stops = triggers;
    stops.insert(stops.end(), excludes.begin(), excludes.end());
    const NodeId free = text_without(b_, watched(stops));
    const RuleId rule = g_.add_rule();
    const StateId gap = g_.add_state(rule);
    const StateId after = g_.add_state(rule);
    const StateId end = final_state(rule);
    // Nothing but a tag may stand first where one is demanded and text would not be an answer yet.
    g_.lexeme(start(rule), free, gap);
    if (!at_least_one) g_.skip(gap, end);
    for (const Tag& t : all) g_.call(gap, tag_rule(t), after);
    if (stop_after_first) {
      g_.skip(after, end);
      return rule;
    }
    const StateId later = g_.add_state(rule);
    g_.lexeme(after, free, later);
    g_.skip(later, end);
    for (const Edge& e : std::vector<Edge>(g_.states[gap].edges)) {
      if (e.kind == EdgeKind::kCall) g_.call(later, e.what, after);
    }
    return rule;
  }

  Expected<RuleId> old_form(const Value& doc) {
    const Value* list = doc.find("structures");
    if (list == nullptr || !list->is_array() || list->items.empty())
      return bad("\"structures\" must be a non-empty array");
    std::vector<Tag> all;
    for (const Value& s : list->items) {
      Tag t;
      auto begin = text(s, "begin");
      if (!begin) return std::unexpected(begin.error());
      auto end = text(s, "end");
      if (!end) return std::unexpected(end.error());
      const Value* schema = s.find("schema");
      if (schema == nullptr) return bad("a structure needs \"schema\"");
      auto content = build_schema_value(b_, *schema, options_);
      if (!content) return content;
      t.begin = *begin;
      t.ends = {*end};
      t.content = *content;
      all.push_back(std::move(t));
    }
    auto triggers = texts(doc, "triggers", true);
    if (!triggers) return std::unexpected(triggers.error());
    return triggered(all, *triggers, {}, false, false);
  }

  Expected<std::vector<RuleId>> elements(const Value& v, int depth) {
    const Value* list = v.find("elements");
    if (list == nullptr || !list->is_array() || list->items.empty())
      return bad("\"elements\" must be a non-empty array");
    std::vector<RuleId> out;
    for (const Value& e : list->items) {
      auto r = format(e, depth + 1);
      if (!r) return std::unexpected(r.error());
      out.push_back(*r);
    }
    return out;
  }

  Expected<RuleId> repeat(const Value& v, uint32_t min, uint32_t max, int depth) {
    const Value* content = v.find("content");
    if (content == nullptr) return bad("\"content\" is missing");
    auto inner = format(*content, depth + 1);
    if (!inner) return inner;
    const RuleId rule = g_.add_rule();
    const StateId loop = g_.add_state(rule);
    const StateId end = final_state(rule);
    Operation more;
    more.add_count = true;
    more.count_cap = max == kNoLimit ? min : kNoLimit;
    if (max != kNoLimit) more.max_count = max == 0 ? 0 : max - 1;
    Operation enough;
    enough.min_count = min;
    g_.skip(start(rule), loop);
    if (max > 0) g_.call(loop, *inner, loop, min > 0 || max != kNoLimit ? g_.add_op(more) : kNone);
    g_.skip(loop, end, min > 0 ? g_.add_op(enough) : kNone);
    return rule;
  }

  Expected<RuleId> separated(const Value& v, int depth) {
    auto all = tags(v, depth);
    if (!all) return std::unexpected(all.error());
    auto separator = text(v, "separator");
    if (!separator) return std::unexpected(separator.error());
    const RuleId rule = g_.add_rule();
    const StateId after = g_.add_state(rule);
    const StateId end = final_state(rule);
    if (!flag(v, "at_least_one")) g_.skip(start(rule), end);
    std::vector<RuleId> rules;
    for (const Tag& t : *all) rules.push_back(tag_rule(t));
    for (const RuleId r : rules) g_.call(start(rule), r, after);
    g_.skip(after, end);
    if (!flag(v, "stop_after_first")) {
      const StateId next = g_.add_state(rule);
      text_with_specials(b_, after, next, *separator);
      for (const RuleId r : rules) g_.call(next, r, after);
    }
    return rule;
  }

  Expected<std::vector<TokenId>> token_ids(const Value& v, std::string_view key) {
    const Value* m = v.find(key);
    if (m == nullptr) return bad(fmt::format("\"{}\" is missing", key));
    std::vector<const Value*> list;
    if (m->is_array()) {
      for (const Value& x : m->items) list.push_back(&x);
    } else {
      list.push_back(m);
    }
    std::vector<TokenId> out;
    for (const Value* x : list) {
      TokenId id = -1;
      if (x->is_number() && x->text.size() < 9 && x->text.find_first_not_of("0123456789") == std::string::npos)
        id = std::stoi(x->text);
      if (x->is_string()) {
        id = b_.vocabulary.special(x->text);
        const auto ids = b_.vocabulary.encode_greedy(x->text, false);
        if (id < 0 && ids.size() == 1) id = ids[0];
      }
      if (id < 0 || id >= b_.vocabulary.size()) return bad(fmt::format("\"{}\" names no token", key));
      out.push_back(id);
    }
    return out;
  }

  // Any tokens but some: one, or any number.
  Expected<RuleId> tokens_except(const Value& v, bool many) {
    std::vector<TokenId> except;
    for (const char* key : {"exclude_tokens", "token", "tokens"}) {
      if (v.find(key) == nullptr) continue;
      auto ids = token_ids(v, key);
      if (!ids) return std::unexpected(ids.error());
      except.insert(except.end(), ids->begin(), ids->end());
    }
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < b_.vocabulary.size(); ++id) {
      if (b_.vocabulary.is_special(id) || b_.vocabulary.bytes(id).empty()) continue;
      if (std::ranges::find(except, id) == except.end()) allowed.push_back(id);
    }
    const RuleId rule = g_.add_rule();
    const StateId loop = g_.add_state(rule);
    g_.states[loop].final = true;
    if (many) {
      g_.skip(start(rule), loop);
      g_.tokens(loop, allowed, loop);
    } else {
      g_.tokens(start(rule), allowed, loop);
    }
    return rule;
  }

  Expected<RuleId> simple_format(const std::string& type, const Value& v) {
    if (type == "const_string") {
      auto value = text(v, "value");
      if (!value) return std::unexpected(value.error());
      const RuleId rule = g_.add_rule();
      const StateId end = final_state(rule);
      text_with_specials(b_, start(rule), end, *value);
      return rule;
    }
    if (type == "json_schema") {
      const Value* schema = v.find("json_schema");
      if (schema == nullptr) return bad("\"json_schema\" is missing");
      if (const Value* style = v.find("style"); style != nullptr && style->text != "json") {
        return bad("only the style \"json\" is supported");
      }
      return build_schema_value(b_, *schema, options_);
    }
    if (type == "any_text") {
      auto stops = texts(v, "excludes", false);
      if (!stops) return std::unexpected(stops.error());
      return lexeme_rule(b_, text_without(b_, watched(*stops)));
    }
    if (type == "grammar") {
      auto grammar = text(v, "grammar");
      return grammar ? build_ebnf(b_, *grammar) : std::unexpected(grammar.error());
    }
    if (type == "regex") {
      auto pattern = text(v, "pattern");
      if (!pattern) return std::unexpected(pattern.error());
      auto excludes = texts(v, "excludes", false);
      if (!excludes) return std::unexpected(excludes.error());
      auto node = compile_pattern(a_, *pattern, PatternUse::kWhole);
      if (!node) return std::unexpected(node.error());
      return lexeme_rule(b_, a_.both(*node, text_without(b_, watched(*excludes))));
    }
    if (type == "token") {
      auto ids = token_ids(v, "token");
      if (!ids) return std::unexpected(ids.error());
      const RuleId rule = g_.add_rule();
      g_.tokens(start(rule), *ids, final_state(rule));
      return rule;
    }
    return tokens_except(v, type == "any_tokens");
  }

  Expected<uint32_t> bound(const Value& v, std::string_view key, uint32_t otherwise) const {
    const Value* m = v.find(key);
    if (m == nullptr || m->kind == Value::Kind::kNull) return otherwise;
    if (m->is_number() && m->text == "-1") return kNoLimit;
    if (!m->is_number() || m->text.size() > 7 || m->text.find_first_not_of("0123456789") != std::string::npos) {
      return bad(fmt::format("\"{}\" must be a whole number of at most {}", key, b_.limits.max_repeat));
    }
    return static_cast<uint32_t>(std::stoul(m->text));
  }

  Expected<RuleId> format(const Value& v, int depth) {
    if (depth > 100) return refuse("constraint_too_complex", "formats nested deeper than 100");
    auto type = text(v, "type");
    if (!type) return std::unexpected(type.error());
    constexpr std::array<std::string_view, 8> kSimple = {"const_string", "json_schema", "any_text",      "grammar",
                                                         "regex",        "token",       "exclude_token", "any_tokens"};
    if (std::ranges::find(kSimple, *type) != kSimple.end()) return simple_format(*type, v);
    if (*type == "sequence" || *type == "or") {
      auto parts = elements(v, depth);
      if (!parts) return std::unexpected(parts.error());
      const RuleId rule = g_.add_rule();
      const StateId end = final_state(rule);
      StateId at = start(rule);
      for (size_t i = 0; i < parts->size(); ++i) {
        const bool last = *type == "or" || i + 1 == parts->size();
        const StateId next = last ? end : g_.add_state(rule);
        g_.call(at, (*parts)[i], next);
        if (*type == "sequence") at = next;
      }
      return rule;
    }
    if (*type == "tag") {
      auto t = tag(v, depth);
      return t ? Expected<RuleId>(tag_rule(*t)) : std::unexpected(t.error());
    }
    if (*type == "triggered_tags") {
      auto all = tags(v, depth);
      if (!all) return std::unexpected(all.error());
      auto triggers = texts(v, "triggers", true);
      if (!triggers) return std::unexpected(triggers.error());
      auto excludes = texts(v, "excludes", false);
      if (!excludes) return std::unexpected(excludes.error());
      return triggered(*all, *triggers, *excludes, flag(v, "at_least_one"), flag(v, "stop_after_first"));
    }
    if (*type == "tags_with_separator") return separated(v, depth);
    if (*type == "optional") return repeat(v, 0, 1, depth);
    if (*type == "plus") return repeat(v, 1, kNoLimit, depth);
    if (*type == "star") return repeat(v, 0, kNoLimit, depth);
    if (*type == "repeat") {
      auto min = bound(v, "min", 0);
      if (!min) return std::unexpected(min.error());
      auto max = bound(v, "max", kNoLimit);
      if (!max) return std::unexpected(max.error());
      if (*min > *max) return bad("\"min\" is greater than \"max\"");
      return repeat(v, *min, *max, depth);
    }
    return bad(
        fmt::format("unknown format type \"{}\"; known are const_string, json_schema, any_text, grammar, regex, "
                    "sequence, or, tag, triggered_tags, "
                    "tags_with_separator, optional, plus, star, repeat, token, exclude_token, any_tokens",
                    *type));
  }

  Build& b_;
  Grammar& g_;
  Arena& a_;
  const SpecOptions& options_;
};

}  // namespace

Expected<RuleId> build_structural_tag(Build& b, const ConstraintSpec& spec) {
  auto doc = read_document(spec.payload, b.limits.max_document_nesting, "invalid_grammar");
  if (!doc) return std::unexpected(doc.error());
  return TagGrammar(b, spec.options).run(*doc);
}

}  // namespace di::structured
