// Any bytes as a request body of each API, under both policies: an error with a message, or a conversation that renders
// to text whose special ranges are in order and inside it. Also covers the JSON parser.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "codec/codec.h"

namespace {

using namespace di::codec;

void check(Api api, std::string_view body, const CodecOptions& options) {
  const auto request = convert_request(api, body, options);
  if (!request) {
    if (request.error().message.empty()) std::abort();
    if (!di::parse_json(request.error().body())) std::abort();
    return;
  }
  for (const ModelVersion version : {ModelVersion::kV4, ModelVersion::kV41}) {
    const RenderedPrompt prompt = render_conversation(request->conversation, version, options.special);
    size_t at = 0;
    for (const auto& [begin, end] : prompt.special_ranges) {
      if (begin < at || end <= begin || end > prompt.text.size()) std::abort();
      at = end;
    }
  }
  const auto tokens = resolve_max_tokens(*request, 1000, 1 << 20);
  if (tokens && *tokens == 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const ApiPolicy policy : {ApiPolicy::kOfficial, ApiPolicy::kExtended}) {
    CodecOptions options;
    options.policy = policy;
    options.models["m"] = ModelVersion::kV41;
    options.models["n"] = ModelVersion::kV4;
    options.missing_reasoning = size % 2 == 0 ? MissingReasoning::kFillEmpty : MissingReasoning::kReject;
    for (const Api api : {Api::kChat, Api::kResponses, Api::kMessages}) check(api, body, options);
  }
  return 0;
}
