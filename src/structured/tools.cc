// Tool calls of DeepSeek V4.1 (structured-output.md §7.2):
//   calls  := "\n\n"? <DSML calls> "\n" invoke+ </DSML calls>
//   invoke := <DSML invoke name="NAME"> "\n" (param+ | "\n"?) </DSML invoke> "\n"
//   param  := <DSML parameter name="KEY" string="true|false"> VALUE </DSML parameter> "\n"
// where DSML is the special token. Text of string="true" is raw: only the special token can close it.
#include <fmt/format.h>

#include <algorithm>

#include "structured/regex/char_set.h"
#include "structured/schema/emitter.h"
#include "structured/tag_parts.h"

namespace di::structured {
namespace {

struct Function {
  std::string name;
  const Value* parameters = nullptr;  // nullptr: none stated
  bool strict = false;
};

class ToolGrammar {
 public:
  ToolGrammar(Build& b, const SpecOptions& options) : b_(b), g_(b.grammar), a_(b.arena), options_(options) {
    dsml_ = b.vocabulary.specials().dsml;
  }

  Expected<RuleId> run(const std::vector<Function>& functions) {
    if (dsml_ < 0) return refuse("invalid_vocabulary", "the vocabulary has no DSML token");
    std::vector<RuleId> invokes;
    for (const Function& f : functions) {
      auto rule = invoke(f);
      if (!rule) return rule;
      invokes.push_back(*rule);
    }
    const RuleId calls = g_.add_rule();
    const StateId open = g_.add_state(calls);
    const StateId more = g_.add_state(calls);
    const StateId close = g_.add_state(calls);
    const StateId end = g_.add_state(calls);
    g_.states[end].final = true;
    tag(g_.rules[calls].start, open, a_.concat(a_.optional(a_.literal("\n\n")), a_.byte('<')), a_.literal(" calls>\n"));
    for (const RuleId r : invokes) {
      g_.call(open, r, close);
      if (options_.parallel_tool_calls) g_.call(more, r, close);
    }
    g_.skip(close, more);
    tag(close, end, a_.literal("</"), a_.literal(" calls>"));
    return calls;
  }

 private:
  // Reads head, the special token, tail.
  void tag(StateId from, StateId to, NodeId head, NodeId tail, uint32_t op = kNone) {
    const RuleId rule = g_.states[from].rule;
    const StateId x = g_.add_state(rule);
    const StateId y = g_.add_state(rule);
    g_.lexeme(from, head, x, op);
    g_.tokens(x, {dsml_}, y);
    g_.lexeme(y, tail, to);
  }

  Expected<RuleId> invoke(const Function& f) {
    const RuleId rule = g_.add_rule();
    const StateId inside = g_.add_state(rule);
    const StateId end = g_.add_state(rule);
    g_.states[end].final = true;
    tag(g_.rules[rule].start, inside, a_.byte('<'), a_.literal(" invoke name=\"" + f.name + "\">\n"));
    if (!f.strict) {
      free_parameters(inside, end);
      return rule;
    }
    static const Value kEmpty = [] {
      Value v;
      v.kind = Value::Kind::kObject;
      return v;
    }();
    const Value& parameters = f.parameters != nullptr ? *f.parameters : kEmpty;
    Schema schema(a_, parameters, options_, b_.limits, b_.warnings);
    Emitter emitter(a_, g_, schema, options_, b_.limits);
    const Lang lang = schema.unfold(schema.root_expr());
    for (const ObjectShape& s : lang.objects) {
      if (!schema.failed()) strict_parameters(inside, end, s, schema, emitter);
    }
    emitter.finish();
    auto located = [&](CompileError e) {
      e.message = fmt::format("tool \"{}\": {}", f.name, e.message);
      return std::unexpected(std::move(e));
    };
    if (schema.error()) return located(*schema.error());
    if (emitter.error()) return located(*emitter.error());
    if (std::ranges::any_of(lang.objects, [](const ObjectShape& s) { return !s.witnesses.empty(); }))
      return located({"unsupported_schema_feature", {}, "not", "what undeclared parameters are cannot be negated"});
    if (lang.objects.empty()) return located({"unsatisfiable_schema", {}, {}, "parameters must allow an object"});
    return rule;
  }

  NodeId close_invoke() { return a_.literal(" invoke>\n"); }

  // Any well-formed parameters.
  void free_parameters(StateId inside, StateId end) {
    const RuleId rule = g_.states[inside].rule;
    const StateId next = g_.add_state(rule);
    g_.skip(inside, next);
    CharSet odd;
    odd.add(0, 0x1f);
    odd.add('"', '"');
    odd.add('<', '<');
    odd.add('>', '>');
    odd.normalise();
    const NodeId name = a_.repeat(utf8_class(a_, odd.complement()), 1, 256);
    const StateId key = g_.add_state(rule);
    parameter_open(next, key, kNone);
    if (any_ == kNone) {
      Value any;
      any.kind = Value::Kind::kBool;
      any.boolean = true;
      SpecOptions plain;
      auto built = build_schema_value(b_, any, plain);
      any_ = built ? *built : 0;
    }
    const StateId text = g_.add_state(rule);
    const StateId json = g_.add_state(rule);
    const StateId read = g_.add_state(rule);
    g_.lexeme(key, a_.concat({a_.literal(" parameter name=\""), name, a_.literal("\" string=\"true\">")}), text);
    g_.lexeme(key, a_.concat({a_.literal(" parameter name=\""), name, a_.literal("\" string=\"false\">")}), json);
    g_.lexeme(text, kAllBytes, read);
    g_.call(json, any_, read);
    parameter_close(read, next);
    tag(next, end, a_.literal("</"), close_invoke());
    tag(inside, end, a_.literal("\n</"), close_invoke());
  }

  // Reads "<", the token; what follows is read by the key's lexeme.
  void parameter_open(StateId from, StateId to, uint32_t op) {
    const StateId x = g_.add_state(g_.states[from].rule);
    g_.lexeme(from, a_.byte('<'), x, op);
    g_.tokens(x, {dsml_}, to);
  }

  void parameter_close(StateId from, StateId to) { tag(from, to, a_.literal("</"), a_.literal(" parameter>\n")); }

  // One parameter whose name is read by `name`; with a string in it raw text, with anything else JSON.
  void parameter(StateId key, StateId read, NodeId name, ExprId value, Schema& schema, Emitter& emitter, uint32_t op) {
    const RuleId rule = g_.states[key].rule;
    const Lang& lang = schema.unfold(value);
    const NodeId head = a_.concat({a_.literal(" parameter name=\""), name, a_.literal("\" string=\"")});
    if (lang.string != kNothing) {
      const StateId text = g_.add_state(rule);
      g_.lexeme(key, a_.concat(head, a_.literal("true\">")), text, op);
      g_.lexeme(text, lang.string, read);
    }
    const ValueParts parts = emitter.without_strings(value);
    if (parts.scalar != kNothing || !parts.rules.empty()) {
      const StateId json = g_.add_state(rule);
      g_.lexeme(key, a_.concat(head, a_.literal("false\">")), json, op);
      emitter.value_edges(json, read, parts);
    }
  }

  // Members in any order, each at most once, all required ones (§4.5).
  void strict_parameters(StateId inside, StateId end, const ObjectShape& s, Schema& schema, Emitter& emitter) {
    const RuleId rule = g_.states[inside].rule;
    std::vector<Property> members;
    for (const Property& p : s.props) {
      const bool required = std::ranges::binary_search(s.required, p.name);
      if (p.value != kNeverExpr || required) members.push_back(p);
    }
    std::vector<std::string> declared;
    for (const Property& p : s.props) declared.push_back(p.name);
    for (const std::string& r : s.required) {
      if (std::ranges::find(declared, r) != declared.end()) continue;
      members.push_back({r, schema.undeclared(s, r)});
      declared.push_back(r);
    }
    std::vector<uint64_t> bits((members.size() + 63) / 64, 0);
    for (size_t i = 0; i < members.size(); ++i) {
      if (std::ranges::binary_search(s.required, members[i].name)) bits[i / 64] |= uint64_t{1} << (i % 64);
    }
    const uint32_t required = g_.add_set(bits);
    const bool bounded = s.min > 0 || s.max != kUnbounded;
    const auto max = static_cast<uint32_t>(std::min<uint64_t>(s.max, kNoLimit));
    // Names that the schema does not speak of are refused; those of patterns and additionalProperties are not.
    const auto classes = s.rest.empty() ? std::vector<Emitter::NameClass>{} : emitter.name_classes(s, declared);
    Operation enough;
    enough.required = required;
    enough.min_count = static_cast<uint32_t>(s.min);
    const uint32_t enough_op = g_.add_op(enough);
    Operation more;
    if (classes.empty()) more.not_all_seen = static_cast<uint32_t>(members.size());
    if (s.max != kUnbounded) more.max_count = max == 0 ? 0 : max - 1;
    const StateId next = g_.add_state(rule);
    const StateId key = g_.add_state(rule);
    const StateId read = g_.add_state(rule);
    g_.skip(inside, next);
    if ((!members.empty() || !classes.empty()) && max > 0) parameter_open(next, key, g_.add_op(more));
    for (size_t i = 0; i < members.size(); ++i) {
      Operation op;
      op.not_seen = static_cast<uint32_t>(i);
      op.mark = true;
      op.add_count = bounded;
      if (s.max != kUnbounded && !std::ranges::binary_search(s.required, members[i].name)) {
        op.missing_of = required;
        op.missing_room = max - 1;
      }
      parameter(key, read, a_.literal(members[i].name), members[i].value, schema, emitter, g_.add_op(op));
    }
    for (const Emitter::NameClass& c : classes) {
      Operation op;
      op.add_count = bounded;
      CharSet quote = CharSet::of('"', '"');
      quote.add(0, 0x1f);
      quote.normalise();
      const NodeId names = a_.both(c.names, a_.star(utf8_class(a_, quote.complement())));
      parameter(key, read, names, c.value, schema, emitter, g_.add_op(op));
    }
    parameter_close(read, next);
    const StateId done = g_.add_state(rule);
    tag(next, done, a_.literal("</"), close_invoke(), enough_op);
    tag(inside, done, a_.literal("\n</"), close_invoke(), enough_op);
    g_.skip(done, end);
  }

  Build& b_;
  Grammar& g_;
  Arena& a_;
  const SpecOptions& options_;
  TokenId dsml_ = -1;
  RuleId any_ = kNone;
};

Expected<std::vector<Function>> read_functions(const Value& doc, const std::string& only) {
  if (!doc.is_array()) return refuse("invalid_grammar", "tools must be an array");
  std::vector<Function> out;
  for (const Value& tool : doc.items) {
    const Value* f = tool.find("function");
    if (f == nullptr || !f->is_object()) f = &tool;
    const Value* name = f->find("name");
    if (name == nullptr || !name->is_string() || name->text.empty())
      return refuse("invalid_grammar", "a tool without a name");
    if (!only.empty() && name->text != only) continue;
    Function x;
    x.name = name->text;
    if (x.name.find_first_of("\"<>\n") != std::string::npos)
      return refuse("invalid_grammar", "a tool's name must not hold quotes, angle brackets or line ends");
    x.parameters = f->find("parameters");
    if (x.parameters == nullptr) x.parameters = f->find("input_schema");
    if (x.parameters != nullptr && !x.parameters->is_object()) x.parameters = nullptr;
    const Value* strict = f->find("strict");
    x.strict = strict != nullptr && strict->is_bool() && strict->boolean;
    out.push_back(std::move(x));
  }
  if (out.empty())
    return refuse("invalid_grammar", only.empty() ? "no tools" : fmt::format("no tool is named \"{}\"", only));
  return out;
}

}  // namespace

Expected<RuleId> build_tool_calls(Build& b, const ConstraintSpec& spec) {
  if (spec.options.tool_choice == ToolChoice::kNone) return lexeme_rule(b, kAllBytes);
  auto doc = read_document(spec.payload, b.limits.max_document_nesting, "invalid_grammar");
  if (!doc) return std::unexpected(doc.error());
  auto functions = read_functions(*doc, spec.options.tool_name);
  if (!functions) return std::unexpected(functions.error());
  auto calls = ToolGrammar(b, spec.options).run(*functions);
  if (!calls || spec.options.tool_choice == ToolChoice::kRequired) return calls;
  const RuleId rule = b.grammar.add_rule();
  const StateId text = b.grammar.add_state(rule);
  const StateId end = b.grammar.add_state(rule);
  b.grammar.states[end].final = true;
  b.grammar.lexeme(b.grammar.rules[rule].start, kAllBytes, text);
  b.grammar.skip(text, end);
  b.grammar.call(text, *calls, end);
  return rule;
}

}  // namespace di::structured
