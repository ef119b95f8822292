// Any bytes as model output, cut into pieces: every event is JSON, the body is JSON, streamed text equals the body's
// text, and no more is held back than markers can need. The first two bytes choose API and options.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "codec/codec.h"
#include "codec/tokenizer/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace di::codec;
  if (size < 2) return 0;
  ConvertedRequest request;
  request.api = static_cast<Api>(data[0] % 3);
  request.stream = true;
  request.conversation.thinking_mode = (data[0] & 4) != 0;
  if (request.conversation.thinking_mode) request.parsing.thinking_start = static_cast<ThinkingStart>(data[1] % 3);
  request.parsing.parse_tool_calls = (data[0] & 8) != 0;
  request.parsing.starts_in_tool_calls = (data[0] & 16) != 0;
  request.parsing.parse_json_output = (data[0] & 32) != 0;
  if ((data[0] & 64) != 0) request.parsing.stop_sequences = {"ab", "\n\n", "aab"};
  request.echo.custom_tools = {"apply_patch"};
  request.echo.client_tool_search = true;
  std::string text;
  append_utf8_lossy(text, std::string_view(reinterpret_cast<const char*>(data) + 2, size - 2));

  OutputProcessor output(request, nullptr, ResponseInfo{});
  std::vector<StreamEvent> events;
  output.ready({1, 0}, "fp", events);
  for (size_t at = 0, step = 1; at < text.size() && !output.done(); ++step) {
    size_t end = std::min(text.size(), at + 1 + (data[1] + step * 7) % 11);
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    if (!output.text(std::string_view(text).substr(at, end - at), 1, events)) std::abort();
    at = end;
  }
  if (!output.done() && (data[0] & 128) != 0) output.finish(FinishReason::kLength, events);
  output.close(events);
  std::string content;
  for (const StreamEvent& event : events) {
    const di::Result<di::Json> json = di::parse_json(event.data);
    if (!json) std::abort();
    if (request.api != Api::kChat) continue;
    const di::Json* part = json->find("choices")->as_array()[0].find("delta")->find_value("content");
    if (part != nullptr) content += part->as_string();
  }
  const di::Result<di::Json> body = di::parse_json(output.body());
  if (!body) std::abort();
  if (request.api == Api::kChat &&
      body->find("choices")->as_array()[0].find("message")->find("content")->as_string() != content) {
    std::abort();
  }
  return 0;
}
