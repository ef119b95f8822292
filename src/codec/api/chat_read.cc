// Chat Completions request: JSON -> request structure (recipe.md §3.0, §3.1).

#include "codec/api/chat_request.h"
#include "codec/api/read_effort.h"
#include "codec/api/read_sampling.h"

namespace di::codec::api::chat {

namespace {

Read read_image_url(const Json& v, Block& out) {
  return read_struct(v, "struct ChatCompletionImageUrl", 0, required("url", into(out.url)),
                     defaulted("detail", [&](const Json& d) {
                       return read_enum(d, {"low", "high", "original", "auto"}, out.detail);
                     }));
}

Read read_block(const Json& v, bool extended, Block& out) {
  DI_TRY(read_tag(v, "ChatCompletionRequestContentBlock", "type", {"text", "image_url", "file"}, out.type));
  const std::string prefix = "struct variant ChatCompletionRequestContentBlock::";
  switch (out.type) {
    case Block::Type::kText:
      return read_struct(v, prefix + "Text", 1, required("text", into(out.text)));
    case Block::Type::kImageUrl:
      return read_struct(v, prefix + "ImageUrl", 1,
                         required("image_url", [&](const Json& u) { return read_image_url(u, out); }));
    case Block::Type::kFile:
      // OpenAI's clients put the members one level lower.
      if (const Json* file = v.find_value("file"); extended && file != nullptr) {
        return at_field(
            "file", read_struct(*file, "struct ChatCompletionFile", optional("file_id", into(out.file_id)),
                                optional("file_data", into(out.file_data)), optional("filename", into(out.filename))));
      }
      return read_struct(v, prefix + "File", 1, optional("file_id", into(out.file_id)),
                         optional("file_data", into(out.file_data)), optional("filename", into(out.filename)));
  }
  return {};
}

Read read_content(const Json& v, bool extended, Content& out) {
  if (const std::string* text = v.if_string()) {
    out.text = *text;
    return {};
  }
  if (!v.is_array()) return read_error("invalid_type", "content should be a string or a list");
  return list_into(out.blocks.emplace(),
                   [&](const Json& block, Block& b) { return read_block(block, extended, b); })(v);
}

auto content_into(std::optional<Content>& out, bool extended) {
  return [&out, extended](const Json& v) { return read_content(v, extended, out.emplace()); };
}

Read read_call(const Json& v, RequestCall& out) {
  const auto function = [&](const Json& f) {
    return read_struct(f, "struct ChatCompletionRequestFunctionCall", 0, required("name", into(out.name)),
                       required("arguments", into(out.arguments)));
  };
  enum class Type : uint8_t { kFunction };
  return read_struct(v, "struct ChatCompletionRequestToolCall", 0, required("id", into(out.id)),
                     required("type",
                              [&](const Json& t) {
                                Type type{};
                                return read_enum(t, {"function"}, type);
                              }),
                     required("function", function));
}

Read read_message(const Json& v, RequestMessage& out, bool extended) {
  constexpr std::string_view kEnum = "ChatCompletionRequestMessage";
  if (extended) {
    DI_TRY(
        read_tag(v, kEnum, "role", {"system", "user", "assistant", "tool", "latest_reminder", "developer"}, out.role));
    if (out.role == Role::kDeveloper) out.role = Role::kSystem;
  } else {
    DI_TRY(read_tag(v, kEnum, "role", {"system", "user", "assistant", "tool", "latest_reminder"}, out.role));
  }
  const std::string prefix = "struct variant ChatCompletionRequestMessage::";
  switch (out.role) {
    case Role::kSystem:
    case Role::kDeveloper:
      return read_struct(v, prefix + "System", 1, required("content", content_into(out.content, extended)),
                         optional("name", checked_text()));
    case Role::kUser:
      return read_struct(v, prefix + "User", 1, required("content", content_into(out.content, extended)),
                         optional("name", checked_text()));
    case Role::kAssistant: {
      DI_TRY(read_struct(
          v, prefix + "Assistant", 1, optional("content", content_into(out.content, extended)),
          optional("reasoning_content", into(out.reasoning_content)), optional("name", checked_text()),
          optional("tool_calls", [&](const Json& c) { return list_into(out.tool_calls.emplace(), read_call)(c); }),
          optional("prefix", into(out.prefix))));
      if (extended && !out.reasoning_content) {
        if (const Json* reasoning = v.find_value("reasoning")) {
          DI_TRY(at_field("reasoning", read_text(*reasoning, out.reasoning_content.emplace())));
        }
      }
      return {};
    }
    case Role::kTool:
      return read_struct(v, prefix + "Tool", 1, required("content", content_into(out.content, extended)),
                         required("tool_call_id", into(out.tool_call_id)));
    case Role::kLatestReminder:
      return read_struct(v, prefix + "LatestReminder", 1,
                         required("content", [&](const Json& c) { return read_text(c, out.content.emplace().text); }));
  }
  return {};
}

Read read_tool(const Json& v, Request& out) {
  ToolDefinition tool;
  bool has_parameters = false;
  const auto function = [&](const Json& f) {
    std::string_view name;
    std::optional<std::string_view> description;
    Read read = read_struct(f, "struct ChatCompletionFunctionDefinition", required("name", into(name)),
                            optional("description", into(description)),
                            optional("parameters",
                                     [&](const Json& p) {
                                       tool.parameters = p;
                                       has_parameters = true;
                                       return Read();
                                     }),
                            optional("strict", into(tool.strict)));
    tool.name = name;
    if (description) tool.description = *description;
    return read;
  };
  DI_TRY(read_struct(v, "struct ChatCompletionTool",
                     required("type",
                              [](const Json& t) {
                                size_t type{};
                                constexpr std::string_view kTypes[] = {"function"};
                                return read_variant(t, kTypes, type);
                              }),
                     required("function", function)));
  out.tools->push_back(std::move(tool));
  out.has_parameters.push_back(has_parameters);
  return {};
}

Read in_field(std::string_view name, Read read) {  // struct variants of untagged unions name the field
  if (!read) read.error().message = fmt::format("field `{}`: {}", name, read.error().message);
  return read;
}

Read read_tool_choice(const Json& v, Request& out) {
  using Choice = ToolRequest::Choice;
  if (const std::string* text = v.if_string()) {
    if (*text == "none") return out.choice = Choice::kNone, Read();
    if (*text == "auto") return out.choice = Choice::kAuto, Read();
    if (*text == "required") return out.choice = Choice::kRequired, Read();
  } else if (v.is_object() && v.find("type") != nullptr) {
    size_t type{};
    constexpr std::string_view kTypes[] = {"function"};
    DI_TRY(in_field("type", read_variant(*v.find("type"), kTypes, type)));
    const Json null;
    const Json* function = v.find("function");
    out.choice = Choice::kNamed;
    return in_field("function",
                    read_struct(function != nullptr ? *function : null, "struct ChatCompletionToolChoiceFunction",
                                required("name", into(out.choice_name))));
  }
  return read_error("invalid_value", "expected one of `none`, `auto`, `required` or a tool");
}

Read read_stop(const Json& v, Request& out) {
  if (v.is_string()) {
    out.single_stop = true;
    return read_text(v, out.stop.emplace_back());
  }
  if (!v.is_array()) return read_error("invalid_type", "expected a string or a list");
  return list_into(out.stop, [](const Json& s, std::string_view& text) { return read_text(s, text); })(v);
}

Read read_format(const Json& v, FormatRequest& out) {
  enum class Type : uint8_t { kJsonObject, kJsonSchema, kRegex, kText };
  Type type{};
  DI_TRY(read_tag(v, "ChatCompletionResponseFormat", "type", {"json_object", "json_schema", "regex", "text"}, type));
  out.given = true;
  switch (type) {
    case Type::kText:
      return read_unit(v);
    case Type::kJsonObject:
      out.format.kind = ResponseFormat::Kind::kJsonObject;
      return read_unit(v);
    case Type::kRegex: {
      out.format.kind = ResponseFormat::Kind::kRegex;
      std::string_view regex;
      DI_TRY(read_struct(v, "struct variant ChatCompletionResponseFormat::Regex", 1, required("regex", into(regex))));
      out.format.regex = regex;
      return {};
    }
    case Type::kJsonSchema: {
      out.format.kind = ResponseFormat::Kind::kJsonSchema;
      std::optional<bool> strict;
      const auto schema = [&](const Json& s) {
        return read_struct(s, "struct ChatCompletionResponseFormatJsonSchema", 0,
                           required("schema",
                                    [&](const Json& j) {
                                      out.format.schema = j;
                                      return Read();
                                    }),
                           optional("name", checked_text()), optional("strict", into(strict)));
      };
      DI_TRY(read_struct(v, "struct variant ChatCompletionResponseFormat::JsonSchema", 1,
                         required("json_schema", schema)));
      out.strict = strict.value_or(false);
      return {};
    }
  }
  return {};
}

Read read_thinking(const Json& v, const ReadRules& rules, ThinkingSettings& out) {
  std::optional<uint64_t> budget;
  return read_struct(v, "struct ChatCompletionThinking",
                     required("type", [&](const Json& t) { return read_enum(t, kThinkingTypes, out.type.emplace()); }),
                     optional("budget_tokens", into(budget, rules)));
}

}  // namespace

Read read_request(const Json& body, const ReadRules& rules, bool extended, Request& out) {
  SamplingRequest& sampling = out.sampling;
  const auto messages = [&](const Json& m) {
    return list_into(out.messages,
                     [&](const Json& v, RequestMessage& message) { return read_message(v, message, extended); })(m);
  };
  const auto stream_options = [&](const Json& v) {
    out.has_stream_options = true;
    return read_struct(v, "struct ChatCompletionStreamOptions", optional("include_usage", into(out.include_usage)));
  };
  const auto tools = [&](const Json& v) {
    out.tools.emplace();
    return read_list(v, [&](const Json& tool) { return read_tool(tool, out); });
  };
  return read_struct(
      body, "struct ChatCompletionRequest", required("messages", messages), required("model", into(out.model)),
      optional("frequency_penalty", into(sampling.frequency_penalty)), optional("logprobs", into(out.logprobs)),
      optional("top_logprobs", into(sampling.top_logprobs, rules)),
      optional("max_tokens", into(sampling.max_tokens, rules)), optional("n", into(out.n, rules)),
      optional("presence_penalty", into(sampling.presence_penalty)), optional("seed", into(sampling.seed, rules)),
      optional("stop", [&](const Json& v) { return read_stop(v, out); }), optional("stream", into(out.stream)),
      optional("stream_options", stream_options), optional("temperature", into(sampling.temperature)),
      optional("top_p", into(sampling.top_p)),
      optional("response_format", [&](const Json& v) { return read_format(v, out.format); }), optional("tools", tools),
      optional("tool_choice", [&](const Json& v) { return read_tool_choice(v, out); }),
      optional("reasoning_effort", [&](const Json& v) { return read_effort(v, extended, out.thinking); }),
      optional("thinking", [&](const Json& v) { return read_thinking(v, rules, out.thinking); }),
      optional("parallel_tool_calls", [](const Json& v) {
        bool parallel = false;
        return read_bool(v, parallel);
      }));
}

namespace {

// The prompt ends with the last message, which the model continues (vLLM's names for `prefix`).
Read continue_final_message(const Json& body, Request& out) {
  std::optional<bool> goes_on;
  std::optional<bool> prompts;
  DI_TRY(read_struct(body, "struct ChatCompletionRequest", optional("continue_final_message", into(goes_on)),
                     optional("add_generation_prompt", into(prompts))));
  if (!goes_on.value_or(false)) {
    if (prompts.value_or(true)) return {};
    return at_field(
        "add_generation_prompt",
        read_error("invalid_value", "`add_generation_prompt` can be false with `continue_final_message` only"));
  }
  if (prompts.value_or(false)) {
    return at_field(
        "continue_final_message",
        read_error("invalid_value", "`continue_final_message` and `add_generation_prompt` exclude each other"));
  }
  if (out.messages.empty() || out.messages.back().role != Role::kAssistant) {
    return at_field("continue_final_message",
                    read_error("invalid_value", "`continue_final_message` needs a last message of the assistant"));
  }
  out.messages.back().prefix = true;
  return {};
}

}  // namespace

Read read_extensions(const Json& body, const ReadRules& rules, Request& out) {
  const auto kwargs = [&](const Json& v) -> Read {
    std::optional<bool> thinking;
    std::optional<bool> enable;
    DI_TRY(
        read_struct(v, "a map", optional("thinking", into(thinking)), optional("enable_thinking", into(enable)),
                    optional("reasoning_effort", [&](const Json& e) { return read_effort(e, true, out.thinking); })));
    if (const auto on = thinking ? thinking : enable; on && !out.thinking.type) {
      out.thinking.type = *on ? ThinkingType::kEnabled : ThinkingType::kDisabled;
    }
    return {};
  };
  DI_TRY(read_struct(body, "struct ChatCompletionRequest",
                     optional("max_completion_tokens", into(out.max_completion_tokens, rules)),
                     optional("chat_template_kwargs", kwargs), optional("chat_template", [](const Json&) {
                       return Read(read_error("invalid_value", "`chat_template` is not supported"));
                     })));
  if (const Json* options = body.find_value("stream_options"); options != nullptr && options->is_object()) {
    DI_TRY(at_field("stream_options",
                    read_struct(*options, "a map", optional("continuous_usage_stats", into(out.continuous_usage)))));
  }
  DI_TRY(read_sampling_extensions(body, rules, out.sampling));
  DI_TRY(continue_final_message(body, out));
  if (!out.max_completion_tokens) return {};
  if (out.sampling.max_tokens && *out.sampling.max_tokens != *out.max_completion_tokens) {
    return at_field("max_completion_tokens",
                    read_error("invalid_value", "`max_tokens` and `max_completion_tokens` differ; give one of them"));
  }
  out.sampling.max_tokens = out.max_completion_tokens;
  return {};
}

}  // namespace di::codec::api::chat
