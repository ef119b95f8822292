// --json, --json-schema, --regex and --grammar of chat, run and generate, in the words of a Chat request.
#pragma once

#include "base/json.h"
#include "base/result.h"
#include "cli/options.h"

namespace di::cli {

// Members of a request body that ask for the constraint; an empty object where there is none. Errors: more than one is
// given; a file that cannot be read; a schema that is no JSON. What the constraint says is judged by the server.
Result<Json> constraint_members(const ConstraintOptions& options);

}  // namespace di::cli
