#include <gtest/gtest.h>

#include <random>

#include "structured/fixture.h"

namespace di::structured {
namespace {

using testing::byte_vocabulary;
using testing::schema;

std::vector<uint32_t> mask_of(Matcher& m) {
  std::vector<uint32_t> row(byte_vocabulary()->mask_words());
  EXPECT_TRUE(m.fill_mask(row));
  return row;
}

std::vector<uint32_t> brute_force(const Matcher& m) {
  std::vector<uint32_t> row(byte_vocabulary()->mask_words());
  for (TokenId id = 0; id < byte_vocabulary()->size(); ++id) {
    Matcher trial = m.clone();
    if (trial.accept(id)) row[static_cast<size_t>(id) / 32] |= 1U << (static_cast<uint32_t>(id) % 32);
  }
  return row;
}

TEST(Matcher, MasksEqualBruteForceOnRandomWalks) {
  std::mt19937 random(7);
  for (
      const char* text :
      {"{}", R"({"type":"string","pattern":"^[a-z]+[0-9]?$","maxLength":6})",
       R"({"type":"array","items":{"enum":[12,123,"ab","abc"]},"uniqueItems":true})",
       R"({"type":"object","properties":{"ab":{"type":"integer"},"abc":{"type":"boolean"}},"additionalProperties":{"type":"null"}})",
       R"({"type":"number","minimum":-1,"maximum":12.5})"}) {
    const CompiledRef c = schema(text);
    ASSERT_NE(c, nullptr);
    for (int walk = 0; walk < 20; ++walk) {
      Matcher m(c);
      std::string written;
      for (int step = 0; step < 30 && !m.terminated(); ++step) {
        const auto row = mask_of(m);
        const auto want = brute_force(m);
        for (TokenId id = 0; id < byte_vocabulary()->size(); ++id) {
          const auto word = static_cast<size_t>(id) / 32;
          const uint32_t bit = 1U << (static_cast<uint32_t>(id) % 32);
          ASSERT_EQ(row[word] & bit, want[word] & bit) << text << " after " << written << ": token " << id;
        }
        std::vector<TokenId> allowed;
        for (TokenId id = 0; id < byte_vocabulary()->size(); ++id) {
          if (((row[static_cast<size_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32)) & 1U) != 0)
            allowed.push_back(id);
        }
        ASSERT_FALSE(allowed.empty()) << text;
        const TokenId next = allowed[random() % allowed.size()];
        ASSERT_TRUE(m.accept(next));
        written += byte_vocabulary()->bytes(next);
      }
    }
  }
}

TEST(Matcher, RollbackCloneAndDrafts) {
  const CompiledRef c = schema(
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"}},"required":["a","b"],"additionalProperties":false})");
  Matcher m(c);
  const auto first = mask_of(m);
  const auto tokens = byte_vocabulary()->encode_greedy("{\"a\": 12, \"b\": true}", false);
  ASSERT_EQ(m.accept(tokens), tokens.size());
  EXPECT_TRUE(m.accepting());
  ASSERT_TRUE(m.accept(testing::kEos));
  EXPECT_TRUE(m.terminated());
  EXPECT_FALSE(m.accept(TokenId{'a'}));
  ASSERT_TRUE(m.rollback(1));
  EXPECT_FALSE(m.terminated());
  ASSERT_TRUE(m.rollback(tokens.size()));
  EXPECT_EQ(mask_of(m), first);
  EXPECT_FALSE(m.rollback(1));
  // Rows along a draft equal accepting step by step; the state stays.
  std::vector<TokenId> draft = tokens;
  draft[draft.size() - 1] = 'x';
  std::vector<uint32_t> rows((draft.size() + 1) * byte_vocabulary()->mask_words());
  const uint32_t before = m.state();
  const size_t n = m.fill_masks_along(draft, rows);
  EXPECT_EQ(n, draft.size() - 1);
  EXPECT_EQ(m.validate(draft), n);
  EXPECT_EQ(m.state(), before);
  Matcher other = m.clone();
  for (size_t i = 0; i <= n; ++i) {
    const auto words = static_cast<std::ptrdiff_t>(byte_vocabulary()->mask_words());
    const std::vector<uint32_t> row(rows.begin() + static_cast<std::ptrdiff_t>(i) * words,
                                    rows.begin() + static_cast<std::ptrdiff_t>(i + 1) * words);
    EXPECT_EQ(row, mask_of(other)) << i;
    if (i < n) {
      ASSERT_TRUE(other.accept(draft[i]));
    }
  }
  EXPECT_EQ(m.tokens(), 0U);
}

TEST(Matcher, ForcedTextIsWhatAllContinuationsShare) {
  SpecOptions compact;
  compact.whitespace = Whitespace::kCompact;
  Matcher m(testing::compiled(
      ConstraintKind::kJsonSchema,
      R"({"type":"object","properties":{"name":{"type":"integer"}},"required":["name"],"additionalProperties":false})",
      compact));
  EXPECT_EQ(m.forced_text(100), "{\"name\":");
  EXPECT_EQ(m.forced_text(3), "{\"n");
}

TEST(Matcher, ThinkingPartStandsFirst) {
  Matcher m(testing::compiled(ConstraintKind::kJsonSchema, R"({"type":"integer"})", {}, true));
  EXPECT_FALSE(m.needs_mask());
  ASSERT_TRUE(m.accept_bytes("let me see \xff"));
  EXPECT_FALSE(m.accept(testing::kEos));
  EXPECT_FALSE(m.accept(testing::kThinkBegin));
  EXPECT_FALSE(m.accept(testing::kDsml));
  const std::vector<TokenId> draft{'x', testing::kThinkEnd, '4', '2', testing::kEos};
  std::vector<uint32_t> rows((draft.size() + 1) * byte_vocabulary()->mask_words());
  EXPECT_EQ(m.fill_masks_along(draft, rows), draft.size());
  ASSERT_EQ(m.accept(draft), draft.size());
  EXPECT_TRUE(m.terminated());
}

TEST(Matcher, ChoiceAllowsPrefixesOfEachOther) {
  const auto c = testing::compiled(ConstraintKind::kChoice, R"(["ab","abc","x"])");
  for (const char* t : {"ab", "abc", "x"}) EXPECT_TRUE(testing::takes(c, t)) << t;
  for (const char* t : {"a", "abcd", "", "xx"}) EXPECT_FALSE(testing::takes(c, t)) << t;
}

}  // namespace
}  // namespace di::structured
