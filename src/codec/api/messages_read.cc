// Messages request: JSON -> request structure (recipe.md §3.0, §3.3).
#include "codec/api/messages_request.h"
#include "codec/api/read_effort.h"

namespace di::codec::api::messages {

namespace {

Read read_image(const Json& v, Image& out) {
  DI_TRY(read_tag(v, "MessagesImageSource", "type", {"base64", "url", "file"}, out.kind, true));
  constexpr std::string_view kMedia[] = {"image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp"};
  switch (out.kind) {
    case Image::Kind::kBase64:
      return read_struct(v, "struct variant MessagesImageSource::Base64", 1,
                         required("media_type",
                                  [&](const Json& m) {
                                    size_t index = 0;
                                    Read read = read_variant(m, kMedia, index);
                                    out.media_type = kMedia[index];
                                    return read;
                                  }),
                         required("data", into(out.value)));
    case Image::Kind::kUrl:
      return read_struct(v, "struct variant MessagesImageSource::Url", 1, required("url", into(out.value)));
    case Image::Kind::kFile:
      return read_struct(v, "struct variant MessagesImageSource::File", 1, required("file_id", into(out.value)));
  }
  return {};
}

auto image_into(Image& out) {
  return [&out](const Json& v) { return read_image(v, out); };
}

auto document_into(std::optional<std::string_view>& media_type) {
  return [&media_type](const Json& v) {
    return read_struct(v, "struct MessagesDocumentSource", 0, optional("media_type", into(media_type)));
  };
}

Read read_result_block(const Json& v, ResultBlock& out) {
  DI_TRY(read_tag(v, "MessagesToolResultBlock", "type", {"text", "image", "document", "tool_reference"}, out.type));
  const std::string prefix = "struct variant MessagesToolResultBlock::";
  switch (out.type) {
    case ResultBlock::Type::kText:
      return read_struct(v, prefix + "Text", 1, required("text", into(out.text)));
    case ResultBlock::Type::kImage:
      return read_struct(v, prefix + "Image", 1, required("source", image_into(out.image)));
    case ResultBlock::Type::kDocument:
      return read_struct(v, prefix + "Document", 1, required("source", document_into(out.media_type)));
    case ResultBlock::Type::kToolReference:
      return read_struct(v, prefix + "ToolReference", 1, required("tool_name", into(out.text)));
  }
  return {};
}

Read read_result_content(const Json& v, Block& out) {
  if (v.is_string()) return read_text(v, out.result_text);
  if (!v.is_array()) return read_error("invalid_type", "expected a string or a list");
  return list_into(out.result_blocks.emplace(), read_result_block)(v);
}

Read read_tool_reference(const Json& v, Block& out) {
  size_t type = 0;
  constexpr std::string_view kTypes[] = {"tool_reference"};
  DI_TRY(read_tag(v, "MessagesToolReference", "type", kTypes, type, true));
  return read_struct(v, "struct variant MessagesToolReference::ToolReference", 1, required("name", into(out.name)));
}

Read read_block(const Json& v, bool extended, Block& out) {
  constexpr std::string_view kTypes[] = {"text",
                                         "image",
                                         "document",
                                         "thinking",
                                         "server_tool_use",
                                         "tool_use",
                                         "tool_result",
                                         "web_search_tool_result",
                                         "tool_addition",
                                         "redacted_thinking"};
  size_t type = 0;
  DI_TRY(read_tag(v, "MessagesContentBlock", "type", std::span(kTypes).first(extended ? 10 : 9), type));
  out.type = static_cast<Block::Type>(type);
  const std::string prefix = "struct variant MessagesContentBlock::";
  switch (out.type) {
    case Block::Type::kText:
      return read_struct(v, prefix + "Text", 1, required("text", into(out.text)));
    case Block::Type::kImage:
      return read_struct(v, prefix + "Image", 1, required("source", image_into(out.image)));
    case Block::Type::kDocument:
      return read_struct(v, prefix + "Document", 1, required("source", document_into(out.media_type)));
    case Block::Type::kThinking:
      return read_struct(v, prefix + "Thinking", 1, optional("signature", checked_text()),
                         required("thinking", into(out.text)));
    case Block::Type::kServerToolUse:
      return read_struct(v, prefix + "ServerToolUse", 1, required("id", into(out.id)), required("name", into(out.name)),
                         required("input", into(out.input)));
    case Block::Type::kToolUse:
      return read_struct(v, prefix + "ToolUse", 1, required("id", into(out.id)), required("name", into(out.name)),
                         required("input", into(out.input)));
    case Block::Type::kToolResult: {
      bool is_error = false;
      return read_struct(v, prefix + "ToolResult", 1, required("tool_use_id", into(out.id)),
                         optional("content", [&](const Json& c) { return read_result_content(c, out); }),
                         optional("is_error", into(is_error)));
    }
    case Block::Type::kWebSearchToolResult:
      return read_struct(v, prefix + "WebSearchToolResult", 1, required("tool_use_id", into(out.id)),
                         required("content", ignored()));
    case Block::Type::kToolAddition:
      return read_struct(v, prefix + "ToolAddition", 1,
                         required("tool", [&](const Json& t) { return read_tool_reference(t, out); }));
    case Block::Type::kRedactedThinking:
      return {};
  }
  return {};
}

Read read_message(const Json& v, bool extended, RequestMessage& out) {
  const Json* role = nullptr;
  const Json* content = nullptr;
  if (const Json::Array* list = v.if_array()) {
    if (list->empty())
      return read_error("invalid_type", "invalid length 0, expected adjacently tagged enum MessagesMessage");
    role = &(*list)[0];
    if (list->size() > 1) content = &(*list)[1];
  } else if (v.is_object()) {
    role = v.find("role");
    content = v.find("content");
  } else {
    return invalid_type(v, "adjacently tagged enum MessagesMessage");
  }
  if (role == nullptr) return missing_field("role");
  if (v.is_array() && !role->is_string()) return invalid_type(*role, "variant identifier");
  DI_TRY(at_field("role", read_enum(*role, {"user", "assistant", "system"}, out.role)));
  if (content == nullptr && v.is_array()) {
    return read_error("invalid_type", "invalid length 1, expected adjacently tagged enum MessagesMessage");
  }
  if (content == nullptr) return missing_field("content");
  if (content->is_string()) {
    DI_TRY(read_text(*content, out.text));
  } else if (!content->is_array()) {
    return at_field("content", read_error("invalid_type", "expected a string or a list"));
  } else {
    DI_TRY(at_field("content", list_into(out.blocks.emplace(), [&](const Json& block, Block& b) {
                      return read_block(block, extended, b);
                    })(*content)));
  }
  if (v.is_array() && v.size() > 2) return detail::length_error(v.size(), "fewer elements in array");
  return {};
}

Read read_system(const Json& v, Request& out) {
  out.has_system = true;
  if (v.is_string()) return read_text(v, out.system_text);
  if (!v.is_array()) return read_error("invalid_type", "expected a string or a list");
  return list_into(out.system_blocks.emplace(), [](const Json& block, std::string_view& text) -> Read {
    size_t type = 0;
    constexpr std::string_view kTypes[] = {"text"};
    DI_TRY(read_tag(block, "MessagesSystemBlock", "type", kTypes, type));
    return read_struct(block, "struct variant MessagesSystemBlock::Text", 1, required("text", into(text)));
  })(v);
}

Read in_field(std::string_view name, Read read) {
  if (!read) read.error().message = fmt::format("field `{}`: {}", name, read.error().message);
  return read;
}

Read read_tool(const Json& v, bool extended, Tool& out) {
  static const Json kNull;
  if (const Json* type = v.find("type"); type != nullptr) {
    std::string_view name;
    DI_TRY(read_text(*type, name));
    if (!(extended && name == "custom")) {
      out.server_type = name;
      if (const Json* tool_name = v.find_value("name")) return read_text(*tool_name, out.name);
      return {};
    }
  }
  const Json* name = v.find("name");
  if (name == nullptr) return missing_field("name");
  DI_TRY(in_field("name", read_text(*name, out.name)));
  if (const Json* description = v.find_value("description")) {
    DI_TRY(in_field("description", read_text(*description, out.description.emplace())));
  }
  const Json* schema = v.find("input_schema");
  out.input_schema = schema != nullptr ? schema : &kNull;
  if (const Json* defer = v.find_value("defer_loading")) {
    DI_TRY(in_field("defer_loading", read_bool(*defer, out.defer_loading)));
  }
  return {};
}

Read read_choice(const Json& v, Request& out) {
  DI_TRY(read_tag(v, "MessagesToolChoice", "type", {"auto", "any", "tool", "none"}, out.choice));
  bool parallel = false;
  const std::string prefix = "struct variant MessagesToolChoice::";
  switch (out.choice) {
    case Choice::kTool:
      return read_struct(v, prefix + "Tool", 1, required("name", into(out.choice_name)),
                         optional("disable_parallel_tool_use", into(parallel)));
    case Choice::kNone:
      return read_unit(v);
    default:
      return read_struct(v, prefix + (out.choice == Choice::kAny ? "Any" : "Auto"), 1,
                         optional("disable_parallel_tool_use", into(parallel)));
  }
}

Read read_thinking(const Json& v, const ReadRules& rules, bool extended, ThinkingSettings& out) {
  std::optional<uint64_t> budget;
  // What newer clients send for adaptive thinking around tool calls (server.md §7).
  if (const Json* type = v.find("type");
      extended && type != nullptr && type->is_string() && type->as_string() == "between_tools") {
    out.type = ThinkingType::kEnabled;
    return read_struct(v, "struct MessagesThinking", optional("budget_tokens", into(budget, rules)));
  }
  return read_struct(v, "struct MessagesThinking",
                     required("type", [&](const Json& t) { return read_enum(t, kThinkingTypes, out.type.emplace()); }),
                     optional("budget_tokens", into(budget, rules)));
}

Read read_output_config(const Json& v, bool extended, Request& out) {
  DI_TRY(read_struct(v, "struct MessagesOutputConfig",
                     optional("effort", [&](const Json& e) { return read_effort(e, extended, out.thinking); })));
  const Json* format = extended ? v.find_value("format") : nullptr;
  if (format == nullptr) return {};
  return at_field("format", [&]() -> Read {
    size_t type = 0;
    constexpr std::string_view kTypes[] = {"json_schema"};
    DI_TRY(read_tag(*format, "MessagesOutputFormat", "type", kTypes, type));
    out.format.given = true;
    out.format.format.kind = ResponseFormat::Kind::kJsonSchema;
    return read_struct(*format, "struct variant MessagesOutputFormat::JsonSchema", 1,
                       required("schema", [&](const Json& s) {
                         out.format.format.schema = s;
                         return Read();
                       }));
  }());
}

}  // namespace

Read read_request(const Json& body, const CodecOptions& options, Request& out) {
  const bool extended = options.policy == ApiPolicy::kExtended;
  const ReadRules rules{extended};
  SamplingRequest& sampling = out.sampling;
  const auto messages = [&](const Json& v) {
    return list_into(out.messages,
                     [&](const Json& m, RequestMessage& message) { return read_message(m, extended, message); })(v);
  };
  const auto tools = [&](const Json& v) {
    return list_into(out.tools, [&](const Json& t, Tool& tool) { return read_tool(t, extended, tool); })(v);
  };
  const auto stop = list_into(out.stop, [](const Json& s, std::string_view& text) { return read_text(s, text); });
  return read_struct(
      body, "struct MessagesRequest", required("model", into(out.model)), required("messages", messages),
      optional("system", [&](const Json& v) { return read_system(v, out); }),
      optional("max_tokens", into(sampling.max_tokens, rules)), optional("temperature", into(sampling.temperature)),
      optional("top_p", into(sampling.top_p)), optional("stop_sequences", stop), optional("stream", into(out.stream)),
      optional("tools", tools), optional("tool_choice", [&](const Json& v) { return read_choice(v, out); }),
      optional("thinking", [&](const Json& v) { return read_thinking(v, rules, extended, out.thinking); }),
      optional("output_config", [&](const Json& v) { return read_output_config(v, extended, out); }),
      optional("metadata", [](const Json& v) {
        return read_struct(v, "struct MessagesMetadata", optional("user_id", checked_text()));
      }));
}

}  // namespace di::codec::api::messages
