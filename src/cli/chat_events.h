// The events of a streamed chat as a client reads them, whoever sends them.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace di::cli {

struct ChatDelta {
  std::string_view reasoning;
  std::string_view content;
};

struct ChatEnd {
  std::string error;  // empty: the answer is complete
  std::string finish_reason;
  Json usage;
  Json::Array tool_calls;  // as an assistant message holds them
};

// The message of an error body; empty when it is none.
std::string error_message(std::string_view body);

class ChatEvents {
 public:
  // `on_delta` hears the text as it comes; returning false ends the answer.
  explicit ChatEvents(std::function<bool(const ChatDelta&)> on_delta) : on_delta_(std::move(on_delta)) {}

  // One event, or an error body. False: nothing more is wanted.
  bool take(std::string_view event);
  // The same of a stream's bytes, cut anywhere.
  bool feed(std::string_view bytes);
  void interrupt() { end_.finish_reason = "interrupted"; }
  ChatEnd end() { return std::move(end_); }

 private:
  std::function<bool(const ChatDelta&)> on_delta_;
  std::string pending_;
  ChatEnd end_;
};

}  // namespace di::cli
