// A keyword is enforced or refused, never overlooked: the keywords of every schema that compiles are walked here by the
// standard's own rules of where subschemas stand, and each one must have been read by a rule of the compiler.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/json.h"
#include "structured/fixture.h"
#include "structured/inspect.h"
#include "support/folders.h"

namespace di::structured {
namespace {

const std::set<std::string_view> kOneSchema = {"items",
                                               "additionalItems",
                                               "contains",
                                               "additionalProperties",
                                               "propertyNames",
                                               "not",
                                               "if",
                                               "then",
                                               "else",
                                               "unevaluatedItems",
                                               "unevaluatedProperties"};
const std::set<std::string_view> kListOfSchemas = {"allOf", "anyOf", "oneOf", "prefixItems", "items"};
const std::set<std::string_view> kMapOfSchemas = {"properties", "patternProperties", "dependentSchemas",
                                                  "dependencies"};
const std::set<std::string_view> kDefinitions = {"$defs", "definitions", "$def"};
const std::set<std::string_view> kPlain = {
    "type",     "enum",        "const",       "minimum",     "maximum",       "exclusiveMinimum", "exclusiveMaximum",
    "pattern",  "multipleOf",  "format",      "minLength",   "maxLength",     "minItems",         "maxItems",
    "required", "uniqueItems", "minContains", "maxContains", "minProperties", "maxProperties",    "dependentRequired",
    "$ref",     "$dynamicRef"};
const std::set<std::string_view> kOfObjects = {"properties",           "patternProperties", "additionalProperties",
                                               "propertyNames",        "dependentSchemas",  "dependencies",
                                               "unevaluatedProperties"};
const std::set<std::string_view> kOfArrays = {"items", "additionalItems", "contains", "prefixItems",
                                              "unevaluatedItems"};

bool asserts(std::string_view key) {
  return kOneSchema.contains(key) || kListOfSchemas.contains(key) || kMapOfSchemas.contains(key) ||
         kPlain.contains(key);
}

std::string escaped(std::string_view key) {
  std::string out;
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

// The kinds of values that have subschemas, as far as `type` leaves them. listed: by enum or const, whose values need
// not have the members or items that a subschema beside them speaks of.
struct Kinds {
  bool arrays = true;
  bool objects = true;
  bool listed = false;

  static bool lists(const Json& schema) {
    if (!schema.is_object()) return false;
    const Json* all = schema.find("allOf");
    return schema.find("enum") != nullptr || schema.find("const") != nullptr ||
           (all != nullptr && all->is_array() && std::ranges::any_of(all->as_array(), lists));
  }

  Kinds within(const Json& schema) const {
    const Json* type = schema.find("type");
    const bool given = listed || lists(schema);
    if (type == nullptr) return {arrays, objects, given};
    const auto names = [&](std::string_view kind) {
      if (type->is_string()) return type->as_string() == kind;
      const Json::Array& all = type->as_array();
      return std::ranges::any_of(all, [&](const Json& t) { return t.is_string() && t.as_string() == kind; });
    };
    return {arrays && names("array"), objects && names("object"), given};
  }
};

class Walk {
 public:
  Walk(const Json& root, const std::vector<std::string>& visited)
      : root_(root), visited_(visited.begin(), visited.end()) {
    // What unevaluated* closes elsewhere is not told apart here: then only whole subschemas may stay unread.
    walk(root, "", to_json(root).find("\"unevaluated") != std::string::npos, {});
  }

  std::vector<std::string> missed;  // keywords that no rule read, in subschemas of which others were read
  std::vector<std::string> unread;  // subschemas of which nothing was read although a text could reach them
  int keywords = 0;

 private:
  static bool has_assertions(const Json& schema) {
    if (!schema.is_object()) return false;
    for (const JsonMember& m : schema.as_object()) {
      if (asserts(m.key)) return true;
    }
    return false;
  }
  bool read(const Json& schema, const std::string& at) const {
    for (const JsonMember& m : schema.as_object()) {
      if (visited_.contains(at + "/" + escaped(m.key))) return true;
    }
    return false;
  }

  // Subschemas that the standard gives no meaning where they stand, or that no value can get to.
  static bool without_meaning(const Json& schema, std::string_view key, Kinds kinds) {
    const Json* items = schema.find("items");
    if (key == "then" || key == "else") return schema.find("if") == nullptr;
    if (key == "if") return schema.find("then") == nullptr && schema.find("else") == nullptr;
    if (key == "additionalItems") return items == nullptr || !items->is_array();
    if (key == "contains") {
      const Json* least = schema.find("minContains");
      if (least != nullptr && least->to_i64() == 0 && schema.find("maxContains") == nullptr) return true;
    }
    if (key == "unevaluatedItems" && items != nullptr) return true;
    return (kOfObjects.contains(key) && !kinds.objects) || (kOfArrays.contains(key) && !kinds.arrays);
  }

  void walk(const Json& schema, const std::string& at, bool excused, Kinds around) {
    const Kinds kinds = schema.is_object() ? around.within(schema) : around;
    if (!has_assertions(schema)) return children(schema, at, excused, kinds);
    const bool used = read(schema, at);
    if (!used && !excused) unread.push_back(at);
    for (const JsonMember& m : schema.as_object()) {
      if (!used || !asserts(m.key)) continue;
      ++keywords;
      const std::string pointer = at + "/" + escaped(m.key);
      if (!visited_.contains(pointer)) missed.push_back(pointer);
      if (m.key == "$ref") follow(m.value, pointer);
    }
    children(schema, at, excused || !used, kinds);
  }

  void children(const Json& schema, const std::string& at, bool excused, Kinds kinds) {
    if (!schema.is_object()) return;
    for (const JsonMember& m : schema.as_object()) {
      const std::string below = at + "/" + escaped(m.key);
      const bool skip = excused || without_meaning(schema, m.key, kinds) ||
                        (kinds.listed && (kOfObjects.contains(m.key) || kOfArrays.contains(m.key)));
      // Those of the same value, and those of its parts.
      const bool same = m.key == "dependentSchemas" || m.key == "dependencies" ||
                        (!kOfObjects.contains(m.key) && !kOfArrays.contains(m.key));
      const Kinds inner_kinds = same ? kinds : Kinds{};
      if (kOneSchema.contains(m.key) && m.value.is_object()) {
        walk(m.value, below, skip, inner_kinds);
      } else if (kListOfSchemas.contains(m.key) && m.value.is_array()) {
        for (size_t i = 0; i < m.value.size(); ++i)
          walk(m.value.as_array()[i], below + "/" + std::to_string(i), skip, inner_kinds);
      } else if ((kMapOfSchemas.contains(m.key) || kDefinitions.contains(m.key)) && m.value.is_object()) {
        for (const JsonMember& inner : m.value.as_object()) {
          walk(inner.value, below + "/" + escaped(inner.key), skip || kDefinitions.contains(m.key),
               kDefinitions.contains(m.key) ? Kinds{} : inner_kinds);
        }
      }
    }
  }

  // A reference that was read leads to a subschema that was read.
  void follow(const Json& reference, const std::string& from) {
    if (!reference.is_string() || !reference.as_string().starts_with("#/")) return;
    std::string_view rest = std::string_view(reference.as_string()).substr(1);
    if (rest.find('%') != std::string_view::npos || rest.find('~') != std::string_view::npos) return;
    const Json* target = &root_;
    const std::string at(rest);
    while (!rest.empty() && target != nullptr) {
      const size_t end = std::min(rest.find('/', 1), rest.size());
      target = target->is_object() ? target->find(rest.substr(1, end - 1)) : nullptr;
      rest.remove_prefix(end);
    }
    if (target == nullptr || !has_assertions(*target) || read(*target, at)) return;
    unread.push_back(from + " -> " + at);
  }

  const Json& root_;
  std::set<std::string> visited_;
};

struct Totals {
  int compiled = 0;
  int keywords = 0;
  std::string refusal;  // of the last schema
};

// Nothing when the schema is refused.
void check(const std::string& id, const Json& schema, const SpecOptions& options, Totals& totals) {
  ConstraintSpec spec;
  spec.payload = to_json(schema);
  spec.options = options;
  std::vector<std::string> visited;
  const auto compiled = compile_recorded(testing::byte_vocabulary(), spec, {}, visited);
  totals.refusal = compiled ? "" : compiled.error().text();
  if (!compiled) return;
  const Walk walk(schema, visited);
  for (const std::string& pointer : walk.missed) ADD_FAILURE() << id << ": no rule read " << pointer;
  for (const std::string& pointer : walk.unread) ADD_FAILURE() << id << ": nothing was read of " << pointer;
  ++totals.compiled;
  totals.keywords += walk.keywords;
}

class Visits : public ::testing::TestWithParam<const char*> {};

TEST_P(Visits, EveryKeywordOfACompiledSchemaIsRead) {
  const std::string path = std::string(di::test::kVectors) + "/structured/" + GetParam();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no reference vectors at " << path;
  std::ifstream in(path);
  Totals totals;
  for (std::string line; std::getline(in, line);) {
    const Json c = parse_json(line).value();
    const Json* schema = c.find("schema");
    if (schema != nullptr && schema->is_object()) check(*c.find("id")->if_string(), *schema, {}, totals);
  }
  std::printf("%s: %d keywords of %d schemas\n", GetParam(), totals.keywords, totals.compiled);
  EXPECT_GT(totals.compiled, 0);
}
INSTANTIATE_TEST_SUITE_P(Files, Visits, ::testing::Values("real.jsonl", "jsts.jsonl", "bugs.jsonl"));

// Every keyword once, below others, in the places that rules are likely to pass by.
constexpr const char* kCases[] = {
    R"({"type":"object","properties":{"a":{"type":["string","null"],"minLength":1,"maxLength":9,"pattern":"^x"}},
        "required":["a"],"additionalProperties":{"type":"integer","minimum":1,"maximum":9,"multipleOf":2},
        "minProperties":1,"maxProperties":4})",
    R"({"type":"object","patternProperties":{"^a":{"exclusiveMinimum":0,"exclusiveMaximum":5}},
        "propertyNames":{"pattern":"^[a-c]+$","maxLength":3}})",
    R"({"type":"array","prefixItems":[{"enum":[1,2]},{"const":"x"}],"items":{"type":"boolean"},"minItems":1,"maxItems":5})",
    R"({"type":"array","items":[{"type":"null"},{"format":"date"}],"additionalItems":{"type":"integer","minimum":3}})",
    R"({"type":"array","items":{"enum":[1,2,3]},"uniqueItems":true})",
    R"({"type":"array","items":{"enum":[1,2,3]},"contains":{"enum":[1,2,3]},"minContains":1,"maxContains":2})",
    R"({"allOf":[{"type":"object","properties":{"a":{"minimum":3}}},{"properties":{"a":{"maximum":7}}}],
        "anyOf":[{"required":["a"]},{"required":["b"],"properties":{"b":{"type":"string","format":"uuid"}}}]})",
    R"({"oneOf":[{"type":"string","maxLength":3},{"type":"integer","minimum":3},
                 {"type":"object","properties":{"k":{"const":"a"}},"required":["k"]}]})",
    R"({"type":"integer","not":{"enum":[3,4]}})",
    R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"additionalProperties":false,
        "if":{"required":["a"]},"then":{"properties":{"b":{"minimum":3}}},"else":{"properties":{"b":{"maximum":2}}}})",
    R"({"type":"object","properties":{"a":{},"b":{"type":"string"}},"dependentRequired":{"a":["b"]},
        "dependentSchemas":{"b":{"properties":{"a":{"type":"integer","minimum":2}}}},"additionalProperties":false})",
    R"({"type":"object","properties":{"a":{"type":"string"}},"unevaluatedProperties":{"type":"integer","minimum":5}})",
    R"({"type":"array","prefixItems":[{"type":"string"}],"unevaluatedItems":{"type":"boolean","const":true}})",
    R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"object","properties":{"n":{"$ref":"#/$defs/a","minProperties":1},
        "m":{"$ref":"#/$defs/b"}},"required":["m"]},"b":{"type":"string","minLength":2}}})",
    R"({"type":"object","properties":{"enum":{"type":"array","items":{"type":"integer","maximum":3}},
        "const":{"$ref":"#/properties/enum/items"},"default":{"minimum":2}},"additionalProperties":false})",
    R"({"definitions":{"u":{"$anchor":"here","type":"number","maximum":1}},"items":{"$ref":"#here"},"type":"array"})",
};

TEST(Visits, OwnCases) {
  Totals totals;
  int number = 0;
  for (const char* text : kCases) {
    check("case " + std::to_string(number++), parse_json(text).value(), {}, totals);
    EXPECT_EQ(totals.refusal, "") << text;
  }
  EXPECT_GT(totals.keywords, 80);
}

// The walk sees a keyword that was not read, and a subschema of which nothing was.
TEST(Visits, TheWalkFindsWhatIsMissing) {
  const Json schema = parse_json(R"({"type":"object","properties":{"a/b":{"type":"string","maxLength":3}}})").value();
  const std::vector<std::string> all = {"/type", "/properties", "/properties/a~1b/type", "/properties/a~1b/maxLength"};
  EXPECT_TRUE(Walk(schema, all).missed.empty());
  EXPECT_TRUE(Walk(schema, all).unread.empty());
  EXPECT_EQ(Walk(schema, {all.begin(), all.end() - 1}).missed, std::vector{all[3]});
  EXPECT_EQ(Walk(schema, {all.begin(), all.end() - 2}).unread, std::vector<std::string>{"/properties/a~1b"});
}

}  // namespace
}  // namespace di::structured
