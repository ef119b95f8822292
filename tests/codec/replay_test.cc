// Exact replay of assistant turns with tool calls.
#include "codec/prompt/replay.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "codec/codec.h"
#include "codec/vectors.h"

namespace di::codec {
namespace {

using testing::vector_tokenizer;

ToolCall call(std::string id, std::string arguments) {
  return {std::move(id), "f", std::move(arguments)};
}

Message turn_message(std::vector<ToolCall> calls, std::string content = "", std::string reasoning = "") {
  Message message;
  message.role = Message::Role::kAssistant;
  message.tool_calls = std::move(calls);
  message.content = std::move(content);
  if (!reasoning.empty()) message.reasoning_content = std::move(reasoning);
  return message;
}

ReplayOptions in_file(const std::string& file, const std::string& identity = "v41-1") {
  ReplayOptions options;
  options.file = file;
  options.identity = identity;
  return options;
}

const ReplayTurn kTurn{{call("call_1", R"({"a": 1, "b": [true, {"x": "y", "z": null}]})")}, "Looking.", "Hm."};
const ReplayTokens kTokens{true, {5, 6, 7}};

TEST(Replay, OnlyTheSameTurnOfTheSameTenantIsFound) {
  ManualClock clock;
  ReplayStore store({}, clock);
  store.put("t", kTurn, kTokens);
  const std::string reordered = R"({"b":[true,{"z":null,"x":"y"}],"a":1})";
  const auto found = [&](const char* tenant, const Message& message) {
    const ReplayRef tokens = store.find(tenant, message);
    if (tokens != nullptr) {
      EXPECT_EQ(tokens->ids, kTokens.ids);
    }
    return tokens != nullptr;
  };
  EXPECT_TRUE(found("t", turn_message({call("call_1", reordered)}, "Looking.", "Hm.")));
  EXPECT_TRUE(found("t", turn_message({call("call_1", reordered)})));  // content and reasoning were not sent back
  EXPECT_FALSE(found("u", turn_message({call("call_1", reordered)})));
  EXPECT_FALSE(found("t", turn_message({call("call_2", reordered)})));
  EXPECT_FALSE(found("t", turn_message({call("call_1", R"({"a":2})")})));
  EXPECT_FALSE(found("t", turn_message({call("call_1", reordered), call("call_2", "{}")})));
  EXPECT_FALSE(found("t", turn_message({call("call_1", reordered)}, "Edited.")));
  EXPECT_FALSE(found("t", turn_message({call("call_1", reordered)}, "Looking.", "Edited.")));
  EXPECT_FALSE(found("t", turn_message({})));
  Message renamed = turn_message({call("call_1", reordered)});
  (*renamed.tool_calls)[0].name = "g";
  EXPECT_FALSE(found("t", renamed));
  EXPECT_EQ(store.stats().hits, 2U);
}

// A request that must bring its reasoning may leave out that of a turn whose tokens are known, of no other.
TEST(Replay, KnownTurnsLackNoReasoning) {
  ManualClock clock;
  ReplayStore store({}, clock);
  store.put("t", kTurn, kTokens);
  store.put("t", {{call("call_2", "{}")}, "", ""}, {false, {5}});
  EXPECT_TRUE(store.knows("t", turn_message(kTurn.calls)));
  EXPECT_FALSE(store.knows("u", turn_message(kTurn.calls)));
  EXPECT_FALSE(store.knows("t", turn_message(kTurn.calls, "Edited.")));
  EXPECT_FALSE(store.knows("t", turn_message({call("call_2", "{}")})));  // made without thinking
  EXPECT_FALSE(store.knows("t", turn_message({})));
  EXPECT_EQ(store.stats().hits + store.stats().misses, 0U);

  CodecOptions options;
  options.missing_reasoning = MissingReasoning::kReject;
  const auto verdict = [&](std::string_view id) {
    const std::string body = fmt::format(
        R"({{"model":"DeepSeek-V4.1-Flash","messages":[{{"role":"user","content":"x"}},{{"role":"assistant","content":null,)"
        R"("tool_calls":[{{"id":"{}","type":"function","function":{{"name":"f","arguments":"{{\"a\":1,\"b\":[true,)"
        R"({{\"x\":\"y\",\"z\":null}}]}}"}}}}]}},{{"role":"tool","tool_call_id":"{}","content":"y"}}]}})",
        id, id);
    const auto request = convert_request(Api::kChat, body, options);
    return request ? std::string("taken") : request.error().message;
  };
  const std::string refused = "The `reasoning_content` in the thinking mode must be passed back to the API.";
  EXPECT_EQ(verdict("call_1"), refused);
  options.knows_turn = [&](const Message& message) { return store.knows("t", message); };
  EXPECT_EQ(verdict("call_1"), "taken");
  EXPECT_EQ(verdict("call_9"), refused);
}

TEST(Replay, OldAndLeastRecentlyUsedTurnsLeave) {
  ManualClock clock;
  ReplayStore store({.max_bytes = 4000, .max_age_s = 60, .file = "", .identity = ""}, clock);
  const auto put = [&](const std::string& id) {
    store.put("t", {{call(id, "{}")}, "", ""}, {true, std::vector<TokenId>(200, 1)});
    EXPECT_LE(store.stats().bytes, 4000U);
  };
  const auto has = [&](const std::string& id) { return store.find("t", turn_message({call(id, "{}")})) != nullptr; };
  put("a");
  put("b");
  EXPECT_TRUE(has("a"));
  put("c");
  put("d");
  EXPECT_TRUE(has("a"));
  EXPECT_FALSE(has("b"));
  clock.advance(61 * kNsPerSecond);
  EXPECT_FALSE(has("a"));
  store.put("t", {{call("e", "{}")}, "", ""}, {true, std::vector<TokenId>(2000, 1)});  // larger than the store
  EXPECT_FALSE(has("e"));
  EXPECT_EQ(store.stats().bytes, 0U);
}

TEST(Replay, TheFileHoldsWhatWasKeptAndDamageCountsAsEmpty) {
  ManualClock clock;
  const std::string file = ::testing::TempDir() + "replay_test.bin";
  std::filesystem::remove(file);
  {
    ReplayStore store(in_file(file), clock);
    store.put("t", kTurn, kTokens);
    ASSERT_TRUE(store.save());
  }
  EXPECT_EQ(std::filesystem::status(file).permissions() & std::filesystem::perms::all,
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_NE(ReplayStore(in_file(file), clock).find("t", turn_message(kTurn.calls)), nullptr);
  EXPECT_EQ(ReplayStore(in_file(file, "v41-2"), clock).stats().entries, 0U) << "ids of another tokenizer";
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(60).put('!');
  EXPECT_EQ(ReplayStore(in_file(file), clock).stats().entries, 0U);
  std::ofstream(file, std::ios::binary | std::ios::trunc) << "deepinfer-replay-1\nv41-1\n";
  EXPECT_EQ(ReplayStore(in_file(file), clock).stats().entries, 0U);
  EXPECT_FALSE(ReplayStore(in_file("/nonexistent/replay"), clock).save());
  std::filesystem::remove(file);
}

TEST(Replay, TheFileIsWrittenWhenSomethingNewIsOldEnough) {
  ManualClock clock;
  const std::string file = ::testing::TempDir() + "replay_save_test.bin";
  std::filesystem::remove(file);
  ReplayStore store(in_file(file), clock);
  const auto written = [&] {
    EXPECT_TRUE(store.save_if_older(60));
    return std::filesystem::remove(file);
  };
  clock.advance(61 * kNsPerSecond);
  EXPECT_FALSE(written()) << "there is nothing to be written";
  store.put("t", kTurn, kTokens);
  EXPECT_TRUE(written());
  store.put("t", kTurn, kTokens);
  EXPECT_FALSE(written()) << "so soon";
  clock.advance(60 * kNsPerSecond);
  EXPECT_TRUE(written());
}

// JavaScript has one kind of number: 3.0 comes back as 3, 1e2 as 100.
TEST(Replay, WholeNumbersAreEqualHoweverTheyAreWritten) {
  ManualClock clock;
  ReplayStore store({}, clock);
  store.put("t", {{call("call_1", R"({"a":3.0,"b":[1e2,0.5,-0.0]})")}, "", ""}, kTokens);
  EXPECT_NE(store.find("t", turn_message({call("call_1", R"({"a":3,"b":[100,0.5,0]})")})), nullptr);
  EXPECT_EQ(store.find("t", turn_message({call("call_1", R"({"a":3.5,"b":[100,0.5,0]})")})), nullptr);
  EXPECT_EQ(store.find("t", turn_message({call("call_1", R"({"a":"3","b":[100,0.5,0]})")})), nullptr);
}

TEST(Replay, ThreadsShareAStore) {
  ManualClock clock;
  ReplayStore store({.max_bytes = 20000, .max_age_s = 3600, .file = "", .identity = ""}, clock);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&store, t] {
      for (int i = 0; i < 500; ++i) {
        const std::string id = "c" + std::to_string((i * 7 + t) % 40);
        store.put("t", {{call(id, "{}")}, "", ""}, {true, {i}});
        static_cast<void>(store.find("t", turn_message({call(id, "{}")})));
      }
    });
  }
  threads.clear();
  EXPECT_LE(store.stats().bytes, 20000U);
}

// A turn whose tokens are not those of its text: the next request's prompt begins with the first one's prompt and the
// turn's own tokens, bit for bit, whatever the API and the version; without the store it does not.
TEST(Replay, TheNextPromptContinuesThePreviousOne) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  ManualClock clock;
  for (const bool v41 : {true, false}) {
    for (const bool thinking : {true, false}) {
      const TokenizerRef tokenizer = vector_tokenizer(v41);
      const std::string head =
          std::string(R"({"model":")") + (v41 ? "DeepSeek-V4.1-Flash" : "DeepSeek-V4-Pro") +
          R"(","thinking":{"type":")" + (thinking ? "enabled" : "disabled") +
          R"("},"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],)"
          R"("messages":[{"role":"user","content":"Look."})";
      const auto first = convert_request(Api::kChat, head + "]}", CodecOptions());
      ASSERT_TRUE(first) << first.error().message;
      const auto prompt = encode_conversation(first->conversation, first->version, *tokenizer);
      ASSERT_TRUE(prompt);
      // The output, split unlike the tokenizer would: every ordinary character by itself.
      const std::string tag = v41 ? " " : "";
      const std::string block = v41 ? "calls" : "tool_calls";
      std::vector<TokenId> output;
      for (const TokenId id : tokenizer->encode_full(
               std::string(thinking ? "Hm.</think>" : "") + "Looking.\n\n<｜DSML｜" + tag + block + ">\n<｜DSML｜" +
               tag + "invoke name=\"f\">\n<｜DSML｜" + tag + "parameter name=\"a\" string=\"false\">[1,2]</｜DSML｜" +
               tag + "parameter>\n</｜DSML｜" + tag + "invoke>\n</｜DSML｜" + tag + block + ">")) {
        if (tokenizer->is_added(id)) {
          output.push_back(id);
          continue;
        }
        for (const char c : tokenizer->token_bytes(id)) {
          for (const TokenId part : tokenizer->encode_plain(std::string_view(&c, 1))) output.push_back(part);
        }
      }
      OutputProcessor processor(*first, tokenizer, ResponseInfo());
      std::vector<StreamEvent> events;
      ASSERT_TRUE(processor.tokens(output, {}, events));
      processor.finish(FinishReason::kStop, events);
      ASSERT_EQ(processor.tool_calls().size(), 1U);
      EXPECT_EQ(processor.content_text(), "Looking.");

      ReplayStore store({}, clock);
      const TokenId eos = *tokenizer->added_id("<｜end▁of▁sentence｜>");
      store.put("t", {processor.tool_calls(), processor.content_text(), processor.reasoning_text()},
                replay_tokens(*prompt, output, *tokenizer->added_id("<｜Assistant｜>"), eos, thinking));
      const Json body = *parse_json(processor.body());
      const std::string next = head + "," + to_json(*body.find("choices")->as_array()[0].find("message")) +
                               R"(,{"role":"tool","tool_call_id":")" + processor.tool_calls()[0].id +
                               R"(","content":"done"}]})";
      std::vector<TokenId> expected = *prompt;
      expected.insert(expected.end(), output.begin(), output.end());
      expected.push_back(eos);
      for (const bool use_store : {true, false}) {
        auto second = convert_request(Api::kChat, next, CodecOptions());
        ASSERT_TRUE(second) << second.error().message;
        if (use_store) {
          EXPECT_EQ(attach_replays(second->conversation, "t", store), 1U);
        }
        const auto ids = encode_conversation(second->conversation, second->version, *tokenizer);
        ASSERT_TRUE(ids);
        const bool continues =
            ids->size() > expected.size() && std::equal(expected.begin(), expected.end(), ids->begin());
        EXPECT_EQ(continues, use_store) << (v41 ? "v41" : "v4") << (thinking ? " thinking" : "");
      }
      // Without tools the turn is rendered from its text: that is not how the model saw it.
      auto plain = convert_request(Api::kChat, next, CodecOptions());
      plain->conversation.tools.clear();
      EXPECT_EQ(attach_replays(plain->conversation, "t", store), 0U);
    }
  }
}

}  // namespace
}  // namespace di::codec
