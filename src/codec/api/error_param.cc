// Which field a conversion error of Responses or Messages is about, read off its official text: most texts begin with
// the path or hold it in quotes, the others are few.
#include <algorithm>

#include "codec/api/common.h"

namespace di::codec::api {

namespace {

bool is_path_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '[' || c == ']';
}

// "messages.3.content.0" of "messages.3.content.0: text"; empty when the text does not begin so.
std::string_view leading_path(std::string_view message) {
  const auto* end = std::find_if_not(message.begin(), message.end(), is_path_character);
  if (end == message.end() || *end != ':') return {};
  std::string_view path = message.substr(0, static_cast<size_t>(end - message.begin()));
  if (path.starts_with('.')) path.remove_prefix(1);
  for (const std::string_view root : {"messages", "input", "tools", "system", "instructions"}) {
    if (path.starts_with(root)) return path;
  }
  return {};
}

}  // namespace

std::string error_param(std::string_view message) {
  if (const std::string_view path = leading_path(message); !path.empty()) return std::string(path);
  if (constexpr std::string_view kUnexpected = "unexpected `"; message.starts_with(kUnexpected)) {
    return std::string(leading_path(message.substr(kUnexpected.size())));
  }
  constexpr std::pair<std::string_view, std::string_view> kFields[] = {
      {"Invalid value for 'tool_call'", "tool_choice"},
      {"Thinking mode does not support", "tool_choice"},
      {"Invalid schema for function", "tools"},
      {"Invalid tool parameters schema", "tools"},
      {"The top level of the function parameters", "tools"},
      {"Tool names", "tools"},
      {"Unsupported custom tool", "tools"},
      {"Currently custom tools", "tools"},
      {"Server tools", "tools"},
      {"Cannot use strict tool", "tools"},
      {"Invalid json schema", "text.format"},
      {"The top level of the json schema", "text.format"},
      {"Response input messages must contain", "text.format"},
      {"response_format should not be used", "text.format"},
      {"Either input or instructions", "input"},
      {"Input items array", "input"},
      {"Duplicate 'call_id'", "input"},
      {"Duplicate tool output", "input"},
      {"No tool call found", "input"},
      {"No tool output found", "input"},
      {"The `reasoning_text`", "input"},
      {"The `content[].thinking`", "messages"},
      {"Unsupported content block", "messages"},
  };
  for (const auto& [start, field] : kFields) {
    if (message.starts_with(start)) return std::string(field);
  }
  constexpr std::string_view kQuoted = "Invalid '";
  if (message.starts_with(kQuoted)) {
    const size_t end = message.find('\'', kQuoted.size());
    if (end != std::string_view::npos) return std::string(message.substr(kQuoted.size(), end - kQuoted.size()));
  }
  return {};
}

}  // namespace di::codec::api
