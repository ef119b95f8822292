// The profile of §8.2: each of its rules by a schema that breaks it and nothing else.
#include "structured/openai_strict.h"

#include "structured/fixture.h"

namespace di::structured {
namespace {

std::string verdict(std::string_view schema) {
  const auto broken = breaks_openai_strict(schema);
  return broken ? broken->text() : testing::code_of(ConstraintKind::kJsonSchema, schema);
}

std::string object(std::string_view properties, std::string_view required, std::string_view more = "") {
  return R"({"type":"object","properties":{)" + std::string(properties) + R"(},"required":[)" + std::string(required) +
         R"(],"additionalProperties":false)" + std::string(more) + "}";
}

std::string nested(int levels) {
  std::string inner = R"({"type":"integer"})";
  for (int i = 0; i < levels; ++i) inner = object("\"a\":" + inner, "\"a\"");
  return inner;
}

// n members "k0": value, and their names.
std::pair<std::string, std::string> many(int n, const std::string& value) {
  std::string properties;
  std::string names;
  for (int i = 0; i < n; ++i) {
    const std::string name = "\"k" + std::to_string(i) + "\"";
    properties += (i > 0 ? "," : "") + name + ":" + value;
    names += (i > 0 ? "," : "") + name;
  }
  return {properties, names};
}

std::string strings(int n, int length) {
  std::string out;
  for (int i = 0; i < n; ++i) {
    std::string text = std::to_string(i);
    text.resize(static_cast<size_t>(length), 'x');
    out += (i > 0 ? ",\"" : "\"") + text + "\"";
  }
  return out;
}

TEST(OpenAiStrict, AcceptsWhatFits) {
  for (const std::string& schema :
       {object(R"("a":{"type":["string","null"]},"b":{"anyOf":[{"type":"integer"},{"enum":["x"]}]})", R"("a","b")"),
        object(R"("n":{"$ref":"#/$defs/t"})", "\"n\"", R"(,"$defs":{"t":)" + nested(2) + "}"), nested(10),
        object(R"("a":{"type":"array","items":{"type":"string","pattern":"^a"},"minItems":1})", "\"a\"")}) {
    EXPECT_EQ(verdict(schema), "compiled") << schema;
  }
}

TEST(OpenAiStrict, RefusesWithPlaceAndReason) {
  const auto in_a = [](std::string_view inner) { return object("\"a\":" + std::string(inner), "\"a\""); };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"type":"array"})", "at #, keyword \"type\": openai-strict: the root"},
      {object("\"a\":{\"type\":\"null\"}", "\"a\"", R"(,"anyOf":[{}])"), "at #, keyword \"anyOf\""},
      {object(R"("a":{"type":"null"},"b":{"type":"null"})", "\"a\""), "keyword \"required\""},
      {in_a(R"({"type":"object","properties":{}})"), "at #/properties/a, keyword \"additionalProperties\""},
      {in_a(R"({"type":"object","additionalProperties":true})"), "at #/properties/a, keyword \"additionalProperties\""},
      {in_a(R"({"type":"array","items":{"allOf":[{}]}})"), "at #/properties/a/items, keyword \"allOf\""},
      {in_a(R"({"type":"integer","not":{"const":1}})"), "keyword \"not\""},
      {in_a(R"({"anyOf":[{"type":"integer"},{"if":{},"then":{}}]})"), "at #/properties/a/anyOf/1, keyword \"if\""},
      {object("", "", R"(,"dependentRequired":{})"), "keyword \"dependentRequired\""},
      {object("", "", R"(,"dependentSchemas":{})"), "keyword \"dependentSchemas\""},
      {nested(11), "more than 10 levels"},
      {in_a("{\"enum\":[" + strings(1'001, 4) + "]}"), "more than 1000 values"},
      {in_a("{\"enum\":[" + strings(251, 60) + "]}"), "251 strings have 15060 characters"},
      {in_a("{\"const\":\"" + std::string(120'000, 'x') + "\"}"), "more than 120000 characters"},
  };
  for (const auto& [schema, reason] : cases) {
    const std::string found = verdict(schema);
    EXPECT_NE(found.find(reason), std::string::npos) << schema.substr(0, 200) << ": " << found;
  }
  const auto [properties, names] = many(5'001, R"({"type":"null"})");
  EXPECT_NE(verdict(object(properties, names)).find("more than 5000 properties"), std::string::npos);
}

// Parameters of strict tools, and only of those.
TEST(OpenAiStrict, OfTools) {
  const auto tool = [](const char* strict) {
    return tools_break_openai_strict(std::string(R"([{"type":"function","function":{"name":"f","strict":)") + strict +
                                     R"(,"parameters":{"type":"object","properties":{"a":{"type":"null"}}}}}])");
  };
  ASSERT_TRUE(tool("true"));
  EXPECT_EQ(tool("true")->keyword, "additionalProperties");
  EXPECT_FALSE(tool("false"));
}

}  // namespace
}  // namespace di::structured
