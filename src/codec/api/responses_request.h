// A Responses request as deserialized (recipe.md §3.2). Texts are views into the JSON body. Internal to api/.
#pragma once

#include "codec/api/common.h"

namespace di::codec::api::responses {

inline constexpr std::string_view kApplyPatch = "apply_patch";
inline constexpr std::string_view kToolSearchName = "tool_search";

ToolDefinition apply_patch_tool(ModelVersion version);

struct Block {
  enum class Type : uint8_t { kText, kImage, kFile };
  Type type = Type::kText;
  bool input_text = false;  // "input_text", not "output_text"
  std::string_view text;
  std::optional<std::string_view> image_url;
  std::optional<std::string_view> file_id;
  ImageDetail detail = ImageDetail::kHigh;
};

struct Content {
  std::string_view text;
  std::optional<std::vector<Block>> blocks;
};

enum class Role : uint8_t { kUser, kAssistant, kSystem, kDeveloper };
enum class Execution : uint8_t { kClient, kServer };

struct FunctionTool {
  std::string_view name;
  std::optional<std::string_view> description;
  const Json* parameters = nullptr;  // nullptr: absent or null
  std::optional<bool> strict;
  bool custom = false;  // a custom tool inside a namespace
};

struct Tool {
  enum class Type : uint8_t { kFunction, kWebSearch, kWebSearch2025, kNamespace, kCustom, kToolSearch, kOther };
  Type type = Type::kOther;
  FunctionTool function;  // also custom and tool_search: name, description, parameters
  std::optional<Execution> execution;
  std::vector<FunctionTool> members;  // of a namespace
  // web_search
  std::optional<size_t> context_size;
  struct Location {
    std::optional<std::string_view> city, country, region, timezone;
  };
  std::optional<Location> location;
};

struct Item {
  enum class Type : uint8_t {
    kMessage,
    kFunctionCall,
    kFunctionCallOutput,
    kReasoning,
    kCustomToolCall,
    kCustomToolCallOutput,
    kToolSearchCall,
    kToolSearchOutput,
    kWebSearchCall,
    kOther,
  };
  Type type = Type::kOther;
  Role role = Role::kUser;
  Content content;  // or the output
  std::optional<std::string_view> call_id;
  std::string_view name;
  std::string_view arguments;  // or the custom input
  std::optional<std::string_view> name_space;
  const Json* search_arguments = nullptr;
  std::optional<std::vector<std::string_view>> reasoning;
  std::vector<Tool> tools;
};

struct Choice {
  enum class Type : uint8_t { kAuto, kNone, kRequired, kFunction, kWebSearch, kWebSearch2025, kCustom };
  std::optional<Type> type;
  std::string_view name;
};

struct Request {
  std::string_view model;
  bool has_input = false;
  std::string_view input_text;
  std::optional<std::vector<Item>> items;
  std::optional<std::string_view> instructions;
  SamplingRequest sampling;
  std::optional<bool> stream;
  std::optional<size_t> summary;
  std::optional<size_t> generate_summary;
  FormatRequest format;
  Json format_echo;
  std::optional<size_t> verbosity;
  Choice choice;
  std::vector<Tool> tools;
  std::optional<std::string_view> user;
  ThinkingSettings thinking;
};

inline constexpr std::string_view kSummaries[] = {"auto", "concise", "detailed"};
inline constexpr std::string_view kVerbosities[] = {"low", "medium", "high"};  // also of a search context

Read read_request(const Json& body, const CodecOptions& options, Request& out);

// The settings that the response repeats, re-serialized.
void fill_echo(const Request& request, ResponsesEcho& echo);
// {"type":"function","name",…} with nulls; members of a namespace name it.
void write_function(JsonWriter& w, const FunctionTool& tool, const Tool* name_space);
// Any other known tool; a namespace with its members.
void write_tool(JsonWriter& w, const Tool& tool);

}  // namespace di::codec::api::responses
