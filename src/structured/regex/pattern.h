// The regex dialect (structured-output.md §5): text to syntax tree to byte expression.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "structured/error.h"
#include "structured/regex/arena.h"

namespace di::structured {

enum class PatternUse : uint8_t {
  kSearch,  // JSON Schema's pattern: a match anywhere; `.` excludes \n \r U+2028 U+2029
  kWhole,   // the regex constraint: the whole text; `.` excludes \n only
};

struct PatternLimits {
  size_t max_bytes = 32 * 1024;
  uint32_t max_nesting = 250;
  uint32_t max_repeat = 1'000'000;
};

// The language over decoded UTF-8. Errors: invalid_regex, unsupported_regex_feature, constraint_too_large,
// constraint_too_complex, with the byte offset in the message.
Expected<NodeId> compile_pattern(Arena& arena, std::string_view pattern, PatternUse use,
                                 const PatternLimits& limits = {});

}  // namespace di::structured
