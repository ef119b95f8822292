#include "cli/stream_check.h"

#include <fmt/format.h>

namespace di::cli {
namespace {

std::string text_of(const Json& object, std::string_view key) {
  const Json* value = object.find_value(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

int64_t integer_of(const Json& object, std::string_view key, int64_t otherwise) {
  const Json* value = object.find_value(key);
  return value == nullptr ? otherwise : value->to_i64().value_or(otherwise);
}

}  // namespace

void StreamCheck::take(const Json& event) {
  if (done_) say("an event after the last one");
  const Json* choices = event.find_value("choices");
  if (choices == nullptr && event.find_value("error") != nullptr) {
    ended_by_error_ = true;
    return;
  }
  if (choices != nullptr && choices->is_array()) return take_chunk(event, *choices);
  const std::string type = text_of(event, "type");
  if (type.empty()) return say("an event without choices and without a type");
  type.starts_with("response.") ? take_response_event(type, event) : take_message_event(type, event);
}

// Chat Completions and Completions.
void StreamCheck::take_chunk(const Json& chunk, const Json& choices) {
  const std::string identity =
      fmt::format("{} {} {}", text_of(chunk, "id"), text_of(chunk, "model"), integer_of(chunk, "created", -1));
  if (api_ == Api::kUnknown) identity_ = identity;
  api_ = Api::kChunks;
  if (identity != identity_) say(fmt::format("id, model and created change: {} after {}", identity, identity_));
  for (const Json& choice : choices.as_array()) take_choice(choice, integer_of(choice, "index", 0));
}

void StreamCheck::take_choice(const Json& choice, int64_t index) {
  bool& over = choices_[index];
  if (over) say(fmt::format("choice {} goes on after its finish_reason", index));
  if (const Json* reason = choice.find("finish_reason"); reason == nullptr) {
    say(fmt::format("choice {} has no finish_reason", index));
  } else if (!reason->is_null()) {
    over = true;
    if (!reason->is_string() || reason->as_string().empty()) say("a finish_reason that is no text");
  }
  const Json* delta = choice.find_value("delta");
  if (delta == nullptr) return;
  int texts = 0;
  for (const char* key : {"content", "reasoning_content"}) texts += text_of(*delta, key).empty() ? 0 : 1;
  if (texts + (delta->find_value("tool_calls") != nullptr ? 1 : 0) > 1) say("a delta with two kinds of text");
}

void StreamCheck::take_response_event(std::string_view type, const Json& event) {
  api_ = Api::kResponses;
  const int64_t number = integer_of(event, "sequence_number", -1);
  if (number != next_number_) say(fmt::format("sequence_number {} after {}", number, next_number_ - 1));
  next_number_ = number + 1;
  if (number == 0 && type != "response.created") say(fmt::format("the stream begins with {}", type));
  if (type == "response.completed" || type == "response.incomplete") done_ = true;
  if (type == "response.failed") ended_by_error_ = done_ = true;
}

void StreamCheck::take_message_event(std::string_view type, const Json& event) {
  if (type == "ping") return;
  if (api_ == Api::kUnknown && type != "message_start") say(fmt::format("the stream begins with {}", type));
  api_ = Api::kMessages;
  const int64_t index = integer_of(event, "index", -1);
  if (type == "content_block_start") {
    if (open_block_ >= 0 || index != next_block_) say(fmt::format("block {} begins out of turn", index));
    open_block_ = index;
    next_block_ = index + 1;
  } else if (type == "content_block_delta" && index != open_block_) {
    say(fmt::format("a delta of block {}, which is not open", index));
  } else if (type == "content_block_stop") {
    if (index != open_block_) say(fmt::format("block {} ends, which is not open", index));
    open_block_ = -1;
  } else if (type == "message_delta") {
    const Json* delta = event.find_value("delta");
    has_stop_reason_ = delta != nullptr && !text_of(*delta, "stop_reason").empty();
  } else if (type == "message_stop") {
    if (open_block_ >= 0) say("the message ends with an open block");
    if (!has_stop_reason_) say("the message ends without a stop_reason");
    done_ = true;
  }
}

void StreamCheck::done() {
  if (done_ || (api_ != Api::kChunks && !ended_by_error_)) say("[DONE] where it does not belong");
  done_ = true;
  for (const auto& [index, over] : choices_) {
    if (!over && !ended_by_error_) say(fmt::format("choice {} has no finish_reason at the end", index));
  }
}

void StreamCheck::end() {
  if (!done_ && !ended_by_error_) say("the stream ends without its last event");
}

}  // namespace di::cli
