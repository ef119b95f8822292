// JSON Schema checks of request schemas (recipe.md §3.0 "Tools", "Strict normalization"). Internal to api/.
#pragma once

#include <expected>
#include <string>

#include "base/json.h"

namespace di::codec::api {

// Reads `schema` into the restricted grammar and writes it back in normal form. `empty_top` allows no properties at the
// top.
struct StrictError {
  enum class Kind : uint8_t {
    kGrammar,   // not in the grammar: the caller adds its prefix
    kTopLevel,  // the top is no object: the caller words it
    kRule,      // the whole message
  };
  Kind kind = Kind::kRule;
  std::string message;
};
std::expected<Json, StrictError> normalize_strict_schema(const Json& schema, bool empty_top);

// Whether the value is a well-formed JSON Schema of its draft; the error is worded like the jsonschema crate's.
std::expected<void, std::string> check_json_schema(const Json& schema);

}  // namespace di::codec::api
