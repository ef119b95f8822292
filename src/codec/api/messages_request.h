// A Messages request as deserialized (recipe.md §3.3). Texts are views into the JSON body. Internal to api/.
#pragma once

#include "codec/api/common.h"

namespace di::codec::api::messages {

enum class Role : uint8_t { kUser, kAssistant, kSystem };

struct Image {
  enum class Kind : uint8_t { kBase64, kUrl, kFile };
  Kind kind = Kind::kUrl;
  std::string_view media_type;
  std::string_view value;  // data, url or file id
};

struct ResultBlock {
  enum class Type : uint8_t { kText, kImage, kDocument, kToolReference };
  Type type = Type::kText;
  std::string_view text;  // text, or the referenced tool's name
  Image image;
  std::optional<std::string_view> media_type;
};

struct Block {
  enum class Type : uint8_t {
    kText,
    kImage,
    kDocument,
    kThinking,
    kServerToolUse,
    kToolUse,
    kToolResult,
    kWebSearchToolResult,
    kToolAddition,
    kRedactedThinking,  // extended policy: dropped
  };
  Type type = Type::kText;
  std::string_view text;  // text or thinking
  Image image;
  std::optional<std::string_view> media_type;  // document
  std::string_view id;                         // tool_use id, tool_result's tool_use_id
  std::string_view name;                       // tool_use, tool_addition
  const Json* input = nullptr;
  std::string_view result_text;
  std::optional<std::vector<ResultBlock>> result_blocks;
};

struct RequestMessage {
  Role role = Role::kUser;
  std::string_view text;
  std::optional<std::vector<Block>> blocks;
};

struct Tool {
  std::optional<std::string_view> server_type;  // a server tool
  std::string_view name;
  std::optional<std::string_view> description;
  const Json* input_schema = nullptr;
  bool defer_loading = false;
};

enum class Choice : uint8_t { kAuto, kAny, kTool, kNone };

struct Request {
  std::string_view model;
  std::vector<RequestMessage> messages;
  bool has_system = false;
  std::string_view system_text;
  std::optional<std::vector<std::string_view>> system_blocks;
  SamplingRequest sampling;
  std::vector<std::string_view> stop;
  std::optional<bool> stream;
  std::vector<Tool> tools;
  Choice choice = Choice::kAuto;
  std::string_view choice_name;
  ThinkingSettings thinking;
  FormatRequest format;  // extended policy: output_config.format
};

Read read_request(const Json& body, const CodecOptions& options, Request& out);

}  // namespace di::codec::api::messages
