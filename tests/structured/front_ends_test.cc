#include <gtest/gtest.h>

#include "structured/fixture.h"

namespace di::structured {
namespace {

using testing::code_of;
using testing::compiled;
using testing::takes;

#define DSML     \
  "\xef\xbd\x9c" \
  "DSML\xef\xbd\x9c"

TEST(Ebnf, RulesRecursionAndRepeats) {
  const auto c = compiled(ConstraintKind::kEbnf, R"g(
root ::= expr "\n"?   # a comment
expr ::= expr [-+] term | term
term ::= [0-9]{1,3} | "(" expr ")" | "\u00e9" |
         [^a-z0-9()+-]
)g");
  for (const char* t : {"1", "12+(3-4)", "((7))", "\xc3\xa9+1\n", "A"}) EXPECT_TRUE(takes(c, t)) << t;
  for (const char* t : {"", "1+", "(1", "1234", "a", "1\n\n"}) EXPECT_FALSE(takes(c, t)) << t;
}

TEST(Ebnf, ErrorsNameTheirPlace) {
  for (const auto& [text, place] :
       std::initializer_list<std::pair<const char*, const char*>>{{"root ::= x", "line 1 column 10"},
                                                                  {"root ::= \"a\"\nroot ::= \"b\"", "line 2 column 1"},
                                                                  {"root ::= (\"a\"", "line 1 column 14"},
                                                                  {"root ::= [a", "line 1 column 12"},
                                                                  {"root ::= (= \"a\")", "line 1 column 10"}}) {
    const auto c = testing::compile_spec(ConstraintKind::kEbnf, text);
    ASSERT_FALSE(c.has_value()) << text;
    EXPECT_EQ(c.error().code, "invalid_grammar") << text;
    EXPECT_NE(c.error().message.find(place), std::string::npos) << c.error().message;
  }
  EXPECT_EQ(code_of(ConstraintKind::kEbnf, "a ::= \"x\""), "invalid_grammar");
  EXPECT_EQ(code_of(ConstraintKind::kEbnf, "root ::= root \"x\""), "unsatisfiable_schema");
}

TEST(Lark, TerminalsIgnoreAndImports) {
  const auto c = compiled(ConstraintKind::kGrammar, R"(
start: item ("," item)*   // a list
?item: NAME "="i value -> pair
     | "[" start "]"
value: INT | ESCAPED_STRING | HEX~2..3
NAME.2: /[a-z]+/
HEX: "0".."9" | /[a-f]/i
%import common.(INT, ESCAPED_STRING)
%ignore " "
)");
  for (const char* t : {"a=1", "a = 12 , b=\"x\"", "[a=1,[b=2]]", "a=fF", " a=1"}) EXPECT_TRUE(takes(c, t)) << t;
  for (const char* t : {"", "a=", "a=f", "[a=1", "a=1,", "A=1"}) EXPECT_FALSE(takes(c, t)) << t;
  EXPECT_EQ(c->warnings().size(), 1U);
  EXPECT_EQ(code_of(ConstraintKind::kLark, "start: x{y}"), "invalid_grammar");
}

constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"weather","strict":true,"parameters":{"type":"object",
  "properties":{"city":{"type":"string","maxLength":5},"days":{"type":"integer"},"unit":{"anyOf":[{"enum":["c","f"]},{"type":"null"}]}},
  "required":["city","days"],"additionalProperties":false}}},
  {"type":"function","function":{"name":"loose","parameters":{"type":"object"}}}])";

std::string call(const std::string& inside) {
  return "<" DSML " calls>\n" + inside + "</" DSML " calls>";
}
std::string invoke(const std::string& name, const std::string& inside) {
  return "<" DSML " invoke name=\"" + name + "\">\n" + inside + "</" DSML " invoke>\n";
}
std::string param(const std::string& key, bool string, const std::string& value) {
  return "<" DSML " parameter name=\"" + key + "\" string=\"" + (string ? "true" : "false") + "\">" + value +
         "</" DSML " parameter>\n";
}

TEST(Tools, StrictParametersInAnyOrder) {
  SpecOptions options;
  options.tool_choice = ToolChoice::kRequired;
  const auto c = compiled(ConstraintKind::kToolCalls, kTools, options);
  const std::string city = param("city", true, "B\"<n");
  const std::string days = param("days", false, "12");
  EXPECT_TRUE(takes(c, call(invoke("weather", city + days))));
  EXPECT_TRUE(takes(c, call(invoke("weather", days + city))));
  EXPECT_TRUE(
      takes(c, call(invoke("weather", days + city) + invoke("weather", city + days + param("unit", true, "c")))));
  EXPECT_TRUE(takes(c, call(invoke("weather", city + days + param("unit", false, "null")))));
  EXPECT_TRUE(takes(c, "\n\n" + call(invoke("loose", param("any", false, "[1, {}]") + param("t", true, "x < y")))));
  EXPECT_TRUE(takes(c, call(invoke("loose", ""))));
  for (const std::string& bad :
       {invoke("weather", city), invoke("weather", city + days + days),
        invoke("weather", param("city", true, "too long") + days), invoke("weather", city + param("days", true, "12")),
        invoke("weather", city + param("days", false, "\"x\"")),
        invoke("weather", city + days + param("other", true, "x")),
        invoke("weather", city + days + param("unit", false, "\"c\"")),
        invoke("weather", city + days + param("unit", true, "k")), invoke("unknown", ""), std::string()}) {
    EXPECT_FALSE(takes(c, call(bad))) << bad;
  }
  EXPECT_FALSE(takes(c, "text"));
}

TEST(Tools, AutoNoneSingleAndNamed) {
  const std::string good = call(invoke("loose", ""));
  const auto automatic = compiled(ConstraintKind::kToolCalls, kTools);
  EXPECT_TRUE(takes(automatic, "just text"));
  EXPECT_TRUE(takes(automatic, "text first\n\n" + good));
  EXPECT_FALSE(takes(automatic, "x<" DSML " calls>\n"));
  EXPECT_FALSE(takes(automatic, good + "more"));
  SpecOptions none;
  none.tool_choice = ToolChoice::kNone;
  EXPECT_TRUE(takes(compiled(ConstraintKind::kToolCalls, kTools, none), "a < b"));
  EXPECT_FALSE(takes(compiled(ConstraintKind::kToolCalls, kTools, none), good));
  SpecOptions single;
  single.parallel_tool_calls = false;
  EXPECT_TRUE(takes(compiled(ConstraintKind::kToolCalls, kTools, single), good));
  EXPECT_FALSE(
      takes(compiled(ConstraintKind::kToolCalls, kTools, single), call(invoke("loose", "") + invoke("loose", ""))));
  SpecOptions named;
  named.tool_choice = ToolChoice::kRequired;
  named.tool_name = "loose";
  EXPECT_TRUE(takes(compiled(ConstraintKind::kToolCalls, kTools, named), good));
  EXPECT_FALSE(takes(compiled(ConstraintKind::kToolCalls, kTools, named),
                     call(invoke("weather", param("city", true, "B") + param("days", false, "1")))));
}

TEST(Tools, OrdinaryTextNeverMakesATag) {
  SpecOptions options;
  options.tool_choice = ToolChoice::kRequired;
  Matcher m(compiled(ConstraintKind::kToolCalls, kTools, options));
  ASSERT_TRUE(m.accept(TokenId{'<'}));
  EXPECT_FALSE(m.accept_bytes(DSML));
  EXPECT_TRUE(m.accept(testing::kDsml));
}

TEST(Tools, ThinkingFirstAndDraftsAcrossBorders) {
  Matcher m(compiled(ConstraintKind::kToolCalls, kTools, {}, true));
  const auto text = testing::byte_vocabulary()->encode_greedy("hm</think>hi\n\n" + call(invoke("loose", "")), true);
  std::vector<TokenId> draft = text;
  draft.push_back(testing::kEos);
  const size_t words = testing::byte_vocabulary()->mask_words();
  std::vector<uint32_t> rows((draft.size() + 1) * words);
  ASSERT_EQ(m.fill_masks_along(draft, rows), draft.size());
  Matcher steps = m.clone();
  for (size_t i = 0; i < draft.size(); ++i) {
    std::vector<uint32_t> row(words);
    ASSERT_TRUE(steps.fill_mask(row));
    EXPECT_TRUE(std::equal(row.begin(), row.end(), rows.begin() + static_cast<std::ptrdiff_t>(i * words))) << i;
    ASSERT_TRUE(steps.accept(draft[i])) << i;
  }
  EXPECT_TRUE(steps.terminated());
}

TEST(StructuralTag, OldFormFollowsTriggers) {
  const auto c = compiled(ConstraintKind::kStructuralTag, R"({"type":"structural_tag","triggers":["<f="],
    "structures":[{"begin":"<f=a>","schema":{"type":"integer"},"end":"</f>"},{"begin":"<f=b>","schema":{"type":"boolean"},"end":"</f>"}]})");
  for (const char* t : {"", "free < text", "x<f=a>12</f>y<f=b>true</f>"}) EXPECT_TRUE(takes(c, t)) << t;
  for (const char* t : {"<f=c>", "<f=a>true</f>", "<f=a>1", "x<f="}) EXPECT_FALSE(takes(c, t)) << t;
}

TEST(StructuralTag, Formats) {
  struct Case {
    const char* format;
    std::vector<const char*> yes;
    std::vector<const char*> no;
  };
  for (
      const Case& c : std::initializer_list<Case>{
          {R"({"type":"const_string","value":"ab"})", {"ab"}, {"a", "abc"}},
          {R"({"type":"sequence","elements":[{"type":"const_string","value":"x"},{"type":"json_schema","json_schema":{"type":"integer"}}]})",
           {"x12"},
           {"x", "12"}},
          {R"({"type":"or","elements":[{"type":"regex","pattern":"a+"},{"type":"grammar","grammar":"root ::= \"b\""}]})",
           {"aa", "b"},
           {"", "ab"}},
          {R"({"type":"tag","begin":"<think>","content":{"type":"any_text"},"end":"</think>"})",
           {"<think>x</think>"},
           {"x", "<think>x"}},
          {R"({"type":"tag","begin":"[","content":{"type":"any_text"},"end":"]]"})",
           {"[a]]", "[a]b]]"},
           {"[a]]b]]", "[a]"}},
          {R"({"type":"repeat","content":{"type":"const_string","value":"a"},"min":2,"max":3})",
           {"aa", "aaa"},
           {"a", "aaaa"}},
          {R"({"type":"plus","content":{"type":"const_string","value":"a"}})", {"a", "aaaa"}, {"", "b"}},
          {R"({"type":"optional","content":{"type":"const_string","value":"a"}})", {"", "a"}, {"aa"}},
          {R"({"type":"tags_with_separator","separator":";","at_least_one":true,"tags":[{"begin":"<","content":{"type":"regex","pattern":"[0-9]"},"end":">"}]})",
           {"<1>", "<1>;<2>"},
           {"", "<1>;", "<1><2>"}},
          {R"({"type":"triggered_tags","triggers":["<"],"stop_after_first":true,"at_least_one":true,"tags":[{"begin":"<t>","content":{"type":"regex","pattern":"[0-9]"},"end":"</t>"}]})",
           {"x<t>1</t>"},
           {"x", "<t>1</t>y", "<u>"}},
          {R"({"type":"token","token":"<think>"})", {"<think>"}, {"x"}}}) {
    const auto compiled_tag =
        compiled(ConstraintKind::kStructuralTag, std::string(R"({"type":"structural_tag","format":)") + c.format + "}");
    for (const char* t : c.yes) EXPECT_TRUE(takes(compiled_tag, t)) << c.format << " must take " << t;
    for (const char* t : c.no) EXPECT_FALSE(takes(compiled_tag, t)) << c.format << " must refuse " << t;
  }
  EXPECT_EQ(code_of(ConstraintKind::kStructuralTag, R"({"type":"structural_tag","format":{"type":"dispatch"}})"),
            "invalid_grammar");
}

}  // namespace
}  // namespace di::structured
