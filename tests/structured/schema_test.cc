#include <fmt/format.h>
#include <gtest/gtest.h>

#include "structured/fixture.h"

namespace di::structured {
namespace {

using testing::code_of;
using testing::schema;
using testing::takes;

struct SchemaCase {
  const char* schema;
  std::vector<const char*> yes;
  std::vector<const char*> no;
};

void check(std::initializer_list<SchemaCase> cases) {
  for (const SchemaCase& c : cases) {
    const CompiledRef compiled = schema(c.schema);
    for (const char* t : c.yes) EXPECT_TRUE(takes(compiled, t)) << c.schema << " must take " << t;
    for (const char* t : c.no) EXPECT_FALSE(takes(compiled, t)) << c.schema << " must refuse " << t;
  }
}

TEST(Schema, TypesAndValues) {
  check(
      {{R"({"type":"integer"})", {"0", "-5", "123"}, {"-0", "01", "1.0", "1e2", "\"1\"", ""}},
       {R"({"type":["string","null"]})", {"null", "\"x\"", "\"\\u00e9\\n\""}, {"1", "\"\n\"", "\"\\ud800\""}},
       {R"({"enum":[1,"a",null,{"b":[true]}]})",
        {"1", "\"a\"", "null", "{\"b\": [true]}"},
        {"2", "1.5", "{\"b\": []}"}},
       {R"({"enum":[1,2,3],"minimum":2})", {"2", "3"}, {"1"}},
       {R"({"const":"a\"b"})", {"\"a\\\"b\""}, {"\"a\\u0022b\"", "\"ab\""}},
       {R"({"type":"number"})", {"1", "-0.5", "1e5", "2.50"}, {"+1", ".5", "1."}},
       {R"({"type":"string","maxLength":1})", {"\"\"", "\"\xf0\x9f\x8e\x88\"", "\"\\n\""}, {"\"ab\"", "\"\xf0\x9f\""}},
       {R"({"nullable":true,"type":"boolean"})", {"null", "true"}, {"0"}}});
}

TEST(Schema, Numbers) {
  check(
      {{R"({"type":"integer","minimum":3,"maximum":12})", {"3", "9", "10", "12"}, {"2", "13", "-5", "3.0"}},
       {R"({"type":"integer","multipleOf":7})", {"0", "98", "-14"}, {"100", "1"}},
       // Divisors of which no remainder can be searched for.
       {R"({"type":"number","multipleOf":0.123456789})",
        {"0", "0.123456789", "-0.246913578", "123456789", "1.23456789", "0.12345678900"},
        {"0.1", "0.123456788", "1", "1e308", "0.1234567891"}},
       {R"({"type":"integer","multipleOf":0.123456789})", {"0", "123456789", "-246913578"}, {"1", "123456788", "0.0"}},
       {R"({"type":"integer","multipleOf":86400,"minimum":86401,"maximum":259199})", {"172800"}, {"86400", "259200"}},
       {R"({"type":"integer","allOf":[{"multipleOf":1000},{"multipleOf":4096}]})", {"512000", "0"}, {"4096", "1000"}},
       {R"({"type":"number","multipleOf":1e12,"exclusiveMinimum":0})", {"1000000000000"}, {"0", "500000000000"}},
       {R"({"type":"integer","not":{"multipleOf":123456789}})", {"1", "123456788"}, {"0", "123456789"}},
       {R"({"type":"number","exclusiveMinimum":0,"maximum":1})", {"0.001", "1", "1.0"}, {"0", "0.0", "1.0001", "-1"}},
       {R"({"type":"number","minimum":1,"exclusiveMinimum":true})", {"1.1"}, {"1"}},
       {R"({"type":"integer","minimum":18446744073709551616})", {"18446744073709551616"}, {"18446744073709551615"}}});
}

TEST(Schema, Arrays) {
  check({{R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
          {"[1]", "[1, 2,3]"},
          {"[]", "[1,2,3,4]", "[1,]", "[,1]"}},
         {R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"items":false,"minItems":2,"type":"array"})",
          {"[1, \"x\"]"},
          {"[1]", "[1,\"x\",2]"}},
         {R"({"type":"array","items":{"enum":[1,2,3]},"uniqueItems":true})",
          {"[]", "[3, 1]", "[1,2,3]"},
          {"[2, 2]", "[1,2,3,1]", "[1,2,3,"}},
         {R"({"type":"array","items":{"type":"integer"}})", {"[]", "[1]"}, {"[1,]", "[,]", "[1 1]"}},
         {R"({"type":"array"})", {"[]", "[[], {}]"}, {"[1,]", "[[],]"}},
         {R"({"type":"array","items":{"enum":[1,2]},"uniqueItems":true})", {"[]", "[1]"}, {"[1,]"}},
         {R"({"type":"array","contains":{"const":7},"items":{"type":"integer"}})",
          {"[7]", "[1, 7]"},
          {"[]", "[1]", "[\"x\", 7]"}},
         {R"({"type":"array","contains":{"const":7},"items":{"type":"integer"},"maxContains":1,"maxItems":2})",
          {"[7]", "[1,7]"},
          {"[7,7]", "[1,2]"}}});
}

TEST(Schema, Objects) {
  check(
      {{R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"}},"required":["b"],"additionalProperties":false})",
        {"{\"b\": true}", "{\"a\": 1, \"b\": false}"},
        {"{}", "{\"a\": 1}", "{\"b\": true, \"a\": 1}", "{\"b\": true,}", "{\"b\": true, \"c\": 1}",
         "{\"a\": 1 \"b\": true}"}},
       {R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"string"}})",
        {"{}", "{\"a\": 1, \"x\": \"y\"}", "{\"x\": \"y\"}"},
        {"{\"x\": 1}", "{\"a\": \"s\"}", "{\"x\": \"y\", \"a\": 1}"}},
       {R"({"type":"object","patternProperties":{"^x":{"type":"integer"},"y$":{"minimum":5}},"additionalProperties":false})",
        {"{\"x\": 1}", "{\"xy\": 5}", "{\"ay\": 7}"},
        {"{\"xy\": 4}", "{\"a\": 1}", "{\"x\": \"s\"}"}},
       {R"({"type":"object","propertyNames":{"maxLength":2},"minProperties":1,"maxProperties":2})",
        {"{\"ab\": 1}", "{\"a\": 1, \"b\": 2}"},
        {"{}", "{\"abc\": 1}", "{\"a\": 1, \"b\": 2, \"c\": 3}"}},
       {R"({"type":"object"})", {"{}", "{\"a\": 1}"}, {"{\"a\": 1,}", "{,}"}},
       {R"({"type":"object","required":["q","p"]})",
        {"{\"p\": 1, \"q\": 2}", "{\"q\": 1, \"z\": 3, \"p\": 2}"},
        {"{\"p\": 1}", "{\"p\": 1, \"p\": 2}"}},
       {R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"additionalProperties":false,"minProperties":2})",
        {"{\"a\": 1, \"c\": 2}", "{\"b\": 1, \"c\": 2}"},
        {"{\"c\": 1}", "{\"a\": 1}"}},
       {R"({"type":"object","dependentRequired":{"a":["b"]},"properties":{"a":{},"b":{}},"additionalProperties":false})",
        {"{}", "{\"b\": 1}", "{\"a\": 1, \"b\": 2}"},
        {"{\"a\": 1}"}}});
}

TEST(Schema, Combinations) {
  check(
      {{R"({"allOf":[{"type":"integer","minimum":3},{"maximum":5}]})", {"4"}, {"2", "6"}},
       {R"({"oneOf":[{"type":"integer"},{"type":"number","minimum":10}]})", {"3", "10.5"}, {"12", "12.0"}},
       {R"({"oneOf":[{"required":["a"]},{"required":["b"]}],"type":"object"})",
        {"{\"a\": 1}", "{\"b\": 1}"},
        {"{}", "{\"a\": 1, \"b\": 1}"}},
       {R"({"not":{"const":5},"type":"number"})", {"4", "5.5"}, {"5", "5.0"}},
       {R"({"not":{"required":["a"]},"type":"object"})", {"{}", "{\"b\": 1}"}, {"{\"a\": 1}"}},
       {R"({"type":"object","not":{"additionalProperties":{"type":"integer"}}})",
        {R"({"a": "x"})", R"({"a": 1, "b": null})"},
        {"{}", R"({"a": 1})"}},
       {R"({"type":"object","properties":{"a":{},"xa":{}},"maxProperties":2,"not":{"patternProperties":{"^x":{"type":"string"}}}})",
        {R"({"x": 1})", R"({"a": 1, "xy": null})", R"({"xa": 1, "b": 2})"},
        {R"({"a": 1})", R"({"x": "s"})", R"({"a": 1, "b": 2})", R"({"xa": "s"})"}},
       {R"({"type":"object","maxProperties":1,"allOf":[{"not":{"propertyNames":{"pattern":"^a"}}},{"not":{"propertyNames":{"pattern":"b$"}}}]})",
        {R"({"c": 1})"},
        {R"({"ab": 1})", R"({"a": 1})", R"({"b": 1})", "{}"}},
       {R"({"enum":[{"a":1},{"b":1}],"not":{"not":{"propertyNames":{"const":"a"}}}})",
        {R"({"a": 1})"},
        {R"({"b": 1})"}},
       {R"({"if":{"properties":{"k":{"const":1}},"required":["k"]},"then":{"required":["v"]},"type":"object","properties":{"k":{},"v":{}}})",
        {"{\"k\": 2}", "{\"k\": 1, \"v\": 0}", "{}"},
        {"{\"k\": 1}"}},
       {R"({"$ref":"#/$defs/a~1b","$defs":{"a/b":{"type":"integer"}},"minimum":5})", {"5"}, {"4"}},
       {R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["next"],"additionalProperties":false}}})",
        {"{\"next\": {\"next\": null}}"},
        {"{\"next\": {}}"}}});
}

TEST(Schema, FormatsAreEnforced) {
  check(
      {{R"({"type":"string","format":"date"})",
        {"\"2024-02-29\"", "\"2000-02-29\""},
        {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\""}},
       {R"({"type":"string","format":"date-time"})",
        {"\"2024-01-02T03:04:05Z\"", "\"1998-12-31T23:59:60Z\""},
        {"\"2024-01-02T03:04:05\"", "\"2024-01-02T24:00:00Z\""}},
       {R"({"type":"string","format":"ipv6"})",
        {"\"::1\"", "\"1:2:3:4:5:6:7:8\"", "\"::ffff:1.2.3.4\""},
        {"\"1::2::3\"", "\"12345::\"", "\"1:2:3:4:5:6:7\""}},
       {R"({"type":"string","format":"email","maxLength":10})", {"\"a@b.co\""}, {"\"abcdefgh@example.org\"", "\"a@\""}},
       {R"({"type":"string","format":"hostname"})", {"\"a-b.example\""}, {"\"-a\"", "\"ab--c\"", "\"xn--x\""}}});
}

// structured-output.md §2.7: the least solution where another alternative gives one.
TEST(Schema, ReferencesThatReachThemselves) {
  check({{R"({"anyOf":[{"$ref":"#"},{"type":"integer"}]})", {"5"}, {"true"}},
         {R"({"$ref":"#/$defs/a","$defs":{"a":{"oneOf":[{"$ref":"#/$defs/b"}]},
             "b":{"anyOf":[{"$ref":"#/$defs/a"},{"const":1},{"$ref":"#/$defs/b"}]}}})",
          {"1"},
          {"2"}},
         {R"({"type":"array","items":{"$ref":"#"}})", {"[[],[[]]]"}, {"[1]"}}});
}

// structured-output.md §4.6: no endless digits.
TEST(Schema, DigitsOfNumbers) {
  const std::string most(64, '7');
  check({{R"({"type":"number"})",
          {most.c_str(), ("0." + most).c_str(), ("-" + most + "." + most + "e100").c_str()},
          {(most + "7").c_str(), ("0." + most + "7").c_str()}}});
}

TEST(Schema, RefusesWithCodeAndPlace) {
  for (const auto& [text, code] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"type":"object","required":true})", "invalid_json_schema"},
           {R"({"enum":[]})", "unsatisfiable_schema"},
           {R"({"type":"integer","minimum":5,"maximum":4})", "unsatisfiable_schema"},
           {R"({"type":"integer","multipleOf":86400,"minimum":86401,"maximum":172799})", "unsatisfiable_schema"},
           {R"({"$ref":"http://example.com/x"})", "unresolvable_ref"},
           {R"({"$ref":"#"})", "ref_cycle"},
           {R"({"allOf":[{"$ref":"#"},{"type":"string"}]})", "ref_cycle"},
           {R"({"anyOf":[{"$ref":"#/$defs/b"}],"$defs":{"b":{"$ref":"#"}}})", "ref_cycle"},
           {R"({"properties":{"a":{"$ref":"#/$defs/b"}},"$defs":{"b":{"$ref":"#/$defs/b"}}})", "ref_cycle"},
           {R"({"not":{"$ref":"#"}})", "ref_cycle"},
           {R"({"type":"array","items":{"type":"string"},"uniqueItems":true})", "unsupported_schema_feature"},
           {R"({"pattern":"("})", "invalid_regex"},
           {R"({"minLength":-1})", "invalid_json_schema"},
           {R"({"type":"strin"})", "invalid_json_schema"},
           {"{", "invalid_json_schema"}}) {
    EXPECT_EQ(code_of(ConstraintKind::kJsonSchema, text), code) << text;
  }
  const auto e =
      testing::compile_spec(ConstraintKind::kJsonSchema, R"({"properties":{"a":{"items":{"minLength":"x"}}}})");
  ASSERT_FALSE(e.has_value());
  EXPECT_EQ(e.error().pointer, "/properties/a/items");
  EXPECT_EQ(e.error().keyword, "minLength");
}

TEST(Schema, AnyOrderKeepsRequiredAndUnique) {
  SpecOptions options;
  options.property_order = PropertyOrder::kAny;
  const auto c = testing::compiled(
      ConstraintKind::kJsonSchema,
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a","b"],"additionalProperties":false})",
      options);
  EXPECT_TRUE(takes(c, "{\"b\": 1, \"a\": 2}"));
  EXPECT_TRUE(takes(c, "{\"a\": 1, \"b\": 2}"));
  EXPECT_FALSE(takes(c, "{\"b\": 1}"));
  EXPECT_FALSE(takes(c, "{\"b\": 1, \"b\": 2}"));
  // One declared member stands anywhere among the others, too.
  const auto one = testing::compiled(
      ConstraintKind::kJsonSchema,
      R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":{"type":"null"}})",
      options);
  EXPECT_TRUE(takes(one, "{\"x\": null, \"a\": 1, \"y\": null}"));
  EXPECT_FALSE(takes(one, "{\"x\": null}"));
  EXPECT_FALSE(takes(one, "{\"a\": 1, \"x\": null, \"a\": 1}"));
}

// Members of the node first where its `properties` stand first, then those of the alternative (structured-output.md
// §4.5).
TEST(Schema, MembersOfAlternativesComeBehindThoseOfTheNode) {
  const std::string own =
      R"("properties":{"op":{"enum":["add","drop"]},"at":{"type":"integer"}},"required":["op","at"])";
  const std::string add = R"({"properties":{"op":{"const":"add"},"value":{"type":"null"}},"required":["value"]})";
  const std::string drop = R"({"properties":{"op":{"const":"drop"}}})";
  for (const std::string key : {"anyOf", "oneOf"}) {
    const auto behind = schema(fmt::format(R"({{"type":"object",{},"{}":[{},{}]}})", own, key, add, drop));
    EXPECT_TRUE(takes(behind, R"({"op": "add", "at": 1, "value": null})")) << key;
    EXPECT_FALSE(takes(behind, R"({"op": "add", "value": null, "at": 1})")) << key;
    EXPECT_TRUE(takes(behind, R"({"op": "drop", "at": 1})")) << key;
    EXPECT_FALSE(takes(behind, R"({"op": "add", "at": 1})")) << key;
    const auto before = schema(fmt::format(R"({{"type":"object","{}":[{},{}],{}}})", key, add, drop, own));
    EXPECT_TRUE(takes(before, R"({"op": "add", "value": null, "at": 1})")) << key;
  }
}

TEST(Schema, WhitespacePolicies) {
  const char* text = R"({"type":"array","items":{"type":"integer"}})";
  SpecOptions compact;
  compact.whitespace = Whitespace::kCompact;
  EXPECT_TRUE(takes(testing::compiled(ConstraintKind::kJsonSchema, text, compact), "[1,2]"));
  EXPECT_FALSE(takes(testing::compiled(ConstraintKind::kJsonSchema, text, compact), "[1, 2]"));
  const auto flexible = schema(text);
  EXPECT_TRUE(takes(flexible, "[\n  1, 2\n]"));
  EXPECT_FALSE(takes(flexible, "[1,  2]"));
  EXPECT_FALSE(takes(flexible, " [1]"));
  EXPECT_FALSE(takes(flexible, "[1] "));
}

TEST(Limits, EachOneRefuses) {
  Limits small;
  small.max_schema_bytes = 10;
  EXPECT_EQ(code_of(ConstraintKind::kJsonSchema, R"({"type":"integer"})", small), "constraint_too_large");
  std::string deep;
  for (int i = 0; i < 300; ++i) deep += R"({"items":)";
  deep += "{}" + std::string(300, '}');
  EXPECT_EQ(code_of(ConstraintKind::kJsonSchema, deep), "constraint_too_complex");
  EXPECT_EQ(code_of(ConstraintKind::kRegex, std::string(33 * 1024, 'a')), "constraint_too_large");
  EXPECT_EQ(code_of(ConstraintKind::kJsonSchema, R"({"multipleOf":0.1234567890123456789})"), "constraint_too_complex");
  EXPECT_EQ(code_of(ConstraintKind::kJsonSchema, R"({"minItems":2000000,"type":"array"})"), "constraint_too_complex");
  Limits few;
  few.max_enum_values = 2;
  EXPECT_EQ(code_of(ConstraintKind::kJsonSchema, R"({"enum":[1,2,3]})", few), "constraint_too_complex");
  Limits narrow;
  narrow.max_properties = 1;
  EXPECT_EQ(code_of(ConstraintKind::kJsonSchema, R"({"properties":{"a":{},"b":{}}})", narrow),
            "constraint_too_complex");
  Limits poor;
  poor.max_nodes = 100;
  EXPECT_EQ(code_of(ConstraintKind::kJsonSchema, R"({"type":"string","format":"uri"})", poor),
            "constraint_too_complex");
  Limits choices;
  choices.max_choices = 1;
  EXPECT_EQ(code_of(ConstraintKind::kChoice, R"(["a","b"])", choices), "constraint_too_large");
}

TEST(Limits, OutputNestingIsMaskedAway) {
  const auto any = schema("{}");
  EXPECT_TRUE(takes(any, std::string(200, '[') + std::string(200, ']')));
  EXPECT_FALSE(takes(any, std::string(201, '[') + std::string(201, ']')));
}

// What cannot be reached makes a schema unsatisfiable when it compiles, not a text that cannot be ended.
TEST(Schemas, CountsThatNoTextReachesAreUnsatisfiable) {
  const std::string dead = R"({"type":"object","additionalProperties":false,"minProperties":2})";
  const auto code = [&](std::string text, PropertyOrder order = PropertyOrder::kSchema) {
    for (size_t at; (at = text.find("DEAD")) != std::string::npos;) text.replace(at, 4, dead);
    SpecOptions options;
    options.property_order = order;
    const auto c = testing::compile_spec(ConstraintKind::kJsonSchema, text, options);
    return c ? "compiled" : c.error().code;
  };
  for (const char* text : {
           R"({"type":"array","prefixItems":[{"const":1},DEAD],"minItems":2,"maxItems":7})",
           R"({"type":"array","prefixItems":[{"const":1},DEAD],"minItems":2,"contains":{}})",
           R"({"type":"array","items":DEAD,"minItems":1,"maxItems":3})",
           R"({"type":"array","items":{"const":1},"contains":{"const":2}})",
           R"({"type":"array","items":{"const":1},"contains":DEAD,"maxItems":4})",
           R"({"type":"object","properties":{"a":DEAD,"b":{"const":1}},"minProperties":2,"additionalProperties":DEAD})",
           R"({"type":"object","patternProperties":{"x":DEAD},"minProperties":1,"additionalProperties":false})",
       }) {
    EXPECT_EQ(code(text), "unsatisfiable_schema") << text;
    EXPECT_EQ(code(text, PropertyOrder::kAny), "unsatisfiable_schema") << text;
  }
  EXPECT_EQ(code(R"({"type":"object","properties":{"a":DEAD,"b":{"const":1}},"required":["a"]})", PropertyOrder::kAny),
            "unsatisfiable_schema");
  // The same with room enough.
  for (const char* text : {
           R"({"type":"array","prefixItems":[{"const":1},DEAD],"minItems":1,"maxItems":7})",
           R"({"type":"array","items":{"const":1},"contains":{"const":1},"minItems":500})",
           R"({"type":"array","items":{"enum":[1,2]},"contains":{"const":2},"minContains":300})",
           R"({"type":"object","properties":{"a":DEAD,"b":{"const":1}},"minProperties":1})",
       }) {
    EXPECT_EQ(code(text), "compiled") << text;
    EXPECT_EQ(code(text, PropertyOrder::kAny), "compiled") << text;
  }
}

}  // namespace
}  // namespace di::structured
