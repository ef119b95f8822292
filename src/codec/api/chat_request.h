// A Chat Completions request as deserialized (recipe.md §3.1). Texts are views into the JSON body. Internal to api/.
#pragma once

#include "codec/api/common.h"

namespace di::codec::api::chat {

enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool, kLatestReminder, kDeveloper };

struct Block {
  enum class Type : uint8_t { kText, kImageUrl, kFile };
  Type type = Type::kText;
  std::string_view text;
  std::string_view url;
  ImageDetail detail = ImageDetail::kHigh;
  std::optional<std::string_view> file_id;
  std::optional<std::string_view> file_data;
  std::optional<std::string_view> filename;
};

struct Content {
  std::string_view text;
  std::optional<std::vector<Block>> blocks;  // set: a list
};

struct RequestCall {
  std::string_view id;
  std::string_view name;
  std::string_view arguments;
};

struct RequestMessage {
  Role role = Role::kUser;
  std::optional<Content> content;
  std::optional<std::string_view> reasoning_content;
  std::optional<std::vector<RequestCall>> tool_calls;
  bool prefix = false;
  std::string_view tool_call_id;
};

struct Request {
  std::vector<RequestMessage> messages;
  std::string_view model;
  SamplingRequest sampling;
  std::optional<bool> logprobs;
  std::optional<uint8_t> n;
  std::optional<uint32_t> max_completion_tokens;
  std::vector<std::string_view> stop;
  bool single_stop = false;
  std::optional<bool> stream;
  bool has_stream_options = false;
  std::optional<bool> include_usage;
  std::optional<bool> continuous_usage;
  FormatRequest format;
  std::optional<std::vector<ToolDefinition>> tools;
  std::vector<bool> has_parameters;
  ToolRequest::Choice choice = ToolRequest::Choice::kAuto;
  std::string_view choice_name;
  ThinkingSettings thinking;
};

Read read_request(const Json& body, const ReadRules& rules, bool extended, Request& out);
// Fields that only the extended policy reads (server.md §4.1).
Read read_extensions(const Json& body, const ReadRules& rules, Request& out);

}  // namespace di::codec::api::chat
