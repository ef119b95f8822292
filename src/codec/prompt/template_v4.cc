// The V4 template (recipe.md §2.5).
#include <algorithm>
#include <deque>

#include "codec/prompt/builder.h"

namespace di::codec {

namespace {

constexpr std::string_view kHighEffort =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be very thorough in your thinking and "
    "comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all "
    "potential paths, edge cases, and adversarial scenarios.\nExplicitly write out your entire deliberation process, "
    "documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no "
    "assumption is left unchecked.\n\n";
constexpr std::string_view kMaxEffort =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\nYou MUST reason with the utmost "
    "depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most "
    "fundamental "
    "components, trace every causal chain to its root, and resolve the underlying cause rather than any surface "
    "symptom.\nDo not stop reasoning until you have independently verified the solution from multiple angles and are "
    "certain that no assumption remains unchecked and no error remains undiscovered.\n\n";

using Role = Message::Role;

class TemplateV4 {
 public:
  TemplateV4(const Conversation& conversation, PromptBuilder& out, RenderedPrompt& prompt)
      : conversation_(conversation), out_(out), prompt_(prompt) {}

  void run() {
    normalize();
    out_.special(out_.spell.bos);
    if (conversation_.thinking_mode) effort();
    for (size_t i = 0; i < items_.size(); ++i) {
      item(i);
      for (const auto* images : items_[i].images) {
        prompt_.image_sources.insert(prompt_.image_sources.end(), images->begin(), images->end());
      }
    }
    const bool continues = !items_.empty() && items_.back().role() == Role::kAssistant && items_.back().message->prefix;
    out_.answer_start(conversation_, continues, kToolsV4);
  }

 private:
  void normalize() {
    for (const Message& message : conversation_.messages) {
      if (message.role == Role::kSystem && !message.content.empty()) items_.push_back(make(message));
    }
    const size_t n_system = items_.size();
    for (const Message& message : conversation_.messages) {
      if (message.role == Role::kSystem) continue;
      if (message.role == Role::kUser && items_.size() > n_system && items_.back().role() == Role::kUser) {
        merge_user(items_.back(), message);
      } else {
        items_.push_back(make(message));
      }
    }
    sort_tool_results();
    add_prompts(n_system);
  }

  static PromptItem make(const Message& message) {
    return PromptItem{&message, &message.content, {&message.image_sources}, PromptItem::Extra::kNone};
  }

  void merge_user(PromptItem& item, const Message& message) {
    item.images.push_back(&message.image_sources);
    if (message.content.empty()) return;
    if (item.content->empty()) {
      item.content = &message.content;
      return;
    }
    if (merged_.empty() || item.content != &merged_.back()) item.content = &merged_.emplace_back(*item.content);
    merged_.back().append("\n\n");
    merged_.back().append(message.content);
  }

  void sort_tool_results() {
    const auto order = [](const PromptItem& item) {
      const bool tool = item.role() == Role::kTool;
      return std::make_pair(!tool, tool ? item.message->tool_call_id : std::optional<std::string>());
    };
    for (size_t i = 0; i < items_.size(); ++i) {
      const auto* message = items_[i].message;
      if (message->role != Role::kAssistant || !message->tool_calls) continue;
      const size_t n = message->tool_calls->size();
      if (n == 0 || items_.size() - i - 1 < n) continue;
      const auto first = items_.begin() + static_cast<ptrdiff_t>(i) + 1;
      std::stable_sort(first, first + static_cast<ptrdiff_t>(n),
                       [&](const PromptItem& a, const PromptItem& b) { return order(a) < order(b); });
    }
  }

  void add_prompts(size_t n_system) {
    std::vector<PromptItem> made;
    const auto kind = conversation_.response_format.kind;
    const auto add = [&](PromptItem::Extra extra) { made.push_back(PromptItem{nullptr, nullptr, {}, extra}); };
    const bool tools = conversation_.tools_on();
    const bool format = kind == ResponseFormat::Kind::kJsonObject || kind == ResponseFormat::Kind::kJsonSchema;
    if ((tools || format) && n_system == 0) add(PromptItem::Extra::kNone);
    if (tools) add(PromptItem::Extra::kToolPrompt);
    if (format) add(PromptItem::Extra::kFormatPrompt);
    items_.insert(items_.begin() + static_cast<ptrdiff_t>(n_system), made.begin(), made.end());
  }

  void effort() {
    switch (conversation_.reasoning_effort.value_or(ReasoningEffort::kHigh)) {
      case ReasoningEffort::kLow:
        return;
      case ReasoningEffort::kHigh:
      case ReasoningEffort::kXhigh:
        return out_.plain(kHighEffort);
      case ReasoningEffort::kMax:
        return out_.plain(kMaxEffort);
    }
  }

  void item(size_t i) {
    const PromptItem& item = items_[i];
    const std::optional<Role> previous = i > 0 ? std::optional(items_[i - 1].role()) : std::nullopt;
    switch (item.role()) {
      case Role::kSystem:
        if (i > 0) out_.plain("\n\n");
        return system(item);
      case Role::kUser:
        if (previous == Role::kUser || previous == Role::kTool) {
          out_.plain("\n\n");
        } else {
          out_.special(out_.spell.user);
        }
        return out_.rich(*item.content);
      case Role::kTool:
        if (previous == Role::kTool) {
          out_.plain("\n\n");
        } else {
          out_.special(out_.spell.user);
        }
        out_.plain("<tool_result>");
        out_.rich(*item.content);
        return out_.plain("</tool_result>");
      case Role::kLatestReminder:
        out_.special(out_.spell.latest_reminder);
        return out_.rich(*item.content);
      case Role::kAssistant:
        return assistant(*item.message, i + 1 == items_.size());
    }
  }

  void system(const PromptItem& item) {
    if (item.content != nullptr) return out_.rich(*item.content);
    if (item.extra == PromptItem::Extra::kToolPrompt) {
      out_.tool_instructions(kToolsV4.tags);
      for (const ToolDefinition& tool : conversation_.tools) {
        if (tool.defer_loading) continue;
        out_.tool_definition(tool, JsonStyle::kSpaced);
        out_.plain("\n");
      }
      return out_.plain(kToolInstructionsEnd);
    }
    if (item.extra != PromptItem::Extra::kFormatPrompt) return;
    if (conversation_.response_format.kind == ResponseFormat::Kind::kJsonObject) {
      return out_.plain(
          "You are a helpful assistant designed to output JSON.\n## Response Format:\n\nReply with JSON object ONLY.");
    }
    out_.plain("## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n");
    out_.json(conversation_.response_format.schema, JsonStyle::kSpaced);
  }

  void assistant(const Message& message, bool last) {
    out_.special(out_.spell.assistant);
    out_.assistant_turn(conversation_, message, [&] { turn(message, last); });
  }

  void turn(const Message& message, bool last) {
    const bool drop_thinking = !conversation_.tools_on();
    if (message.reasoning_content && (message.prefix || !drop_thinking)) {
      out_.special(out_.spell.think_start);
      out_.assistant(*message.reasoning_content);
    }
    if (!(conversation_.thinking_mode && message.prefix && message.content.empty())) {
      out_.special(out_.spell.think_end);
    }
    out_.assistant(message.content.text);
    if (message.tool_calls) tool_calls(*message.tool_calls);
    if (!(last && message.prefix)) out_.special(out_.spell.eos);
  }

  void tool_calls(const std::vector<ToolCall>& calls) {
    std::vector<const ToolCall*> sorted;
    for (const ToolCall& call : calls) sorted.push_back(&call);
    std::stable_sort(sorted.begin(), sorted.end(), [](const ToolCall* a, const ToolCall* b) { return a->id < b->id; });
    out_.tool_calls(sorted, kToolsV4);
  }

  const Conversation& conversation_;
  PromptBuilder& out_;
  RenderedPrompt& prompt_;
  std::vector<PromptItem> items_;
  std::deque<RichText> merged_;
};

}  // namespace

void render_v4(const Conversation& conversation, PromptBuilder& out, RenderedPrompt& prompt) {
  TemplateV4(conversation, out, prompt).run();
}

}  // namespace di::codec
