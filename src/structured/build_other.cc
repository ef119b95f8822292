// Chooses among the front ends whose grammars are more than one lexeme, and holds the pieces that they share.
#include <algorithm>

#include "structured/tag_parts.h"
#include "structured/vocabulary.h"

namespace di::structured {
namespace {

// Where the next special token's spelling begins, and which token; npos when there is none.
size_t next_special(const Vocabulary& v, std::string_view text, TokenId& id) {
  for (size_t at = 0; at < text.size(); ++at) {
    id = -1;
    size_t length = 0;
    for (const auto& [spelling, token] : v.impl().special_ids) {
      if (spelling.size() > length && text.substr(at).starts_with(spelling)) {
        id = token;
        length = spelling.size();
      }
    }
    if (id >= 0) return at;
  }
  return std::string_view::npos;
}

// A grammar whose rules are written `name: ...` is Lark, one with `name ::= ...` EBNF.
bool looks_like_lark(std::string_view text) {
  if (text.find("::=") != std::string_view::npos) return false;
  return text.find(':') != std::string_view::npos;
}

}  // namespace

void text_with_specials(Build& b, StateId from, StateId to, std::string_view text) {
  const RuleId rule = b.grammar.states[from].rule;
  while (!text.empty()) {
    TokenId id = -1;
    const size_t at = next_special(b.vocabulary, text, id);
    if (at == std::string_view::npos) break;
    if (at > 0) {
      const StateId next = b.grammar.add_state(rule);
      b.grammar.lexeme(from, b.arena.literal(text.substr(0, at)), next);
      from = next;
    }
    text.remove_prefix(at + b.vocabulary.bytes(id).size());
    const StateId next = b.grammar.add_state(rule);
    b.grammar.tokens(from, {id}, next);
    from = next;
  }
  b.grammar.lexeme(from, b.arena.literal(text), to);
}

std::string text_before_special(const Build& b, std::string_view text) {
  TokenId id = -1;
  return std::string(text.substr(0, next_special(b.vocabulary, text, id)));
}

NodeId text_without(Build& b, const std::vector<std::string>& stops) {
  std::vector<NodeId> found;
  for (const std::string& s : stops) {
    if (!s.empty()) found.push_back(b.arena.concat({kAllBytes, b.arena.literal(s), kAllBytes}));
  }
  return b.arena.complement(b.arena.alt(std::move(found)));
}

Expected<RuleId> build_other(Build& b, const ConstraintSpec& spec) {
  switch (spec.kind) {
    case ConstraintKind::kToolCalls:
      return build_tool_calls(b, spec);
    case ConstraintKind::kStructuralTag:
      return build_structural_tag(b, spec);
    case ConstraintKind::kEbnf:
      return build_ebnf(b, spec.payload);
    case ConstraintKind::kLark:
      return build_lark(b, spec.payload);
    default:
      return looks_like_lark(spec.payload) ? build_lark(b, spec.payload) : build_ebnf(b, spec.payload);
  }
}

}  // namespace di::structured
