#include "structured/openai_strict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "structured/schema/document.h"

namespace di::structured {
namespace {

constexpr size_t kMostProperties = 5'000;
constexpr size_t kMostLevels = 10;
constexpr size_t kMostCharacters = 120'000;  // of names, values of enum and const
constexpr size_t kMostValues = 1'000;
constexpr size_t kLongEnum = 250;               // more values than this …
constexpr size_t kLongEnumCharacters = 15'000;  // … may have at most so many characters

constexpr std::array<std::string_view, 7> kRefused = {"allOf", "not", "dependentRequired", "dependentSchemas", "if",
                                                      "then",  "else"};
constexpr std::array<std::string_view, 4> kMaps = {"properties", "$defs", "definitions", "$def"};
constexpr std::array<std::string_view, 3> kLists = {"anyOf", "prefixItems", "items"};

size_t characters(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xc0U) != 0x80U; }));
}

// Of a value that a schema lists: its strings and the digits of its numbers.
size_t characters_of(const Value& v) {
  size_t total = characters(v.text);
  for (const std::string& key : v.keys) total += characters(key);
  for (const Value& item : v.items) total += characters_of(item);
  return total;
}

std::string escaped(std::string_view key) {
  std::string out;
  for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

bool is_object_schema(const Value& node) {
  const Value* type = node.find("type");
  if (type == nullptr) return node.find("properties") != nullptr;
  if (type->is_string()) return type->text == "object";
  return std::ranges::any_of(type->items, [](const Value& t) { return t.text == "object"; });
}

class Check {
 public:
  std::optional<CompileError> run(const Value& root) {
    if (!root.is_object()) return std::nullopt;
    const Value* type = root.find("type");
    if (type == nullptr || !type->is_string() || type->text != "object")
      return refusal("", "type", "the root has to be of type object");
    if (root.find("anyOf") != nullptr) return refusal("", "anyOf", "the root has to be an object and not a choice");
    std::vector<At> stack{{&root, "", 0}};
    while (!stack.empty()) {
      const At at = std::move(stack.back());
      stack.pop_back();
      if (!at.node->is_object()) continue;
      if (auto error = check(at)) return error;
      add_children(at, stack);
    }
    return std::nullopt;
  }

 private:
  struct At {
    const Value* node;
    std::string pointer;
    size_t level;  // objects around it
  };

  static CompileError refusal(const std::string& pointer, std::string_view keyword, std::string message) {
    return {"unsupported_schema_feature", pointer, std::string(keyword), "openai-strict: " + std::move(message)};
  }
  static CompileError excess(const std::string& pointer, std::string_view keyword, std::string message) {
    return {"constraint_too_complex", pointer, std::string(keyword), "openai-strict: " + std::move(message)};
  }

  std::optional<CompileError> check(const At& at) {
    const Value& node = *at.node;
    for (const std::string_view key : kRefused) {
      if (node.find(key) != nullptr) return refusal(at.pointer, key, "is not accepted");
    }
    if (is_object_schema(node)) {
      if (auto error = check_object(at)) return error;
    }
    if (const Value* list = node.find("enum")) {
      values_ += list->items.size();
      const size_t length = characters_of(*list);
      characters_ += length;
      const bool strings = std::ranges::all_of(list->items, [](const Value& v) { return v.is_string(); });
      if (strings && list->items.size() > kLongEnum && length > kLongEnumCharacters) {
        return excess(at.pointer, "enum",
                      fmt::format("{} strings have {} characters, more than {} may have {}", list->items.size(), length,
                                  kLongEnum, kLongEnumCharacters));
      }
      if (values_ > kMostValues)
        return excess(at.pointer, "enum", fmt::format("more than {} values in all", kMostValues));
    }
    if (const Value* value = node.find("const")) characters_ += characters_of(*value);
    for (const std::string_view map : kMaps) {
      const Value* named = node.find(map);
      if (named == nullptr) continue;
      for (const std::string& key : named->keys) characters_ += characters(key);
    }
    if (characters_ > kMostCharacters)
      return excess(at.pointer, "", fmt::format("names and values have more than {} characters", kMostCharacters));
    return std::nullopt;
  }

  std::optional<CompileError> check_object(const At& at) {
    const Value& node = *at.node;
    if (at.level >= kMostLevels)
      return excess(at.pointer, "", fmt::format("objects nested in more than {} levels", kMostLevels));
    const Value* more = node.find("additionalProperties");
    if (more == nullptr || !more->is_bool() || more->boolean)
      return refusal(at.pointer, "additionalProperties", "every object has to say false");
    const Value* properties = node.find("properties");
    if (properties == nullptr) return std::nullopt;
    properties_ += properties->items.size();
    if (properties_ > kMostProperties)
      return excess(at.pointer, "properties", fmt::format("more than {} properties in all", kMostProperties));
    const Value* required = node.find("required");
    for (const std::string& key : properties->keys) {
      const bool named =
          required != nullptr && required->is_array() &&
          std::ranges::any_of(required->items, [&](const Value& v) { return v.is_string() && v.text == key; });
      if (!named)
        return refusal(at.pointer, "required", fmt::format("every property has to be required, \"{}\" is not", key));
    }
    return std::nullopt;
  }

  static void add_children(const At& at, std::vector<At>& stack) {
    const Value& node = *at.node;
    const size_t level = at.level + (is_object_schema(node) ? 1 : 0);
    for (const std::string_view map : kMaps) {
      const Value* named = node.find(map);
      if (named == nullptr || !named->is_object()) continue;
      for (size_t i = 0; i < named->items.size(); ++i) {
        stack.push_back({&named->items[i], fmt::format("{}/{}/{}", at.pointer, map, escaped(named->keys[i])),
                         map == "properties" ? level : 0});
      }
    }
    for (const std::string_view key : kLists) {
      const Value* list = node.find(key);
      if (list == nullptr) continue;
      if (list->is_object()) stack.push_back({list, fmt::format("{}/{}", at.pointer, key), level});
      if (!list->is_array()) continue;
      for (size_t i = 0; i < list->items.size(); ++i) {
        stack.push_back({&list->items[i], fmt::format("{}/{}/{}", at.pointer, key, i), level});
      }
    }
  }

  size_t properties_ = 0;
  size_t values_ = 0;
  size_t characters_ = 0;
};

}  // namespace

std::optional<CompileError> breaks_openai_strict(std::string_view schema, const Limits& limits) {
  const auto doc = read_document(schema, limits.max_document_nesting, "invalid_json_schema");
  return doc ? Check().run(*doc) : std::optional(doc.error());
}

std::optional<CompileError> tools_break_openai_strict(std::string_view tools, const Limits& limits) {
  const auto doc = read_document(tools, limits.max_document_nesting, "invalid_grammar");
  if (!doc) return doc.error();
  for (const Value& tool : doc->items) {
    const Value* function = tool.find("function");
    const Value* strict = function == nullptr ? nullptr : function->find("strict");
    const Value* parameters = function == nullptr ? nullptr : function->find("parameters");
    if (strict == nullptr || !strict->boolean || parameters == nullptr) continue;
    if (auto broken = Check().run(*parameters)) return broken;
  }
  return std::nullopt;
}

}  // namespace di::structured
