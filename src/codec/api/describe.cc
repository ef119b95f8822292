// Requests and conversations written as JSON, for callers without the C++ types (the C interface) and for comparing
// with the reference vectors.
#include "codec/api/describe.h"

#include <algorithm>

namespace di::codec {

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
  constexpr const char* kKinds[] = {"data_url", "url", "file_id"};
  constexpr const char* kDetails[] = {"low", "high", "original", "auto"};
  w.begin_array();
  for (const ImageSource& source : sources) {
    const char* kind = kKinds[static_cast<size_t>(source.kind)];
    w.begin_object().key("kind").value(kind);
    w.key("detail").value(kDetails[static_cast<size_t>(source.detail)]).key("path").value(source.path);
    w.key(kind).value(source.location).end_object();
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

std::string sampling_json(const SamplingOptions& s) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("max_tokens").value(s.max_tokens).key("temperature").value(s.temperature);
  w.key("top_p").value(s.top_p).key("logprobs").value(s.logprobs).key("top_logprobs").value(s.top_logprobs);
  w.key("seed").value(s.seed).key("output_constraint");
  if (s.constraint) {
    w.begin_object().key("kind").value(to_string(s.constraint->kind));
    w.key("schema").value(s.constraint->schema).end_object();
  } else {
    w.null();
  }
  w.end_object();
  return out;
}

std::string request_json(const ConvertedRequest& request) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("model").value(request.model);
  w.key("model_version").value(request.version == ModelVersion::kV4 ? "v4" : "v41");
  w.key("stream").value(request.stream).key("conversation").raw(conversation_json(request.conversation));
  w.key("inference_options").raw(sampling_json(request.sampling));
  w.key("parsing_options").raw(parsing_json(request.parsing)).key("namespace_tool_map");
  w.begin_object();
  for (const auto& tool : request.echo.namespaces) {
    if (!tool.found) w.key(tool.function).begin_array().value(tool.name_space).value(tool.name).end_array();
  }
  w.end_object();
  w.key("warnings").begin_array();
  for (const std::string& warning : request.warnings) w.value(warning);
  w.end_array().end_object();
  return out;
}

namespace {

std::optional<bool> one_of(const Json& value, std::string_view first, std::string_view second) {
  if (!value.is_string()) return std::nullopt;
  if (value.as_string() == first) return true;
  if (value.as_string() == second) return false;
  return std::nullopt;
}

std::unexpected<Error> not_an_option(std::string_view key, std::string_view expected, const Json& found) {
  return fail(Errc::kInvalidRequest, "`{}`: expected {}, found {}", key, expected, describe_json(found));
}

Result<void> read_models(const Json& value, CodecOptions& options) {
  if (!value.is_object()) return not_an_option("models", "a map of model name to \"v4\" or \"v41\"", value);
  for (const JsonMember& member : value.as_object()) {
    const std::optional<bool> v4 = one_of(member.value, "v4", "v41");
    if (!v4) return not_an_option("models." + member.key, "\"v4\" or \"v41\"", member.value);
    options.models[member.key] = *v4 ? ModelVersion::kV4 : ModelVersion::kV41;
  }
  return {};
}

Result<void> read_special(const Json& value, SpecialSpellings& special) {
  const std::pair<std::string_view, std::string*> fields[] = {
      {"bos", &special.bos},
      {"eos", &special.eos},
      {"thinking_start", &special.think_start},
      {"thinking_end", &special.think_end},
      {"system", &special.system},
      {"user", &special.user},
      {"assistant", &special.assistant},
      {"latest_reminder", &special.latest_reminder},
      {"dsml", &special.dsml},
      {"image", &special.image},
      {"ref", &special.ref},
      {"ref_end", &special.ref_end},
      {"box", &special.box},
      {"box_end", &special.box_end},
      {"point", &special.point},
      {"point_end", &special.point_end},
      {"polygon", &special.polygon},
      {"polygon_end", &special.polygon_end},
  };
  if (!value.is_object()) return not_an_option("special_tokens", "a map of token name to spelling", value);
  for (const JsonMember& member : value.as_object()) {
    const auto* field = std::find_if(std::begin(fields), std::end(fields),
                                     [&](const auto& candidate) { return candidate.first == member.key; });
    if (field == std::end(fields)) return fail(Errc::kInvalidRequest, "`special_tokens.{}` is not known", member.key);
    if (!member.value.is_string()) return not_an_option("special_tokens." + member.key, "a string", member.value);
    *field->second = member.value.as_string();
  }
  return {};
}

Result<void> read_option(std::string_view key, const Json& value, CodecOptions& options) {
  const auto choice = [&](std::string_view first, std::string_view second, auto& target, auto on_first,
                          auto on_second) -> Result<void> {
    const std::optional<bool> is_first = one_of(value, first, second);
    if (!is_first) return not_an_option(key, fmt::format("\"{}\" or \"{}\"", first, second), value);
    target = *is_first ? on_first : on_second;
    return {};
  };
  const auto bound = [&](uint32_t& target) -> Result<void> {
    const std::optional<uint64_t> n = value.to_u64();
    if (!n || *n > UINT32_MAX) return not_an_option(key, "a 32-bit number", value);
    target = static_cast<uint32_t>(*n);
    return {};
  };
  if (key == "policy") {
    return choice("official", "extended", options.policy, ApiPolicy::kOfficial, ApiPolicy::kExtended);
  }
  if (key == "default_thinking_mode") {
    if (!value.is_bool()) return not_an_option(key, "a boolean", value);
    options.default_thinking_mode = value.as_bool();
    return {};
  }
  if (key == "open_sampling") {
    if (!value.is_bool()) return not_an_option(key, "a boolean", value);
    options.open_sampling = value.as_bool();
    return {};
  }
  if (key == "reasoning_content_behavior") {
    return choice("FillEmpty", "Reject", options.missing_reasoning, MissingReasoning::kFillEmpty,
                  MissingReasoning::kReject);
  }
  if (key == "responses_web_search") {
    return choice("Drop", "Reject", options.responses_web_search, WebSearch::kDrop, WebSearch::kReject);
  }
  if (key == "messages_web_search") {
    return choice("Drop", "Reject", options.messages_web_search, WebSearch::kDrop, WebSearch::kReject);
  }
  if (key == "thinking_max_tokens_upper_bound") return bound(options.thinking_max_tokens_upper_bound);
  if (key == "non_thinking_max_tokens_upper_bound") return bound(options.non_thinking_max_tokens_upper_bound);
  if (key == "aliases" || key == "models") return read_models(value, options);
  if (key == "special_tokens") return read_special(value, options.special);
  return fail(Errc::kInvalidRequest, "`{}` is no option of the codec", key);
}

}  // namespace

Result<CodecOptions> options_from_json(const Json& value) {
  CodecOptions options;
  if (value.is_null()) return options;
  if (!value.is_object()) return not_an_option("options", "a map", value);
  for (const JsonMember& member : value.as_object()) DI_TRY(read_option(member.key, member.value, options));
  return options;
}

Result<Api> api_from_name(std::string_view name) {
  if (name == "chat") return Api::kChat;
  if (name == "responses") return Api::kResponses;
  if (name == "messages") return Api::kMessages;
  return fail(Errc::kInvalidRequest, "`api`: expected chat, responses or messages, found {}", name);
}

}  // namespace di::codec
