// Every keyword of the matrix (structured-output.md §4.2) is enforced or refused: no schema is silently loosened.
#include <gtest/gtest.h>

#include "structured/fixture.h"

namespace di::structured {
namespace {

struct Row {
  const char* keyword;
  const char* schema;
  const char* valid;
  const char* invalid;
};

// One line a keyword that the library enforces, alone and beside others that it has to hold together with.
constexpr Row kEnforced[] = {
    {"type", R"({"type":"integer"})", "12", "1.5"},
    {"type", R"({"type":["null","string"]})", "null", "1"},
    {"enum", R"({"enum":[1,"ab",{"k":[null]}]})", R"({"k": [null]})", R"({"k": []})"},
    {"const", R"({"const":{"a":1}})", R"({"a": 1})", R"({"a": 2})"},
    {"nullable", R"({"type":"string","nullable":true})", "null", "1"},
    {"properties", R"({"properties":{"a":{"type":"integer"}}})", R"({"a": 1})", R"({"a": "1"})"},
    {"required", R"({"type":"object","required":["a"]})", R"({"a": 1})", R"({"b": 1})"},
    {"additionalProperties", R"({"properties":{"a":true},"additionalProperties":{"type":"null"}})", R"({"b": null})",
     R"({"b": 1})"},
    {"patternProperties", R"({"patternProperties":{"^a":{"type":"null"},"b$":{"enum":[null,1]}}})", R"({"ab": null})",
     R"({"ab": 1})"},
    {"propertyNames", R"({"type":"object","propertyNames":{"pattern":"^a"}})", R"({"ab": 1})", R"({"b": 1})"},
    {"minProperties", R"({"type":"object","minProperties":2})", R"({"a": 1, "b": 2})", R"({"a": 1})"},
    {"maxProperties", R"({"type":"object","maxProperties":1})", R"({"a": 1})", R"({"a": 1, "b": 2})"},
    {"dependentRequired", R"({"properties":{"a":true,"b":true},"dependentRequired":{"a":["b"]}})",
     R"({"a": 1, "b": 1})", R"({"a": 1})"},
    {"dependentSchemas", R"({"properties":{"a":true,"b":true},"dependentSchemas":{"a":{"required":["b"]}}})",
     R"({"b": 1})", R"({"a": 1})"},
    {"dependencies", R"({"properties":{"a":true,"b":true},"dependencies":{"a":["b"]}})", R"({"b": 1})", R"({"a": 1})"},
    {"items", R"({"type":"array","items":{"type":"null"}})", "[null, null]", "[null, 1]"},
    {"prefixItems", R"({"prefixItems":[{"type":"null"}]})", "[null, 1]", "[1]"},
    {"additionalItems", R"({"items":[true],"additionalItems":{"type":"null"}})", "[1, null]", "[1, 1]"},
    {"minItems", R"({"type":"array","minItems":2})", "[1, 2]", "[1]"},
    {"maxItems", R"({"type":"array","maxItems":1})", "[1]", "[1, 2]"},
    {"uniqueItems", R"({"items":{"enum":[1,2]},"uniqueItems":true})", "[1, 2]", "[1, 1]"},
    {"contains", R"({"type":"array","contains":{"const":1}})", "[2, 1]", "[2]"},
    {"minContains", R"({"type":"array","contains":{"const":1},"minContains":2})", "[1, 1]", "[1, 2]"},
    {"maxContains", R"({"type":"array","contains":{"const":1},"maxContains":1})", "[1, 2]", "[1, 1]"},
    {"unevaluatedProperties", R"({"allOf":[{"properties":{"a":true}}],"unevaluatedProperties":false})", R"({"a": 1})",
     R"({"b": 1})"},
    {"unevaluatedProperties",
     R"({"allOf":[{"properties":{"a":true},"unevaluatedProperties":true}],"unevaluatedProperties":false})",
     R"({"b": 1})", "[1"},
    {"unevaluatedItems", R"({"allOf":[{"prefixItems":[true]}],"unevaluatedItems":false})", "[1]", "[1, 2]"},
    {"unevaluatedItems", R"({"allOf":[{"prefixItems":[true]},{"unevaluatedItems":true}],"unevaluatedItems":false})",
     "[1, 2]", "[1"},
    {"minLength", R"({"type":"string","minLength":2})", R"("ab")", R"("a")"},
    {"maxLength", R"({"type":"string","maxLength":2,"pattern":"a"})", R"("ab")", R"("aba")"},
    {"pattern", R"({"type":"string","pattern":"^a+$","minLength":2})", R"("aa")", R"("ab")"},
    {"format", R"({"type":"string","format":"ipv4"})", R"("1.2.3.4")", R"("1.2.3")"},
    {"minimum", R"({"type":"integer","minimum":3})", "3", "2"},
    {"maximum", R"({"type":"number","maximum":3.5})", "3.5", "3.6"},
    {"exclusiveMinimum", R"({"type":"integer","exclusiveMinimum":3})", "4", "3"},
    {"exclusiveMaximum", R"({"type":"integer","maximum":3,"exclusiveMaximum":true})", "2", "3"},
    {"multipleOf", R"({"type":"number","multipleOf":0.25})", "1.75", "1.8"},
    {"anyOf", R"({"anyOf":[{"type":"null"},{"const":1}]})", "1", "2"},
    {"oneOf", R"({"oneOf":[{"type":"integer","minimum":2},{"type":"integer","maximum":4}]})", "5", "3"},
    {"allOf", R"({"allOf":[{"minimum":2},{"maximum":4},{"type":"integer"}]})", "3", "5"},
    {"not", R"({"type":"string","not":{"pattern":"^a"}})", R"("b")", R"("ab")"},
    {"if", R"({"type":"integer","if":{"minimum":10},"then":{"multipleOf":5},"else":{"maximum":3}})", "15", "12"},
    {"else", R"({"type":"integer","if":{"minimum":10},"then":{"multipleOf":5},"else":{"maximum":3}})", "3", "4"},
    {"$ref", R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"integer"}},"maximum":3})", "3", "4"},
    {"$anchor", R"({"$ref":"#x","$defs":{"a":{"$anchor":"x","type":"integer"}}})", "3", "null"},
    {"$dynamicRef", R"({"$dynamicRef":"#x","$defs":{"a":{"$dynamicAnchor":"x","type":"integer"}}})", "3", "null"},
};

TEST(Keywords, EachIsEnforced) {
  for (const Row& row : kEnforced) {
    const auto c = testing::schema(row.schema);
    ASSERT_NE(c, nullptr) << row.keyword;
    EXPECT_TRUE(testing::takes(c, row.valid)) << row.schema << " refuses " << row.valid;
    EXPECT_FALSE(testing::takes(c, row.invalid)) << row.schema << " takes " << row.invalid;
  }
}

// What cannot be enforced is refused by name; in lenient mode it is a warning with the same pointer and name.
TEST(Keywords, WhatCannotBeEnforcedIsRefusedByName) {
  const std::pair<const char*, const char*> rows[] = {
      {"uniqueItems", R"({"properties":{"p":{"type":"array","items":{"type":"string"},"uniqueItems":true}}})"},
      {"not", R"({"properties":{"p":{"not":{"uniqueItems":true}}}})"},
      {"contains", R"({"properties":{"p":{"allOf":[{"contains":{"const":1}},{"contains":{"const":2}}]}}})"},
  };
  for (const auto& [keyword, text] : rows) {
    const auto refused = testing::compile_spec(ConstraintKind::kJsonSchema, text);
    ASSERT_FALSE(refused.has_value()) << text;
    EXPECT_EQ(refused.error().code, "unsupported_schema_feature") << text;
    EXPECT_EQ(refused.error().keyword, keyword) << text;
    EXPECT_TRUE(refused.error().pointer.starts_with("/properties/p")) << refused.error().text();
    SpecOptions lenient;
    lenient.lenient = true;
    const auto made = testing::compile_spec(ConstraintKind::kJsonSchema, text, lenient);
    ASSERT_TRUE(made.has_value()) << text << ": " << made.error().text();
    ASSERT_FALSE((*made)->warnings().empty()) << text;
    EXPECT_NE((*made)->warnings()[0].find(keyword), std::string::npos) << (*made)->warnings()[0];
    EXPECT_NE((*made)->warnings()[0].find("/properties/p"), std::string::npos) << (*made)->warnings()[0];
  }
}

TEST(Keywords, MalformedValuesAreErrors) {
  for (const char* text :
       {R"({"required":true})", R"({"minLength":-1})", R"({"minLength":1.5})", R"({"pattern":"("})", R"({"enum":1})",
        R"({"type":"text"})", R"({"properties":[]})", R"({"anyOf":{}})", R"({"multipleOf":0})", R"({"items":3})",
        R"({"$ref":1})", R"({"minimum":"3"})", R"({"uniqueItems":1})", R"({"dependentRequired":{"a":[1]}})"}) {
    const auto made = testing::compile_spec(ConstraintKind::kJsonSchema, text);
    ASSERT_FALSE(made.has_value()) << text;
    EXPECT_TRUE(made.error().code == "invalid_json_schema" || made.error().code == "invalid_regex")
        << text << ": " << made.error().text();
  }
}

}  // namespace
}  // namespace di::structured
