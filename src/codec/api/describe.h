// Requests written as JSON and options read from JSON, for callers without the C++ types (the C interface) and for
// comparing with the reference vectors. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "codec/codec.h"

namespace di::codec {

// {"messages":[..],"thinking_mode":..,"tools":[..],..}: every field, absent ones as null.
std::string conversation_json(const Conversation& conversation);
std::string parsing_json(const ParsingOptions& parsing);
std::string sampling_json(const SamplingOptions& sampling);
// [{"kind":"url"|"data_url","detail":..,"path":..,"url"|"data_url":..}]
std::string sources_json(const std::vector<ImageSource>& sources);
// All of the above of one request: model, model_version, stream, conversation, inference_options, parsing_options,
// namespace_tool_map, warnings.
std::string request_json(const ConvertedRequest& request);

// Members: policy "official"|"extended", default_thinking_mode, reasoning_content_behavior "FillEmpty"|"Reject",
// responses_web_search and messages_web_search "Drop"|"Reject", thinking_max_tokens_upper_bound,
// non_thinking_max_tokens_upper_bound, models (or aliases) {name: "v4"|"v41"} added to the default names,
// special_tokens {bos: spelling, ..}. null: the defaults. An unknown member is an error that names it.
Result<CodecOptions> options_from_json(const Json& value);
// chat, responses or messages.
Result<Api> api_from_name(std::string_view name);

}  // namespace di::codec
