// Typed members of a request body, for the fields and routes that the codec does not read. Null counts as absent;
// integers may be written as 4.0; errors name the field, what was expected and what was found.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/errors.h"

namespace di::server {

template <class T>
using Field = std::expected<T, ApiFailure>;

std::unexpected<ApiFailure> field_error(std::string_view field, std::string_view expected, const Json& found,
                                        std::string_view code = "invalid_type");
std::unexpected<ApiFailure> invalid_field(std::string_view field, std::string message,
                                          std::string_view code = "invalid_value");

// The value itself, when it is an integer.
std::optional<int64_t> integer_of(const Json& value);

Field<std::optional<int64_t>> int_field(const Json& body, std::string_view field, int64_t least, int64_t most);
Field<std::optional<double>> number_field(const Json& body, std::string_view field, double least, double most);
Field<std::optional<bool>> bool_field(const Json& body, std::string_view field);
Field<std::optional<std::string>> string_field(const Json& body, std::string_view field);
Field<std::vector<std::string>> strings_field(const Json& body, std::string_view field);
// Ids below `vocab_size`; absent: empty.
Field<std::vector<int32_t>> token_ids_field(const Json& body, std::string_view field, int32_t vocab_size);

}  // namespace di::server
