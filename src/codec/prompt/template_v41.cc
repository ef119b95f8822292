// The V4.1 template (recipe.md §2.6).
#include <algorithm>
#include <deque>
#include <unordered_map>

#include "codec/prompt/builder.h"

namespace di::codec {

namespace {

using Role = Message::Role;

class TemplateV41 {
 public:
  TemplateV41(const Conversation& conversation, PromptBuilder& out, RenderedPrompt& prompt)
      : conversation_(conversation), out_(out), prompt_(prompt) {
    const auto kind = conversation.response_format.kind;
    format_ = kind == ResponseFormat::Kind::kJsonObject || kind == ResponseFormat::Kind::kJsonSchema;
  }

  void run() {
    normalize();
    out_.special(out_.spell.bos);
    for (size_t i = 0; i < items_.size(); ++i) {
      if (i == 0) prologue();
      item(i);
      for (const auto* images : items_[i].images) {
        prompt_.image_sources.insert(prompt_.image_sources.end(), images->begin(), images->end());
      }
    }
    const bool continues = !items_.empty() && items_.back().role() == Role::kAssistant && items_.back().message->prefix;
    out_.answer_start(conversation_, continues, kToolsV41);
  }

 private:
  void normalize() {
    for (const Message& message : conversation_.messages) {
      const bool follows_same = !items_.empty() && items_.back().role() == message.role;
      if (follows_same && message.role == Role::kUser) {
        merge_user(items_.back(), message);
      } else if (!(follows_same && message.role == Role::kLatestReminder)) {
        items_.push_back(PromptItem{&message, &message.content, {&message.image_sources}, PromptItem::Extra::kNone});
      }
    }
    sort_tool_results();
    if ((conversation_.tools_on() || format_) && (items_.empty() || items_[0].role() != Role::kSystem)) {
      items_.insert(items_.begin(), PromptItem{});
    }
  }

  void merge_user(PromptItem& item, const Message& message) {
    item.images.push_back(&message.image_sources);
    if (merged_.empty() || item.content != &merged_.back()) item.content = &merged_.emplace_back(*item.content);
    merged_.back().append("\n\n");
    merged_.back().append(message.content);
  }

  // Tool results of a run of User/Tool messages take the order of the calls they answer, in the slots they occupy.
  void sort_tool_results() {
    const std::vector<ToolCall>* calls = nullptr;
    for (size_t i = 0; i < items_.size();) {
      const Role role = items_[i].role();
      if (role != Role::kUser && role != Role::kTool) {
        const Message* message = items_[i].message;
        if (role == Role::kAssistant && message->tool_calls && !message->tool_calls->empty()) {
          calls = &*message->tool_calls;
        }
        ++i;
        continue;
      }
      std::vector<size_t> slots;
      for (; i < items_.size() && (items_[i].role() == Role::kUser || items_[i].role() == Role::kTool); ++i) {
        if (items_[i].role() == Role::kTool && items_[i].message->tool_call_id) slots.push_back(i);
      }
      if (calls != nullptr && slots.size() > 1) sort_slots(slots, *calls);
    }
  }

  void sort_slots(const std::vector<size_t>& slots, const std::vector<ToolCall>& calls) {
    std::unordered_map<std::string_view, size_t> position;
    for (size_t i = 0; i < calls.size(); ++i) position.emplace(calls[i].id, i);
    const auto rank = [&](const PromptItem& item) {
      const auto at = position.find(*item.message->tool_call_id);
      return at != position.end() ? at->second : 0;
    };
    std::vector<PromptItem> results;
    for (const size_t slot : slots) results.push_back(std::move(items_[slot]));
    std::stable_sort(results.begin(), results.end(),
                     [&](const PromptItem& a, const PromptItem& b) { return rank(a) < rank(b); });
    for (size_t i = 0; i < slots.size(); ++i) items_[slots[i]] = std::move(results[i]);
  }

  void prologue() {
    if (!conversation_.thinking_mode) {
      if (items_[0].role() == Role::kSystem) out_.special(out_.spell.system);
      return;
    }
    int effort = 75;
    if (conversation_.reasoning_effort == ReasoningEffort::kLow) effort = 50;
    if (conversation_.reasoning_effort == ReasoningEffort::kMax) effort = 100;
    if (conversation_.effort_number) effort = *conversation_.effort_number;
    out_.special(out_.spell.system);
    out_.plain(fmt::format(
        "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n", effort));
  }

  void item(size_t i) {
    const PromptItem& item = items_[i];
    const std::optional<Role> previous = i > 0 ? std::optional(items_[i - 1].role()) : std::nullopt;
    switch (item.role()) {
      case Role::kSystem:
        return system(item, i);
      case Role::kUser:
        turn(previous);
        return out_.rich(*item.content);
      case Role::kTool:
        turn(previous);
        out_.plain("<tool_result>");
        out_.rich(*item.content);
        return out_.plain("</tool_result>");
      case Role::kLatestReminder:
        out_.special(out_.spell.latest_reminder);
        return out_.rich(*item.content);
      case Role::kAssistant:
        return assistant(*item.message, i);
    }
  }

  void turn(std::optional<Role> previous) {
    if (previous == Role::kUser || previous == Role::kTool) {
      out_.plain("\n\n");
    } else {
      out_.special(out_.spell.user);
    }
  }

  void system(const PromptItem& item, size_t i) {
    if (i > 0) out_.special(out_.spell.system);
    if (item.content != nullptr) out_.rich(*item.content);
    if (i == 0) {
      if (conversation_.tools_on()) {
        out_.plain("\n\n");
        out_.tool_instructions(kToolsV41.tags);
        definitions(conversation_.tools, false);
        out_.plain("\n");
        out_.plain(kToolInstructionsEnd);
      }
      if (format_) response_format();
    }
    if (item.message != nullptr && item.message->tools && !item.message->tools->empty()) {
      out_.plain("\n\n### Updated Tool Schemas\n\n");
      definitions(*item.message->tools, true);
    }
  }

  void definitions(const std::vector<ToolDefinition>& tools, bool deferred_too) {
    bool first = true;
    for (const ToolDefinition& tool : tools) {
      if (tool.defer_loading && !deferred_too) continue;
      if (!first) out_.plain("\n");
      first = false;
      out_.tool_definition(tool, JsonStyle::kPython);
    }
  }

  void response_format() {
    out_.plain("\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n");
    if (conversation_.response_format.kind == ResponseFormat::Kind::kJsonObject) {
      out_.plain("{\"type\": \"json_object\"}");
    } else {
      out_.json(conversation_.response_format.schema, JsonStyle::kPython);
    }
  }

  void assistant(const Message& message, size_t i) {
    const bool drop_thinking = !conversation_.tools_on();
    const bool show = conversation_.thinking_mode && i > 0 && (!drop_thinking || message.prefix);
    const bool has_calls = message.tool_calls && !message.tool_calls->empty();
    const bool reasoning = show && message.reasoning_content && !message.reasoning_content->empty();
    const bool ends_thinking = show && !(message.prefix && message.content.empty() && !has_calls);
    const bool starts_thinking =
        reasoning || (ends_thinking && !out_.spell.think_end.empty()) || (show && message.prefix);
    out_.special(out_.spell.assistant);
    out_.assistant_turn(conversation_, message, [&] {
      out_.special(starts_thinking ? out_.spell.think_start : out_.spell.think_end);
      if (reasoning) out_.assistant(*message.reasoning_content);
      if (ends_thinking) out_.special(out_.spell.think_end);
      out_.assistant(message.content.text);
      if (has_calls) tool_calls(*message.tool_calls);
      if (!message.prefix) out_.special(out_.spell.eos);
    });
  }

  void tool_calls(const std::vector<ToolCall>& calls) {
    std::vector<const ToolCall*> in_order;
    for (const ToolCall& call : calls) in_order.push_back(&call);
    out_.tool_calls(in_order, kToolsV41);
  }

  const Conversation& conversation_;
  PromptBuilder& out_;
  RenderedPrompt& prompt_;
  bool format_ = false;
  std::vector<PromptItem> items_;
  std::deque<RichText> merged_;
};

}  // namespace

void render_v41(const Conversation& conversation, PromptBuilder& out, RenderedPrompt& prompt) {
  TemplateV41(conversation, out, prompt).run();
}

}  // namespace di::codec
