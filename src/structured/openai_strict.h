// The profile of schemas that OpenAI's strict mode accepts (structured-output.md §8.2): for clients that want the same
// refusals. Without it more is accepted.
#pragma once

#include <optional>
#include <string_view>

#include "structured/structured.h"

namespace di::structured {

// The first rule of the profile that a schema breaks. Rules of JSON Schema itself are the compiler's business.
std::optional<CompileError> breaks_openai_strict(std::string_view schema, const Limits& limits = {});
// That the parameters of strict tools break, of a JSON array of Chat function tools.
std::optional<CompileError> tools_break_openai_strict(std::string_view tools, const Limits& limits = {});

}  // namespace di::structured
