#include "cli/chat_events.h"

#include <cstddef>

#include "base/result.h"

namespace di::cli {
namespace {

std::string text_member(const Json& object, std::string_view key) {
  const Json* value = object.find_value(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

// Puts a fragment of a tool call where it belongs.
void merge_tool_call(Json::Array& calls, const Json& part) {
  const Json* index = part.find_value("index");
  const auto at = static_cast<std::size_t>(index == nullptr ? 0 : index->to_u64().value_or(0));
  if (at > calls.size()) return;
  if (at == calls.size()) {
    Json function(Json::Object{});
    function.set("name", Json(""));
    function.set("arguments", Json(""));
    Json call(Json::Object{});
    call.set("id", Json(text_member(part, "id")));
    call.set("type", Json("function"));
    call.set("function", std::move(function));
    calls.push_back(std::move(call));
  }
  const Json* more = part.find_value("function");
  Json* function = calls[at].find("function");
  if (more == nullptr || function == nullptr) return;
  for (const char* key : {"name", "arguments"})
    function->set(key, Json(text_member(*function, key) + text_member(*more, key)));
}

std::string error_text(const Json& event) {
  const Json* error = event.find_value("error");
  return error == nullptr ? std::string() : text_member(*error, "message");
}

}  // namespace

std::string error_message(std::string_view body) {
  const Result<Json> json = parse_json(body);
  return json ? error_text(*json) : std::string();
}

bool ChatEvents::take(std::string_view event) {
  if (event.starts_with("data: ")) event.remove_prefix(6);
  if (event.starts_with("[DONE]")) return true;
  const Result<Json> json = parse_json(event);
  if (!json) return true;
  if (std::string message = error_text(*json); !message.empty()) {
    end_.error = std::move(message);
    return true;
  }
  if (const Json* usage = json->find_value("usage")) end_.usage = *usage;
  const Json* choices = json->find_value("choices");
  if (choices == nullptr || choices->size() == 0) return true;
  const Json& choice = choices->as_array()[0];
  if (std::string reason = text_member(choice, "finish_reason"); !reason.empty())
    end_.finish_reason = std::move(reason);
  const Json* delta = choice.find_value("delta");
  if (delta == nullptr) return true;
  if (const Json* calls = delta->find_value("tool_calls"); calls != nullptr && calls->is_array()) {
    for (const Json& part : calls->as_array()) merge_tool_call(end_.tool_calls, part);
  }
  const std::string reasoning = text_member(*delta, "reasoning_content");
  const std::string content = text_member(*delta, "content");
  if ((reasoning.empty() && content.empty()) || on_delta_({reasoning, content})) return true;
  interrupt();
  return false;
}

bool ChatEvents::feed(std::string_view bytes) {
  pending_ += bytes;
  for (std::size_t end = 0; (end = pending_.find("\n\n")) != std::string::npos;) {
    const std::string event = pending_.substr(0, end);
    pending_.erase(0, end + 2);
    if (!event.starts_with(':') && !take(event)) return false;
  }
  return true;
}

}  // namespace di::cli
