// Masks against trying every token of the real vocabulary, and masks along drafts against one step after the other
// (structured-output.md §3, §9.2). DEEPINFER_SOAK=1 looks at 1,000 states, the plain run at fewer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "structured/structured.h"
#include "support/folders.h"
#include "support/sanitizers.h"

namespace di::structured {
namespace {

constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"look_up","strict":true,"parameters":{"type":"object","properties":{"city":{"type":"string","maxLength":20},"days":{"type":"integer","minimum":1,"maximum":14},"tags":{"type":"array","items":{"type":"string"}}},"required":["city"],"additionalProperties":false}}},
        {"type":"function","function":{"name":"stop","parameters":{"type":"object","properties":{}}}}])";

const VocabularyRef& vocabulary() {
  static const VocabularyRef v = [] {
    std::ifstream in(std::string(di::test::kVectors) + "/recipe/tokenizer.json");
    std::stringstream text;
    text << in.rdbuf();
    auto read = Vocabulary::from_tokenizer_json(text.str());
    return read ? *read : nullptr;
  }();
  return v;
}

struct Case {
  ConstraintKind kind = ConstraintKind::kJsonSchema;
  const char* payload = "";
  bool reasoning = false;
  const char* or_tools = "";
};

// Strings of every kind, names beside others, bounds near and far, special tokens, free text.
const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {ConstraintKind::kJsonObject},
      {ConstraintKind::kJsonSchema, R"({"type":"string","maxLength":7})"},
      {ConstraintKind::kJsonSchema, R"({"type":"string","minLength":3,"maxLength":40})"},
      {ConstraintKind::kJsonSchema, R"({"type":"string","pattern":"^(?:\\S+\\s+){0,3}\\S+$","maxLength":60})"},
      {ConstraintKind::kJsonSchema, R"({"type":"string","pattern":"^(?:\\S+\\s+){0,49}\\S+$","maxLength":500})"},
      {ConstraintKind::kJsonSchema, R"({"type":"string","pattern":"^[^<>]{2,}[a-z]$","maxLength":12})"},
      {ConstraintKind::kJsonSchema, R"({"type":"string","pattern":"[0-9]","minLength":5})"},
      {ConstraintKind::kJsonSchema, R"({"enum":["a\"b","tab\there","\u65e5\u672c","name",12,null,{"k":[1]}]})"},
      {ConstraintKind::kJsonSchema, R"({"anyOf":[{"type":"string"},{"enum":["x",1]},{"type":"array"}]})"},
      {ConstraintKind::kJsonSchema,
       R"({"type":"object","properties":{"name":{"type":"string"},"named":{"type":"integer"},"\u00e9t\u00e9":{"type":"string","format":"date"}},"required":["name"]})"},
      {ConstraintKind::kJsonSchema,
       R"({"type":"object","properties":{"a":{"type":"number","minimum":0.5}},"patternProperties":{"^x_":{"type":"string","maxLength":3}},"additionalProperties":{"type":"array","items":{"type":"boolean"}}})"},
      {ConstraintKind::kJsonSchema, R"({"type":"string","format":"email","maxLength":30})"},
      {ConstraintKind::kJsonSchema, R"({"type":"string","format":"uri"})"},
      {ConstraintKind::kJsonSchema, R"({"type":"string","format":"hostname"})"},
      {ConstraintKind::kJsonSchema, R"({"type":"string","pattern":"^[a-z][a-z0-9._-]{0,30}$"})"},
      {ConstraintKind::kJsonSchema, R"({"type":"string","pattern":"^[^ \u3000]{1,9}(/[\\w-]{2,20})*$","minLength":4})"},
      {ConstraintKind::kJsonSchema,
       R"({"anyOf":[{"type":"object","properties":{"kind":{"const":"a"},"k":{"type":"null"}},"required":["kind"]},{"type":"object","properties":{"kind":{"const":"b"}},"propertyNames":{"pattern":"^[a-z]{1,8}$"},"required":["kind"]}]})"},
      {ConstraintKind::kJsonSchema,
       R"({"type":"object","properties":{"x\"y":true,"x":{"type":"string"},"x\\":{"enum":[1]}},"patternProperties":{"^[0-9]{1,3}$":{"type":"null"}},"additionalProperties":{"type":"boolean"}})"},
      {ConstraintKind::kJsonSchema,
       R"({"type":"array","items":{"type":"number","multipleOf":0.0086400,"minimum":-5,"maximum":70000}})"},
      {ConstraintKind::kRegex, "(?:[^x]{1,20}x|\\p{L}+ )*end"},
      {ConstraintKind::kChoice, R"(["yes","yesterday","no","\u00fcber"])"},
      {ConstraintKind::kToolCalls, kTools},
      {ConstraintKind::kToolCalls, kTools, true},
      {ConstraintKind::kJsonSchema, R"({"type":"array","items":{"type":"integer"},"maxItems":4})", true, kTools},
  };
  return all;
}

CompiledRef compiled(const Case& c) {
  ConstraintSpec spec;
  spec.kind = c.kind;
  spec.payload = c.payload;
  spec.reasoning = c.reasoning;
  spec.or_tools = c.or_tools;
  Limits limits;
  limits.mask_cpu_ms = di::test::kPatientMs;
  auto made = compile(vocabulary(), spec, limits);
  EXPECT_TRUE(made.has_value()) << c.payload << ": " << (made ? "" : made.error().text());
  return made ? *made : nullptr;
}

bool bit(std::span<const uint32_t> row, TokenId id) {
  const auto i = static_cast<uint32_t>(id);
  return ((row[i >> 5U] >> (i & 31U)) & 1U) != 0;
}

std::vector<TokenId> allowed_tokens(std::span<const uint32_t> row) {
  std::vector<TokenId> out;
  for (TokenId id = 0; id < vocabulary()->size(); ++id) {
    if (bit(row, id)) out.push_back(id);
  }
  return out;
}

class Masks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(std::string(di::test::kVectors) + "/recipe/tokenizer.json"))
      GTEST_SKIP() << "no vocabulary at " << di::test::kVectors << "/recipe/tokenizer.json";
    ASSERT_NE(vocabulary(), nullptr);
  }

  // A random token: often one with a quotation mark, part of a character or a control token.
  TokenId pick(const std::vector<TokenId>& allowed) {
    for (int trial = 0; trial < 6; ++trial) {
      const TokenId id = allowed[random_() % allowed.size()];
      const std::string_view bytes = vocabulary()->bytes(id);
      const bool part = !bytes.empty() && (static_cast<uint8_t>(bytes.back()) & 0xc0U) == 0xc0;
      if (trial == 5 || part || vocabulary()->is_special(id) || bytes.find('"') != std::string_view::npos) return id;
    }
    return allowed[0];
  }

  std::mt19937 random_{20261};
};

TEST_F(Masks, EqualTryingEveryTokenOnRandomStates) {
  const int wanted = std::getenv("DEEPINFER_SOAK") != nullptr ? 1'000 : 2 * static_cast<int>(cases().size());
  std::vector<uint32_t> row(vocabulary()->mask_words());
  int states = 0;
  int partial = 0;
  int special = 0;
  for (size_t i = 0; states < wanted; ++i) {
    const Case& c = cases()[i % cases().size()];
    const CompiledRef constraint = compiled(c);
    ASSERT_NE(constraint, nullptr);
    Matcher m(constraint);
    std::string written;
    const int every = wanted < 100 ? 8 : 1;  // two of each case
    for (int step = 0; step < 16 && states < wanted && !m.terminated(); ++step) {
      ASSERT_TRUE(m.fill_mask(row));
      const auto allowed = allowed_tokens(row);
      ASSERT_FALSE(allowed.empty()) << c.payload << " after " << written;
      if (step % every == static_cast<int>(i) % every) {
        TokenId wrong = -1;
        for (TokenId id = 0; id < vocabulary()->size() && wrong < 0; ++id) {
          if (bit(row, id) != m.allowed(id)) wrong = id;
        }
        ASSERT_EQ(wrong, -1) << c.payload << " after " << written << ": "
                             << (wrong < 0 ? "" : vocabulary()->bytes(wrong));
        ++states;
        if (!written.empty() && static_cast<uint8_t>(written.back()) >= 0xc0) ++partial;
        if (std::ranges::any_of(allowed, [](TokenId id) { return vocabulary()->is_special(id); })) ++special;
      }
      const TokenId next = pick(allowed);
      ASSERT_TRUE(m.accept(next));
      written += vocabulary()->bytes(next);
    }
  }
  EXPECT_TRUE(partial > 0 || wanted < 1'000);
  EXPECT_GT(special, 0);
}

// Drafts of up to twelve tokens, right or wrong at a random place, cross the end of the thinking part, the borders of
// tool calls and the end of the text.
TEST_F(Masks, AlongADraftEqualOneStepAfterTheOther) {
  const std::string dsml =
      "\xef\xbd\x9c"
      "DSML\xef\xbd\x9c";
  const std::vector<std::pair<Case, std::string>> texts{
      {{ConstraintKind::kToolCalls, kTools, true},
       "Two cities, maybe one</think>I look it up.\n\n<" + dsml + " calls>\n<" + dsml + " invoke name=\"look_up\">\n<" +
           dsml + " parameter name=\"days\" string=\"false\">3</" + dsml + " parameter>\n<" + dsml +
           " parameter name=\"city\" string=\"true\">S\xc3\xa3o Paulo</" + dsml + " parameter>\n</" + dsml +
           " invoke>\n<" + dsml + " invoke name=\"stop\">\n</" + dsml + " invoke>\n</" + dsml + " calls>"},
      {{ConstraintKind::kJsonSchema, R"({"type":"object","properties":{"a":{"type":"string"},"b":{"enum":[1,2]}}})",
        true},
       R"(hm</think>{"a": "text \n with \"quotes\" \u00e9", "b": 2, "c": [1.5e3, {}]})"},
      {{ConstraintKind::kJsonSchema, R"({"type":"array","items":{"type":"integer"},"maxItems":4})", true, kTools},
       "so</think>[1, 22, -333]"},
  };
  const size_t words = vocabulary()->mask_words();
  for (const auto& [c, text] : texts) {
    const CompiledRef constraint = compiled(c);
    ASSERT_NE(constraint, nullptr);
    std::vector<TokenId> tokens = vocabulary()->encode_greedy(text, true);
    tokens.push_back(vocabulary()->specials().eos);
    Matcher m(constraint);
    for (size_t at = 0; at < tokens.size(); ++at) {
      std::vector<TokenId> draft(
          tokens.begin() + static_cast<std::ptrdiff_t>(at),
          tokens.begin() + static_cast<std::ptrdiff_t>(std::min(tokens.size(), at + 1 + random_() % 12)));
      if (random_() % 3 == 0)
        draft[random_() % draft.size()] = static_cast<TokenId>(random_() % static_cast<uint32_t>(vocabulary()->size()));
      if (random_() % 4 == 0) draft.push_back(static_cast<TokenId>(random_() % 1'000));
      std::vector<uint32_t> rows((draft.size() + 1) * words);
      const uint32_t before = m.state();
      const size_t valid = m.fill_masks_along(draft, rows);
      ASSERT_EQ(m.state(), before);
      ASSERT_EQ(m.tokens(), at);
      Matcher step = m.clone();
      std::vector<uint32_t> row(words);
      for (size_t j = 0; j <= draft.size(); ++j) {
        const auto along = std::span(rows).subspan(j * words, words);
        if (j > valid) {
          ASSERT_TRUE(std::ranges::all_of(along, [](uint32_t w) { return w == UINT32_MAX; })) << at << " row " << j;
          continue;
        }
        ASSERT_TRUE(step.fill_mask(row));
        ASSERT_TRUE(std::ranges::equal(along, row)) << at << " row " << j;
        if (j < draft.size()) {
          ASSERT_EQ(step.accept(draft[j]), j < valid) << at << " token " << j;
        }
      }
      ASSERT_TRUE(m.accept(tokens[at])) << text << ": token " << at;
    }
    EXPECT_TRUE(m.terminated());
  }
}

}  // namespace
}  // namespace di::structured
