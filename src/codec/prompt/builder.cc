#include "codec/prompt/builder.h"

#include <algorithm>
#include <array>

namespace di::codec {

void PromptBuilder::rich(const RichText& content) {
  size_t at = 0;
  for (const auto& [begin, end] : content.images) {
    plain(std::string_view(content.text).substr(at, begin - at));
    special(spell.image);
    at = end;
  }
  plain(std::string_view(content.text).substr(at));
}

void PromptBuilder::assistant(std::string_view text) {
  const std::array<std::string_view, 8> spellings = {spell.ref,   spell.ref_end,   spell.box,     spell.box_end,
                                                     spell.point, spell.point_end, spell.polygon, spell.polygon_end};
  std::array<size_t, 8> next{};  // next occurrence of each spelling
  const auto search = [&](size_t i, size_t from) {
    next[i] = spellings[i].empty() ? std::string_view::npos : text.find(spellings[i], from);
  };
  for (size_t i = 0; i < spellings.size(); ++i) search(i, 0);
  size_t at = 0;
  while (true) {
    // The match that ends first; of several the longest.
    size_t best = spellings.size();
    for (size_t i = 0; i < spellings.size(); ++i) {
      if (next[i] == std::string_view::npos) continue;
      if (best == spellings.size()) {
        best = i;
        continue;
      }
      const size_t end = next[i] + spellings[i].size();
      const size_t best_end = next[best] + spellings[best].size();
      if (end < best_end || (end == best_end && spellings[i].size() > spellings[best].size())) best = i;
    }
    if (best == spellings.size()) break;
    plain(text.substr(at, next[best] - at));
    special(spellings[best]);
    at = next[best] + spellings[best].size();
    for (size_t i = 0; i < spellings.size(); ++i) {
      if (next[i] < at) search(i, at);
    }
  }
  plain(text.substr(at));
}

void PromptBuilder::tool_definition(const ToolDefinition& tool, JsonStyle style) {
  std::string& text = out_.text;
  text += "{\"name\": ";
  append_json_string(text, tool.name);
  text += ", \"description\": ";
  append_json_string(text, tool.description.value_or(""));
  text += ", \"parameters\": ";
  append_json(text, tool.parameters, style);
  text += "}";
}

void PromptBuilder::tool_instructions(const ToolTags& tags) {
  plain(
      "## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke tools by "
      "writing "
      "a \"");
  open_tag(tags.block);
  plain(">\" block like the following:\n\n");
  open_tag(tags.block);
  plain(">\n");
  open_tag(tags.invoke);
  plain(" name=\"$TOOL_NAME\">\n");
  open_tag(tags.parameter);
  plain(" name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE");
  close_tag(tags.parameter);
  plain(">\n...\n");
  close_tag(tags.invoke);
  plain(">\n");
  open_tag(tags.invoke);
  plain(" name=\"$TOOL_NAME2\">\n...\n");
  close_tag(tags.invoke);
  plain(">\n");
  close_tag(tags.block);
  plain(
      ">\n\nString parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, "
      "booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\nIf thinking_mode is "
      "enabled (triggered by ");
  special(spell.think_start);
  plain("), you MUST output your complete reasoning inside ");
  special(spell.think_start);
  plain("...");
  special(spell.think_end);
  plain(" BEFORE any tool calls or final response.\n\nOtherwise, output directly after ");
  special(spell.think_end);
  plain(" with tool calls or final response.\n\n### Available Tool Schemas\n\n");
}

namespace {

// Arguments of a call as an object: the parsed text, or {"arguments": text} when it is no object.
Json::Object call_arguments(const std::string& arguments) {
  Result<Json> parsed = parse_json(arguments);
  if (parsed && parsed->is_object()) return std::move(parsed->as_object());
  Json::Object object;
  object.push_back(JsonMember{"arguments", Json(arguments)});
  return object;
}

}  // namespace

void PromptBuilder::tool_calls(const std::vector<const ToolCall*>& calls, const ToolForm& form) {
  plain("\n\n");
  open_tag(form.tags.block);
  plain(">\n");
  for (const ToolCall* call : calls) {
    open_tag(form.tags.invoke);
    plain(" name=\"");
    plain(call->name);
    plain("\">\n");
    const Json::Object arguments = call_arguments(call->arguments);
    for (const JsonMember& argument : arguments) {
      open_tag(form.tags.parameter);
      plain(" name=\"");
      plain(argument.key);
      const std::string* text = argument.value.if_string();
      plain(text != nullptr ? "\" string=\"true\">" : "\" string=\"false\">");
      if (text != nullptr) {
        plain(*text);
      } else {
        json(argument.value, form.style);
      }
      close_tag(form.tags.parameter);
      plain(">\n");
    }
    if (arguments.empty() && form.blank_line) plain("\n");
    close_tag(form.tags.invoke);
    plain(">\n");
  }
  close_tag(form.tags.block);
  plain(">");
}

void PromptBuilder::answer_start(const Conversation& conversation, bool continued, const ToolForm& form) {
  if (!continued) {
    special(spell.assistant);
    special(conversation.thinking_mode ? spell.think_start : spell.think_end);
  }
  if (conversation.tool_choice == ToolChoice::kRequired && conversation.tools_on()) {
    plain("\n\n");
    open_tag(form.tags.block);
    plain(">\n");
  }
}

}  // namespace di::codec
