// Prompt text under construction, and the parts that both templates share. Internal to prompt/.
#pragma once

#include <string_view>
#include <vector>

#include "codec/prompt/prompt.h"

namespace di::codec {

// Names of the tags of a tool call block; V4.1's begin with a space.
struct ToolTags {
  std::string_view block;
  std::string_view invoke;
  std::string_view parameter;
};
inline constexpr ToolTags kTagsV4{"tool_calls", "invoke", "parameter"};
inline constexpr ToolTags kTagsV41{" calls", " invoke", " parameter"};

class PromptBuilder {
 public:
  PromptBuilder(const SpecialSpellings& special, RenderedPrompt& out) : spell(special), out_(out) {}

  void plain(std::string_view text) { out_.text += text; }
  void special(std::string_view spelling) {
    if (spelling.empty()) return;
    const size_t begin = out_.text.size();
    out_.text += spelling;
    out_.special_ranges.emplace_back(begin, out_.text.size());
  }
  // User, system and tool text: placeholders become special, the rest is plain.
  void rich(const RichText& content);
  // Assistant text: the eight grounding spellings become special (recipe.md §2.1).
  void assistant(std::string_view text);
  void json(const Json& value, JsonStyle style) { append_json(out_.text, value, style); }
  void tool_definition(const ToolDefinition& tool, JsonStyle style);

  // "<" DSML name, "</" DSML name.
  void open_tag(std::string_view name) {
    plain("<");
    special(spell.dsml);
    plain(name);
  }
  void close_tag(std::string_view name) {
    plain("</");
    special(spell.dsml);
    plain(name);
  }
  // Instructions of recipe.md §2.3 up to and including the blank line before the schemas.
  void tool_instructions(const ToolTags& tags);

  const SpecialSpellings& spell;

 private:
  RenderedPrompt& out_;
};

inline constexpr std::string_view kToolInstructionsEnd =
    "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

// Arguments of a call as an object: the parsed text, or {"arguments": text} when it is no object (recipe.md §2.4).
Json::Object call_arguments(const std::string& arguments);

// One entry of a conversation after normalization: a message, perhaps with other content.
struct PromptItem {
  enum class Extra : uint8_t { kNone, kToolPrompt, kFormatPrompt };
  const Message* message = nullptr;  // nullptr: a system message made by the template
  const RichText* content = nullptr;
  std::vector<const std::vector<ImageSource>*> images;
  Extra extra = Extra::kNone;  // what a made system message says

  Message::Role role() const { return message != nullptr ? message->role : Message::Role::kSystem; }
};

void render_v4(const Conversation& conversation, PromptBuilder& out, RenderedPrompt& prompt);
void render_v41(const Conversation& conversation, PromptBuilder& out, RenderedPrompt& prompt);

}  // namespace di::codec
