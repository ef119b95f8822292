// Options of a constraint as a JSON object, the form in which the C interface takes them. The members are listed in
// docs/structured-output.md.
#pragma once

#include <string_view>

#include "base/result.h"
#include "structured/structured.h"

namespace di::structured {

// "json_schema", "regex", ... Errors name the kinds.
Result<ConstraintKind> kind_of(std::string_view name);

// Reads `json` (empty: the defaults) into spec and limits. An unknown member or a value of the wrong type is an error.
Result<void> read_spec_options(std::string_view json, ConstraintSpec& spec, Limits& limits);

}  // namespace di::structured
