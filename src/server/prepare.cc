#include "server/prepare.h"

#include <algorithm>
#include <charconv>

#include "base/log.h"
#include "base/rng.h"
#include "server/fields.h"

namespace di::server {
namespace {

std::optional<ApiFailure> over_limit(std::string_view field, size_t found, int64_t limit) {
  if (static_cast<int64_t>(found) <= limit) return std::nullopt;
  return ApiFailure{ErrorKind::kInvalidRequest,
                    fmt::format("{}: {} are given, at most {} are accepted", field, found, limit),
                    {},
                    std::string(field),
                    0};
}

// Sizes that only this server bounds (server.md §2).
std::optional<ApiFailure> check_limits(const Json& body, const codec::ConvertedRequest& request,
                                       const ServerConfig& config) {
  const auto members = [&](std::string_view key) {
    const Json* value = body.find_value(key);
    return value == nullptr || !value->is_array() ? size_t{0} : value->size();
  };
  for (const std::string_view field : {"messages", "input"}) {
    if (auto failure = over_limit(field, members(field), config.max_messages)) return failure;
  }
  if (auto failure = over_limit("tools", members("tools"), config.max_tools)) return failure;
  if (auto failure = over_limit("n", request.sampling.n, config.max_n)) return failure;
  for (const std::string& stop : request.parsing.stop_sequences) {
    if (static_cast<int64_t>(stop.size()) > config.max_stop_bytes) {
      return ApiFailure{
          ErrorKind::kInvalidRequest,
          fmt::format("stop: a stop string has {} bytes, at most {} are accepted", stop.size(), config.max_stop_bytes),
          {},
          "stop",
          0};
    }
  }
  return std::nullopt;
}

std::optional<int64_t> header_number(const HttpRequest& http, std::string_view name) {
  const std::string_view text = http.header(name);
  int64_t out = 0;
  const char* end = text.data() + text.size();
  if (text.empty() || std::from_chars(text.data(), end, out).ptr != end) return std::nullopt;
  return out;
}

// Members that the APIs define; further ones of ours and of vLLM's and SGLang's clients are in kExtensions.
constexpr std::string_view kChatFields[] = {"messages",
                                            "model",
                                            "frequency_penalty",
                                            "logprobs",
                                            "top_logprobs",
                                            "max_tokens",
                                            "max_completion_tokens",
                                            "n",
                                            "presence_penalty",
                                            "seed",
                                            "stop",
                                            "stream",
                                            "stream_options",
                                            "temperature",
                                            "top_p",
                                            "response_format",
                                            "tools",
                                            "tool_choice",
                                            "reasoning_effort",
                                            "thinking",
                                            "parallel_tool_calls",
                                            "logit_bias",
                                            "user",
                                            "user_id",
                                            "store",
                                            "metadata",
                                            "service_tier",
                                            "modalities",
                                            "prediction",
                                            "verbosity",
                                            "functions",
                                            "function_call",
                                            "safety_identifier",
                                            "prompt_cache_key",
                                            "prompt_cache_retention",
                                            "web_search_options",
                                            "audio"};
constexpr std::string_view kResponsesFields[] = {"input",
                                                 "model",
                                                 "instructions",
                                                 "tools",
                                                 "tool_choice",
                                                 "parallel_tool_calls",
                                                 "max_output_tokens",
                                                 "max_tool_calls",
                                                 "reasoning",
                                                 "text",
                                                 "temperature",
                                                 "top_p",
                                                 "top_logprobs",
                                                 "include",
                                                 "truncation",
                                                 "metadata",
                                                 "user",
                                                 "user_id",
                                                 "safety_identifier",
                                                 "prompt_cache_key",
                                                 "prompt_cache_retention",
                                                 "prompt_cache_options",
                                                 "service_tier",
                                                 "stream",
                                                 "stream_options",
                                                 "store",
                                                 "previous_response_id",
                                                 "background",
                                                 "conversation",
                                                 "prompt",
                                                 "client_metadata"};
constexpr std::string_view kMessagesFields[] = {
    "model",         "max_tokens",         "messages",      "system",        "temperature", "top_p",
    "top_k",         "stop_sequences",     "stream",        "tools",         "tool_choice", "thinking",
    "output_config", "output_format",      "metadata",      "cache_control", "container",   "mcp_servers",
    "service_tier",  "context_management", "inference_geo", "betas"};
constexpr std::string_view kExtensions[] = {"top_k",
                                            "min_p",
                                            "repetition_penalty",
                                            "seed",
                                            "stop_token_ids",
                                            "ignore_eos",
                                            "min_tokens",
                                            "include_stop_str_in_output",
                                            "skip_special_tokens",
                                            "structured_outputs",
                                            "guided_json",
                                            "guided_regex",
                                            "guided_choice",
                                            "guided_grammar",
                                            "prompt_logprobs",
                                            "allowed_token_ids",
                                            "bad_words",
                                            "logprob_token_ids",
                                            "cache_salt",
                                            "traffic_class",
                                            "no_store",
                                            "priority",
                                            "request_id",
                                            "session_id",
                                            "kv_transfer_params",
                                            "return_token_ids",
                                            "return_tokens_as_token_ids",
                                            "chat_template",
                                            "chat_template_kwargs",
                                            "echo",
                                            "add_generation_prompt",
                                            "continue_final_message",
                                            "deepinfer",
                                            "add_special_tokens",
                                            "spaces_between_special_tokens"};

}  // namespace

ApiFailure from_api_error(const codec::ApiError& error) {
  ApiFailure failure{ErrorKind::kInvalidRequest, error.message, error.code, error.param, 0};
  if (error.message.starts_with("Invalid json schema")) failure.code = "invalid_json_schema";
  // A null member is as good as an absent one (server.md §2); a null body or list element is not.
  if (error.code == "invalid_type" && error.message.find("invalid type: null") != std::string::npos &&
      !error.param.empty() && !error.param.ends_with(']'))
    failure.code = "missing_field";
  if (error.http_status >= 500) failure = {ErrorKind::kInternal, "internal error", {}, {}, 0};
  if (error.code == "model_not_found") failure.kind = ErrorKind::kModelNotFound;
  if (error.code == "context_length_exceeded") failure.kind = ErrorKind::kContextLength;
  return failure;
}

std::expected<Json, ApiFailure> parse_body(codec::Api api, std::string_view body, const codec::CodecOptions& options) {
  if (body.starts_with("\xEF\xBB\xBF")) body.remove_prefix(3);
  if (Result<Json> json = parse_json(body)) return std::move(*json);
  const auto error = codec::convert_request(api, body, options);
  if (error)
    return std::unexpected(ApiFailure{ErrorKind::kInvalidRequest, "the body is not valid JSON", "invalid_json", {}, 0});
  return std::unexpected(from_api_error(error.error()));
}

void take_request_id(Exchange& exchange, const Json& body) {
  if (!body.is_object() || is_request_id(exchange.request().header("x-request-id"))) return;
  const Json* id = body.find_value("request_id");
  const std::string* name = id == nullptr ? nullptr : id->if_string();
  if (name != nullptr && is_request_id(*name)) exchange.rename(*name);
}

std::expected<void, ApiFailure> check_known_fields(App& app, codec::Api api, const Json& body) {
  if (!body.is_object()) return {};
  using Names = std::span<const std::string_view>;
  const Names known = api == codec::Api::kChat        ? Names(kChatFields)
                      : api == codec::Api::kResponses ? Names(kResponsesFields)
                                                      : Names(kMessagesFields);
  const auto has = [](std::span<const std::string_view> names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const JsonMember& member : body.as_object()) {
    if (has(known, member.key) || has(kExtensions, member.key)) continue;
    app.metrics().unknown_fields.add();
    if (app.config().strict_fields)
      return invalid_field(member.key.substr(0, 100), fmt::format("unknown field `{}`", member.key.substr(0, 100)),
                           "unknown_field");
  }
  return {};
}

namespace {

// Where the reasoning is missing that the codec asked for: after the last message of the user.
std::string missing_reasoning(const Json& body) {
  const Json* messages = body.find_value("messages");
  if (messages == nullptr || !messages->is_array()) return body.find_value("input") != nullptr ? "input" : "messages";
  std::string out = "messages";
  for (size_t i = messages->size(); i-- > 0;) {
    const Json& message = messages->as_array()[i];
    const Json* role = message.find_value("role");
    if (role == nullptr || !role->is_string()) break;
    if (role->as_string() == "user") break;
    if (role->as_string() == "assistant" && message.find_value("reasoning_content") == nullptr)
      out = fmt::format("messages[{}].reasoning_content", i);
  }
  return out;
}

}  // namespace

std::expected<codec::ConvertedRequest, ApiFailure> convert_body(App& app, const std::string& tenant, codec::Api api,
                                                                const Json& body, const codec::CodecOptions& options) {
  const bool extended = options.policy == codec::ApiPolicy::kExtended;
  if (extended) {
    if (auto ok = check_known_fields(app, api, body); !ok) return std::unexpected(ok.error());
  }
  const Json* model = body.find_value("model");
  const std::string* name = model == nullptr ? nullptr : model->if_string();
  const bool mapped =
      api == codec::Api::kMessages && name != nullptr && name->starts_with("claude") && !options.models.contains(*name);
  const std::string& served = app.config().served_model_names[0];
  codec::ReplayStore* turns = app.turns();
  // An older name for "without thinking", unless the request says otherwise (server.md §4.1).
  const bool plain = name != nullptr && *name == "deepseek-chat" && options.default_thinking_mode && extended;
  const bool restores = turns != nullptr && options.missing_reasoning == codec::MissingReasoning::kReject;
  std::optional<codec::CodecOptions> own;
  if (plain || restores) own = options;
  if (plain) own->default_thinking_mode = false;
  if (restores) own->knows_turn = [&](const codec::Message& message) { return turns->knows(tenant, message); };
  codec::ApiResult<codec::ConvertedRequest> converted = [&] {
    if (!mapped) return codec::convert_parsed_request(api, body, own ? *own : options);
    Json other = body;
    other.set("model", Json(served));
    return codec::convert_parsed_request(api, other, own ? *own : options);
  }();
  if (!converted) {
    ApiFailure failure = from_api_error(converted.error());
    if (failure.message.find("must be passed back") != std::string::npos) {
      failure.param = missing_reasoning(body);
      failure.code = "invalid_request_error";
    }
    return std::unexpected(std::move(failure));
  }
  if (mapped) converted->model = *name;
  if (auto failure = check_limits(body, *converted, app.config())) return std::unexpected(*failure);
  if (turns != nullptr) codec::attach_replays(converted->conversation, tenant, *turns);
  return std::move(*converted);
}

namespace {

// Whether these may be read at all, before anything is.
std::optional<ApiFailure> check_sources(const App& app, std::span<const codec::ImageSource> sources) {
  for (const codec::ImageSource& source : sources) {
    const bool link = source.kind == codec::ImageSource::Kind::kUrl;
    const bool vision = app.codec() != nullptr && app.codec()->vision;
    const bool file = source.kind == codec::ImageSource::Kind::kFile;
    if (vision && (!link || app.config().media_fetch.policy.enabled) && (!file || app.config().files_store > 0))
      continue;
    const std::string param = source.path.substr(source.path.starts_with('.') ? 1 : 0);
    return ApiFailure{ErrorKind::kInvalidRequest,
                      !vision ? "images are not supported: this model has no vision"
                      : file  ? "this server keeps no files (--files-store); send images as a base64 data URL"
                              : "images are not fetched from other places; send them as a base64 data URL",
                      "unsupported_parameter", param.empty() ? "messages" : param, 0};
  }
  return std::nullopt;
}

}  // namespace

void with_images(App& app, const std::string& tenant, std::vector<codec::ImageSource> sources,
                 const std::function<void(const Images&)>& then) {
  if (sources.empty()) return then(Images());
  if (auto failure = check_sources(app, sources)) return then(std::unexpected(*std::move(failure)));
  app.media().post([&app, tenant, sources = std::move(sources), then] {
    try {
      auto images = app.media().resolve(tenant, sources);
      if (images) return then(*std::move(images));
      then(std::unexpected(from_api_error(images.error())));
    } catch (const std::exception& e) {
      DI_LOG(kError, "images: {}", e.what());
      then(std::unexpected(ApiFailure{ErrorKind::kInternal, "internal error", {}, {}, 0}));
    }
  });
}

std::expected<EncodedPrompt, ApiFailure> encode_rendered(const codec::RenderedPrompt& prompt,
                                                         const codec::Tokenizer& tokenizer,
                                                         const codec::CodecOptions& options,
                                                         std::span<const codec::ResolvedImage> images) {
  EncodedPrompt out;
  Result<std::vector<TokenId>> ids = codec::encode_prompt(prompt, tokenizer);
  if (!ids) return std::unexpected(from_error(ids.error()));
  out.ids = std::move(*ids);
  const std::optional<TokenId> placeholder = tokenizer.added_id(options.special.image);
  if (images.empty() || !placeholder) return out;
  Result<codec::ExpandedPrompt> expanded = codec::expand_images(out.ids, *placeholder, images);
  if (!expanded) return std::unexpected(from_error(expanded.error()));
  out.ids = std::move(expanded->ids);
  for (const codec::ImageSpan& span : expanded->spans) {
    out.media.push_back(
        {static_cast<int64_t>(span.begin), static_cast<uint32_t>(span.length), images[span.image].digest});
  }
  return out;
}

namespace {

// As the request says, else by whether it brings tools (server.md §4.1).
std::expected<engine::TrafficClass, ApiFailure> traffic_class(Exchange& exchange, const Json& body) {
  std::string name(exchange.request().header("x-traffic-class"));
  if (auto given = DI_TRY(string_field(body, "traffic_class"))) name = std::move(*given);
  if (name.empty()) {
    const Json* tools = body.find_value("tools");
    return tools != nullptr && tools->size() > 0 ? engine::TrafficClass::kAgent : engine::TrafficClass::kInteractive;
  }
  if (name == "chat") return engine::TrafficClass::kInteractive;
  if (name == "agent") return engine::TrafficClass::kAgent;
  if (name == "batch") return engine::TrafficClass::kBatch;
  if (name != "pin") {
    return invalid_field("traffic_class",
                         fmt::format("traffic_class is `{}`, expected chat, agent, batch or pin", name.substr(0, 100)));
  }
  if (!exchange.context().admin) {
    return std::unexpected(
        ApiFailure{ErrorKind::kForbidden, "traffic_class `pin` needs an admin key", {}, "traffic_class", 0});
  }
  return engine::TrafficClass::kAgent;
}

}  // namespace

std::expected<engine::GenerateRequest, ApiFailure> engine_request(App& app, Exchange& exchange, const Json& body) {
  const HttpRequest& http = exchange.request();
  const ServerConfig& config = app.config();
  engine::GenerateRequest g;
  g.id = http.id;
  std::optional<std::string> user = DI_TRY(string_field(body, "user_id"));
  if (!user) {
    const Json* metadata = body.find_value("metadata");
    if (metadata != nullptr && metadata->is_object()) user = DI_TRY(string_field(*metadata, "user_id"));
  }
  if (user && user->size() > 512) {
    return invalid_field("user_id", fmt::format("user_id has {} bytes, at most 512 are accepted", user->size()));
  }
  const std::optional<std::string> salt = DI_TRY(string_field(body, "cache_salt"));
  g.tenant = exchange.context().tenant;
  g.cache_namespace = app.auth().cache_namespace(g.tenant, user, salt);
  const std::optional<int64_t> priority = header_number(http, "x-priority");
  if (priority && (exchange.context().admin || config.allow_priority))
    g.priority = static_cast<int32_t>(std::clamp<int64_t>(*priority, INT32_MIN, INT32_MAX));
  if (const auto own = DI_TRY(int_field(body, "priority", INT32_MIN, INT32_MAX));
      own && (exchange.context().admin || config.allow_priority))
    g.priority = static_cast<int32_t>(*own);
  g.traffic_class = DI_TRY(traffic_class(exchange, body));
  if (const auto target = header_number(http, "x-slo-ttft-ms"); target && *target > 0) g.ttft_target_ms = *target;
  const int64_t now = app.clock().now_ns();
  if (config.max_queue_wait_ms > 0) g.queue_deadline_ns = now + config.max_queue_wait_ms * kNsPerMs;
  int64_t timeout_ms = config.request_timeout_ms;
  if (const auto asked = header_number(http, "x-request-timeout-ms"); asked && *asked > 0)
    timeout_ms = timeout_ms > 0 ? std::min(timeout_ms, *asked) : *asked;
  if (timeout_ms > 0) g.deadline_ns = http.received_ns + timeout_ms * kNsPerMs;
  return g;
}

RequestRecord start_record(App& app, Exchange& exchange, std::string_view route, std::string response_id) {
  RequestRecord r;
  r.id = exchange.request().id;
  r.response_id = std::move(response_id);
  r.tenant = exchange.context().tenant;
  r.route = route;
  r.created = app.clock().unix_seconds();
  r.received_ns = exchange.request().received_ns;
  return r;
}

TimelineRef start_timeline(App& app, Exchange& exchange, std::string_view route) {
  const HttpRequest& http = exchange.request();
  return app.timelines().start({http.id, exchange.context().tenant, std::string(route), http.received_ns});
}

engine::SamplingParams sampling_params(const codec::SamplingOptions& options, const ChatExtras& extras) {
  engine::SamplingParams p;
  p.temperature = static_cast<double>(options.temperature);
  p.top_p = static_cast<double>(options.top_p);
  p.top_k = options.top_k <= 0 ? -1 : options.top_k;
  p.min_p = static_cast<double>(options.min_p);
  p.seed = options.seed ? *options.seed : random_u64();
  p.seed_given = options.seed.has_value();
  p.repetition_penalty = extras.repetition_penalty;
  p.frequency_penalty = static_cast<double>(options.frequency_penalty);
  p.presence_penalty = static_cast<double>(options.presence_penalty);
  p.logit_bias.assign(options.logit_bias.begin(), options.logit_bias.end());
  p.allowed_token_ids = extras.allowed_token_ids;
  p.bad_words = extras.bad_words;
  p.logprob_token_ids = extras.logprob_token_ids;
  p.logprobs = options.logprobs;
  p.top_logprobs = options.top_logprobs.value_or(0);
  return p;
}

}  // namespace di::server
