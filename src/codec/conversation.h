// The one form that every API request becomes before it is rendered: an API-neutral conversation (recipe.md §2.1).
// Plain data; no invariants beyond those written at the members. Rendering it never fails.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "codec/token.h"

namespace di::codec {

// V4: no images, no system messages in mid-conversation. V4.1: both (recipe.md §3.0).
enum class ModelVersion : uint8_t { kV4, kV41 };

enum class ReasoningEffort : uint8_t { kLow, kHigh, kXhigh, kMax };
enum class ToolChoice : uint8_t { kAuto, kNone, kRequired };

// Text from outside with explicit image placeholders in it. Only the placeholders become special tokens; a special
// spelling anywhere else in `text` is ordinary text.
struct RichText {
  std::string text;
  // Ascending disjoint byte ranges [begin, end) of `text` that hold an image placeholder.
  std::vector<std::pair<size_t, size_t>> images;

  RichText() = default;
  RichText(std::string t) : text(std::move(t)) {}
  RichText(const char* t) : text(t) {}
  bool empty() const { return text.empty(); }
  // Appends text or another rich text (ranges move along).
  void append(std::string_view more) { text.append(more); }
  void append(const char* more) { text.append(more); }
  void append(const std::string& more) { text.append(more); }
  void append(const RichText& more);
  void append_image(std::string_view spelling);
};

enum class ImageDetail : uint8_t { kLow, kHigh, kOriginal, kAuto };

struct ImageSource {
  enum class Kind : uint8_t { kDataUrl, kUrl, kFile };  // kFile: extended policy only
  Kind kind = Kind::kDataUrl;
  ImageDetail detail = ImageDetail::kHigh;
  std::string location;  // the data URL, the external URL or the id of an uploaded file
  std::string path;      // where it stood in the request, as errors name it
};

struct ToolDefinition {
  std::string name;
  std::optional<std::string> description;
  Json parameters = Json(Json::Object{});
  std::optional<bool> strict;
  bool defer_loading = false;  // declared, but not listed in the prompt
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text as the caller sent it
};

// An assistant turn as the model saw and made it: the tokens behind the assistant token, the end token included.
struct ReplayTokens {
  bool thinking = false;  // the mode it was made in
  std::vector<TokenId> ids;
};
using ReplayRef = std::shared_ptr<const ReplayTokens>;

struct Message {
  enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool, kLatestReminder };
  Role role = Role::kUser;
  RichText content;  // placeholders only in System, User and Tool messages
  std::vector<ImageSource> image_sources;
  // System: tools that become available here ("Updated Tool Schemas", V4.1 only).
  std::optional<std::vector<ToolDefinition>> tools;
  // Assistant.
  std::optional<std::string> reasoning_content;
  std::optional<std::vector<ToolCall>> tool_calls;
  bool prefix = false;  // the model continues this message; only on the last one
  ReplayRef replay;     // set by attach_replays(): used instead of the text where tools are on
  // Tool.
  std::optional<std::string> tool_call_id;
};

struct ResponseFormat {
  enum class Kind : uint8_t { kText, kJsonObject, kJsonSchema, kRegex };
  Kind kind = Kind::kText;
  Json schema;        // kJsonSchema: as the request wrote it
  std::string regex;  // kRegex
};

struct Conversation {
  std::vector<Message> messages;
  bool thinking_mode = true;
  std::vector<ToolDefinition> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::optional<ReasoningEffort> reasoning_effort;
  // 1..100, extended policy only: replaces the number that the V4.1 effort line shows.
  std::optional<int> effort_number;
  ResponseFormat response_format;

  // Deferred tools count.
  bool tools_on() const { return tool_choice != ToolChoice::kNone && !tools.empty(); }
};

}  // namespace di::codec
