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

// What tells the two templates' tool calls apart.
struct ToolForm {
  ToolTags tags;
  JsonStyle style;
  bool blank_line;  // a call without parameters holds an empty line
};
inline constexpr ToolForm kToolsV4{{"tool_calls", "invoke", "parameter"}, JsonStyle::kSpaced, false};
inline constexpr ToolForm kToolsV41{{" calls", " invoke", " parameter"}, JsonStyle::kPython, true};

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
  // The block of a message's calls (recipe.md §2.4).
  void tool_calls(const std::vector<const ToolCall*>& calls, const ToolForm& form);
  // What stands behind the messages: the answer's start, unless the last message is `continued`, and for a required
  // call its block's.
  void answer_start(const Conversation& conversation, bool continued, const ToolForm& form);
  // Calls render() for an assistant message that stands after its assistant token; where the message's exact tokens are
  // known and the model saw them in this form, they are used instead of the text.
  template <class Render>
  void assistant_turn(const Conversation& conversation, const Message& message, const Render& render) {
    const size_t begin = out_.text.size();
    render();
    if (message.replay != nullptr && message.replay->thinking == conversation.thinking_mode &&
        conversation.tools_on()) {
      out_.replays.push_back({begin, out_.text.size(), message.replay});
    }
  }
  // Instructions of recipe.md §2.3 up to and including the blank line before the schemas.
  void tool_instructions(const ToolTags& tags);

  const SpecialSpellings& spell;

 private:
  RenderedPrompt& out_;
};

inline constexpr std::string_view kToolInstructionsEnd =
    "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

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
