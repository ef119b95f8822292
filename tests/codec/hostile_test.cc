// Request bodies at and beyond the limits: the official words, bounded time and memory, nothing worse.
#include <gtest/gtest.h>

#include <chrono>

#include "codec/codec.h"
#include "codec/vectors.h"

namespace di::codec {
namespace {

std::string chat_body(const std::string& messages, const std::string& more = "") {
  return R"({"model":"DeepSeek-V4.1-Flash","messages":[)" + messages + "]" + more + "}";
}

std::string user(const std::string& content) {
  return R"({"role":"user","content":")" + content + "\"}";
}

// The error's text, or the prompt.
std::string outcome(const std::string& body, Api api = Api::kChat) {
  const auto request = convert_request(api, body, CodecOptions());
  if (!request) {
    EXPECT_EQ(request.error().http_status, 400);
    EXPECT_TRUE(parse_json(request.error().body()));
    return request.error().message;
  }
  return render_conversation(request->conversation, request->version).text;
}

std::string nested(size_t depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

TEST(Hostile, NestingEndsAt127) {
  // The parameters of a tool are at depth 5: body, tools, tool, function, parameters.
  const auto with_parameters = [](const std::string& value) {
    return chat_body(user("x"), R"(,"tools":[{"type":"function","function":{"name":"f","parameters":)" + value + "}}]");
  };
  EXPECT_EQ(outcome(chat_body(user("x"), ",\"ignored\":" + nested(126))).find("recursion"), std::string::npos);
  const auto deep = convert_request(Api::kChat, chat_body(user("x"), ",\"ignored\":" + nested(127)), CodecOptions());
  ASSERT_FALSE(deep);
  EXPECT_EQ(deep.error().code, "json_too_deep");
  EXPECT_NE(deep.error().message.find("recursion limit exceeded"), std::string::npos);
  for (const size_t depth : {200U, 100000U, 10000000U}) {
    EXPECT_NE(outcome(nested(depth)).find("recursion limit exceeded"), std::string::npos);
    EXPECT_NE(outcome(std::string(depth, '[')).find("recursion limit exceeded"), std::string::npos);
    std::string objects;
    for (size_t i = 0; i < std::min<size_t>(depth, 100000); ++i) objects += "{\"a\":";
    EXPECT_NE(outcome(objects).find("recursion limit exceeded"), std::string::npos);
  }
  // A schema of the greatest depth is read, checked and rendered.
  std::string schema = R"({"type":"string"})";
  for (int i = 0; i < 60; ++i) schema = R"({"type":"object","properties":{"a":)" + schema + "}}";
  EXPECT_NE(outcome(with_parameters(schema)).find("Available Tool Schemas"), std::string::npos);
}

TEST(Hostile, ManyMessagesAndLongStringsTakeLinearTime) {
  const auto seconds = [](size_t messages, size_t bytes) {
    std::string list;
    for (size_t i = 0; i < messages; ++i) {
      if (i > 0) list += ",";
      list += i % 2 == 0 ? user(std::string(bytes, 'a')) : R"({"role":"assistant","content":"b"})";
    }
    const std::string body = chat_body(list);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_GT(outcome(body).size(), messages / 2 * bytes);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  // Quadratic behaviour would take minutes.
  EXPECT_LT(seconds(16384, 10), 20.0);
  EXPECT_LT(seconds(2, size_t{48} << 20), 60.0);
}

TEST(Hostile, ManyToolsAndCallsTakeLinearTime) {
  std::string tools;
  std::string calls;
  std::string results;
  for (int i = 0; i < 4000; ++i) {
    const std::string comma = i > 0 ? "," : "";
    tools +=
        comma + fmt::format(R"({{"type":"function","function":{{"name":"f{}","parameters":{{"type":"object"}}}}}})", i);
    calls +=
        comma + fmt::format(R"({{"id":"c{0}","type":"function","function":{{"name":"f{0}","arguments":"{{}}"}}}})", i);
    results += fmt::format(R"(,{{"role":"tool","tool_call_id":"c{}","content":"r"}})", 3999 - i);
  }
  const std::string body = chat_body(user("x") + R"(,{"role":"assistant","tool_calls":[)" + calls + "]}" + results,
                                     ",\"tools\":[" + tools + "]");
  const auto start = std::chrono::steady_clock::now();
  const std::string prompt = outcome(body);
  EXPECT_NE(prompt.find("<tool_result>r</tool_result>"), std::string::npos) << prompt.substr(0, 200);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20.0);
}

TEST(Hostile, CharactersThatAreNoneAreRefused) {
  EXPECT_NE(outcome(chat_body(user("\\ud800"))).find("unexpected end of hex escape"), std::string::npos);
  EXPECT_NE(outcome(chat_body(user("\\ud800\\u0041"))).find("lone leading surrogate in hex escape"), std::string::npos);
  EXPECT_NE(outcome(chat_body(user("\\udc00"))).find("lone"), std::string::npos);
  EXPECT_NE(outcome(chat_body(user("\x01"))).find("control character"), std::string::npos);
  EXPECT_NE(outcome(chat_body(user("\xFF"))).find("invalid JSON request"), std::string::npos);
  EXPECT_NE(outcome(chat_body(user("\xED\xA0\x80"))).find("invalid JSON request"), std::string::npos);
  EXPECT_NE(outcome(chat_body(user(std::string(1, '\0')))).find("control character"), std::string::npos);
  // An escaped NUL is text like any other.
  const std::string prompt = outcome(chat_body(user("a\\u0000b")));
  EXPECT_NE(prompt.find(std::string("a\0b", 3)), std::string::npos);
  EXPECT_NE(outcome(chat_body(user("\\ud83d\\ude00"))).find("\xF0\x9F\x98\x80"), std::string::npos);
}

TEST(Hostile, OfRepeatedKeysTheLastCounts) {
  const std::string body =
      R"({"model":"none","model":"DeepSeek-V4.1-Flash","messages":[],"messages":[{"role":"user","content":"first","content":"last"}]})";
  const std::string prompt = outcome(body);
  EXPECT_NE(prompt.find("last"), std::string::npos) << prompt;
  EXPECT_EQ(prompt.find("first"), std::string::npos);
}

TEST(Hostile, NumbersAtTheirLimits) {
  const auto verdict = [](const std::string& member) { return outcome(chat_body(user("x"), "," + member)); };
  for (const char* member : {R"("max_tokens":4294967296)", R"("max_tokens":-1)", R"("max_tokens":1.0)",
                             R"("max_tokens":1e3)", R"("seed":18446744073709551616)", R"("seed":-1)",
                             R"("top_logprobs":256)", R"("n":256)", R"("temperature":"1")"}) {
    EXPECT_TRUE(verdict(member).starts_with("invalid request body: invalid ")) << member << ": " << verdict(member);
  }
  EXPECT_NE(verdict(R"("temperature":1e400)").find("number out of range"), std::string::npos);
  EXPECT_EQ(verdict(R"("seed":18446744073709551615)"), "Invalid seed value, the valid range of seed is [0, 2^63)");
  EXPECT_EQ(verdict(R"("max_tokens":4294967295)"),
            "Invalid max_tokens value, the valid range of max_tokens is [1, 393216]");
  EXPECT_EQ(verdict(R"("max_tokens":0)"), "Invalid max_tokens value, the valid range of max_tokens is [1, 393216]");
  EXPECT_EQ(verdict(R"("temperature":2.001)"), "Invalid temperature value, the valid range of temperature is [0, 2]");
  EXPECT_NE(verdict(R"("seed":9223372036854775807)").find("<｜User｜>"), std::string::npos);
}

TEST(Hostile, EveryPrefixOfABodyIsRefusedInEveryApi) {
  const std::string body =
      chat_body(user("a\\n\\u00e9") +
                    R"(,{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function",)"
                    R"("function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"r"})",
                R"(,"temperature":0.5,"stop":["x"],"tools":[{"type":"function","function":{"name":"f"}}])");
  EXPECT_NE(outcome(body).find("<tool_result>"), std::string::npos) << outcome(body);
  for (const Api api : {Api::kChat, Api::kResponses, Api::kMessages}) {
    for (size_t n = 0; n < body.size(); ++n) {
      EXPECT_FALSE(convert_request(api, std::string_view(body).substr(0, n), CodecOptions())) << n;
    }
  }
}

}  // namespace
}  // namespace di::codec
