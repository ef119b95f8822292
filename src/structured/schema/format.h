// Formats of strings that are enforced (structured-output.md §4.4).
#pragma once

#include <optional>
#include <string_view>

#include "structured/regex/arena.h"

namespace di::structured {

// The language over decoded characters; nothing for formats that are annotations.
std::optional<NodeId> compile_format(Arena& arena, std::string_view name);

}  // namespace di::structured
