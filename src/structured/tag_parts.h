// Pieces of grammar made of text in which special tokens are named by their spelling (structured-output.md §6, §7).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "structured/front_ends.h"

namespace di::structured {

// Reads `text` between two states: ordinary text as bytes, each spelling of a special token as that token only.
void text_with_specials(Build& b, StateId from, StateId to, std::string_view text);
// The part of a tag before its first special token: what a byte automaton can watch for.
std::string text_before_special(const Build& b, std::string_view text);
// Free text in which none of `stops` occurs; all bytes when there are none.
NodeId text_without(Build& b, const std::vector<std::string>& stops);

// Tool calls in the DSML format (§7.2).
Expected<RuleId> build_tool_calls(Build& b, const ConstraintSpec& spec);
// Structural tags in both forms (§6).
Expected<RuleId> build_structural_tag(Build& b, const ConstraintSpec& spec);
// EBNF (GBNF) and the Lark subset.
Expected<RuleId> build_ebnf(Build& b, std::string_view text);
Expected<RuleId> build_lark(Build& b, std::string_view text);

}  // namespace di::structured
