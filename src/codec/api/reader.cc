#include "codec/api/reader.h"

#include "base/result.h"
#include "codec/rust_text.h"

namespace di::codec::api {

std::unexpected<ReadError> read_error(const char* code, std::string message) {
  return std::unexpected(ReadError{std::move(message), code, {}});
}

std::string describe_value(const Json& value) {
  return value.is_string() ? "string " + rust_debug(value.as_string()) : describe_json(value);
}

std::unexpected<ReadError> invalid_type(const Json& found, std::string_view expected) {
  return read_error("invalid_type", fmt::format("invalid type: {}, expected {}", describe_value(found), expected));
}

std::unexpected<ReadError> missing_field(std::string_view name) {
  auto error = read_error("missing_field", fmt::format("missing field `{}`", name));
  error.error().path = name;
  return error;
}

std::unexpected<ReadError> unknown_variant(std::string_view found, std::span<const std::string_view> variants) {
  std::string text = fmt::format("unknown variant `{}`, expected ", found);
  if (variants.size() == 2) {
    text += fmt::format("`{}` or `{}`", variants[0], variants[1]);
  } else {
    if (variants.size() > 2) text += "one of ";
    for (size_t i = 0; i < variants.size(); ++i) text += fmt::format("{}`{}`", i > 0 ? ", " : "", variants[i]);
  }
  return read_error("invalid_value", std::move(text));
}

Read at_field(std::string_view name, Read result) {
  if (result) return result;
  std::string& path = result.error().path;
  if (path.empty()) {
    path = name;
  } else {
    path = fmt::format("{}{}{}", name, path[0] == '[' ? "" : ".", path);
  }
  return result;
}

Read at_index(size_t index, Read result) {
  if (result) return result;
  std::string& path = result.error().path;
  path = fmt::format("[{}]{}{}", index, path.empty() || path[0] == '[' ? "" : ".", path);
  return result;
}

Read read_text(const Json& v, std::string_view& out) {
  const std::string* text = v.if_string();
  if (text == nullptr) return invalid_type(v, "a string");
  out = *text;
  return {};
}

Read read_bool(const Json& v, bool& out) {
  const bool* value = v.if_bool();
  if (value == nullptr) return invalid_type(v, "a boolean");
  out = *value;
  return {};
}

Read read_f32(const Json& v, float& out) {
  const std::optional<double> value = v.to_double();
  if (!value) return invalid_type(v, "f32");
  out = static_cast<float>(*value);
  return {};
}

Read read_variant(const Json& v, std::span<const std::string_view> variants, size_t& out) {
  std::string_view name;
  const Json* content = nullptr;
  if (const std::string* text = v.if_string()) {
    name = *text;
  } else if (const Json::Object* object = v.if_object()) {
    if (object->size() != 1) {
      return read_error("invalid_type", "invalid value: map, expected map with a single key");
    }
    name = (*object)[0].key;
    content = &(*object)[0].value;
  } else {
    return invalid_type(v, "string or map");
  }
  for (size_t i = 0; i < variants.size(); ++i) {
    if (variants[i] != name) continue;
    if (content != nullptr && !content->is_null()) return invalid_type(*content, "unit");
    out = i;
    return {};
  }
  return unknown_variant(name, variants);
}

Read read_tag(const Json& v, std::string_view enum_name, std::string_view tag,
              std::span<const std::string_view> variants, size_t& out, bool nested) {
  const Json* value = nullptr;
  if (v.is_object()) {
    value = v.find(tag);
  } else if (const Json::Array* list = v.if_array()) {
    if (!list->empty()) value = &(*list)[0];
  } else {
    return invalid_type(v, fmt::format("internally tagged enum {}", enum_name));
  }
  if (value == nullptr) return missing_field(tag);
  if (const std::optional<uint64_t> number = nested ? value->to_u64() : std::nullopt) {
    if (*number < variants.size()) return out = static_cast<size_t>(*number), Read();
    return at_field(
        tag, read_error("invalid_value", fmt::format("invalid value: integer `{}`, expected variant index 0 <= i < {}",
                                                     *number, variants.size())));
  }
  const std::string* name = value->if_string();
  if (name == nullptr) return at_field(tag, invalid_type(*value, "variant identifier"));
  for (size_t i = 0; i < variants.size(); ++i) {
    if (variants[i] == *name) {
      out = i;
      return {};
    }
  }
  return at_field(tag, unknown_variant(*name, variants));
}

Read detail::length_error(size_t length, std::string_view expected) {
  return read_error("invalid_type", fmt::format("invalid length {}, expected {}", length, expected));
}

Read detail::extra_elements(size_t length, size_t expected) {
  return length_error(length,
                      std::to_string(expected) + (expected == 1 ? " element in sequence" : " elements in sequence"));
}

Read read_unit(const Json& v) {
  const Json::Array* list = v.if_array();
  return list == nullptr || list->size() <= 1 ? Read() : detail::extra_elements(list->size() - 1, 0);
}

}  // namespace di::codec::api
