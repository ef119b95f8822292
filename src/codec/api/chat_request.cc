// Chat Completions request -> conversation (recipe.md §3.1).
#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "codec/api/common.h"
#include "codec/api/images.h"

namespace di::codec::api {

namespace {

enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool, kLatestReminder, kDeveloper };

struct Block {
  enum class Type : uint8_t { kText, kImageUrl, kFile };
  Type type = Type::kText;
  std::string_view text;
  std::string_view url;
  ImageDetail detail = ImageDetail::kHigh;
  std::optional<std::string_view> file_id;
  std::optional<std::string_view> file_data;
  std::optional<std::string_view> filename;
};

struct Content {
  std::string_view text;
  std::optional<std::vector<Block>> blocks;  // set: a list
};

struct RequestCall {
  std::string_view id;
  std::string_view name;
  std::string_view arguments;
};

struct RequestMessage {
  Role role = Role::kUser;
  std::optional<Content> content;
  std::optional<std::string_view> reasoning_content;
  std::optional<std::vector<RequestCall>> tool_calls;
  bool prefix = false;
  std::string_view tool_call_id;
};

struct Request {
  std::vector<RequestMessage> messages;
  std::string_view model;
  SamplingRequest sampling;
  std::optional<bool> logprobs;
  std::optional<uint8_t> n;
  std::optional<uint32_t> max_completion_tokens;
  std::vector<std::string_view> stop;
  bool single_stop = false;
  std::optional<bool> stream;
  bool has_stream_options = false;
  std::optional<bool> include_usage;
  FormatRequest format;
  std::optional<std::vector<ToolDefinition>> tools;
  std::vector<bool> has_parameters;
  ToolRequest::Choice choice = ToolRequest::Choice::kAuto;
  std::string_view choice_name;
  ThinkingSettings thinking;
  std::optional<int32_t> top_k;
  std::optional<float> min_p;
  std::map<TokenId, float> logit_bias;
};

Read read_image_url(const Json& v, Block& out) {
  return read_struct(v, "struct ChatCompletionImageUrl", required("url", into(out.url)),
                     optional("detail", [&](const Json& d) {
                       return read_enum(d, {"low", "high", "original", "auto"}, out.detail);
                     }));
}

Read read_block(const Json& v, Block& out) {
  DI_TRY(read_tag(v, "ChatCompletionRequestContentBlock", "type", {"text", "image_url", "file"}, out.type));
  const std::string prefix = "struct variant ChatCompletionRequestContentBlock::";
  switch (out.type) {
    case Block::Type::kText: return read_struct(v, prefix + "Text", 1, required("text", into(out.text)));
    case Block::Type::kImageUrl:
      return read_struct(v, prefix + "ImageUrl", 1,
                         required("image_url", [&](const Json& u) { return read_image_url(u, out); }));
    case Block::Type::kFile:
      return read_struct(v, prefix + "File", 1, optional("file_id", into(out.file_id)),
                         optional("file_data", into(out.file_data)), optional("filename", into(out.filename)));
  }
  return {};
}

Read read_content(const Json& v, Content& out) {
  if (const std::string* text = v.if_string()) {
    out.text = *text;
    return {};
  }
  if (!v.is_array()) return read_error("invalid_type", "content should be a string or a list");
  return list_into(out.blocks.emplace(), read_block)(v);
}

auto content_into(std::optional<Content>& out) {
  return [&out](const Json& v) { return read_content(v, out.emplace()); };
}

Read read_call(const Json& v, RequestCall& out) {
  const auto function = [&](const Json& f) {
    return read_struct(f, "struct ChatCompletionRequestFunctionCall", required("name", into(out.name)),
                       required("arguments", into(out.arguments)));
  };
  enum class Type : uint8_t { kFunction };
  return read_struct(v, "struct ChatCompletionRequestToolCall", required("id", into(out.id)),
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
    DI_TRY(read_tag(v, kEnum, "role", {"system", "user", "assistant", "tool", "latest_reminder", "developer"}, out.role));
    if (out.role == Role::kDeveloper) out.role = Role::kSystem;
  } else {
    DI_TRY(read_tag(v, kEnum, "role", {"system", "user", "assistant", "tool", "latest_reminder"}, out.role));
  }
  const std::string prefix = "struct variant ChatCompletionRequestMessage::";
  switch (out.role) {
    case Role::kSystem:
    case Role::kDeveloper:
      return read_struct(v, prefix + "System", 1, required("content", content_into(out.content)),
                         optional("name", checked_text()));
    case Role::kUser:
      return read_struct(v, prefix + "User", 1, required("content", content_into(out.content)),
                         optional("name", checked_text()));
    case Role::kAssistant: {
      std::optional<std::string_view> alias;
      DI_TRY(read_struct(v, prefix + "Assistant", 1, optional("content", content_into(out.content)),
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
      return read_struct(v, prefix + "Tool", 1, required("content", content_into(out.content)),
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
                            optional("description", into(description)), optional("parameters",
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
    return in_field("function", read_struct(function != nullptr ? *function : null, "struct ChatCompletionToolChoiceFunction",
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
    case Type::kText: return {};
    case Type::kJsonObject: out.format.kind = ResponseFormat::Kind::kJsonObject; return {};
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
        return read_struct(s, "struct ChatCompletionResponseFormatJsonSchema", required("schema",
                                                                                        [&](const Json& j) {
                                                                                          out.format.schema = j;
                                                                                          return Read();
                                                                                        }),
                           optional("name", checked_text()), optional("strict", into(strict)));
      };
      DI_TRY(read_struct(v, "struct variant ChatCompletionResponseFormat::JsonSchema", 1, required("json_schema", schema)));
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

Read read_effort(const Json& v, bool extended, ThinkingSettings& out) {
  if (extended && v.is_integer()) {
    const std::optional<int64_t> number = v.to_i64();
    if (!number || *number < 1 || *number > 100) {
      return read_error("invalid_value", fmt::format("invalid value: {}, expected an effort in [1, 100]", describe_json(v)));
    }
    out.effort_number = static_cast<int>(*number);
    return {};
  }
  return read_enum(v, kEfforts, out.effort.emplace());
}

Read read_request(const Json& body, const ReadRules& rules, bool extended, Request& out) {
  SamplingRequest& sampling = out.sampling;
  const auto messages = [&](const Json& m) {
    return list_into(out.messages, [&](const Json& v, RequestMessage& message) { return read_message(v, message, extended); })(m);
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
      optional("top_logprobs", into(sampling.top_logprobs, rules)), optional("max_tokens", into(sampling.max_tokens, rules)),
      optional("n", into(out.n, rules)), optional("presence_penalty", into(sampling.presence_penalty)),
      optional("seed", into(sampling.seed, rules)), optional("stop", [&](const Json& v) { return read_stop(v, out); }),
      optional("stream", into(out.stream)), optional("stream_options", stream_options),
      optional("temperature", into(sampling.temperature)), optional("top_p", into(sampling.top_p)),
      optional("response_format", [&](const Json& v) { return read_format(v, out.format); }), optional("tools", tools),
      optional("tool_choice", [&](const Json& v) { return read_tool_choice(v, out); }),
      optional("reasoning_effort", [&](const Json& v) { return read_effort(v, extended, out.thinking); }),
      optional("thinking", [&](const Json& v) { return read_thinking(v, rules, out.thinking); }),
      optional("parallel_tool_calls", [](const Json& v) {
        bool parallel = false;
        return read_bool(v, parallel);
      }));
}

// Fields that only the extended policy reads (server.md §4.1).
Read read_extensions(const Json& body, const ReadRules& rules, Request& out) {
  const auto bias = [&](const Json& v) -> Read {
    const Json::Object* map = v.if_object();
    if (map == nullptr) return invalid_type(v, "a map");
    for (const JsonMember& member : *map) {
      TokenId id = -1;
      const char* end = member.key.data() + member.key.size();
      const auto parsed = std::from_chars(member.key.data(), end, id);
      float value = 0;
      DI_TRY(at_field(member.key, read_f32(member.value, value)));
      if (parsed.ptr != end || member.key.empty() || id < 0 || !(value >= -100 && value <= 100)) {
        return read_error("invalid_value", fmt::format("invalid entry `{}`: expected a token id and a bias in [-100, 100]", member.key));
      }
      out.logit_bias[id] = value;
    }
    return {};
  };
  const auto top_k = [&](const Json& v) -> Read {
    const std::optional<int64_t> value = v.to_i64();
    if (!value || *value < -1 || *value > INT32_MAX) return invalid_type(v, "an integer >= -1");
    out.top_k = static_cast<int32_t>(*value);
    return {};
  };
  const auto kwargs = [&](const Json& v) -> Read {
    std::optional<bool> thinking;
    std::optional<bool> enable;
    DI_TRY(read_struct(v, "a map", optional("thinking", into(thinking)), optional("enable_thinking", into(enable)),
                       optional("reasoning_effort", [&](const Json& e) { return read_effort(e, true, out.thinking); })));
    if (const auto on = thinking ? thinking : enable; on && !out.thinking.type) {
      out.thinking.type = *on ? ThinkingType::kEnabled : ThinkingType::kDisabled;
    }
    return {};
  };
  DI_TRY(read_struct(body, "struct ChatCompletionRequest",
                     optional("max_completion_tokens", into(out.max_completion_tokens, rules)), optional("top_k", top_k),
                     optional("min_p", into(out.min_p)), optional("logit_bias", bias), optional("chat_template_kwargs", kwargs),
                     optional("chat_template", [](const Json&) {
                       return Read(read_error("invalid_value", "`chat_template` is not supported"));
                     })));
  if (out.min_p && !(*out.min_p >= 0 && *out.min_p <= 1)) {
    return at_field("min_p", read_error("invalid_value", "Invalid min_p value, the valid range of min_p is [0, 1]"));
  }
  if (!out.max_completion_tokens) return {};
  if (out.sampling.max_tokens && *out.sampling.max_tokens != *out.max_completion_tokens) {
    return at_field("max_completion_tokens",
                    read_error("invalid_value", "`max_tokens` and `max_completion_tokens` differ; give one of them"));
  }
  out.sampling.max_tokens = out.max_completion_tokens;
  return {};
}

class Converter {
 public:
  Converter(Request& request, const CodecOptions& options) : request_(request), options_(options) {}

  ApiResult<ConvertedRequest> run() {
    out_.api = Api::kChat;
    out_.model = request_.model;
    out_.version = DI_TRY(resolve_model(request_.model, options_));
    if (request_.tools) {
      for (size_t i = 0; i < request_.tools->size(); ++i) {
        DI_TRY(validate_tool_name((*request_.tools)[i].name, fmt::format("tools[{}].function", i)));
      }
    }
    Conversation& conversation = out_.conversation;
    apply_thinking(request_.thinking, options_.default_thinking_mode, conversation);
    DI_TRY(messages());
    const bool has_tools = request_.tools && !request_.tools->empty();
    DI_TRY(apply_reasoning_history(options_, "reasoning_content", has_tools, conversation));
    DI_TRY(prefix_position());
    conversation.response_format = request_.format.format;
    const bool json_object = request_.format.format.kind == ResponseFormat::Kind::kJsonObject;
    DI_TRY(json_word(json_object));
    ToolRequest tools;
    if (request_.tools) tools.tools = std::move(*request_.tools);
    tools.has_parameters = request_.has_parameters;
    tools.choice = request_.choice;
    tools.name = request_.choice_name;
    DI_TRY(apply_tools(std::move(tools), options_, out_));
    DI_TRY(prefix_conflicts(json_object, has_tools));
    DI_TRY(check_stop(request_.stop, request_.single_stop, out_.parsing.stop_sequences));
    out_.stream = request_.stream.value_or(false);
    if (request_.has_stream_options && !out_.stream) {
      return bad_request("stream_options should be set along with stream = true");
    }
    out_.include_usage = request_.include_usage.value_or(false);
    std::string schema = DI_TRY(check_format(request_.format, options_));
    DI_TRY(apply_constraint(request_.format, std::move(schema), out_));
    DI_TRY(sampling());
    parsing(json_object);
    return std::move(out_);
  }

 private:
  ApiResult<void> messages() {
    auto& messages = request_.messages;
    if (messages.empty()) return bad_request("Empty input messages");
    for (size_t i = 0; i < messages.size(); ++i) {
      switch (messages[i].role) {
        case Role::kSystem:
        case Role::kDeveloper: DI_TRY(system(i)); break;
        case Role::kUser: {
          Message& message = add(Message::Role::kUser);
          DI_TRY(content(*messages[i].content, i, message));
          break;
        }
        case Role::kAssistant: i += DI_TRY(assistant(i)); break;
        case Role::kTool:
          return bad_request("Messages with role 'tool' must be a response to a preceding message with 'tool_calls'");
        case Role::kLatestReminder:
          add(Message::Role::kLatestReminder).content = std::string(messages[i].content->text);
          break;
      }
    }
    return {};
  }

  Message& add(Message::Role role) {
    Message& message = out_.conversation.messages.emplace_back();
    message.role = role;
    return message;
  }

  ApiResult<void> content(const Content& content, size_t i, Message& out) {
    if (!content.blocks) {
      out.content.append(content.text);
      return {};
    }
    bool first = true;
    for (size_t b = 0; b < content.blocks->size(); ++b) {
      if (!first) out.content.append("\n\n");
      first = false;
      const Block& block = (*content.blocks)[b];
      if (block.type == Block::Type::kText) {
        out.content.append(block.text);
      } else if (out_.version == ModelVersion::kV4) {
        out.content.append(kUnsupportedImage);
      } else {
        DI_TRY(image(block, i, b, out));
      }
    }
    return {};
  }

  ApiResult<void> image(const Block& block, size_t i, size_t b, Message& out) {
    ImageSource source;
    source.path = fmt::format(".messages[{}]", i);
    source.detail = block.detail;
    if (block.type == Block::Type::kFile) {
      DI_TRY(check_file(block, source.path));
      source.location = *block.file_data;
    } else {
      source.location = block.url;
      if (is_external_url(block.url)) {
        source.kind = ImageSource::Kind::kUrl;
        if (block.url.size() > kMaxImageUrl) {
          return bad_request(
              "{}.image_url.url[{}]: image_url.url external link length {} too long, max link length {}. Consider passing "
              "file data directly with base64 data url instead.",
              source.path, b, block.url.size(), kMaxImageUrl);
        }
      } else {
        DI_TRY(check_image_data_url(block.url, source.path));
      }
    }
    out.content.append_image(options_.special.image);
    out.image_sources.push_back(std::move(source));
    return {};
  }

  static ApiResult<void> check_file(const Block& block, std::string_view path) {
    if (!block.file_id && !block.file_data) return bad_request("{}: file must have a file_id or file_data", path);
    if (block.file_id && block.file_data) {
      return bad_request("{}: file cannot have both file_id and file_data", path);
    }
    if (block.file_id && block.filename) {
      return bad_request("{}: file cannot have filename when file_id is present", path);
    }
    if (block.file_id) {
      return bad_request("{}: file_id is not supported. Pass the image as a base64 data url instead.", path);
    }
    const std::optional<DataUrl> data = parse_data_url(*block.file_data);
    if (!data || block.file_data->find("base64,") == std::string_view::npos) {
      return bad_request("{}: file_data is not a valid base64 data url", path);
    }
    if (!is_supported_image_mime(data->mime)) {
      return bad_request(
          "{}: You have uploaded an unsupported file. Please make sure your file is valid and has one of the following "
          "formats: webp, png, jpeg, and gif.",
          path);
    }
    if (data->base64 && !is_forgiving_base64(data->body)) return bad_request("{}: Invalid base64 data", path);
    return {};
  }

  ApiResult<void> system(size_t i) {
    Message message;
    message.role = Message::Role::kSystem;
    DI_TRY(content(*request_.messages[i].content, i, message));
    drop_billing_header(message.content);
    if (!message.content.empty()) out_.conversation.messages.push_back(std::move(message));
    return {};
  }

  // A client's accounting line in front of the real prompt, which would spoil the prefix cache.
  static void drop_billing_header(RichText& content) {
    if (!content.text.starts_with("x-anthropic-billing-header")) return;
    size_t cut = std::min(content.text.find('\n'), content.text.find("You are"));
    if (cut == std::string::npos) cut = content.text.size();
    const size_t start = content.text.find_first_not_of(" \t\n\v\f\r", cut);
    cut = start == std::string::npos ? content.text.size() : start;
    content.text.erase(0, cut);
    std::vector<std::pair<size_t, size_t>> images;
    for (const auto& [begin, end] : content.images) {
      if (begin >= cut) images.emplace_back(begin - cut, end - cut);
    }
    content.images = std::move(images);
  }

  // Returns how many tool messages it took.
  ApiResult<size_t> assistant(size_t i) {
    const RequestMessage& in = request_.messages[i];
    if (!in.content && !in.tool_calls) {
      return bad_request("Invalid assistant message: content or tool_calls must be set");
    }
    Message message;
    message.role = Message::Role::kAssistant;
    if (in.content && in.content->blocks && out_.version == ModelVersion::kV41) {
      for (const Block& block : *in.content->blocks) {
        if (block.type != Block::Type::kText) return bad_request("Image in assistant message is not supported");
      }
    }
    if (in.content) DI_TRY(content(*in.content, i, message));
    if (in.reasoning_content) message.reasoning_content = *in.reasoning_content;
    message.prefix = in.prefix;
    if (!in.tool_calls) {
      out_.conversation.messages.push_back(std::move(message));
      return size_t{0};
    }
    if (in.tool_calls->empty()) {
      return bad_request(
          "Invalid 'messages[{}].tool_calls': empty array. Expected an array with minimum length 1, but got an empty "
          "array instead.",
          i);
    }
    message.tool_calls.emplace();
    std::unordered_set<std::string_view> ids;
    for (const RequestCall& call : *in.tool_calls) {
      if (!ids.insert(call.id).second) {
        return bad_request("Duplicate value for 'tool_call_id' of {} in message[{}]", call.id, i);
      }
      message.tool_calls->push_back({std::string(call.id), std::string(call.name), std::string(call.arguments)});
    }
    out_.conversation.messages.push_back(std::move(message));
    DI_TRY(tool_results(i + 1, ids));
    return in.tool_calls->size();
  }

  ApiResult<void> tool_results(size_t first, const std::unordered_set<std::string_view>& ids) {
    std::unordered_set<std::string_view> answered;
    for (size_t k = first; k < first + ids.size(); ++k) {
      if (k >= request_.messages.size() || request_.messages[k].role != Role::kTool) {
        return bad_request(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. (insufficient tool messages following tool_calls message)");
      }
      const RequestMessage& result = request_.messages[k];
      if (!ids.contains(result.tool_call_id)) {
        return bad_request(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id', The following tool_call_ids did not have response messages: {}",
            result.tool_call_id);
      }
      if (!answered.insert(result.tool_call_id).second) {
        return bad_request("Duplicate value for 'tool_call_id' of {} in message[{}]", result.tool_call_id, k);
      }
      Message& message = add(Message::Role::kTool);
      message.tool_call_id = result.tool_call_id;
      DI_TRY(content(*result.content, k, message));
    }
    return {};
  }

  ApiResult<void> prefix_position() {
    for (size_t i = 0; i + 1 < request_.messages.size(); ++i) {
      if (!request_.messages[i].prefix) continue;
      return bad_request(
          "Invalid completion message: prefix set true with message which is not final message or message role is not "
          "assistant");
    }
    return {};
  }

  ApiResult<void> json_word(bool json_object) {
    if (!json_object || mentions_json(out_.conversation)) return {};
    constexpr std::string_view kMessage =
        "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.";
    if (options_.policy == ApiPolicy::kOfficial) return bad_request("{}", kMessage);
    out_.warnings.emplace_back(kMessage);
    return {};
  }

  ApiResult<void> prefix_conflicts(bool json_object, bool has_tools) {
    if (request_.messages.empty() || !request_.messages.back().prefix) return {};
    if (json_object) return bad_request("response_format json_object should not be used with prefix");
    const bool tool_history =
        std::any_of(request_.messages.begin(), request_.messages.end(), [](const RequestMessage& message) {
          return message.role == Role::kTool || message.tool_calls.has_value();
        });
    if (has_tools || tool_history) return bad_request("Function call should not be used with prefix");
    return {};
  }

  ApiResult<void> sampling() {
    SamplingRequest& sampling = request_.sampling;
    sampling.logprobs = request_.logprobs.value_or(false);
    if (request_.n) sampling.n = *request_.n;
    DI_TRY(apply_sampling(sampling, options_, out_));
    if (options_.policy == ApiPolicy::kExtended && !out_.conversation.thinking_mode) {
      out_.sampling.top_k = request_.top_k.value_or(-1);
      out_.sampling.min_p = request_.min_p.value_or(0.0F);
      out_.sampling.logit_bias = request_.logit_bias;
    }
    return {};
  }

  void parsing(bool json_object) {
    const Conversation& conversation = out_.conversation;
    ParsingOptions& parsing = out_.parsing;
    parsing.parse_tool_calls = conversation.tools_on();
    parsing.starts_in_tool_calls = conversation.tool_choice == ToolChoice::kRequired && conversation.tools_on();
    parsing.parse_json_output = json_object;
    if (!conversation.thinking_mode) return;
    parsing.thinking_start = ThinkingStart::kReasoningStart;
    if (conversation.messages.empty() || !conversation.messages.back().prefix) return;
    const Message& last = conversation.messages.back();
    if (!last.content.empty()) {
      parsing.thinking_start = ThinkingStart::kContentContinuation;
    } else if (last.reasoning_content && !last.reasoning_content->empty()) {
      parsing.thinking_start = ThinkingStart::kReasoningContinuation;
    }
  }

  Request& request_;
  const CodecOptions& options_;
  ConvertedRequest out_;
};

}  // namespace

ApiResult<ConvertedRequest> convert_chat(const Json& body, const CodecOptions& options) {
  const bool extended = options.policy == ApiPolicy::kExtended;
  const ReadRules rules{extended};
  Request request;
  if (const Read read = read_request(body, rules, extended, request); !read) return invalid_body(read.error());
  if (extended) {
    if (const Read read = read_extensions(body, rules, request); !read) return invalid_body(read.error());
  }
  return Converter(request, options).run();
}

}  // namespace di::codec::api
