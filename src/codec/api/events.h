// Output of one choice -> events and response body of one API (recipe.md §6). Internal to api/.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "codec/codec.h"
#include "codec/parser/stream_decoder.h"

namespace di::codec::api {

// How the output ended (recipe.md §4.5).
enum class EndKind : uint8_t { kStop, kStopSequence, kLength, kContentFilter, kToolCalls, kEndOfStream };

// What a writer may read while it writes; owned by the processor, current at every call.
struct ResponseState {
  const ConvertedRequest* request = nullptr;
  ResponseInfo info;
  std::optional<std::string> fingerprint;
  Usage usage;
  std::vector<StreamEvent>* out = nullptr;  // of the call being served

  bool thinking() const { return request->conversation.thinking_mode; }
  // The output begins inside reasoning.
  bool starts_in_reasoning() const {
    const auto& start = request->parsing.thinking_start;
    return start && *start != ThinkingStart::kContentContinuation && !request->parsing.starts_in_tool_calls;
  }
  void emit(std::string_view name, std::string data) const { out->push_back({name, std::move(data)}); }
};

class EventWriter {
 public:
  virtual ~EventWriter() = default;
  virtual void start() = 0;
  virtual void content(std::string_view text, const LogprobListRef& logprobs) = 0;
  virtual void reasoning(std::string_view text, const LogprobListRef& logprobs) = 0;
  virtual void call_begin(size_t index, const ToolCall& call) = 0;
  virtual void call_arguments(size_t index, std::string_view text) = 0;
  virtual void finish(EndKind end, const std::string& stop_text) = 0;
  virtual std::string body() const = 0;
  // Chat only.
  virtual std::string choice() const { return {}; }
};

std::unique_ptr<EventWriter> make_chat_writer(const ResponseState& state);
std::unique_ptr<EventWriter> make_responses_writer(const ResponseState& state);
std::unique_ptr<EventWriter> make_messages_writer(const ResponseState& state);

// [{"token","logprob","bytes","top_logprobs":[…]}, …] without the brackets.
void append_logprobs(std::string& out, const LogprobList& list);
std::string_view chat_finish_reason(EndKind end);

// A call id that shows whether reasoning came before it (recipe.md §5.1). `random` yields 20 characters of [A-Za-z0-9].
std::string make_tool_call_id(size_t index, bool empty_thinking, const std::string& random);

}  // namespace di::codec::api
