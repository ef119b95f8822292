// Whether a value is a JSON Schema: its meta-schema's rules, then what compiling it would refuse (regular expressions,
// references). The order of checks and the texts are those of the jsonschema crate for draft 2020-12; older drafts
// differ in the keywords marked below.
#include <array>
#include <unordered_set>

#include "codec/api/json_schema.h"
#include "codec/api/regex_syntax.h"

namespace di::codec::api {

namespace {

using Check = std::expected<void, std::string>;

enum class Draft : uint8_t { kDraft4, kDraft6, kDraft7, kDraft2019, kDraft2020 };

enum class Form : uint8_t {
  kText,
  kTextPattern,  // $id, $anchor
  kBool,
  kNumber,
  kPositive,
  kCount,
  kList,
  kSchema,
  kSchemaOrList,  // items of the older drafts
  kSchemaOrBool,  // always the same as kSchema after draft 4
  kSchemas,       // map of schemas
  kSchemaList,    // not empty
  kTexts,         // unique
  kTextsMap,
  kType,
  kDependencies,
  kBoolMap,
};

struct Keyword {
  std::string_view name;
  Form form;
};

// In the order in which the meta-schema's vocabularies list them.
constexpr Keyword kKeywords[] = {
    {"$id", Form::kTextPattern},
    {"$schema", Form::kText},
    {"$ref", Form::kText},
    {"$anchor", Form::kTextPattern},
    {"$dynamicRef", Form::kText},
    {"$dynamicAnchor", Form::kTextPattern},
    {"$vocabulary", Form::kBoolMap},
    {"$comment", Form::kText},
    {"$defs", Form::kSchemas},
    {"prefixItems", Form::kSchemaList},
    {"items", Form::kSchema},
    {"contains", Form::kSchema},
    {"additionalProperties", Form::kSchema},
    {"properties", Form::kSchemas},
    {"patternProperties", Form::kSchemas},
    {"dependentSchemas", Form::kSchemas},
    {"propertyNames", Form::kSchema},
    {"if", Form::kSchema},
    {"then", Form::kSchema},
    {"else", Form::kSchema},
    {"allOf", Form::kSchemaList},
    {"anyOf", Form::kSchemaList},
    {"oneOf", Form::kSchemaList},
    {"not", Form::kSchema},
    {"unevaluatedItems", Form::kSchema},
    {"unevaluatedProperties", Form::kSchema},
    {"type", Form::kType},
    {"enum", Form::kList},
    {"multipleOf", Form::kPositive},
    {"maximum", Form::kNumber},
    {"exclusiveMaximum", Form::kNumber},
    {"minimum", Form::kNumber},
    {"exclusiveMinimum", Form::kNumber},
    {"maxLength", Form::kCount},
    {"minLength", Form::kCount},
    {"pattern", Form::kText},
    {"maxItems", Form::kCount},
    {"minItems", Form::kCount},
    {"uniqueItems", Form::kBool},
    {"maxContains", Form::kCount},
    {"minContains", Form::kCount},
    {"maxProperties", Form::kCount},
    {"minProperties", Form::kCount},
    {"required", Form::kTexts},
    {"dependentRequired", Form::kTextsMap},
    {"title", Form::kText},
    {"description", Form::kText},
    {"deprecated", Form::kBool},
    {"readOnly", Form::kBool},
    {"writeOnly", Form::kBool},
    {"examples", Form::kList},
    {"format", Form::kText},
    {"contentEncoding", Form::kText},
    {"contentMediaType", Form::kText},
    {"contentSchema", Form::kSchema},
    {"definitions", Form::kSchemas},
    {"dependencies", Form::kDependencies},
    {"$recursiveAnchor", Form::kTextPattern},
    {"$recursiveRef", Form::kText},
};

std::unexpected<std::string> wrong(const Json& value, std::string_view what) {
  return std::unexpected(to_json(value) + " " + std::string(what));
}

class Checker {
 public:
  explicit Checker(const Json& root) : root_(root) {}

  Check run() {
    DI_TRY(find_draft());
    DI_TRY(schema(root_));
    return compile(root_);
  }

 private:
  Check find_draft() {
    const Json* uri = root_.find("$schema");
    if (uri == nullptr || !uri->is_string()) return {};
    std::string_view text = uri->as_string();
    while (text.ends_with('#')) text.remove_suffix(1);
    for (const std::string_view scheme : {"http://", "https://"}) {
      if (text.starts_with(scheme)) text.remove_prefix(scheme.size());
    }
    constexpr std::array<std::string_view, 5> kDrafts = {
        "json-schema.org/draft-04/schema", "json-schema.org/draft-06/schema", "json-schema.org/draft-07/schema",
        "json-schema.org/draft/2019-09/schema", "json-schema.org/draft/2020-12/schema"};
    for (size_t i = 0; i < kDrafts.size(); ++i) {
      if (text == kDrafts[i]) return draft_ = static_cast<Draft>(i), Check();
    }
    return std::unexpected(
        fmt::format("Unknown meta-schema: '{}'. Custom meta-schemas must be registered in the registry before use",
                    uri->as_string()));
  }

  Check schema(const Json& v) {
    if (v.is_bool() && draft_ != Draft::kDraft4) return {};
    if (!v.is_object())
      return wrong(v,
                   draft_ == Draft::kDraft4 ? "is not of type \"object\"" : "is not of types \"boolean\", \"object\"");
    for (const Keyword& keyword : kKeywords) {
      const Json* value = v.find(keyword.name);
      if (value == nullptr || !known(keyword.name)) continue;
      DI_TRY(check(keyword, *value));
    }
    if (draft_ == Draft::kDraft4) {
      if (v.find("exclusiveMaximum") != nullptr && v.find("maximum") == nullptr)
        return std::unexpected("\"maximum\" is a required property");
      if (v.find("exclusiveMinimum") != nullptr && v.find("minimum") == nullptr)
        return std::unexpected("\"minimum\" is a required property");
    }
    return {};
  }

  // Keywords that an older draft's meta-schema does not know are not checked.
  bool known(std::string_view name) const {
    if (draft_ >= Draft::kDraft2019) return true;
    for (const std::string_view later :
         {"$anchor", "$dynamicRef", "$dynamicAnchor", "$vocabulary", "$defs", "prefixItems", "dependentSchemas",
          "unevaluatedItems", "unevaluatedProperties", "maxContains", "minContains", "dependentRequired", "deprecated",
          "contentSchema", "$recursiveAnchor", "$recursiveRef"}) {
      if (name == later) return false;
    }
    if (draft_ == Draft::kDraft7) return true;
    for (const std::string_view later :
         {"$comment", "if", "then", "else", "readOnly", "writeOnly", "contentEncoding", "contentMediaType"}) {
      if (name == later) return false;
    }
    return draft_ == Draft::kDraft6 ||
           (name != "contains" && name != "propertyNames" && name != "examples" && name != "$id");
  }

  Check check(const Keyword& keyword, const Json& v) {
    Form form = keyword.form;
    if (keyword.name == "items" && draft_ != Draft::kDraft2020) form = Form::kSchemaOrList;
    if (draft_ == Draft::kDraft4) {
      if (keyword.name.starts_with("exclusive")) form = Form::kBool;
      if (keyword.name == "additionalProperties") form = Form::kSchemaOrBool;
    }
    switch (form) {
      case Form::kText:
        return v.is_string() ? Check() : wrong(v, "is not of type \"string\"");
      case Form::kTextPattern:
        return identifier(keyword.name, v);
      case Form::kBool:
        return v.is_bool() ? Check() : wrong(v, "is not of type \"boolean\"");
      case Form::kNumber:
        return v.is_number() ? Check() : wrong(v, "is not of type \"number\"");
      case Form::kPositive:
        if (!v.is_number()) return wrong(v, "is not of type \"number\"");
        return *v.to_double() > 0 ? Check() : wrong(v, "is less than or equal to the minimum of 0");
      case Form::kCount:
        return count(v);
      case Form::kList:
        return v.is_array() ? Check() : wrong(v, "is not of type \"array\"");
      case Form::kSchema:
        return schema(v);
      case Form::kSchemaOrBool:
        return v.is_bool() ? Check() : schema(v);
      case Form::kSchemaOrList:
        if (schema(v) || (v.is_array() && schema_list(v))) return {};
        return wrong(v, "is not valid under any of the schemas listed in the 'anyOf' keyword");
      case Form::kSchemas:
        return members(v, [&](const Json& item) { return schema(item); });
      case Form::kSchemaList:
        return schema_list(v);
      case Form::kTexts:
        return texts(v);
      case Form::kTextsMap:
        return members(v, [&](const Json& item) { return texts(item); });
      case Form::kType:
        return type(v);
      case Form::kDependencies:
        return members(v, [&](const Json& item) -> Check {
          if (schema(item) || texts(item)) return {};
          return wrong(item, "is not valid under any of the schemas listed in the 'anyOf' keyword");
        });
      case Form::kBoolMap:
        return members(v, [&](const Json& item) -> Check {
          return item.is_bool() ? Check() : wrong(item, "is not of type \"boolean\"");
        });
    }
    return {};
  }

  template <class F>
  Check members(const Json& v, const F& check_member) {
    if (!v.is_object()) return wrong(v, "is not of type \"object\"");
    for (const JsonMember& member : v.as_object()) DI_TRY(check_member(member.value));
    return {};
  }

  Check schema_list(const Json& v) {
    if (!v.is_array()) return wrong(v, "is not of type \"array\"");
    if (v.size() == 0) return wrong(v, "has less than 1 item");
    for (const Json& item : v.as_array()) DI_TRY(schema(item));
    return {};
  }

  static Check identifier(std::string_view name, const Json& v) {
    if (name == "$recursiveAnchor" && v.is_bool()) return {};
    if (!v.is_string()) return wrong(v, "is not of type \"string\"");
    const std::string& text = v.as_string();
    if (name == "$id") {
      const size_t hash = text.find('#');
      if (hash == std::string::npos || hash + 1 == text.size()) return {};
      return wrong(v, "does not match \"^[^#]*#?$\"");
    }
    const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
    bool fits = !text.empty() && letter(text[0]);
    for (const char c : text) fits = fits && (letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '.');
    return fits ? Check() : wrong(v, "does not match \"^[A-Za-z_][-A-Za-z0-9._]*$\"");
  }

  static Check count(const Json& v) {
    const std::optional<double> number = v.to_double();
    const bool integral = v.is_integer() || (number && *number == static_cast<double>(static_cast<int64_t>(*number)));
    if (!integral) return wrong(v, "is not of type \"integer\"");
    return *number >= 0 ? Check() : wrong(v, "is less than the minimum of 0");
  }

  static Check texts(const Json& v) {
    if (!v.is_array()) return wrong(v, "is not of type \"array\"");
    std::unordered_set<std::string> seen;
    for (const Json& item : v.as_array()) {
      if (!seen.insert(to_json(item)).second) return wrong(v, "has non-unique elements");
    }
    for (const Json& item : v.as_array()) {
      if (!item.is_string()) return wrong(item, "is not of type \"string\"");
    }
    return {};
  }

  static Check type(const Json& v) {
    constexpr std::array<std::string_view, 7> kTypes = {"array",  "boolean", "integer", "null",
                                                        "number", "object",  "string"};
    const auto simple = [&](const Json& item) {
      if (!item.is_string()) return false;
      for (const std::string_view name : kTypes) {
        if (item.as_string() == name) return true;
      }
      return false;
    };
    bool fits = simple(v);
    if (const Json::Array* list = v.if_array()) {
      fits = !list->empty();
      std::unordered_set<std::string_view> seen;
      for (const Json& item : *list) fits = fits && simple(item) && seen.insert(item.as_string()).second;
    }
    return fits ? Check() : wrong(v, "is not valid under any of the schemas listed in the 'anyOf' keyword");
  }

  // Keywords in the order of the schema itself; only what is reachable is compiled.
  Check compile(const Json& v) {
    if (!v.is_object()) return {};
    if (draft_ <= Draft::kDraft7) {
      if (const Json* ref = v.find("$ref")) return reference(*ref);  // siblings are ignored
    }
    for (const JsonMember& member : v.as_object()) {
      const std::string_view key = member.key;
      const Json& value = member.value;
      if (key == "$ref") {
        DI_TRY(reference(value));
      } else if (key == "pattern" && !is_valid_regex(value.as_string())) {
        return wrong(value, "is not a \"regex\"");
      } else if (key == "patternProperties") {
        for (const JsonMember& item : value.as_object()) {
          if (!is_valid_regex(item.key)) return wrong(item.value, "is not a \"regex\"");
          DI_TRY(compile(item.value));
        }
      } else if (key == "properties" || key == "dependentSchemas" || key == "dependencies") {
        for (const JsonMember& item : value.as_object()) DI_TRY(compile(item.value));
      } else if (key == "items" || key == "contains" || key == "additionalProperties" || key == "propertyNames" ||
                 key == "if" || key == "then" || key == "else" || key == "not" || key == "unevaluatedItems" ||
                 key == "unevaluatedProperties" || key == "prefixItems" || key == "allOf" || key == "anyOf" ||
                 key == "oneOf") {
        DI_TRY(compile_value(value));
      }
    }
    return {};
  }

  Check compile_value(const Json& v) {
    const Json::Array* list = v.if_array();
    if (list == nullptr) return compile(v);
    for (const Json& item : *list) DI_TRY(compile(item));
    return {};
  }

  Check reference(const Json& v) {
    const std::string& text = v.as_string();
    if (!visited_.insert(text).second) return {};
    if (text.empty() || text == "#") return {};
    if (text[0] != '#') {
      const std::string uri = text.substr(0, text.find('#'));
      if (text.find("://") == std::string::npos) {
        return std::unexpected(fmt::format(
            "Resource '{}' is not present in a registry and retrieving it failed: No base URI is available", uri));
      }
      return std::unexpected(fmt::format(
          "Resource '{}' is not present in a registry and retrieving it failed: Retrieval is disabled, cannot fetch {}",
          uri, uri));
    }
    if (text[1] != '/') {
      if (has_anchor(root_, text.substr(1))) return {};
      return std::unexpected(fmt::format("Anchor '{}' does not exist", text.substr(1)));
    }
    const Json* target = resolve(text.substr(1));
    if (target == nullptr) return std::unexpected(fmt::format("Pointer '{}' does not exist", text.substr(1)));
    return compile(*target);
  }

  const Json* resolve(const std::string& pointer) const {
    const Json* at = &root_;
    for (size_t begin = 1; at != nullptr && begin <= pointer.size();) {
      const size_t end = std::min(pointer.find('/', begin), pointer.size());
      std::string step;
      for (size_t i = begin; i < end; ++i) {
        if (pointer[i] == '~' && i + 1 < end && (pointer[i + 1] == '0' || pointer[i + 1] == '1')) {
          step.push_back(pointer[++i] == '0' ? '~' : '/');
        } else {
          step.push_back(pointer[i]);
        }
      }
      if (const Json::Array* list = at->if_array()) {
        size_t index = 0;
        bool number = !step.empty() && step.size() < 9;
        for (const char c : step) {
          number = number && c >= '0' && c <= '9';
          index = index * 10 + static_cast<size_t>(c - '0');
        }
        at = number && index < list->size() ? &(*list)[index] : nullptr;
      } else {
        at = at->find(step);
      }
      begin = end + 1;
    }
    return at;
  }

  static bool has_anchor(const Json& v, std::string_view name) {
    if (const Json::Array* list = v.if_array()) {
      for (const Json& item : *list) {
        if (has_anchor(item, name)) return true;
      }
    }
    if (const Json::Object* object = v.if_object()) {
      for (const JsonMember& member : *object) {
        const bool anchor = member.key == "$anchor" || member.key == "$dynamicAnchor";
        if (anchor && member.value.is_string() && member.value.as_string() == name) return true;
        if (has_anchor(member.value, name)) return true;
      }
    }
    return false;
  }

  const Json& root_;
  Draft draft_ = Draft::kDraft2020;
  std::unordered_set<std::string> visited_;
};

}  // namespace

std::expected<void, std::string> check_json_schema(const Json& schema) {
  return Checker(schema).run();
}

}  // namespace di::codec::api
