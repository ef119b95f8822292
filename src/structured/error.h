// Errors of compiling a constraint: a code of structured-output.md §8.1, where, which keyword, and why.
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace di::structured {

struct CompileError {
  std::string code;     // "unsupported_schema_feature", "invalid_regex", ...
  std::string pointer;  // JSON pointer into the schema ("/properties/a"), "" at its root and for other kinds
  std::string keyword;  // the keyword concerned, or ""
  std::string message;  // why, and what would be accepted; names offsets for regexes and grammars

  // "unsupported_schema_feature at #/properties/a, keyword "not": ..."
  std::string text() const;
};

template <class T>
using Expected = std::expected<T, CompileError>;

inline std::unexpected<CompileError> refuse(std::string_view code, std::string message) {
  return std::unexpected(CompileError{std::string(code), {}, {}, std::move(message)});
}

}  // namespace di::structured
