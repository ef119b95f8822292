#include "codec/api/common.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "codec/api/json_schema.h"

namespace di::codec {

std::string ApiError::body() const {
  const char* type = http_status >= 500 ? "internal_error" : "invalid_request_error";
  std::string out;
  JsonWriter(out)
      .begin_object()
      .key("error")
      .begin_object()
      .key("message")
      .value(message)
      .key("type")
      .value(type)
      .key("param")
      .null()
      .key("code")
      .value(type)
      .end_object()
      .end_object();
  return out;
}

std::string_view to_string(OutputConstraint::Kind kind) {
  switch (kind) {
    case OutputConstraint::Kind::kJson:
      return "json";
    case OutputConstraint::Kind::kRegex:
      return "regex";
    case OutputConstraint::Kind::kToolCall:
      return "tool_call";
    case OutputConstraint::Kind::kToolCallRequired:
      return "tool_call_required";
  }
  return "json";
}

ApiResult<uint32_t> resolve_max_tokens(const ConvertedRequest& request, uint64_t prompt_tokens,
                                       uint64_t context_limit) {
  const uint64_t requested = request.sampling.max_tokens.value_or(0);
  // The sum saturates at 32 bits, as the service's does.
  const uint64_t total =
      std::max(prompt_tokens, std::min<uint64_t>(prompt_tokens + requested, std::numeric_limits<uint32_t>::max()));
  if (total > context_limit) {
    ApiError error;
    error.code = "context_length_exceeded";
    error.message = fmt::format(
        "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the messages, {} in "
        "the completion). Please reduce the length of the messages or completion.",
        context_limit, total, prompt_tokens, requested);
    return std::unexpected(std::move(error));
  }
  const Conversation& conversation = request.conversation;
  uint64_t fallback = 8192;
  if (conversation.thinking_mode) {
    fallback = conversation.reasoning_effort == ReasoningEffort::kMax ? 131072 : 65536;
  }
  const uint64_t wanted = request.sampling.max_tokens ? requested : fallback;
  return static_cast<uint32_t>(std::max<uint64_t>(1, std::min(wanted, context_limit - prompt_tokens)));
}

namespace api {

std::unexpected<ApiError> invalid_body(const ReadError& read) {
  ApiError error;
  error.stage = ApiError::Stage::kParse;
  error.message = "invalid request body: " + read.message;
  error.code = read.code;
  error.param = read.path;
  return std::unexpected(std::move(error));
}

void apply_thinking(const ThinkingSettings& settings, bool default_on, Conversation& conversation) {
  if (settings.type) {
    conversation.thinking_mode = *settings.type != ThinkingType::kDisabled;
  } else if (settings.effort) {
    conversation.thinking_mode = *settings.effort != Effort::kNone;
  } else {
    conversation.thinking_mode = settings.effort_number.has_value() || default_on;
  }
  conversation.reasoning_effort.reset();
  if (!conversation.thinking_mode) return;
  conversation.effort_number = settings.effort_number;
  switch (settings.effort.value_or(Effort::kNone)) {
    case Effort::kMinimal:
    case Effort::kLow:
      conversation.reasoning_effort = ReasoningEffort::kLow;
      break;
    case Effort::kNone:
    case Effort::kMedium:
    case Effort::kHigh:
      conversation.reasoning_effort = ReasoningEffort::kHigh;
      break;
    case Effort::kXhigh:
      conversation.reasoning_effort = ReasoningEffort::kXhigh;
      break;
    case Effort::kUltra:
    case Effort::kMax:
      conversation.reasoning_effort = ReasoningEffort::kMax;
      break;
  }
}

ApiResult<ModelVersion> resolve_model(std::string_view model, const CodecOptions& options) {
  const auto at = options.models.find(model);
  if (at != options.models.end()) return at->second;
  std::string names;
  for (const auto& [name, version] : options.models) names += (names.empty() ? "" : ", ") + name;
  ApiError error;
  error.code = "model_not_found";
  error.param = "model";
  error.message = fmt::format("The supported API model names are {}, but you passed {}.", names, model);
  return std::unexpected(std::move(error));
}

namespace {

template <class... Args>
std::unexpected<ApiError> bad_param(std::string_view param, fmt::format_string<Args...> format, Args&&... args) {
  ApiError error;
  error.param = param;
  error.message = fmt::format(format, std::forward<Args>(args)...);
  return std::unexpected(std::move(error));
}

ApiResult<void> check_ranges(const SamplingRequest& request, const CodecOptions& options) {
  const bool extended = options.policy == ApiPolicy::kExtended;
  if (request.n && *request.n != 1 && !(extended && *request.n > 0)) {
    return bad_param("n", "Invalid n value (currently only n = 1 is supported)");
  }
  const std::pair<const char*, std::optional<float>> penalties[] = {{"presence_penalty", request.presence_penalty},
                                                                    {"frequency_penalty", request.frequency_penalty}};
  for (const auto& [name, value] : penalties) {
    if (value && !(*value >= -2 && *value <= 2)) {
      return bad_param(name, "Invalid {} value, the valid range of {} is [-2, 2]", name, name);
    }
  }
  if (request.temperature && !(*request.temperature >= 0 && *request.temperature <= 2)) {
    return bad_param("temperature", "Invalid temperature value, the valid range of temperature is [0, 2]");
  }
  if (request.top_p && !(std::isfinite(*request.top_p) && *request.top_p > 0 && *request.top_p <= 1)) {
    return bad_param("top_p", "Invalid top_p value, the valid range of top_p is (0, 1.0]");
  }
  if (request.top_logprobs && !request.logprobs) {
    return bad_param("top_logprobs",
                     "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs is used.");
  }
  if (request.top_logprobs && *request.top_logprobs > 20) {
    return bad_param("top_logprobs", "Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].");
  }
  return {};
}

}  // namespace

ApiResult<void> apply_sampling(const SamplingRequest& request, const CodecOptions& options, ConvertedRequest& out) {
  DI_TRY(check_ranges(request, options));
  const Conversation& conversation = out.conversation;
  const bool thinking = conversation.thinking_mode;
  const uint32_t bound =
      thinking ? options.thinking_max_tokens_upper_bound : options.non_thinking_max_tokens_upper_bound;
  std::optional<uint32_t> max_tokens = request.max_tokens;
  if (max_tokens && request.clamp_max_tokens) max_tokens = std::min(*max_tokens, bound);
  if (max_tokens && (*max_tokens < 1 || *max_tokens > bound)) {
    return bad_param("max_tokens", "Invalid max_tokens value, the valid range of max_tokens is [1, {}]", bound);
  }
  if (request.seed && *request.seed >= uint64_t{1} << 63) {
    return bad_param("seed", "Invalid seed value, the valid range of seed is [0, 2^63)");
  }
  SamplingOptions& sampling = out.sampling;
  sampling.max_tokens = max_tokens;
  const bool open = options.open_sampling && options.policy == ApiPolicy::kExtended;
  sampling.temperature = thinking && !open ? 1.0F : request.temperature.value_or(1.0F);
  if (open) {
    sampling.top_p = request.top_p.value_or(1.0F);
  } else if (out.version == ModelVersion::kV41) {
    sampling.top_p = thinking ? std::max(request.top_p.value_or(1.0F), 0.95F) : 1.0F;
  } else if (thinking) {
    sampling.top_p = conversation.tools_on() ? 0.95F : 1.0F;
  } else {
    sampling.top_p = request.top_p.value_or(1.0F);
  }
  sampling.logprobs = request.logprobs;
  sampling.top_logprobs = request.top_logprobs;
  sampling.seed = request.seed;
  if (options.policy == ApiPolicy::kExtended) {
    sampling.n = static_cast<uint32_t>(request.n.value_or(1));
    const auto& bias = request.extensions.logit_bias;
    if (!bias.empty()) out.largest_biased_id = bias.rbegin()->first;
    if (!thinking || open) {
      sampling.presence_penalty = request.presence_penalty.value_or(0.0F);
      sampling.frequency_penalty = request.frequency_penalty.value_or(0.0F);
      sampling.top_k = request.extensions.top_k.value_or(-1);
      sampling.min_p = request.extensions.min_p.value_or(0.0F);
      sampling.logit_bias = bias;
    }
  }
  out.max_tokens_bound = bound;
  return {};
}

ApiResult<void> check_stop(const std::vector<std::string_view>& stop, bool single, std::vector<std::string>& out) {
  if (stop.size() > 16) return bad_param("stop", "Stop string array too long: {}", stop.size());
  for (size_t i = 0; i < stop.size(); ++i) {
    if (stop[i].empty()) {
      return bad_param("stop",
                       "Invalid '{}': empty string. Expected a string with minimum length 1, but got an empty string "
                       "instead.",
                       single ? std::string("stop") : fmt::format("stop[{}]", i));
    }
    out.emplace_back(stop[i]);
  }
  return {};
}

ApiResult<void> validate_tool_name(std::string_view name, std::string_view path) {
  const std::string param = fmt::format("{}.name", path);
  if (name.empty()) {
    return bad_param(param,
                     "Invalid '{}': empty string. Expected a string with minimum length 1, but got an empty string "
                     "instead.",
                     param);
  }
  if (name.size() > 128) {
    return bad_param(param,
                     "Invalid '{}': string too long. Expected a string with maximum length 128, but got a string with "
                     "length {} instead.",
                     param, name.size());
  }
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (!plain) {
    return bad_param(param,
                     "Invalid '{}': string does not match pattern. Expected a string that matches the pattern "
                     "'^[a-zA-Z0-9_-]+$'.",
                     param);
  }
  return {};
}

namespace {

// A valid schema that the official service would not take as a strict one: under the extended policy the rules of the
// constrained decoder decide.
bool beyond_subset(const Json& schema, const CodecOptions& options) {
  return options.policy == ApiPolicy::kExtended && check_json_schema(schema).has_value();
}

}  // namespace

ApiResult<void> check_tool_schema(ToolDefinition& tool, bool has_parameters, const CodecOptions& options) {
  if (tool.strict.value_or(false)) {
    if (!has_parameters) {
      tool.parameters = *parse_json(R"({"type":"object","properties":{},"additionalProperties":false,"required":[]})");
      return {};
    }
    auto normal = normalize_strict_schema(tool.parameters, true);
    if (!normal && normal.error().kind != StrictError::Kind::kTopLevel && beyond_subset(tool.parameters, options))
      return {};
    if (!normal) {
      const StrictError& error = normal.error();
      switch (error.kind) {
        case StrictError::Kind::kGrammar:
          return bad_request("Invalid tool parameters schema : {}", error.message);
        case StrictError::Kind::kTopLevel:
          return bad_request("The top level of the function parameters schema must be an object.");
        case StrictError::Kind::kRule:
          return bad_request("{}", error.message);
      }
    }
    tool.parameters = *std::move(normal);
    return {};
  }
  if (!has_parameters) {
    tool.parameters = Json(Json::Object{});
    return {};
  }
  if (const auto valid = check_json_schema(tool.parameters); !valid) {
    return bad_request("Invalid schema for function '{}': {}", tool.name, valid.error());
  }
  const Json* type = tool.parameters.find("type");
  if (type == nullptr || !type->is_string() || type->as_string() != "object") {
    return bad_request(
        "Invalid schema for function '{}': schema must be a JSON Schema of 'type: \"object\"', got 'type: {}'.",
        tool.name, type != nullptr ? to_json(*type) : "null");
  }
  return {};
}

ApiResult<void> apply_tools(ToolRequest request, const CodecOptions& options, ConvertedRequest& request_out) {
  using Choice = ToolRequest::Choice;
  Conversation& out = request_out.conversation;
  const bool extended = options.policy == ApiPolicy::kExtended;
  out.tools.clear();
  out.tool_choice = ToolChoice::kAuto;
  if (request.choice == Choice::kNone) {
    out.tool_choice = ToolChoice::kNone;
    return {};
  }
  if (request.tools.empty()) {
    if (extended && request.choice != Choice::kAuto) {
      return bad_param("tool_choice", "tool_choice asks for a tool call, but no tools were given");
    }
    return {};
  }
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < request.tools.size(); ++i) {
    if (!names.insert(request.tools[i].name).second) return bad_request("Tool names must be unique.");
    DI_TRY(check_tool_schema(request.tools[i], request.has_parameters[i], options));
  }
  if (request.choice == Choice::kNamed) {
    const auto at = std::find_if(request.tools.begin(), request.tools.end(),
                                 [&](const ToolDefinition& tool) { return tool.name == request.name; });
    if (at == request.tools.end()) {
      return unknown_function(request.name);
    }
    ToolDefinition chosen = std::move(*at);
    request.tools.clear();
    request.tools.push_back(std::move(chosen));
  }
  if (request.choice != Choice::kAuto) {
    if (out.thinking_mode && !extended) return bad_request("Thinking mode does not support this tool_choice");
    request_out.forced_call_after_thinking = out.thinking_mode;
    if (!out.thinking_mode) out.tool_choice = ToolChoice::kRequired;
  }
  out.tools = std::move(request.tools);
  return {};
}

ApiResult<std::string> check_format(const FormatRequest& request, const CodecOptions& options) {
  if (request.format.kind != ResponseFormat::Kind::kJsonSchema) return std::string();
  if (request.strict) {
    auto normal = normalize_strict_schema(request.format.schema, false);
    if (!normal) {
      const StrictError& error = normal.error();
      if (beyond_subset(request.format.schema, options)) return to_json(request.format.schema);
      switch (error.kind) {
        case StrictError::Kind::kGrammar:
          return bad_request("Invalid json schema: {}", error.message);
        case StrictError::Kind::kTopLevel:
          return bad_request("The top level of the json schema must be an object.");
        case StrictError::Kind::kRule:
          return bad_request("{}", error.message);
      }
    }
    return to_json(*normal);
  }
  if (const auto valid = check_json_schema(request.format.schema); !valid) {
    return bad_request("Invalid json schema: {}", valid.error());
  }
  return to_json(request.format.schema);
}

namespace {

std::string tool_list_json(const std::vector<ToolDefinition>& tools) {
  std::string out;
  JsonWriter w(out);
  w.begin_array();
  for (const ToolDefinition& tool : tools) {
    w.begin_object().key("type").value("function").key("function").begin_object();
    w.key("name").value(tool.name).key("description").value(tool.description);
    w.key("parameters").value(tool.parameters).key("strict").value(tool.strict).end_object();
    if (tool.defer_loading) w.key("defer_loading").value(true);
    w.end_object();
  }
  w.end_array();
  return out;
}

}  // namespace

ApiResult<void> apply_constraint(const FormatRequest& request, std::string schema, ConvertedRequest& out) {
  using Kind = OutputConstraint::Kind;
  const Conversation& conversation = out.conversation;
  if (conversation.tools_on()) {
    const auto strict = [](const ToolDefinition& tool) { return tool.strict.value_or(false); };
    const auto n_strict = std::count_if(conversation.tools.begin(), conversation.tools.end(), strict);
    const bool all = static_cast<size_t>(n_strict) == conversation.tools.size();
    if (n_strict > 0 && !all) return bad_request("Cannot use strict tool with non-strict tool in the same request");
    if (all && request.given) return bad_request("response_format should not be used with tools");
    const bool required = conversation.tool_choice == ToolChoice::kRequired || out.forced_call_after_thinking;
    out.sampling.constraint =
        OutputConstraint{required ? Kind::kToolCallRequired : Kind::kToolCall, tool_list_json(conversation.tools)};
    return {};
  }
  switch (request.format.kind) {
    case ResponseFormat::Kind::kText:
      break;
    case ResponseFormat::Kind::kJsonObject:
      out.sampling.constraint = OutputConstraint{Kind::kJson, ""};
      break;
    case ResponseFormat::Kind::kJsonSchema:
      out.sampling.constraint = OutputConstraint{Kind::kJson, std::move(schema)};
      break;
    case ResponseFormat::Kind::kRegex:
      out.sampling.constraint = OutputConstraint{Kind::kRegex, request.format.regex};
      break;
  }
  return {};
}

namespace {

// An id that this codec made while no reasoning had been emitted: "call_00_ET_…" or "toolu_ET…" (recipe.md §5.1, §3.0).
bool has_empty_thinking_marker(std::string_view id) {
  const bool ascii = std::all_of(id.begin(), id.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (!ascii) return false;
  return (id.size() >= 11 && id.substr(8, 3) == "ET_") || (id.size() >= 8 && id.substr(6, 2) == "ET");
}

bool needs_reasoning(const Message& message, bool request_has_tools) {
  if (message.role != Message::Role::kAssistant || message.reasoning_content) return false;
  if (!message.tool_calls && !request_has_tools) return false;
  if (!message.tool_calls) return true;
  return std::none_of(message.tool_calls->begin(), message.tool_calls->end(),
                      [](const ToolCall& call) { return has_empty_thinking_marker(call.id); });
}

}  // namespace

ApiResult<void> apply_reasoning_history(const CodecOptions& options, std::string_view field, bool request_has_tools,
                                        Conversation& conversation) {
  auto& messages = conversation.messages;
  if (!conversation.thinking_mode) {
    for (Message& message : messages) message.reasoning_content.reset();
    return {};
  }
  if (options.missing_reasoning == MissingReasoning::kReject) {
    const auto last_user = std::find_if(messages.rbegin(), messages.rend(),
                                        [](const Message& m) { return m.role == Message::Role::kUser; });
    for (auto at = last_user.base(); at != messages.end(); ++at) {
      if (needs_reasoning(*at, request_has_tools) && !(options.knows_turn && options.knows_turn(*at))) {
        return bad_request("The `{}` in the thinking mode must be passed back to the API.", field);
      }
    }
  }
  for (Message& message : messages) {
    if (message.role == Message::Role::kAssistant && !message.reasoning_content) message.reasoning_content.emplace();
  }
  return {};
}

std::string lower_ascii(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return out;
}

bool mentions_json(const Conversation& conversation) {
  const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b; };
  constexpr std::string_view kWord = "json";
  return std::any_of(conversation.messages.begin(), conversation.messages.end(), [&](const Message& message) {
    const std::string& text = message.content.text;
    return std::search(text.begin(), text.end(), kWord.begin(), kWord.end(), same) != text.end();
  });
}

}  // namespace api

ApiResult<ConvertedRequest> convert_parsed_request(Api api, const Json& body, const CodecOptions& options) {
  ApiResult<ConvertedRequest> request = api == Api::kChat        ? api::convert_chat(body, options)
                                        : api == Api::kResponses ? api::convert_responses(body, options)
                                                                 : api::convert_messages(body, options);
  if (request) {
    request->parsing.lenient_dsml = options.policy == ApiPolicy::kExtended;
  } else if (request.error().param.empty()) {
    request.error().param = api::error_param(request.error().message);
  }
  return request;
}

ApiResult<ConvertedRequest> convert_request(Api api, std::string_view body, const CodecOptions& options) {
  Result<Json> json = parse_json(body);
  if (!json) {
    ApiError error;
    error.stage = ApiError::Stage::kParse;
    error.message = "invalid JSON request: " + json.error().message;
    error.code = json.error().message.starts_with("recursion limit") ? "json_too_deep" : "invalid_json";
    return std::unexpected(std::move(error));
  }
  return convert_parsed_request(api, *json, options);
}

}  // namespace di::codec
