#include "codec/prompt/prompt.h"

#include <gtest/gtest.h>

#include "codec/image/layout.h"
#include "codec/vectors.h"

namespace di::codec {

namespace testing {

namespace {

std::vector<ToolDefinition> tools_of(const Json& list) {
  std::vector<ToolDefinition> tools;
  for (const Json& item : list.as_array()) {
    ToolDefinition tool;
    tool.name = text_of(item, "name");
    if (const Json* description = item.find_value("description")) tool.description = description->as_string();
    tool.parameters = *item.find("parameters");
    if (const Json* defer = item.find_value("defer_loading")) tool.defer_loading = defer->as_bool();
    tools.push_back(std::move(tool));
  }
  return tools;
}

Message message_of(const Json& item) {
  Message message;
  const std::string& role = text_of(item, "role");
  using Role = Message::Role;
  message.role = role == "system"      ? Role::kSystem
                 : role == "user"      ? Role::kUser
                 : role == "assistant" ? Role::kAssistant
                 : role == "tool"      ? Role::kTool
                                       : Role::kLatestReminder;
  message.content = RichText(text_of(item, "content"));
  if (const Json* sources = item.find_value("image_sources")) {
    // The first k occurrences of the spelling are the placeholders (recipe.md §2.8).
    constexpr std::string_view kImage = "<｜image｜>";
    size_t at = 0;
    for (const Json& source : sources->as_array()) {
      ImageSource image;
      image.location = text_of(source, source.find_value("data_url") != nullptr ? "data_url" : "url");
      message.image_sources.push_back(image);
      at = message.content.text.find(kImage, at);
      if (at == std::string::npos) break;
      message.content.images.emplace_back(at, at + kImage.size());
      at += kImage.size();
    }
  }
  if (const Json* tools = item.find_value("tools")) message.tools = tools_of(*tools);
  if (const Json* reasoning = item.find_value("reasoning_content")) message.reasoning_content = reasoning->as_string();
  if (const Json* calls = item.find_value("tool_calls")) {
    message.tool_calls.emplace();
    for (const Json& call : calls->as_array()) {
      message.tool_calls->push_back({text_of(call, "id"), text_of(call, "name"), text_of(call, "arguments")});
    }
  }
  if (const Json* prefix = item.find_value("prefix")) message.prefix = prefix->as_bool();
  if (const Json* id = item.find_value("tool_call_id")) message.tool_call_id = id->as_string();
  return message;
}

}  // namespace

Conversation conversation_of(const Json& value) {
  Conversation out;
  for (const Json& message : value.find("messages")->as_array()) out.messages.push_back(message_of(message));
  out.thinking_mode = value.find("thinking_mode")->as_bool();
  out.tools = tools_of(*value.find("tools"));
  const std::string& choice = text_of(value, "tool_choice");
  out.tool_choice = choice == "auto" ? ToolChoice::kAuto : choice == "none" ? ToolChoice::kNone : ToolChoice::kRequired;
  if (const Json* effort = value.find_value("reasoning_effort")) {
    const std::string& text = effort->as_string();
    out.reasoning_effort = text == "low"     ? ReasoningEffort::kLow
                           : text == "high"  ? ReasoningEffort::kHigh
                           : text == "xhigh" ? ReasoningEffort::kXhigh
                                             : ReasoningEffort::kMax;
  }
  const std::string& format = text_of(value, "response_format");
  using Kind = ResponseFormat::Kind;
  out.response_format.kind = format == "text"          ? Kind::kText
                             : format == "json_object" ? Kind::kJsonObject
                             : format == "json_schema" ? Kind::kJsonSchema
                                                       : Kind::kRegex;
  if (const Json* schema = value.find("response_schema")) out.response_format.schema = *schema;
  return out;
}

}  // namespace testing

namespace {

using testing::ids_of;
using testing::read_lines;
using testing::text_of;

TEST(Prompt, RendersAndEncodesEveryVector) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  for (const char* file : {"requests.jsonl", "fuzz_requests.jsonl"}) {
    for (const Json& c : read_lines(file)) {
      const Json& result = *c.find("result");
      const ModelVersion version = text_of(result, "model_version") == "v4" ? ModelVersion::kV4 : ModelVersion::kV41;
      const RenderedPrompt prompt =
          render_conversation(testing::conversation_of(*result.find("conversation")), version);
      EXPECT_EQ(prompt.text, text_of(result, "prompt")) << text_of(c, "id");
      std::string ranges;
      for (const auto& [begin, end] : prompt.special_ranges) ranges += fmt::format("[{},{}],", begin, end);
      if (!ranges.empty()) ranges.pop_back();
      EXPECT_EQ("[" + ranges + "]", to_json(*result.find("special_byte_ranges"))) << text_of(c, "id");
      EXPECT_EQ(prompt.image_sources.size(), result.find("image_sources")->size()) << text_of(c, "id");
      const auto ids = encode_prompt(prompt, *testing::vector_tokenizer(version == ModelVersion::kV41));
      ASSERT_TRUE(ids) << ids.error().message;
      EXPECT_EQ(*ids, ids_of(*result.find("ids"))) << text_of(c, "id");
    }
  }
}

TEST(Prompt, NamesAMissingSpecialToken) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  Conversation conversation;
  conversation.messages.resize(1);
  conversation.messages[0].content = "x";
  const auto ids = encode_conversation(conversation, ModelVersion::kV41, *testing::vector_tokenizer(false));
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().message,
            "failed to encode conversation: special token \"<｜System｜>\" is not in the added vocabulary");
}

TEST(Prompt, EmptyConversation) {
  const Conversation conversation;
  EXPECT_EQ(render_conversation(conversation, ModelVersion::kV41).text,
            "<｜begin▁of▁sentence｜><｜Assistant｜><think>");
  EXPECT_TRUE(render_conversation(conversation, ModelVersion::kV4)
                  .text.starts_with("<｜begin▁of▁sentence｜>Reasoning Effort: Absolute maximum"));
}

TEST(Prompt, GroundingSpellingsOfAssistantTextAreSpecial) {
  Conversation conversation;
  conversation.thinking_mode = false;
  conversation.messages.resize(2);
  conversation.messages[0].content = "<｜ref｜>x";
  conversation.messages[1].role = Message::Role::kAssistant;
  conversation.messages[1].content = "<｜ref｜>cat<｜/ref｜> <think>";
  const RenderedPrompt prompt = render_conversation(conversation, ModelVersion::kV41);
  std::vector<std::string> specials;
  for (const auto& [begin, end] : prompt.special_ranges) specials.push_back(prompt.text.substr(begin, end - begin));
  const std::vector<std::string> expected = {
      "<｜begin▁of▁sentence｜>", "<｜User｜>",      "<｜Assistant｜>", "</think>", "<｜ref｜>", "<｜/ref｜>",
      "<｜end▁of▁sentence｜>",   "<｜Assistant｜>", "</think>"};
  EXPECT_EQ(specials, expected);
}

TEST(Prompt, CountsImageTokens) {
  const std::tuple<uint32_t, uint32_t, uint32_t> cases[] = {{978, 479, 302},   {1, 1, 184},   {1920, 1080, 968},
                                                            {8192, 8192, 994}, {2, 165, 356}, {10000, 158, 962}};
  for (const auto& [w, h, count] : cases) {
    const auto tokens = image_token_count(w, h);
    ASSERT_TRUE(tokens) << w << "x" << h;
    EXPECT_EQ(*tokens, count) << w << "x" << h;
  }
  EXPECT_FALSE(image_token_count(0, 5));
}

}  // namespace
}  // namespace di::codec
