// What stands between the quotes of a JSON string without constraint: raw characters and every escape, surrogates in
// pairs only (structured-output.md §4.6).
#pragma once

#include "structured/regex/arena.h"

namespace di::structured {

NodeId json_content(Arena& arena);

}  // namespace di::structured
