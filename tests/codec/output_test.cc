// The output side beyond the vectors: what is held back, and that chunking changes nothing but the event borders.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "codec/codec.h"
#include "codec/vectors.h"

namespace di::codec {
namespace {

using testing::ids_of;
using testing::read_lines;
using testing::text_of;
using testing::vector_tokenizer;

constexpr std::string_view kBody =
    R"({"model":"DeepSeek-V4.1-Flash","messages":[{"role":"user","content":"x"}],"stop":["STOP HERE","</end>"],)"
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"stream":true})";

std::vector<TokenId> sample_output(const Tokenizer& tokenizer, bool stop) {
  const auto encode = [&](std::string_view text) { return tokenizer.encode_full(text); };
  return encode(std::string("Thinking 😀 about\n\n</think>\n\nAnswer < with 中文 and STOP HER or ") +
                (stop ? "STOP HERE more" : "not") +
                "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" "
                "string=\"true\">x\"y\n</｜DSML｜ parameter>\n"
                "<｜DSML｜ parameter name=\"b\" string=\"false\">[1, 2]</｜DSML｜ parameter>\n</｜DSML｜ "
                "invoke>\n</｜DSML｜ calls>");
}

// Content, reasoning and call arguments, without the ids.
std::string essence(const OutputProcessor& output) {
  const Json body = *parse_json(output.body());
  const Json& message = *body.find("choices")->as_array()[0].find("message");
  std::string out = to_json(*message.find("content")) + to_json(*message.find("reasoning_content"));
  for (const ToolCall& call : output.tool_calls()) out += call.name + call.arguments;
  return out + std::string(output.chat_finish_reason());
}

TEST(Output, ChunkingChangesNoText) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const TokenizerRef tokenizer = vector_tokenizer(true);
  const auto request = convert_request(Api::kChat, kBody, CodecOptions());
  ASSERT_TRUE(request);
  std::mt19937 random(31);
  for (const bool stop : {false, true}) {
    const std::vector<TokenId> ids = sample_output(*tokenizer, stop);
    std::string expected;
    for (int round = 0; round < 200; ++round) {
      OutputProcessor output(*request, tokenizer, ResponseInfo{});
      std::vector<StreamEvent> events;
      output.ready({5, 0}, std::nullopt, events);
      std::string streamed;
      for (size_t at = 0; at < ids.size() && !output.done();) {
        const size_t n = round == 0 ? 1 : std::uniform_int_distribution<size_t>(1, 12)(random);
        const size_t end = std::min(ids.size(), at + n);
        ASSERT_TRUE(output.tokens(std::span(ids).subspan(at, end - at), {}, events));
        at = end;
        // Never more than the longest marker with its newlines and one character.
        if (round == 0) {
          EXPECT_LE(output.held_bytes(), 40U);
        }
      }
      if (!output.done()) output.finish(FinishReason::kStop, events);
      output.close(events);
      for (const StreamEvent& event : events) {
        const Json chunk = *parse_json(event.data);
        const Json* content = chunk.find("choices")->as_array()[0].find("delta")->find_value("content");
        if (content != nullptr) streamed += content->as_string();
      }
      const std::string found = essence(output);
      if (round == 0) expected = found;
      ASSERT_EQ(found, expected) << "round " << round;
      const Json body = *parse_json(output.body());
      EXPECT_EQ(streamed, body.find("choices")->as_array()[0].find("message")->find("content")->as_string());
      EXPECT_EQ(output.stopped_by_sequence(), stop);
    }
    if (!stop) {
      EXPECT_NE(expected.find("f{\"a\": \"x\\\"y\\n\", \"b\": [1, 2]}tool_calls"), std::string::npos) << expected;
    }
  }
}

// One token at a time over every stream of the vectors: after each, what is held back is no more than the longest
// marker or stop string that it may begin, the line feeds before it, and the bytes of an unfinished character.
TEST(Output, HoldsBackNoMoreThanAMarker) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  constexpr size_t kLongestMarker = std::string_view("</｜DSML｜tool_calls>").size();
  size_t streams = 0;
  size_t tokens = 0;
  for (const char* file : {"streams.jsonl", "fuzz_streams.jsonl"}) {
    for (const Json& c : read_lines(file)) {
      const std::string& api = text_of(c, "api");
      const Api kind = api == "chat" ? Api::kChat : api == "responses" ? Api::kResponses : Api::kMessages;
      const auto request = convert_request(kind, text_of(c, "request"), CodecOptions());
      ASSERT_TRUE(request) << text_of(c, "id");
      const TokenizerRef tokenizer = vector_tokenizer(request->version == ModelVersion::kV41);
      size_t most = kLongestMarker;
      for (const std::string& stop : request->parsing.stop_sequences) most = std::max(most, stop.size());
      OutputProcessor output(*request, tokenizer, ResponseInfo{});
      std::vector<StreamEvent> events;
      std::string all;
      std::vector<TokenId> unfinished;  // ids that end inside a character
      for (const Json& input : c.find("inputs")->as_array()) {
        const Json::Array& parts = input.as_array();
        if (parts[0].as_string() != "tokens") continue;
        for (const TokenId id : ids_of(parts[1])) {
          if (output.done() || !output.tokens(std::span(&id, 1), {}, events)) break;
          ++tokens;
          all += tokenizer->token_bytes(id);
          unfinished.push_back(id);
          const std::string text = tokenizer->decode(unfinished);
          if (tokenizer->is_added(id) || (!text.empty() && !text.ends_with("\xEF\xBF\xBD"))) unfinished.clear();
          size_t bound = most;
          for (const TokenId part : unfinished) bound += tokenizer->token_bytes(part).size();
          const size_t held = output.held_bytes();
          ASSERT_LE(held, all.size()) << text_of(c, "id");
          const auto line_feeds =
              static_cast<size_t>(std::count(all.end() - static_cast<ptrdiff_t>(held), all.end(), '\n'));
          ASSERT_LE(held, bound + line_feeds) << text_of(c, "id") << " after " << all;
        }
      }
      ++streams;
    }
  }
  EXPECT_EQ(streams, 460U);
  EXPECT_GT(tokens, 10000U);
}

TEST(Output, WithoutDeltasOnlyTheBodyIsMade) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const TokenizerRef tokenizer = vector_tokenizer(true);
  for (const Json& c : read_lines("streams.jsonl")) {
    const std::string& api = text_of(c, "api");
    const Json* accumulated = c.find("result")->find_value("accumulated");
    if (accumulated == nullptr || text_of(*c.find("result"), "model_version") != "v41") continue;
    const Api kind = api == "chat" ? Api::kChat : api == "responses" ? Api::kResponses : Api::kMessages;
    const auto request = convert_request(kind, text_of(c, "request"), CodecOptions());
    ASSERT_TRUE(request);
    std::string bodies[2];
    for (const bool deltas : {false, true}) {
      ResponseInfo info;
      info.id = "r";
      info.deltas = deltas;
      info.tool_id_seed = 7;
      OutputProcessor output(*request, tokenizer, info);
      std::vector<StreamEvent> events;
      for (const Json& input : c.find("inputs")->as_array()) {
        const Json::Array& parts = input.as_array();
        if (parts[0].as_string() == "tokens") static_cast<void>(output.tokens(ids_of(parts[1]), {}, events));
        if (parts[0].as_string() == "text") static_cast<void>(output.text(parts[1].as_string(), 1, events));
      }
      output.close(events);
      EXPECT_EQ(events.empty(), !deltas);
      bodies[deltas ? 1 : 0] = output.body();
    }
    EXPECT_EQ(bodies[0], bodies[1]) << text_of(c, "id");
  }
}

TEST(Extended, AcceptsWhatTheOfficialPolicyRefuses) {
  CodecOptions official;
  CodecOptions extended;
  extended.policy = ApiPolicy::kExtended;
  const auto verdict = [&](Api api, const std::string& members, const CodecOptions& options) {
    const std::string messages = R"("messages":[{"role":"user","content":"x"}],)";
    return convert_request(api, R"({"model":"DeepSeek-V4.1-Flash",)" + messages + members + "}", options);
  };
  const std::string tool = R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],)";
  for (const std::string& members :
       std::vector<std::string>{R"("n":2)", R"("max_tokens":4.0)", R"("reasoning_effort":40)",
                                tool + R"("tool_choice":"required")", R"("response_format":{"type":"json_object"})"}) {
    EXPECT_FALSE(verdict(Api::kChat, members, official)) << members;
    const auto request = verdict(Api::kChat, members, extended);
    ASSERT_TRUE(request) << members << request.error().message;
  }
  EXPECT_EQ(verdict(Api::kChat, R"("max_completion_tokens":7)", extended)->sampling.max_tokens, 7U);
  EXPECT_EQ(verdict(Api::kChat, R"("max_completion_tokens":7)", official)->sampling.max_tokens, std::nullopt);
  EXPECT_FALSE(verdict(Api::kChat, R"("max_completion_tokens":7,"max_tokens":8)", extended));
  EXPECT_FALSE(verdict(Api::kChat, R"("tool_choice":"required")", extended));
  EXPECT_FALSE(verdict(Api::kChat, R"("chat_template":"x")", extended));
  const auto forced = verdict(Api::kChat, tool + R"("tool_choice":"required")", extended);
  EXPECT_TRUE(forced->forced_call_after_thinking);
  EXPECT_FALSE(forced->parsing.starts_in_tool_calls);
  EXPECT_EQ(forced->sampling.constraint->kind, OutputConstraint::Kind::kToolCallRequired);
  const auto effort = verdict(Api::kChat, R"("reasoning_effort":40)", extended);
  EXPECT_NE(render_conversation(effort->conversation, effort->version).text.find("Reasoning Effort: 40 "),
            std::string::npos);
  const std::string custom = R"("tools":[{"type":"custom","name":"f","input_schema":{"type":"object"}}])";
  EXPECT_FALSE(verdict(Api::kMessages, custom, official));
  EXPECT_TRUE(verdict(Api::kMessages, custom, extended));
}

// A call whose marker is spelled with ordinary tokens is content by the official rules and a call by the extended ones.
TEST(Extended, CallsAreReadThoughTheirMarkerIsSpelledOut) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const TokenizerRef tokenizer = vector_tokenizer(true);
  for (const char* bars : {"｜", "|"}) {
    const std::string mark = fmt::format("{0}DSML{0}", bars);
    const std::string text = fmt::format(
        "Hm.</think>Look.\n\n<{0} calls>\n<{0} invoke name=\"f\">\n<{0} parameter name=\"a\" string=\"true\">x</{0} "
        "parameter>\n</{0} invoke>\n</{0} calls>",
        mark);
    for (const bool extended : {false, true}) {
      CodecOptions options;
      options.policy = extended ? ApiPolicy::kExtended : ApiPolicy::kOfficial;
      const auto request = convert_request(Api::kChat, kBody, options);
      ASSERT_TRUE(request);
      OutputProcessor output(*request, tokenizer, ResponseInfo{});
      std::vector<StreamEvent> events;
      for (const size_t at : {0U, 1U}) {  // the thinking part with its token, the rest as ordinary text
        const std::string_view part =
            at == 0 ? std::string_view(text).substr(0, 11) : std::string_view(text).substr(11);
        const auto ids = at == 0 ? tokenizer->encode_full(part) : tokenizer->encode_plain(part);
        for (const TokenId id : ids) ASSERT_TRUE(output.tokens(std::span(&id, 1), {}, events));
      }
      output.finish(FinishReason::kStop, events);
      EXPECT_EQ(output.tool_calls().size(), extended ? 1U : 0U) << mark;
      if (extended) {
        EXPECT_EQ(output.tool_calls()[0].arguments, "{\"a\": \"x\"}");
        EXPECT_EQ(output.content_text(), "Look.");
      } else {
        EXPECT_TRUE(output.content_text().ends_with("calls>")) << output.content_text();
      }
    }
  }
}

TEST(Errors, NameTheFieldAtFault) {
  const auto param = [](Api api, const std::string& members) {
    const auto request = convert_request(api, R"({"model":"DeepSeek-V4.1-Flash",)" + members + "}", CodecOptions());
    return request ? "accepted" : request.error().param;
  };
  EXPECT_EQ(param(Api::kResponses, R"("input":[{"type":"function_call","call_id":"","name":"f","arguments":"{}"}])"),
            "input[0].call_id");
  EXPECT_EQ(param(Api::kResponses, R"("input":[])"), "input");
  EXPECT_EQ(param(Api::kResponses, R"("input":[{"type":"function_call_output","call_id":"c","output":"x"}])"), "input");
  EXPECT_EQ(param(Api::kResponses, R"("input":"x","tools":[{"type":"function","name":"a b"}])"), "tools[0].name");
  EXPECT_EQ(param(Api::kResponses, R"("input":"x","text":{"format":{"type":"json_object"}})"), "text.format");
  EXPECT_EQ(param(Api::kMessages, R"("messages":[])"), "messages");
  EXPECT_EQ(param(Api::kMessages, R"("messages":[{"role":"user","content":[]}])"), "messages.0");
  EXPECT_EQ(param(Api::kMessages,
                  R"("messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"u","content":"x"}]}])"),
            "messages.0.content.0");
  EXPECT_EQ(param(Api::kMessages, R"("messages":[{"role":"user","content":"x"}],"temperature":3)"), "temperature");
  EXPECT_EQ(param(Api::kChat, R"("messages":[{"role":"user","content":"x"}],"temperature":3)"), "temperature");
}

}  // namespace
}  // namespace di::codec
