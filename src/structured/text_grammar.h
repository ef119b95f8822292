// Grammars written as text: what the EBNF and the Lark reader build, and its way into rules.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "structured/front_ends.h"

namespace di::structured {

struct GrammarExpr {
  enum class Kind : uint8_t { kNode, kSequence, kChoice, kRepeat, kReference };
  Kind kind = Kind::kNode;
  NodeId node = kEmptyText;    // kNode
  std::vector<uint32_t> kids;  // others: indices of expressions
  uint32_t min = 0;
  uint32_t max = 0;
  std::string name;   // kReference
  size_t offset = 0;  // in the text, for errors
};

struct NamedRule {
  std::string name;
  uint32_t expr = 0;
  size_t offset = 0;
};

struct TextGrammar {
  std::vector<GrammarExpr> exprs;
  std::vector<NamedRule> rules;
  // After every terminal of a rule these may follow (Lark's %ignore); kEmptyText: nothing.
  NodeId ignored = kEmptyText;

  uint32_t add(GrammarExpr e) {
    exprs.push_back(std::move(e));
    return static_cast<uint32_t>(exprs.size() - 1);
  }
};

// Line and column of a byte offset, as "line 2 column 5".
std::string place_in(std::string_view text, size_t offset);

// Rules without recursion become lexemes, the others rules of the parser. Errors name line and column.
Expected<RuleId> lower_grammar(Build& b, const TextGrammar& grammar, const std::string& root, std::string_view text);

}  // namespace di::structured
