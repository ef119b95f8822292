// From a ConstraintSpec to a grammar: chooses the front end, adds the thinking part, trims, publishes.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "structured/compiled.h"
#include "structured/front_ends.h"
#include "structured/inspect.h"
#include "structured/regex/pattern.h"
#include "structured/schema/emitter.h"

namespace di::structured {
namespace {

CompileError exhausted_error(const Budget& budget, const Build& b) {
  const Limits& limits = b.limits;
  const auto& [pointer, keyword] = b.exhausted_at;
  if (budget.reason() == "time") {
    return {"constraint_compile_timeout", pointer, keyword,
            fmt::format("compiling took more than {} ms of CPU time", limits.compile_cpu_ms)};
  }
  if (budget.reason() == "memory") {
    return {"constraint_too_complex", pointer, keyword,
            fmt::format("compiling needs more than {} bytes", limits.compile_bytes)};
  }
  if (budget.reason() == "states")
    return {"constraint_too_complex", pointer, keyword,
            "combining its patterns or numbers needs more than 100000 states"};
  return {"constraint_too_complex", pointer, keyword, fmt::format("more than {} nodes", limits.max_nodes)};
}

Expected<RuleId> build_regex(Build& b, std::string_view pattern) {
  PatternLimits limits;
  limits.max_bytes = b.limits.max_regex_bytes;
  auto node = compile_pattern(b.arena, pattern, PatternUse::kWhole, limits);
  if (!node) return std::unexpected(node.error());
  return lexeme_rule(b, *node);
}

Expected<RuleId> build_choice(Build& b, std::string_view payload) {
  auto doc = read_document(payload, b.limits.max_document_nesting, "invalid_grammar");
  if (!doc) return std::unexpected(doc.error());
  if (!doc->is_array() || doc->items.empty())
    return refuse("invalid_grammar", "choice must be a non-empty array of strings");
  if (doc->items.size() > b.limits.max_choices) {
    return refuse("constraint_too_large",
                  fmt::format("{} choices, at most {} are accepted", doc->items.size(), b.limits.max_choices));
  }
  std::vector<std::string> texts;
  for (const Value& v : doc->items) {
    if (!v.is_string()) return refuse("invalid_grammar", "choice must be a non-empty array of strings");
    texts.push_back(v.text);
  }
  return lexeme_rule(b, b.arena.literals(std::move(texts)));
}

Expected<RuleId> build_body(Build& b, const ConstraintSpec& spec) {
  switch (spec.kind) {
    case ConstraintKind::kJsonObject:
      return build_schema(b, R"({"type":"object"})", spec.options);
    case ConstraintKind::kJsonSchema:
      return build_schema(b, spec.payload, spec.options);
    case ConstraintKind::kRegex:
      return build_regex(b, spec.payload);
    case ConstraintKind::kChoice:
      return build_choice(b, spec.payload);
    case ConstraintKind::kNone:
      return lexeme_rule(b, kAllBytes);
    default:
      return build_other(b, spec);
  }
}

// thinking := (any token but the control tokens)* </think>
Expected<RuleId> with_reasoning(Build& b, RuleId body) {
  const TokenId end = b.vocabulary.specials().think_end;
  if (end < 0) return refuse("invalid_vocabulary", "the vocabulary has no end-of-thinking token");
  const RuleId rule = b.grammar.add_rule();
  const StateId start = b.grammar.rules[rule].start;
  const StateId thought = b.grammar.add_state(rule);
  const StateId after = b.grammar.add_state(rule);
  const StateId done = b.grammar.add_state(rule);
  b.grammar.states[done].final = true;
  b.grammar.lexeme(start, kAllBytes, thought);
  b.grammar.tokens(thought, {end}, after);
  b.grammar.call(after, body, done);
  return rule;
}

// body | free text with calls; the text alone is no whole answer.
Expected<RuleId> with_tools(Build& b, RuleId body, const ConstraintSpec& spec) {
  ConstraintSpec tools;
  tools.kind = ConstraintKind::kToolCalls;
  tools.payload = spec.or_tools;
  tools.options = spec.options;
  tools.options.tool_choice = ToolChoice::kRequired;
  auto calls = build_other(b, tools);
  if (!calls) return calls;
  const RuleId rule = b.grammar.add_rule();
  const StateId start = b.grammar.rules[rule].start;
  const StateId text = b.grammar.add_state(rule);
  const StateId end = b.grammar.add_state(rule);
  b.grammar.states[end].final = true;
  b.grammar.call(start, body, end);
  b.grammar.lexeme(start, kAllBytes, text);
  b.grammar.call(text, *calls, end);
  return rule;
}

Expected<bool> build(Build& b, const ConstraintSpec& spec) {
  for (const std::string* text : {&spec.payload, &spec.or_tools}) {
    if (text->size() <= b.limits.max_schema_bytes) continue;
    return refuse("constraint_too_large",
                  fmt::format("{} bytes, at most {} are accepted", text->size(), b.limits.max_schema_bytes));
  }
  auto body = build_body(b, spec);
  if (!body) return std::unexpected(body.error());
  if (!spec.or_tools.empty()) {
    body = with_tools(b, *body, spec);
    if (!body) return std::unexpected(body.error());
  }
  if (b.arena.budget().exhausted()) return true;
  RuleId root = *body;
  if (spec.reasoning) {
    auto whole = with_reasoning(b, root);
    if (!whole) return std::unexpected(whole.error());
    root = *whole;
  }
  b.grammar.root = root;
  if (!b.grammar.trim(b.arena) && !b.arena.budget().exhausted()) {
    return std::unexpected(
        CompileError{"unsatisfiable_schema", b.unsatisfiable_at, {}, "no text satisfies the constraint"});
  }
  return true;
}

}  // namespace

RuleId lexeme_rule(Build& b, NodeId node) {
  const RuleId rule = b.grammar.add_rule();
  const StateId end = b.grammar.add_state(rule);
  b.grammar.states[end].final = true;
  b.grammar.lexeme(b.grammar.rules[rule].start, node, end);
  return rule;
}

Expected<RuleId> build_schema(Build& b, std::string_view text, const SpecOptions& options) {
  auto doc = read_document(text, b.limits.max_document_nesting, "invalid_json_schema");
  if (!doc) return std::unexpected(doc.error());
  return build_schema_value(b, *doc, options);
}

Expected<RuleId> build_schema_value(Build& b, const Value& doc, const SpecOptions& options) {
  Schema schema(b.arena, doc, options, b.limits, b.warnings);
  if (b.visited != nullptr) schema.record_visits();
  const ExprId root = schema.root_expr();
  Emitter emitter(b.arena, b.grammar, schema, options, b.limits);
  const RuleId rule = emitter.value_rule(root);
  emitter.finish();
  b.exhausted_at = schema.exhausted_at();
  if (b.visited != nullptr) std::ranges::move(schema.visited(), std::back_inserter(*b.visited));
  if (schema.error()) return std::unexpected(*schema.error());
  if (emitter.error()) return std::unexpected(*emitter.error());
  b.unsatisfiable_at = schema.unsatisfiable_at();
  return rule;
}

namespace {

Expected<CompiledRef> compile_with(const VocabularyRef& vocabulary, const ConstraintSpec& spec, const Limits& limits,
                                   std::vector<std::string>* visited) {
  auto impl = std::make_unique<CompiledImpl>(vocabulary, limits);
  impl->budget.start(limits.compile_cpu_ms, limits.compile_bytes, limits.max_nodes);
  Build b{impl->arena, impl->grammar, *vocabulary, limits, impl->warnings, {}, {}, visited};
  auto built = build(b, spec);
  if (impl->budget.exhausted()) return std::unexpected(exhausted_error(impl->budget, b));
  if (!built) return std::unexpected(built.error());
  impl->parser = std::make_unique<Parser>(impl->arena, impl->grammar, impl->limits, vocabulary->impl());
  const SetId start = impl->parser->start();
  if (impl->budget.exhausted()) return std::unexpected(exhausted_error(impl->budget, b));
  if (impl->parser->failed() || start == kDeadSet)
    return refuse("constraint_too_complex", fmt::format("more than {} alternatives at the start", limits.max_items));
  // From here on the limits are those of decoding.
  impl->budget.start(limits.mask_cpu_ms, limits.state_bytes, 0);
  return std::make_shared<const Compiled>(std::move(impl));
}

}  // namespace

Expected<CompiledRef> compile(const VocabularyRef& vocabulary, const ConstraintSpec& spec, const Limits& limits) {
  return compile_with(vocabulary, spec, limits, nullptr);
}

Expected<CompiledRef> compile_recorded(const VocabularyRef& vocabulary, const ConstraintSpec& spec,
                                       const Limits& limits, std::vector<std::string>& visited) {
  return compile_with(vocabulary, spec, limits, &visited);
}

}  // namespace di::structured
