// What the three conversions share (recipe.md §3.0). Internal to api/.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codec/api/reader.h"
#include "codec/codec.h"

namespace di::codec::api {

template <class... Args>
[[nodiscard]] std::unexpected<ApiError> bad_request(fmt::format_string<Args...> format, Args&&... args) {
  ApiError error;
  error.message = fmt::format(format, std::forward<Args>(args)...);
  return std::unexpected(std::move(error));
}
[[nodiscard]] inline std::unexpected<ApiError> bad_request(ApiError error) {
  return std::unexpected(std::move(error));
}
// A choice names a function that is not among the tools.
[[nodiscard]] inline std::unexpected<ApiError> unknown_function(std::string_view name) {
  return bad_request("Invalid value for 'tool_call': no function named '{}' was specified in the 'tools' parameter.",
                     name);
}

// The field that a conversion error's text is about; empty when it names none.
std::string error_param(std::string_view message);

// A failed deserialization as the API reports it.
std::unexpected<ApiError> invalid_body(const ReadError& error);

enum class Effort : uint8_t { kNone, kMinimal, kLow, kMedium, kHigh, kXhigh, kUltra, kMax };
inline constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"};

// `thinking.type`; adaptive and enabled are the same.
enum class ThinkingType : uint8_t { kAdaptive, kEnabled, kDisabled };
inline constexpr std::string_view kThinkingTypes[] = {"adaptive", "enabled", "disabled"};

struct ThinkingSettings {
  std::optional<ThinkingType> type;
  std::optional<Effort> effort;
  std::optional<int> effort_number;  // extended policy
};
void apply_thinking(const ThinkingSettings& settings, bool default_on, Conversation& conversation);

ApiResult<ModelVersion> resolve_model(std::string_view model, const CodecOptions& options);

struct SamplingRequest {
  std::optional<uint64_t> n;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::optional<float> temperature;
  std::optional<float> top_p;
  bool logprobs = false;
  std::optional<uint8_t> top_logprobs;
  std::optional<uint32_t> max_tokens;
  bool clamp_max_tokens = false;  // Messages lowers to the bound
  std::optional<uint64_t> seed;
  struct Extensions {  // read_sampling.h
    std::optional<int32_t> top_k;
    std::optional<float> min_p;
    std::map<TokenId, float> logit_bias;
  };
  Extensions extensions;
};
ApiResult<void> apply_sampling(const SamplingRequest& request, const CodecOptions& options, ConvertedRequest& out);

ApiResult<void> check_stop(const std::vector<std::string_view>& stop, bool single, std::vector<std::string>& out);

// Tools after the API's own declarations were read.
struct ToolRequest {
  std::vector<ToolDefinition> tools;
  std::vector<bool> has_parameters;  // whether `parameters` was given at all
  enum class Choice : uint8_t { kAuto, kNone, kRequired, kNamed };
  Choice choice = Choice::kAuto;
  std::string name;  // kNamed
};
ApiResult<void> validate_tool_name(std::string_view name, std::string_view path);
// Checks and normalizes the tools, applies the choice (recipe.md §3.0 "Tools").
ApiResult<void> apply_tools(ToolRequest request, const CodecOptions& options, ConvertedRequest& request_out);
// One schema of that check: normalized if strict, else compiled and required to be of type object.
ApiResult<void> check_tool_schema(ToolDefinition& tool, bool has_parameters, const CodecOptions& options);

// Response format of the conversation, and the schema the constraint gets.
struct FormatRequest {
  ResponseFormat format;
  bool given = false;   // a response format that conflicts with strict tools
  bool strict = false;  // json_schema: normalize for the constraint
};
// The schema check of json_schema; returns the constraint's schema text.
ApiResult<std::string> check_format(const FormatRequest& request, const CodecOptions& options);
ApiResult<void> apply_constraint(const FormatRequest& request, std::string schema, ConvertedRequest& out);

// Fills or refuses missing reasoning of earlier turns (recipe.md §3.0 "Reasoning history").
ApiResult<void> apply_reasoning_history(const CodecOptions& options, std::string_view field, bool request_has_tools,
                                        Conversation& conversation);

// Some message content contains "json" in any case.
bool mentions_json(const Conversation& conversation);
std::string lower_ascii(std::string_view text);

// System messages that announce tools keep the selected ones, in their checked form; those left with nothing go away.
void filter_system_tools(Conversation& conversation);

// Each API's conversion.
ApiResult<ConvertedRequest> convert_chat(const Json& body, const CodecOptions& options);
ApiResult<ConvertedRequest> convert_responses(const Json& body, const CodecOptions& options);
ApiResult<ConvertedRequest> convert_messages(const Json& body, const CodecOptions& options);

}  // namespace di::codec::api
