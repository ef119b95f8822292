// Reads request structures from JSON values with the semantics and error texts of serde (recipe.md §3.0
// "Deserialization"): unknown fields are ignored, optional fields accept null, fields are read in the order of the
// input, then missing ones are reported in declaration order. Texts read are views into the JSON value. Internal to
// api/.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <expected>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace di::codec::api {

struct ReadError {
  std::string message;
  const char* code = "invalid_type";  // missing_field, invalid_type, invalid_value
  std::string path;                   // messages[0].content
};
using Read = std::expected<void, ReadError>;

std::unexpected<ReadError> read_error(const char* code, std::string message);
// How errors name a value: `integer \`7\``, `string "x"` (quoted as Rust does), `map`, …
std::string describe_value(const Json& value);
std::unexpected<ReadError> invalid_type(const Json& found, std::string_view expected);
std::unexpected<ReadError> missing_field(std::string_view name);
std::unexpected<ReadError> unknown_variant(std::string_view found, std::span<const std::string_view> variants);
// The same error with a step of the path in front of it.
Read at_field(std::string_view name, Read result);
Read at_index(size_t index, Read result);

struct ReadRules {
  bool integral_floats = false;  // 4.0 counts as 4 (extended policy)
};

Read read_text(const Json& v, std::string_view& out);
Read read_bool(const Json& v, bool& out);
Read read_f32(const Json& v, float& out);

template <std::unsigned_integral T>
Read read_uint(const Json& v, const ReadRules& rules, T& out) {
  constexpr const char* kName = sizeof(T) == 1 ? "u8" : sizeof(T) == 4 ? "u32" : "u64";
  std::optional<uint64_t> value = v.to_u64();
  if (rules.integral_floats && v.kind() == Json::Kind::kDouble) {
    const double d = *v.to_double();
    if (d >= 0 && d < 1e15 && d == std::floor(d)) value = static_cast<uint64_t>(d);
  }
  if (value && *value <= std::numeric_limits<T>::max()) {
    out = static_cast<T>(*value);
    return {};
  }
  if (v.is_integer()) {
    return read_error("invalid_value", "invalid value: " + describe_value(v) + ", expected " + kName);
  }
  return invalid_type(v, kName);
}

// A unit enum: a string, or a map {"variant": null}.
Read read_variant(const Json& v, std::span<const std::string_view> variants, size_t& out);
template <class E>
Read read_enum(const Json& v, std::span<const std::string_view> variants, E& out) {
  size_t index = 0;
  Read read = read_variant(v, variants, index);
  if (read) out = static_cast<E>(index);
  return read;
}
template <class E>
Read read_enum(const Json& v, std::initializer_list<std::string_view> variants, E& out) {
  return read_enum(v, std::span(variants.begin(), variants.size()), out);
}

template <class F>
struct Field {
  std::string_view name;
  bool required;
  F read;
  bool defaulted = false;
};
// Must be there; null goes to `read`.
template <class F>
Field<F> required(std::string_view name, F read) {
  return {name, true, std::move(read)};
}
// May be absent or null.
template <class F>
Field<F> optional(std::string_view name, F read) {
  return {name, false, std::move(read)};
}

// The same, and a sequence may end before it.
template <class F>
Field<F> defaulted(std::string_view name, F read) {
  return {name, false, std::move(read), true};
}

// Fields into plain and optional targets.
inline auto into(std::string_view& out) {
  return [&out](const Json& v) { return read_text(v, out); };
}
inline auto into(std::optional<std::string_view>& out) {
  return [&out](const Json& v) { return read_text(v, out.emplace()); };
}
inline auto into(bool& out) {
  return [&out](const Json& v) { return read_bool(v, out); };
}
inline auto into(std::optional<bool>& out) {
  return [&out](const Json& v) { return read_bool(v, out.emplace()); };
}
inline auto into(std::optional<float>& out) {
  return [&out](const Json& v) { return read_f32(v, out.emplace()); };
}
template <std::unsigned_integral T>
auto into(std::optional<T>& out, const ReadRules& rules) {
  return [&out, &rules](const Json& v) { return read_uint(v, rules, out.emplace()); };
}
inline auto into(const Json*& out) {
  return [&out](const Json& v) {
    out = &v;
    return Read();
  };
}
inline auto ignored() {
  return [](const Json&) { return Read(); };
}
inline auto checked_text() {
  return [](const Json& v) {
    std::string_view text;
    return read_text(v, text);
  };
}

// A sequence read element by element.
template <class F>
Read read_list(const Json& v, const F& read) {
  const Json::Array* list = v.if_array();
  if (list == nullptr) return invalid_type(v, "a sequence");
  for (size_t i = 0; i < list->size(); ++i) {
    if (Read item = read((*list)[i]); !item) return at_index(i, std::move(item));
  }
  return {};
}

// A list of values of type T, each read by read(json, T&).
template <class T, class F>
auto list_into(std::vector<T>& out, F read) {
  return [&out, read](const Json& v) {
    return read_list(v, [&](const Json& item) { return read(item, out.emplace_back()); });
  };
}

namespace detail {

template <class F>
Read read_field(const Field<F>& field, const Json& v) {
  if (!field.required && v.is_null()) return {};
  return at_field(field.name, field.read(v));
}

Read length_error(size_t length, std::string_view expected);
Read extra_elements(size_t length, size_t expected);

}  // namespace detail

// A struct inside a tagged value, from a map, or from a sequence of its fields in declaration order, whose first `skip`
// elements are not fields. `outermost`: it is in no tagged value, and serde words too many elements otherwise.
template <class... F>
Read read_struct(const Json& v, std::string_view expected, size_t skip, bool outermost, const Field<F>&... fields) {
  if (const Json::Array* list = v.if_array()) {
    size_t i = skip;
    Read result;
    const auto next = [&](const auto& field) {
      if (i >= list->size()) {
        ++i;
        if (field.defaulted) return true;
        std::string text(expected);
        text += " with " + std::to_string(sizeof...(F)) + (sizeof...(F) == 1 ? " element" : " elements");
        result = detail::length_error(i - 1 - skip, text);
        return false;
      }
      result = detail::read_field(field, (*list)[i++]);
      return result.has_value();
    };
    if (!(next(fields) && ...)) return result;
    if (i >= list->size()) return {};
    if (outermost) return detail::length_error(list->size(), "fewer elements in array");
    return detail::extra_elements(list->size() - skip, sizeof...(F));
  }
  const Json::Object* object = v.if_object();
  if (object == nullptr) return invalid_type(v, expected);
  uint64_t seen = 0;
  for (const JsonMember& member : *object) {
    Read result;
    uint64_t bit = 1;
    const auto try_field = [&](const auto& field) {
      if (member.key != field.name) {
        bit <<= 1;
        return false;
      }
      seen |= bit;
      result = detail::read_field(field, member.value);
      return true;
    };
    if ((try_field(fields) || ...) && !result) return result;
  }
  Read result;
  uint64_t bit = 1;
  const auto check = [&](const auto& field) {
    const bool missing = field.required && (seen & bit) == 0;
    bit <<= 1;
    if (missing) result = missing_field(field.name);
    return !missing;
  };
  static_cast<void>((check(fields) && ...));
  return result;
}

template <class... F>
Read read_struct(const Json& v, std::string_view expected, size_t skip, const Field<F>&... fields) {
  return read_struct(v, expected, skip, false, fields...);
}

template <class... F>
Read read_struct(const Json& v, std::string_view expected, const Field<F>&... fields) {
  return read_struct(v, expected, 0, true, fields...);
}

// A variant without fields: by position nothing may follow its tag.
Read read_unit(const Json& v);

// The variant of an internally tagged enum: index into `variants`, chosen by member `tag`.
// `nested`: the value stands inside another tagged value; serde then also takes the variant's number.
Read read_tag(const Json& v, std::string_view enum_name, std::string_view tag,
              std::span<const std::string_view> variants, size_t& out, bool nested = false);
template <class E>
Read read_tag(const Json& v, std::string_view enum_name, std::string_view tag,
              std::initializer_list<std::string_view> variants, E& out, bool nested = false) {
  size_t index = 0;
  Read read = read_tag(v, enum_name, tag, std::span(variants.begin(), variants.size()), index, nested);
  if (read) out = static_cast<E>(index);
  return read;
}

}  // namespace di::codec::api
