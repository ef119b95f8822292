// The profile of schemas that OpenAI's strict mode accepts (structured-output.md §8.2): for clients that want the same
// refusals. Without it more is accepted.
#pragma once

#include <optional>

#include "structured/schema/document.h"

namespace di::structured {

// The first rule of the profile that the document breaks. Rules of JSON Schema itself are the compiler's business.
std::optional<CompileError> breaks_openai_strict(const Value& root);

}  // namespace di::structured
