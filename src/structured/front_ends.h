// The front ends' common ground: what they build into, and the entry of each.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "structured/grammar/grammar.h"
#include "structured/schema/document.h"
#include "structured/structured.h"

namespace di::structured {

struct Build {
  Arena& arena;
  Grammar& grammar;
  const Vocabulary& vocabulary;
  const Limits& limits;
  std::vector<std::string>& warnings;
  std::string unsatisfiable_at;
  std::pair<std::string, std::string> exhausted_at;  // as Schema's
  std::vector<std::string>* visited = nullptr;       // of the schemas read, see inspect.h
};

RuleId lexeme_rule(Build& b, NodeId node);
Expected<RuleId> build_schema(Build& b, std::string_view text, const SpecOptions& options);
Expected<RuleId> build_schema_value(Build& b, const Value& doc, const SpecOptions& options);
// Grammars, structural tags, tool calls.
Expected<RuleId> build_other(Build& b, const ConstraintSpec& spec);

}  // namespace di::structured
