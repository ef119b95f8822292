#include "server/fields.h"

#include <cmath>

namespace di::server {

std::unexpected<ApiFailure> field_error(std::string_view field, std::string_view expected, const Json& found,
                                        std::string_view code) {
  const std::string what = found.is_string() ? "a string" : describe_json(found);
  return std::unexpected(ApiFailure{ErrorKind::kInvalidRequest,
                                    fmt::format("{}: expected {}, found {}", field, expected, what), std::string(code),
                                    std::string(field), 0});
}

std::unexpected<ApiFailure> invalid_field(std::string_view field, std::string message, std::string_view code) {
  return std::unexpected(
      ApiFailure{ErrorKind::kInvalidRequest, std::move(message), std::string(code), std::string(field), 0});
}

std::optional<int64_t> integer_of(const Json& value) {
  if (const std::optional<int64_t> i = value.to_i64()) return i;
  if (value.is_integer()) return std::nullopt;
  const std::optional<double> d = value.to_double();
  if (d && std::floor(*d) == *d && std::abs(*d) < 9e15) return static_cast<int64_t>(*d);
  return std::nullopt;
}

Field<std::optional<int64_t>> int_field(const Json& body, std::string_view field, int64_t least, int64_t most) {
  const Json* value = body.find_value(field);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> n = integer_of(*value);
  const std::string expected = most == INT64_MAX ? fmt::format("an integer of at least {}", least)
                                                 : fmt::format("an integer in [{}, {}]", least, most);
  if (!n) return field_error(field, expected, *value, value->is_integer() ? "invalid_value" : "invalid_type");
  if (*n < least || *n > most) return field_error(field, expected, *value, "invalid_value");
  return n;
}

Field<std::optional<double>> number_field(const Json& body, std::string_view field, double least, double most) {
  const Json* value = body.find_value(field);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> x = value->to_double();
  const std::string expected = fmt::format("a number in [{}, {}]", least, most);
  if (!x) return field_error(field, expected, *value);
  if (!(*x >= least && *x <= most)) return field_error(field, expected, *value, "invalid_value");
  return x;
}

Field<std::optional<bool>> bool_field(const Json& body, std::string_view field) {
  const Json* value = body.find_value(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool()) return field_error(field, "true or false", *value);
  return value->as_bool();
}

Field<std::optional<std::string>> string_field(const Json& body, std::string_view field) {
  const Json* value = body.find_value(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return field_error(field, "a string", *value);
  return value->as_string();
}

Field<std::vector<std::string>> strings_field(const Json& body, std::string_view field) {
  std::vector<std::string> out;
  const Json* value = body.find_value(field);
  if (value == nullptr) return out;
  if (!value->is_array()) return field_error(field, "a list of strings", *value);
  for (size_t i = 0; i < value->size(); ++i) {
    const Json& item = value->as_array()[i];
    if (!item.is_string()) return field_error(fmt::format("{}[{}]", field, i), "a string", item);
    out.push_back(item.as_string());
  }
  return out;
}

Field<std::vector<int32_t>> token_ids_field(const Json& body, std::string_view field, int32_t vocab_size) {
  std::vector<int32_t> out;
  const Json* value = body.find_value(field);
  if (value == nullptr) return out;
  if (!value->is_array()) return field_error(field, "a list of token ids", *value);
  out.reserve(value->size());
  for (size_t i = 0; i < value->size(); ++i) {
    const Json& item = value->as_array()[i];
    const std::optional<int64_t> id = integer_of(item);
    if (!id || *id < 0 || *id >= vocab_size) {
      return field_error(fmt::format("{}[{}]", field, i), fmt::format("a token id below {}", vocab_size), item,
                         item.is_number() ? "invalid_value" : "invalid_type");
    }
    out.push_back(static_cast<int32_t>(*id));
  }
  return out;
}

}  // namespace di::server
