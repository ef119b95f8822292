// Readers of case files: a member that is absent or of another kind reads as empty, so that the comparison fails
// instead of the program.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace di::engine::cases {

inline const Json& member(const Json& object, std::string_view key) {
  static const Json kNull;
  const Json* found = object.find(key);
  return found == nullptr ? kNull : *found;
}

inline const Json::Array& items(const Json& value) {
  static const Json::Array kEmpty;
  const Json::Array* found = value.if_array();
  return found == nullptr ? kEmpty : *found;
}
inline const Json::Array& items(const Json& object, std::string_view key) {
  return items(member(object, key));
}

// Numbers, booleans, and decimal strings (64-bit values and exact doubles are written as such).
inline double number(const Json& value) {
  if (const std::string* text = value.if_string()) return std::strtod(text->c_str(), nullptr);
  if (const bool* flag = value.if_bool()) return *flag ? 1 : 0;
  return value.to_double().value_or(0);
}
inline uint64_t seed(const Json& value) {
  if (const std::string* text = value.if_string()) return std::strtoull(text->c_str(), nullptr, 10);
  return static_cast<uint64_t>(value.to_i64().value_or(0));
}
inline int32_t integer(const Json& value) {
  return static_cast<int32_t>(number(value));
}
inline int32_t integer(const Json& object, std::string_view key, int32_t absent = 0) {
  const Json* found = object.find_value(key);
  return found == nullptr ? absent : integer(*found);
}

template <class T>
std::vector<T> numbers(const Json& value) {
  std::vector<T> out;
  for (const Json& v : items(value)) out.push_back(static_cast<T>(number(v)));
  return out;
}
template <class T>
std::vector<T> numbers(const Json& object, std::string_view key) {
  return numbers<T>(member(object, key));
}
template <class T>
std::vector<std::vector<T>> rows(const Json& object, std::string_view key) {
  std::vector<std::vector<T>> out;
  for (const Json& row : items(object, key)) out.push_back(numbers<T>(row));
  return out;
}

}  // namespace di::engine::cases
