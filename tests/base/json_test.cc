#include "base/json.h"

#include <gtest/gtest.h>

#include <string>

namespace di {
namespace {

std::string round_trip(std::string_view text, JsonStyle style = JsonStyle::kCompact) {
  Result<Json> value = parse_json(text);
  return value ? to_json(*value, style) : "error: " + value.error().message;
}

TEST(Json, KeepsOrderAndLetsTheLaterDuplicateWinInPlace) {
  EXPECT_EQ(round_trip(R"({"b":1,"a":2,"b":[3]})"), R"({"b":[3],"a":2})");
  std::string many = "{";
  std::string expected = "{";
  for (int i = 0; i < 300; ++i) many += "\"k" + std::to_string(i) + "\":0,";
  for (int i = 0; i < 300; ++i) many += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  for (int i = 0; i < 300; ++i) expected += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  many.back() = '}';
  expected.back() = '}';
  EXPECT_EQ(round_trip(many), expected);
}

TEST(Json, PrintsNumbersShortest) {
  const std::pair<const char*, const char*> cases[] = {{"1.0", "1.0"},
                                                       {"1E5", "100000.0"},
                                                       {"1e15", "1000000000000000.0"},
                                                       {"1e16", "1e+16"},
                                                       {"1.5e300", "1.5e+300"},
                                                       {"18446744073709551616", "1.8446744073709552e+19"},
                                                       {"18446744073709551615", "18446744073709551615"},
                                                       {"-9223372036854775808", "-9223372036854775808"},
                                                       {"-9223372036854775809", "-9.223372036854776e+18"},
                                                       {"0.00001", "0.00001"},
                                                       {"1e-6", "1e-6"},
                                                       {"1.25e-6", "1.25e-6"},
                                                       {"5e-324", "5e-324"},
                                                       {"-0.0", "-0.0"},
                                                       {"-0", "-0.0"},
                                                       {"0", "0"},
                                                       {"0.1", "0.1"},
                                                       {"123456.789", "123456.789"},
                                                       {"1e-400", "0.0"}};
  for (const auto& [in, out] : cases) EXPECT_EQ(round_trip(in), out) << in;
}

TEST(Json, WritesPythonNumbers) {
  const std::pair<const char*, const char*> cases[] = {
      {"0.00001", "1e-05"}, {"0.000099", "9.9e-05"}, {"-0.00001", "-1e-05"}, {"1e-7", "1e-07"},
      {"0.0001", "0.0001"}, {"1e16", "1e+16"},       {"1e-10", "1e-10"},     {"0.0", "0.0"}};
  for (const auto& [in, out] : cases) EXPECT_EQ(round_trip(in, JsonStyle::kPython), out) << in;
  EXPECT_EQ(round_trip(R"({"a":[1,"x"],"b":{}})", JsonStyle::kSpaced), R"({"a": [1, "x"], "b": {}})");
}

TEST(Json, EscapesOnlyWhatItMust) {
  EXPECT_EQ(round_trip(R"("\u0001\b\t\n\f\r\"\\\/é\u00e9\ud83d\ude00")"), "\"\\u0001\\b\\t\\n\\f\\r\\\"\\\\/éé😀\"");
  EXPECT_EQ(round_trip("\"\x7f\""), "\"\x7f\"");
}

TEST(Json, NamesEachError) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "EOF while parsing a value at line 1 column 0"},
      {"{not json", "key must be a string at line 1 column 2"},
      {R"({"a":1} x)", "trailing characters at line 1 column 9"},
      {"[1,]", "trailing comma at line 1 column 4"},
      {"{\"a\":1,}", "trailing comma at line 1 column 8"},
      {"[1 2]", "expected `,` or `]` at line 1 column 4"},
      {"[1,\n2\n 3]", "expected `,` or `]` at line 3 column 2"},
      {"{\"a\" 1}", "expected `:` at line 1 column 6"},
      {"nul", "EOF while parsing a value at line 1 column 3"},
      {"nulx", "expected ident at line 1 column 4"},
      {"\"abc", "EOF while parsing a string at line 1 column 4"},
      {"\"\\q\"", "invalid escape at line 1 column 3"},
      {"\"\\ud800\"", "unexpected end of hex escape at line 1 column 8"},
      {"\"\\udc00\"", "lone leading surrogate in hex escape at line 1 column 7"},
      {"\"\n\"", "control character (\\u0000-\\u001F) found while parsing a string at line 2 column 0"},
      {"01", "invalid number at line 1 column 2"},
      {"1.", "EOF while parsing a value at line 1 column 2"},
      {"1e400", "number out of range at line 1 column 5"},
      {"NaN", "expected value at line 1 column 1"},
      {"[", "EOF while parsing a list at line 1 column 1"},
      {"{", "EOF while parsing an object at line 1 column 1"}};
  for (const auto& [in, message] : cases) EXPECT_EQ(round_trip(in), std::string("error: ") + message) << in;
  EXPECT_EQ(round_trip("\"\xff\""), "error: the text is not valid UTF-8");
}

TEST(Json, LimitsNestingTo127) {
  const std::string open(127, '[');
  EXPECT_TRUE(parse_json(open + std::string(127, ']')));
  EXPECT_EQ(round_trip("[" + open + std::string(128, ']')), "error: recursion limit exceeded at line 1 column 128");
}

TEST(Json, ReadsMembersByType) {
  const Json value = *parse_json(R"({"n":3,"d":1.5,"s":"x","b":true,"z":null,"u":18446744073709551615})");
  EXPECT_EQ(*json_i64(value, "n"), 3);
  EXPECT_EQ(*json_double(value, "n"), 3.0);
  EXPECT_EQ(*json_string(value, "s"), "x");
  EXPECT_TRUE(*json_bool(value, "b"));
  EXPECT_EQ(value.find_value("z"), nullptr);
  EXPECT_NE(value.find("z"), nullptr);
  EXPECT_EQ(value.find("u")->to_u64(), UINT64_MAX);
  EXPECT_FALSE(value.find("u")->to_i64());
  EXPECT_EQ(json_i64(value, "d").error().message, "field `d`: expected an integer, found floating point `1.5`");
  EXPECT_EQ(json_i64(value, "q").error().message, "missing field `q`");
}

TEST(JsonWriter, PutsCommas) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("a").value(1).key("b").begin_array().value("x").null().value(true).value(0.5F).end_array();
  w.key("c").begin_object().end_object().key("d").value(std::optional<std::string>()).key("e").raw("[]").end_object();
  EXPECT_EQ(out, R"({"a":1,"b":["x",null,true,0.5],"c":{},"d":null,"e":[]})");
}

}  // namespace
}  // namespace di
