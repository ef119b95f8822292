// The restricted schema grammar of strict tools and strict response formats (recipe.md §3.0 "Strict normalization").
#include <algorithm>
#include <unordered_set>

#include "codec/api/json_schema.h"
#include "codec/api/reader.h"

namespace di::codec::api {

namespace {

using Normal = std::expected<Json, ReadError>;

Normal read_node(const Json& v);

Json& put(Json::Object& out, std::string_view key, Json value) {
  out.push_back(JsonMember{std::string(key), std::move(value)});
  return out.back().value;
}

Read in_field(std::string_view name, Read read) {
  if (!read) read.error().message = fmt::format("field `{}`: {}", name, read.error().message);
  return read;
}

// Copies a field of the input, checked by `check`, into `slot`.
template <class F>
auto keep(std::optional<Json>& slot, F check) {
  return [&slot, check](const Json& v) {
    Read read = check(v);
    if (read) slot = v;
    return read;
  };
}

Read is_text(const Json& v) {
  std::string_view text;
  return read_text(v, text);
}
Read is_number(const Json& v) {
  return v.is_number() ? Read() : Read(invalid_type(v, "a JSON number"));
}
Read is_i64(const Json& v) {
  if (v.to_i64()) return {};
  if (v.is_integer()) return read_error("invalid_value", "invalid value: " + describe_json(v) + ", expected i64");
  return invalid_type(v, "i64");
}
Read is_text_list(const Json& v) {
  return read_list(v, is_text);
}
Read is_format(const Json& v) {
  size_t format = 0;
  constexpr std::string_view kFormats[] = {"email", "hostname", "ipv4", "ipv6", "uuid"};
  return read_variant(v, kFormats, format);
}

// A map whose values are nodes, in normal form.
auto nodes_into(std::optional<Json>& slot) {
  return [&slot](const Json& v) -> Read {
    const Json::Object* object = v.if_object();
    if (object == nullptr) return invalid_type(v, "a map");
    Json::Object out;
    for (const JsonMember& member : *object) {
      Normal node = read_node(member.value);
      if (!node) return std::unexpected(std::move(node.error()));
      put(out, member.key, *std::move(node));
    }
    slot = Json(std::move(out));
    return {};
  };
}

struct FieldOut {
  std::string_view name;
  const std::optional<Json>* value;
};

Json object_of(std::string_view type, std::initializer_list<FieldOut> fields) {
  Json::Object out;
  put(out, "type", Json(type));
  for (const FieldOut& field : fields) {
    if (*field.value) put(out, field.name, **field.value);
  }
  return Json(std::move(out));
}

Normal read_object(const Json& v) {
  std::optional<Json> properties, additional, required, description, def;
  DI_TRY(read_struct(v, "struct ObjectSchema", 1, optional("properties", nodes_into(properties)),
                     optional("additionalProperties", keep(additional,
                                                           [](const Json& b) {
                                                             bool value = false;
                                                             return read_bool(b, value);
                                                           })),
                     optional("required", keep(required, is_text_list)),
                     optional("description", keep(description, is_text)), optional("$def", nodes_into(def))));
  if (!properties) properties = Json(Json::Object{});
  return object_of("object", {{"properties", &properties},
                              {"additionalProperties", &additional},
                              {"required", &required},
                              {"description", &description},
                              {"$def", &def}});
}

Normal read_scalar(const Json& v, std::string_view type) {
  std::optional<Json> description, a, b, c, d, e, f, g;
  if (type == "string") {
    DI_TRY(read_struct(v, "struct StringSchema", 1, optional("description", keep(description, is_text)),
                       optional("pattern", keep(a, is_text)), optional("format", keep(b, is_format)),
                       optional("enum", keep(c, is_text_list))));
    return object_of(type, {{"description", &description}, {"pattern", &a}, {"format", &b}, {"enum", &c}});
  }
  if (type == "number" || type == "integer") {
    const auto check = type == "number" ? is_number : is_i64;
    DI_TRY(read_struct(v, "struct NumberSchema", 1, optional("description", keep(description, is_text)),
                       optional("const", keep(a, check)), optional("default", keep(b, check)),
                       optional("minimum", keep(c, check)), optional("maximum", keep(d, check)),
                       optional("exclusiveMinimum", keep(e, check)), optional("exclusiveMaximum", keep(f, check)),
                       optional("multipleOf", keep(g, check))));
    return object_of(type, {{"description", &description},
                            {"const", &a},
                            {"default", &b},
                            {"minimum", &c},
                            {"maximum", &d},
                            {"exclusiveMinimum", &e},
                            {"exclusiveMaximum", &f},
                            {"multipleOf", &g}});
  }
  DI_TRY(read_struct(v, "struct Schema", 1, optional("description", keep(description, is_text))));
  return object_of(type, {{"description", &description}});
}

Normal read_array(const Json& v) {
  std::optional<Json> items, description;
  const auto node = [&](const Json& item) -> Read {
    Normal normal = read_node(item);
    if (!normal) return std::unexpected(std::move(normal.error()));
    items = *std::move(normal);
    return {};
  };
  DI_TRY(read_struct(v, "struct ArraySchema", 1, required("items", node),
                     optional("description", keep(description, is_text))));
  return object_of("array", {{"items", &items}, {"description", &description}});
}

Normal read_typed(const Json& v) {
  constexpr std::string_view kTypes[] = {"object", "string", "number", "integer", "boolean", "array", "null"};
  size_t type = 0;
  DI_TRY(read_tag(v, "JsonSchemaType", "type", kTypes, type));
  if (kTypes[type] == "object") return read_object(v);
  if (kTypes[type] == "array") return read_array(v);
  return read_scalar(v, kTypes[type]);
}

Normal with_description(const Json& v, std::string_view key, Json value) {
  Json::Object out;
  put(out, key, std::move(value));
  if (const Json* description = v.find_value("description")) {
    DI_TRY(in_field("description", is_text(*description)));
    put(out, "description", *description);
  }
  return Json(std::move(out));
}

Normal read_node(const Json& v) {
  const Json* type = v.find("type");
  if (type != nullptr && type->is_array()) {
    constexpr std::string_view kScalars[] = {"string", "number", "integer", "boolean", "null"};
    DI_TRY(in_field("type", read_list(*type, [&](const Json& item) {
                      size_t index = 0;
                      return read_variant(item, kScalars, index);
                    })));
    return with_description(v, "type", *type);
  }
  if (type != nullptr) return read_typed(v);
  if (const Json* any_of = v.find("anyOf")) {
    Json::Array nodes;
    DI_TRY(in_field("anyOf", read_list(*any_of, [&](const Json& item) -> Read {
                      Normal node = read_typed(item);
                      if (!node) return std::unexpected(std::move(node.error()));
                      nodes.push_back(*std::move(node));
                      return {};
                    })));
    return with_description(v, "anyOf", Json(std::move(nodes)));
  }
  if (const Json* ref = v.find("$ref")) {
    DI_TRY(in_field("$ref", is_text(*ref)));
    Json::Object out;
    put(out, "$ref", *ref);
    return Json(std::move(out));
  }
  return read_error("missing_field", "one of `type`, `anyOf`, `$ref` field is required");
}

// Checks the rules of objects and fills in required and additionalProperties.
std::expected<void, std::string> finish_node(Json& node, bool may_be_empty);

std::expected<void, std::string> finish_object(Json& node, bool may_be_empty) {
  Json::Object& properties = node.find("properties")->as_object();
  if (properties.empty() && !may_be_empty) return std::unexpected("An object with no properties is not allowed.");
  for (JsonMember& member : properties) DI_TRY(finish_node(member.value, false));
  std::unordered_set<std::string_view> names;
  for (const JsonMember& member : properties) names.insert(member.key);
  if (const Json* required = node.find("required")) {
    std::unordered_set<std::string_view> seen;
    for (const Json& item : required->as_array()) {
      const std::string& name = item.as_string();
      if (!names.contains(name)) {
        return std::unexpected(fmt::format("Required property '{}' not found in object", name));
      }
      if (!seen.insert(name).second) return std::unexpected(fmt::format("Duplicate required property '{}'", name));
    }
    if (seen.size() != names.size()) {
      return std::unexpected("Required properties must match all properties in the object");
    }
  }
  const Json* additional = node.find("additionalProperties");
  if (additional != nullptr && additional->as_bool()) {
    return std::unexpected("additionalProperties should not be true");
  }
  Json::Object out;
  put(out, "type", Json("object"));
  Json::Array required;
  for (const JsonMember& member : properties) required.push_back(Json(member.key));
  std::optional<Json> description, def;
  if (const Json* value = node.find("description")) description = *value;
  if (Json* value = node.find("$def")) {
    for (JsonMember& member : value->as_object()) DI_TRY(finish_node(member.value, false));
    def = *value;
  }
  put(out, "properties", Json(std::move(properties)));
  put(out, "additionalProperties", Json(false));
  put(out, "required", Json(std::move(required)));
  if (description) put(out, "description", *std::move(description));
  if (def) put(out, "$def", *std::move(def));
  node = Json(std::move(out));
  return {};
}

std::expected<void, std::string> finish_node(Json& node, bool may_be_empty) {
  if (Json* any_of = node.find("anyOf")) {
    for (Json& item : any_of->as_array()) DI_TRY(finish_node(item, false));
    return {};
  }
  const Json* type = node.find("type");
  if (type == nullptr || !type->is_string()) return {};
  if (type->as_string() == "array") return finish_node(*node.find("items"), false);
  if (type->as_string() == "object") return finish_object(node, may_be_empty);
  return {};
}

}  // namespace

std::expected<Json, StrictError> normalize_strict_schema(const Json& schema, bool empty_top) {
  Normal node = read_node(schema);
  if (!node) return std::unexpected(StrictError{StrictError::Kind::kGrammar, std::move(node.error().message)});
  if (auto finished = finish_node(*node, empty_top); !finished) {
    return std::unexpected(StrictError{StrictError::Kind::kRule, std::move(finished.error())});
  }
  const Json* type = node->find("type");
  if (type == nullptr || !type->is_string() || type->as_string() != "object") {
    return std::unexpected(StrictError{StrictError::Kind::kTopLevel, {}});
  }
  return *std::move(node);
}

}  // namespace di::codec::api
