// Responses request: JSON -> request structure, and the settings its response repeats (recipe.md §3.0, §3.2, §6.3).
#include "codec/api/read_effort.h"
#include "codec/api/responses_request.h"

namespace di::codec::api::responses {

namespace {

constexpr std::string_view kExecutions[] = {"client", "server"};

Read read_block(const Json& v, bool output, Block& out) {
  const std::string_view name = output ? "ResponsesToolCallOutputItem" : "ResponsesContentBlock";
  constexpr std::string_view kContent[] = {"input_text", "output_text", "input_image", "input_file"};
  constexpr std::string_view kOutput[] = {"input_text", "input_image", "input_file"};
  size_t type = 0;
  DI_TRY(read_tag(v, name, "type", output ? std::span<const std::string_view>(kOutput) : kContent, type));
  const std::string_view found = output ? kOutput[type] : kContent[type];
  const std::string prefix = fmt::format("struct variant {}::", name);
  if (found == "input_file") {
    out.type = Block::Type::kFile;
    return read_unit(v);
  }
  if (found == "input_image") {
    out.type = Block::Type::kImage;
    return read_struct(
        v, "struct ResponsesInputImage", 1, optional("image_url", into(out.image_url)),
        defaulted("detail",
                  [&](const Json& d) { return read_enum(d, {"low", "high", "original", "auto"}, out.detail); }),
        optional("file_id", into(out.file_id)));
  }
  out.input_text = found == "input_text";
  return read_struct(v, prefix + (out.input_text ? "InputText" : "OutputText"), 1, required("text", into(out.text)));
}

Read read_content(const Json& v, bool output, Content& out) {
  if (v.is_string()) return read_text(v, out.text);
  if (!v.is_array()) {
    return read_error("invalid_type", output ? "output should be a string or a list of output content parts"
                                             : "content should be a string or a list of content blocks");
  }
  return list_into(out.blocks.emplace(),
                   [output](const Json& b, Block& block) { return read_block(b, output, block); })(v);
}

auto parameters_into(const Json*& out) {
  return [&out](const Json& v) {
    out = &v;
    return Read();
  };
}

Read read_function(const Json& v, FunctionTool& out) {
  return read_struct(v, "struct ResponsesFunctionTool", 1, required("name", into(out.name)),
                     optional("description", into(out.description)),
                     optional("parameters", parameters_into(out.parameters)), optional("strict", into(out.strict)));
}

Read read_member(const Json& v, FunctionTool& out) {
  size_t type = 0;
  constexpr std::string_view kTypes[] = {"function", "custom"};
  DI_TRY(read_tag(v, "ResponsesNamespaceTool", "type", kTypes, type, true));
  if (type == 0) return read_function(v, out);
  out.custom = true;
  return read_struct(v, "struct variant ResponsesNamespaceTool::Custom", 1, required("name", into(out.name)));
}

Read read_tool(const Json& v, bool nested, Tool& out) {
  constexpr std::string_view kTypes[] = {"function",  "web_search", "web_search_2025_08_26",
                                         "namespace", "custom",     "tool_search"};
  // Unknown types are kept as such, so only the form of the tag is checked here.
  const Json* tag = v.find("type");
  if (const Json::Array* list = v.if_array(); list != nullptr && !list->empty()) tag = &(*list)[0];
  if (tag != nullptr && tag->is_string()) {
    size_t type = 0;
    while (type < std::size(kTypes) && kTypes[type] != tag->as_string()) ++type;
    out.type = static_cast<Tool::Type>(type);
  } else {
    size_t type = 0;
    const std::optional<uint64_t> number = nested && tag != nullptr ? tag->to_u64() : std::nullopt;
    if (number && *number >= std::size(kTypes)) {
      type = std::size(kTypes);
    } else {
      DI_TRY(read_tag(v, "ResponsesTool", "type", kTypes, type, nested));
    }
    out.type = static_cast<Tool::Type>(type);
  }
  const std::string prefix = "struct variant ResponsesTool::";
  switch (out.type) {
    case Tool::Type::kFunction:
      return read_function(v, out.function);
    case Tool::Type::kCustom:
      return read_struct(v, prefix + "Custom", 1, required("name", into(out.function.name)));
    case Tool::Type::kNamespace:
      return read_struct(v, prefix + "Namespace", 1, required("name", into(out.function.name)),
                         optional("description", into(out.function.description)),
                         required("tools", list_into(out.members, read_member)));
    case Tool::Type::kToolSearch:
      return read_struct(
          v, prefix + "ToolSearch", 1,
          optional("execution", [&](const Json& e) { return read_enum(e, kExecutions, out.execution.emplace()); }),
          optional("description", into(out.function.description)),
          optional("parameters", parameters_into(out.function.parameters)));
    case Tool::Type::kWebSearch:
    case Tool::Type::kWebSearch2025:
      return read_struct(
          v, "struct ResponsesWebSearchTool", 1,
          optional("search_context_size",
                   [&](const Json& s) { return read_variant(s, kVerbosities, out.context_size.emplace()); }),
          optional("user_location", [&](const Json& l) {
            Tool::Location& at = out.location.emplace();
            return read_struct(l, "struct ResponsesUserLocation", 0, optional("city", into(at.city)),
                               optional("country", into(at.country)), optional("region", into(at.region)),
                               optional("timezone", into(at.timezone)));
          }));
    case Tool::Type::kOther:
      return read_unit(v);
  }
  return {};
}

Read read_reasoning(const Json& v, Item& out) {
  const auto part = [](const Json& p, std::string_view& text) {
    return read_struct(p, "struct ResponsesReasoningContent", 0, required("text", into(text)));
  };
  return read_struct(v, "struct variant ResponsesInputItem::Reasoning", 1,
                     optional("content", [&](const Json& c) { return list_into(out.reasoning.emplace(), part)(c); }),
                     optional("encrypted_content", checked_text()));
}

Read read_message(const Json& v, size_t skip, Item& out) {
  return read_struct(
      v, "struct ResponsesMessage", skip,
      required("role",
               [&](const Json& r) { return read_enum(r, {"user", "assistant", "system", "developer"}, out.role); }),
      required("content", [&](const Json& c) { return read_content(c, false, out.content); }));
}

Read read_item(const Json& v, Item& out) {
  constexpr std::string_view kTypes[] = {"message",          "function_call",      "function_call_output",
                                         "reasoning",        "custom_tool_call",   "custom_tool_call_output",
                                         "tool_search_call", "tool_search_output", "web_search_call"};
  if (!v.is_object()) return read_error("invalid_type", "invalid input item");
  const Json* tag = v.find("type");
  if (tag == nullptr) {
    if (v.find("role") == nullptr) return read_error("invalid_type", "invalid input item");
    out.type = Item::Type::kMessage;
    return read_message(v, 0, out);
  }
  if (!tag->is_string()) return at_field("type", invalid_type(*tag, "variant identifier"));
  size_t type = 0;
  while (type < std::size(kTypes) && kTypes[type] != tag->as_string()) ++type;
  out.type = static_cast<Item::Type>(type);
  const std::string prefix = "struct variant ResponsesInputItem::";
  const auto execution = [](const Json& e) {
    size_t index = 0;
    return read_variant(e, kExecutions, index);
  };
  const auto output = [&](const Json& o) { return read_content(o, true, out.content); };
  switch (out.type) {
    case Item::Type::kMessage:
      return read_message(v, 1, out);
    case Item::Type::kFunctionCall:
      return read_struct(v, prefix + "FunctionCall", 1, required("arguments", into(out.arguments)),
                         required("call_id", [&](const Json& id) { return read_text(id, out.call_id.emplace()); }),
                         required("name", into(out.name)), optional("namespace", into(out.name_space)));
    case Item::Type::kFunctionCallOutput:
      return read_struct(v, prefix + "FunctionCallOutput", 1, optional("call_id", into(out.call_id)),
                         required("output", output));
    case Item::Type::kReasoning:
      return read_reasoning(v, out);
    case Item::Type::kCustomToolCall:
      return read_struct(v, prefix + "CustomToolCall", 1,
                         required("call_id", [&](const Json& id) { return read_text(id, out.call_id.emplace()); }),
                         required("name", into(out.name)), required("input", into(out.arguments)));
    case Item::Type::kCustomToolCallOutput:
      return read_struct(v, prefix + "CustomToolCallOutput", 1,
                         required("call_id", [&](const Json& id) { return read_text(id, out.call_id.emplace()); }),
                         optional("output", output));
    case Item::Type::kToolSearchCall:
      return read_struct(v, prefix + "ToolSearchCall", 1,
                         required("call_id", [&](const Json& id) { return read_text(id, out.call_id.emplace()); }),
                         optional("execution", execution), required("arguments", [&](const Json& a) -> Read {
                           if (!a.is_object()) return invalid_type(a, "a map");
                           out.search_arguments = &a;
                           return {};
                         }));
    case Item::Type::kToolSearchOutput:
      return read_struct(
          v, prefix + "ToolSearchOutput", 1,
          required("call_id", [&](const Json& id) { return read_text(id, out.call_id.emplace()); }),
          optional("execution", execution),
          required("tools", list_into(out.tools, [](const Json& t, Tool& tool) { return read_tool(t, true, tool); })));
    default:
      return {};
  }
}

Read read_input(const Json& v, Request& out) {
  out.has_input = true;
  if (v.is_string()) return read_text(v, out.input_text);
  if (!v.is_array()) return read_error("invalid_type", "input should be a string or a list of input items");
  return list_into(out.items.emplace(), read_item)(v);
}

Read read_choice(const Json& v, Request& out) {
  using Type = Choice::Type;
  if (const std::string* text = v.if_string()) {
    if (*text == "none") return out.choice.type = Type::kNone, Read();
    if (*text == "auto") return out.choice.type = Type::kAuto, Read();
    if (*text == "required") return out.choice.type = Type::kRequired, Read();
  } else if (v.is_object() && v.find("type") != nullptr) {
    constexpr std::string_view kTypes[] = {"function", "web_search", "web_search_2025_08_26", "custom"};
    size_t type = 0;
    DI_TRY(read_tag(v, "ResponsesToolChoiceObject", "type", kTypes, type));
    out.choice.type = static_cast<Type>(static_cast<size_t>(Type::kFunction) + type);
    if (type == 0 || type == 3) {
      return read_struct(v, "struct variant ResponsesToolChoiceObject::Function", 1,
                         required("name", into(out.choice.name)));
    }
    return {};
  }
  return read_error("invalid_value", "expected one of `none`, `auto`, `required` or a tool choice object");
}

Read read_format(const Json& v, Request& out) {
  constexpr std::string_view kTypes[] = {"text", "json_schema", "json_object"};
  size_t type = 0;
  DI_TRY(read_tag(v, "ResponsesTextFormat", "type", kTypes, type));
  Json& echo = out.format_echo;
  echo = Json(Json::Object{});
  echo.set("type", Json(kTypes[type]));
  out.format.given = type != 0;
  if (type == 2) out.format.format.kind = ResponseFormat::Kind::kJsonObject;
  if (type != 1) return read_unit(v);
  out.format.format.kind = ResponseFormat::Kind::kJsonSchema;
  std::string_view name;
  std::optional<std::string_view> description;
  std::optional<bool> strict;
  DI_TRY(read_struct(v, "struct variant ResponsesTextFormat::JsonSchema", 1, required("name", into(name)),
                     required("schema",
                              [&](const Json& s) {
                                out.format.format.schema = s;
                                return Read();
                              }),
                     optional("description", into(description)), optional("strict", into(strict))));
  out.format.strict = strict.value_or(false);
  echo.set("name", Json(name));
  echo.set("schema", out.format.format.schema);
  echo.set("description", description ? Json(*description) : Json());
  echo.set("strict", strict ? Json(*strict) : Json());
  return {};
}

auto index_into(std::optional<size_t>& out, std::span<const std::string_view> variants) {
  return [&out, variants](const Json& v) { return read_variant(v, variants, out.emplace()); };
}

}  // namespace

Read read_request(const Json& body, const CodecOptions& options, Request& out) {
  const bool extended = options.policy == ApiPolicy::kExtended;
  const ReadRules rules{extended};
  SamplingRequest& sampling = out.sampling;
  const auto reasoning = [&](const Json& v) {
    return read_struct(v, "struct ResponsesReasoningConfig",
                       optional("effort", [&](const Json& e) { return read_effort(e, extended, out.thinking); }),
                       optional("summary", index_into(out.summary, kSummaries)),
                       optional("generate_summary", index_into(out.generate_summary, kSummaries)));
  };
  // A null format is no absence: its own default is only for a missing member.
  const auto format = [&](const Json& v) { return read_format(v, out); };
  const auto text = [&](const Json& v) -> Read {
    const Field<decltype(format)> format_field{"format", true, format};
    if (v.is_array() && v.size() == 0) {
      return read_error("invalid_type", "invalid length 1, expected struct ResponsesTextConfig with 2 elements");
    }
    if (v.is_object() && v.find("format") == nullptr) {
      return read_struct(v, "struct ResponsesTextConfig",
                         optional("verbosity", index_into(out.verbosity, kVerbosities)));
    }
    return read_struct(v, "struct ResponsesTextConfig", format_field,
                       optional("verbosity", index_into(out.verbosity, kVerbosities)));
  };
  DI_TRY(read_struct(
      body, "struct ResponsesRequest", required("model", into(out.model)),
      optional("input", [&](const Json& v) { return read_input(v, out); }),
      optional("instructions", into(out.instructions)), optional("max_output_tokens", into(sampling.max_tokens, rules)),
      optional("reasoning", reasoning), optional("stream", into(out.stream)),
      optional("temperature", into(sampling.temperature)), optional("text", text),
      optional("tool_choice", [&](const Json& v) { return read_choice(v, out); }),
      optional("tools", list_into(out.tools, [](const Json& t, Tool& tool) { return read_tool(t, false, tool); })),
      optional("top_logprobs", into(sampling.top_logprobs, rules)), optional("top_p", into(sampling.top_p)),
      optional("user", into(out.user))));
  sampling.logprobs = sampling.top_logprobs.has_value();
  return {};
}

void write_function(JsonWriter& w, const FunctionTool& tool, const Tool* name_space) {
  w.begin_object()
      .key("type")
      .value("function")
      .key("name")
      .value(tool.name)
      .key("description")
      .value(tool.description);
  w.key("parameters");
  if (tool.parameters != nullptr) {
    w.value(*tool.parameters);
  } else {
    w.null();
  }
  w.key("strict").value(tool.strict);
  if (name_space != nullptr) {
    w.key("namespace").begin_object().key("name").value(name_space->function.name);
    w.key("description").value(name_space->function.description.value_or("")).end_object();
  }
  w.end_object();
}

namespace {

void write_web_search(JsonWriter& w, const Tool& tool) {
  w.begin_object().key("type").value(tool.type == Tool::Type::kWebSearch ? "web_search" : "web_search_2025_08_26");
  w.key("search_context_size");
  if (tool.context_size) {
    w.value(kVerbosities[*tool.context_size]);
  } else {
    w.null();
  }
  w.key("user_location");
  if (tool.location) {
    w.begin_object().key("city").value(tool.location->city).key("country").value(tool.location->country);
    w.key("region").value(tool.location->region).key("timezone").value(tool.location->timezone).end_object();
  } else {
    w.null();
  }
  w.end_object();
}

}  // namespace

void write_tool(JsonWriter& w, const Tool& tool) {
  switch (tool.type) {
    case Tool::Type::kFunction:
      return write_function(w, tool.function, nullptr);
    case Tool::Type::kWebSearch:
    case Tool::Type::kWebSearch2025:
      return write_web_search(w, tool);
    case Tool::Type::kCustom:
      w.begin_object().key("type").value("custom").key("name").value(tool.function.name).end_object();
      return;
    case Tool::Type::kNamespace:
      w.begin_object().key("type").value("namespace").key("name").value(tool.function.name);
      w.key("description").value(tool.function.description).key("tools").begin_array();
      for (const FunctionTool& member : tool.members) {
        if (member.custom) {
          w.begin_object().key("type").value("custom").key("name").value(member.name).end_object();
        } else {
          write_function(w, member, nullptr);
        }
      }
      w.end_array().end_object();
      return;
    case Tool::Type::kToolSearch:
      w.begin_object().key("type").value("tool_search").key("execution");
      if (tool.execution) {
        w.value(kExecutions[static_cast<size_t>(*tool.execution)]);
      } else {
        w.null();
      }
      w.key("description").value(tool.function.description).key("parameters");
      if (tool.function.parameters != nullptr) {
        w.value(*tool.function.parameters);
      } else {
        w.null();
      }
      w.end_object();
      return;
    case Tool::Type::kOther:
      return;
  }
}

namespace {

Json choice_echo(const Choice& choice) {
  using Type = Choice::Type;
  switch (choice.type.value_or(Type::kAuto)) {
    case Type::kAuto:
      return Json("auto");
    case Type::kNone:
      return Json("none");
    case Type::kRequired:
      return Json("required");
    default:
      break;
  }
  constexpr std::string_view kTypes[] = {"function", "web_search", "web_search_2025_08_26", "custom"};
  Json out{Json::Object()};
  out.set("type", Json(kTypes[static_cast<size_t>(*choice.type) - static_cast<size_t>(Type::kFunction)]));
  if (*choice.type == Type::kFunction || *choice.type == Type::kCustom) out.set("name", Json(choice.name));
  return out;
}

}  // namespace

void fill_echo(const Request& request, ResponsesEcho& echo) {
  if (request.instructions) echo.instructions = *request.instructions;
  echo.max_output_tokens = request.sampling.max_tokens;
  if (request.thinking.effort) echo.effort = kEfforts[static_cast<size_t>(*request.thinking.effort)];
  const auto summary = request.summary ? request.summary : request.generate_summary;
  if (summary) echo.summary = kSummaries[*summary];
  echo.temperature = request.sampling.temperature;
  echo.top_p = request.sampling.top_p;
  echo.text_format = request.format_echo;
  if (echo.text_format.is_null()) echo.text_format.set("type", Json("text"));
  if (request.verbosity) echo.verbosity = kVerbosities[*request.verbosity];
  echo.tool_choice = choice_echo(request.choice);
  std::string tools;
  JsonWriter w(tools);
  w.begin_array();
  for (const Tool& tool : request.tools) {
    if (tool.type != Tool::Type::kOther) write_tool(w, tool);
  }
  w.end_array();
  echo.tools = *parse_json(tools);
  echo.top_logprobs = request.sampling.top_logprobs;
  if (request.user) echo.user = *request.user;
}

}  // namespace di::codec::api::responses
