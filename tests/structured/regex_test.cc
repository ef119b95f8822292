#include <gtest/gtest.h>

#include "structured/regex/pattern.h"
#include "structured/schema/decimal.h"

namespace di::structured {
namespace {

struct PatternCase {
  const char* pattern;
  std::vector<const char*> yes;
  std::vector<const char*> no;
};

class Patterns : public ::testing::Test {
 protected:
  Patterns() : arena(budget) { budget.start(0, 0, 0); }
  Budget budget;
  Arena arena;

  void check(PatternUse use, const PatternCase& c) {
    const auto node = compile_pattern(arena, c.pattern, use);
    ASSERT_TRUE(node.has_value()) << c.pattern << ": " << node.error().text();
    for (const char* t : c.yes) EXPECT_TRUE(arena.matches(*node, t)) << c.pattern << " on " << t;
    for (const char* t : c.no) EXPECT_FALSE(arena.matches(*node, t)) << c.pattern << " on " << t;
  }
};

TEST_F(Patterns, SearchMatchesAnywhere) {
  for (const PatternCase& c :
       std::initializer_list<PatternCase>{{"", {"", "zz"}, {}},
                                          {"b", {"b", "abc"}, {"", "ac"}},
                                          {"^red$|^green$", {"red", "green"}, {"blue", "reds", "redgreen"}},
                                          {"^(foo$|bar)", {"foo", "bar", "barx"}, {"foox", "xfoo"}},
                                          {"^\\S+$", {"[x]", "\xc3\xa9"}, {"a b", ""}},
                                          {"^.$", {"x", "\xe6\x97\xa5", "\xf0\x9f\x8e\x88"}, {"", "\n", "xy"}},
                                          {"^[^\\x00-\\x7f]$", {"\xc3\xa9"}, {"a"}},
                                          {"^a{2,3}$", {"aa", "aaa"}, {"a", "aaaa"}},
                                          {"^(?!foo)[a-z]+$", {"bar", "fo"}, {"foo", "food"}},
                                          {"^(?=.*[0-9])[a-z0-9]{3}$", {"ab1", "1ab"}, {"abc", "ab12"}},
                                          {"^((?!ab).)*$", {"ba", "", "bbb"}, {"ab", "xaby"}},
                                          {"\\bcat\\b", {"cat", "a cat!", "cat."}, {"cats", "concat"}},
                                          {"^\\p{Lu}\\p{Ll}+$", {"Abc", "\xc3\x89t\xc3\xa9"}, {"abc", "ABC"}},
                                          {"^\\p{Script=Greek}+$", {"\xce\xb1\xce\xb2"}, {"ab"}},
                                          {"x{,3}", {"x{,3}"}, {"xxx"}},
                                          {"^[\\w-.]+$", {"a-b.c"}, {"a b"}},
                                          {"(?<=a)b", {"ab", "xab"}, {"b", "cb"}},
                                          {"(?<!a)^x", {"x", "xa"}, {"", "ax"}},
                                          {"(?<=^a)b", {"ab", "abc"}, {"b", "xab"}},
                                          {"(?<!^a)b", {"b", "xab", "bab"}, {"ab", "a"}},
                                          {"(?<=a|^)b", {"b", "xab"}, {"xb"}},
                                          {"(?:(?<!a))*b", {"ab", "b"}, {"a"}},
                                          {"(?:(?<!a))+b", {"cb", "b"}, {"ab"}},
                                          {"(?i)^abc$", {"ABC", "aBc"}, {"abd"}},
                                          {"^[[:digit:]]+$", {"12"}, {"a"}}}) {
    check(PatternUse::kSearch, c);
  }
}

TEST_F(Patterns, WholeIsAnchored) {
  check(PatternUse::kWhole, {"[a-c]{2,3}|x+", {"ab", "abc", "x", "xxx"}, {"a", "abx", "", "abcc"}});
  check(PatternUse::kWhole, {"a.b", {"a\rb"}, {"a\nb"}});
}

TEST_F(Patterns, RefusesWhatItCannotKeep) {
  for (const auto& [pattern, code] :
       std::initializer_list<std::pair<const char*, const char*>>{{"(a", "invalid_regex"},
                                                                  {"a)", "invalid_regex"},
                                                                  {"*a", "invalid_regex"},
                                                                  {"[z-a]", "invalid_regex"},
                                                                  {"a{3,2}", "invalid_regex"},
                                                                  {"(a)\\1", "unsupported_regex_feature"},
                                                                  {"(?>a)", "unsupported_regex_feature"},
                                                                  {"a++", "unsupported_regex_feature"},
                                                                  {"a{1,2000000}", "constraint_too_complex"},
                                                                  {"\\p{Nonsense}", "invalid_regex"}}) {
    const auto node = compile_pattern(arena, pattern, PatternUse::kSearch);
    ASSERT_FALSE(node.has_value()) << pattern;
    EXPECT_EQ(node.error().code, code) << pattern;
  }
}

TEST_F(Patterns, BooleanOperationsAgreeWithSets) {
  const NodeId digits = *compile_pattern(arena, "[0-9]+", PatternUse::kWhole);
  const NodeId even = *compile_pattern(arena, "[0-9]*[02468]", PatternUse::kWhole);
  const NodeId odd = arena.both(digits, arena.complement(even));
  EXPECT_TRUE(arena.matches(odd, "13"));
  EXPECT_FALSE(arena.matches(odd, "12"));
  EXPECT_FALSE(arena.matches(odd, "x"));
  EXPECT_TRUE(arena.is_nothing(arena.both(odd, even)));
  EXPECT_TRUE(arena.included(even, digits));
  EXPECT_FALSE(arena.included(digits, even));
}

TEST_F(Patterns, JsonStringsEscapeOnlyWhatMustBe) {
  const NodeId text = arena.concat(arena.byte('"'),
                                   arena.json_string(*compile_pattern(arena, "^[\\n\"a\\x01]*$", PatternUse::kSearch)));
  EXPECT_TRUE(arena.matches(text, "\"a\\n\\\"\\u0001\""));
  EXPECT_FALSE(arena.matches(text, "\"\\u000a\""));
  EXPECT_FALSE(arena.matches(text, "\"\n\""));
  EXPECT_FALSE(arena.matches(text, "\"\\u0061\""));
  EXPECT_FALSE(arena.matches(text, "\"\\u0002\""));
}

TEST_F(Patterns, NumberBoundsAreDecimal) {
  const auto at = [&](const char* low, bool low_open, const char* high, bool high_open) {
    return arena.both(at_least(arena, {*Decimal::parse(low), low_open}),
                      at_most(arena, {*Decimal::parse(high), high_open}));
  };
  // Every number of a grid against comparison as integers of thousandths.
  const std::vector<std::pair<const char*, int>> bounds{{"-1.5", -1500}, {"0", 0},    {"0.25", 250},
                                                        {"-0.001", -1},  {"7", 7000}, {"12.34", 12340}};
  for (const auto& [low, l] : bounds) {
    for (const auto& [high, h] : bounds) {
      for (const bool open : {false, true}) {
        const NodeId set = at(low, open, high, open);
        for (int v = -2000; v <= 13000; v += 37) {
          const int a = v < 0 ? -v : v;
          std::string text = (v < 0 ? "-" : "") + std::to_string(a / 1000) + "." +
                             std::string(3 - std::to_string(a % 1000).size(), '0') + std::to_string(a % 1000);
          const bool want = open ? v > l && v < h : v >= l && v <= h;
          EXPECT_EQ(arena.matches(set, text), want) << text << " in " << low << ".." << high << (open ? " open" : "");
        }
      }
    }
  }
  EXPECT_TRUE(arena.matches(at("1e30", false, "1e31", false), "1000000000000000000000000000000"));
  EXPECT_FALSE(arena.matches(at("1e30", true, "1e31", false), "1000000000000000000000000000000"));
}

TEST_F(Patterns, MultiplesByRemainder) {
  const NodeId seven = arena.multiple_of(7, 0);
  for (int v = -100; v <= 100; ++v) EXPECT_EQ(arena.matches(seven, std::to_string(v)), v % 7 == 0) << v;
  const NodeId cents = arena.multiple_of(5, 2);
  for (const char* t : {"0.05", "1.10", "3", "0.1", "2.5", "1.150"}) EXPECT_TRUE(arena.matches(cents, t)) << t;
  for (const char* t : {"0.01", "1.12", "0.055", "0.051"}) EXPECT_FALSE(arena.matches(cents, t)) << t;
}

}  // namespace
}  // namespace di::structured
