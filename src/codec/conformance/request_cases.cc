// Conversations, requests and rejections of the vectors: how they are written there, and whether ours are the same.
#include "codec/conformance/case_files.h"

namespace di::codec::conformance {

namespace {

void write_tools(JsonWriter& w, const std::vector<ToolDefinition>& tools) {
  w.begin_array();
  for (const ToolDefinition& tool : tools) {
    w.begin_object().key("name").value(tool.name).key("description").value(tool.description);
    w.key("parameters").value(tool.parameters).key("strict").value(tool.strict);
    w.key("defer_loading").value(tool.defer_loading).end_object();
  }
  w.end_array();
}

void write_sources(JsonWriter& w, const std::vector<ImageSource>& sources) {
  constexpr const char* kDetails[] = {"low", "high", "original", "auto"};
  w.begin_array();
  for (const ImageSource& source : sources) {
    const bool url = source.kind == ImageSource::Kind::kUrl;
    w.begin_object().key("kind").value(url ? "url" : "data_url");
    w.key("detail").value(kDetails[static_cast<size_t>(source.detail)]).key("path").value(source.path);
    w.key(url ? "url" : "data_url").value(source.location).end_object();
  }
  w.end_array();
}

void write_message(JsonWriter& w, const Message& message) {
  constexpr const char* kRoles[] = {"system", "user", "assistant", "tool", "latest_reminder"};
  w.begin_object()
      .key("role")
      .value(kRoles[static_cast<size_t>(message.role)])
      .key("content")
      .value(message.content.text);
  switch (message.role) {
    case Message::Role::kSystem:
      w.key("tools");
      if (message.tools) {
        write_tools(w, *message.tools);
      } else {
        w.null();
      }
      break;
    case Message::Role::kAssistant:
      w.key("reasoning_content").value(message.reasoning_content).key("tool_calls");
      if (message.tool_calls) {
        w.begin_array();
        for (const ToolCall& call : *message.tool_calls) {
          w.begin_object().key("id").value(call.id).key("name").value(call.name);
          w.key("arguments").value(call.arguments).end_object();
        }
        w.end_array();
      } else {
        w.null();
      }
      w.key("prefix").value(message.prefix);
      break;
    case Message::Role::kTool:
      w.key("tool_call_id").value(message.tool_call_id);
      break;
    default:
      break;
  }
  if (!message.image_sources.empty()) {
    w.key("image_sources");
    write_sources(w, message.image_sources);
  }
  w.end_object();
}

}  // namespace

std::string conversation_json(const Conversation& c) {
  constexpr const char* kChoices[] = {"auto", "none", "required"};
  constexpr const char* kEfforts[] = {"low", "high", "xhigh", "max"};
  constexpr const char* kFormats[] = {"text", "json_object", "json_schema", "regex"};
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("messages").begin_array();
  for (const Message& message : c.messages) write_message(w, message);
  w.end_array().key("thinking_mode").value(c.thinking_mode).key("tools");
  write_tools(w, c.tools);
  w.key("tool_choice").value(kChoices[static_cast<size_t>(c.tool_choice)]).key("reasoning_effort");
  if (c.reasoning_effort) {
    w.value(kEfforts[static_cast<size_t>(*c.reasoning_effort)]);
  } else {
    w.null();
  }
  w.key("response_format").value(kFormats[static_cast<size_t>(c.response_format.kind)]);
  w.key("response_schema").value(c.response_format.schema).key("response_regex");
  if (c.response_format.kind == ResponseFormat::Kind::kRegex) {
    w.value(c.response_format.regex);
  } else {
    w.null();
  }
  w.end_object();
  return out;
}

std::string parsing_json(const ParsingOptions& p) {
  constexpr const char* kStages[] = {"ReasoningStart", "ReasoningContinuation", "ContentContinuation"};
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("parse_tool_calls").value(p.parse_tool_calls);
  w.key("starts_in_tool_calls").value(p.starts_in_tool_calls).key("parse_json_output").value(p.parse_json_output);
  w.key("thinking_initial_stage");
  if (p.thinking_start) {
    w.value(kStages[static_cast<size_t>(*p.thinking_start)]);
  } else {
    w.null();
  }
  w.key("stop_sequences").begin_array();
  for (const std::string& stop : p.stop_sequences) w.value(stop);
  w.end_array().end_object();
  return out;
}

std::string sources_json(const std::vector<ImageSource>& sources) {
  std::string out;
  JsonWriter w(out);
  write_sources(w, sources);
  return out;
}

namespace {

std::string to_text(const std::optional<uint64_t>& value) {
  return value ? fmt::format("{}", *value) : "null";
}

// The first sampling option that differs.
std::string sampling_difference(const SamplingOptions& s, const Json& expected) {
  const auto integer = [&](const char* key, std::optional<uint64_t> found) {
    const Json* value = expected.find_value(key);
    return difference(key, to_text(value != nullptr ? value->to_u64() : std::nullopt), to_text(found));
  };
  const auto real = [&](const char* key, float found) {
    const Json* value = expected.find_value(key);
    const float wanted = value != nullptr ? static_cast<float>(value->to_double().value_or(-1)) : 1.0F;
    return wanted == found ? std::string() : fmt::format("{}: expected {}, found {}", key, wanted, found);
  };
  const Json* constraint = expected.find_value("output_constraint");
  std::string wanted = "null";
  if (constraint != nullptr) wanted = to_json(*constraint);
  std::string found = "null";
  if (s.constraint) {
    found.clear();
    JsonWriter(found)
        .begin_object()
        .key("kind")
        .value(to_string(s.constraint->kind))
        .key("schema")
        .value(s.constraint->schema)
        .end_object();
  }
  const Json* logprobs = expected.find_value("logprobs");
  for (const std::string& problem :
       {integer("max_tokens", s.max_tokens), real("temperature", s.temperature), real("top_p", s.top_p),
        difference("logprobs", logprobs == nullptr || *logprobs == Json(false) ? "false" : "true",
                   s.logprobs ? "true" : "false"),
        integer("top_logprobs", s.top_logprobs), integer("seed", s.seed),
        difference("output_constraint", wanted, found)}) {
    if (!problem.empty()) return problem;
  }
  return {};
}

Result<std::string> prompt_difference(const Json& result, const ConvertedRequest& request,
                                      const Tokenizers& tokenizers) {
  const RenderedPrompt prompt = render_conversation(request.conversation, request.version);
  std::string problem = difference("prompt", DI_TRY(text_at(result, "prompt")), prompt.text);
  if (!problem.empty()) return problem;
  std::string ranges;
  JsonWriter w(ranges);
  w.begin_array();
  for (const auto& [begin, end] : prompt.special_ranges) w.begin_array().value(begin).value(end).end_array();
  w.end_array();
  problem = difference("special_byte_ranges", to_json(*DI_TRY(member_at(result, "special_byte_ranges"))), ranges);
  if (!problem.empty()) return problem;
  problem = difference("image_sources", to_json(*DI_TRY(member_at(result, "image_sources"))),
                       sources_json(prompt.image_sources));
  if (!problem.empty()) return problem;
  const Tokenizer& tokenizer = request.version == ModelVersion::kV4 ? *tokenizers.v4 : *tokenizers.v41;
  const std::vector<TokenId> ids = DI_TRY(encode_prompt(prompt, tokenizer));
  const std::vector<TokenId> expected = DI_TRY(ids_at(result, "ids"));
  if (ids == expected) return std::string();
  return difference("ids", fmt::format("{}", fmt::join(expected, ",")), fmt::format("{}", fmt::join(ids, ",")));
}

Result<std::string> limits_difference(const Json& result, const ConvertedRequest& request) {
  const Json* rows = result.find_value("resolve_max_tokens");
  if (rows == nullptr || !rows->is_array()) return std::string();
  for (const Json& row : rows->as_array()) {
    if (row.size() != 4) return fail(Errc::kCorruption, "resolve_max_tokens: expected rows of 4");
    const Json::Array& r = row.as_array();
    const auto tokens = resolve_max_tokens(request, r[0].to_u64().value_or(0), r[1].to_u64().value_or(0));
    const std::string found = tokens ? fmt::format("{}", *tokens) : tokens.error().message;
    const std::string problem = difference(
        "resolve_max_tokens", r[2].is_null() ? r[3].is_string() ? r[3].as_string() : "" : to_json(r[2]), found);
    if (!problem.empty()) return problem;
  }
  return std::string();
}

Result<std::string> request_difference(const Json& c, const Tokenizers& tokenizers) {
  const Json& result = *DI_TRY(member_at(c, "result"));
  const Json* given = c.find_value("options");
  const CodecOptions options = DI_TRY(options_of(given != nullptr ? *given : Json()));
  const auto request = convert_request(DI_TRY(api_of(c)), DI_TRY(text_at(c, "body")), options);
  if (!request) return "refused: " + request.error().message;
  std::string problem = difference("model_version", DI_TRY(text_at(result, "model_version")),
                                   request->version == ModelVersion::kV4 ? "v4" : "v41");
  if (problem.empty())
    problem = difference("stream", to_json(*DI_TRY(member_at(result, "stream"))), request->stream ? "true" : "false");
  if (problem.empty())
    problem = difference("conversation", to_json(*DI_TRY(member_at(result, "conversation"))),
                         conversation_json(request->conversation));
  if (problem.empty())
    problem = sampling_difference(request->sampling, *DI_TRY(member_at(result, "inference_options")));
  if (problem.empty())
    problem = difference("parsing_options", to_json(*DI_TRY(member_at(result, "parsing_options"))),
                         parsing_json(request->parsing));
  if (problem.empty()) problem = DI_TRY(prompt_difference(result, *request, tokenizers));
  if (problem.empty()) problem = DI_TRY(limits_difference(result, *request));
  if (!problem.empty()) return problem;
  const Json* map = result.find_value("namespace_tool_map");
  if (map == nullptr) return std::string();
  Json found{Json::Object()};
  for (const auto& [name, target] :
       request->echo.namespaces.value_or(decltype(request->echo.namespaces)::value_type())) {
    Json& entry = found.set(name, Json());
    entry.push_back(Json(target.first));
    entry.push_back(Json(target.second));
  }
  return found == *map ? std::string() : difference("namespace_tool_map", to_json(*map), to_json(found));
}

Result<std::string> rejection_difference(const Json& c, ConformanceResult& counts) {
  const Json& result = *DI_TRY(member_at(c, "result"));
  const Json* given = c.find_value("options");
  const CodecOptions options = DI_TRY(options_of(given != nullptr ? *given : Json()));
  const auto request = convert_request(DI_TRY(api_of(c)), DI_TRY(text_at(c, "body")), options);
  const std::string_view message = DI_TRY(text_at(result, "message"));
  if (request) return fmt::format("accepted, expected `{}`", message);
  const ApiError& error = request.error();
  std::string problem = difference("stage", DI_TRY(text_at(result, "stage")),
                                   error.stage == ApiError::Stage::kParse ? "parse" : "convert");
  if (problem.empty()) problem = difference("message", message, error.message);
  const Json* body = result.find_value("body");
  if (problem.empty() && body != nullptr && body->is_string()) {
    problem = difference("body", body->as_string(), error.body());
    if (problem.empty())
      problem = difference("status_code", to_json(*DI_TRY(member_at(result, "status_code"))),
                           fmt::format("{}", error.http_status));
  }
  ++counts.compared[body != nullptr ? "rejections with their whole body" : "rejections with their message"];
  return problem;
}

}  // namespace

std::string check_request(const Json& c, const Tokenizers& tokenizers) {
  const Result<std::string> problem = request_difference(c, tokenizers);
  return problem ? *problem : "the case cannot run: " + problem.error().message;
}

std::string check_rejection(const Json& c, ConformanceResult& result) {
  const Result<std::string> problem = rejection_difference(c, result);
  return problem ? *problem : "the case cannot run: " + problem.error().message;
}

}  // namespace di::codec::conformance
