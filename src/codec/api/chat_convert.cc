// Chat Completions request -> conversation (recipe.md §3.1).
#include <algorithm>
#include <unordered_set>

#include "codec/api/chat_request.h"
#include "codec/api/images.h"

namespace di::codec::api {

namespace {

using chat::Block;
using chat::Content;
using chat::Request;
using chat::RequestCall;
using chat::RequestMessage;
using chat::Role;

// The official service does not name the field of these errors, so its texts need not; the envelope of server.md §2.3
// does.
template <class T>
ApiResult<T> about(std::string_view param, ApiResult<T> result) {
  if (!result && result.error().param.empty()) result.error().param = param;
  return result;
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
    DI_TRY(about("messages", messages()));
    const bool has_tools = request_.tools && !request_.tools->empty();
    DI_TRY(about("messages", apply_reasoning_history(options_, "reasoning_content", has_tools, conversation)));
    DI_TRY(about("messages", prefix_position()));
    conversation.response_format = request_.format.format;
    const bool json_object = request_.format.format.kind == ResponseFormat::Kind::kJsonObject;
    DI_TRY(about("messages", json_word(json_object)));
    ToolRequest tools;
    if (request_.tools) tools.tools = std::move(*request_.tools);
    tools.has_parameters = request_.has_parameters;
    tools.choice = request_.choice;
    tools.name = request_.choice_name;
    DI_TRY(about("tools", apply_tools(std::move(tools), options_, out_)));
    DI_TRY(about("messages", prefix_conflicts(json_object, has_tools)));
    DI_TRY(check_stop(request_.stop, request_.single_stop, out_.parsing.stop_sequences));
    out_.stream = request_.stream.value_or(false);
    if (request_.has_stream_options && !out_.stream) {
      return about("stream_options",
                   ApiResult<ConvertedRequest>(bad_request("stream_options should be set along with stream = true")));
    }
    out_.include_usage = request_.include_usage.value_or(false);
    out_.continuous_usage = request_.continuous_usage.value_or(false);
    std::string schema = DI_TRY(about("response_format", check_format(request_.format, options_)));
    DI_TRY(about("response_format", apply_constraint(request_.format, std::move(schema), out_)));
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
        case Role::kDeveloper:
          DI_TRY(system(i));
          break;
        case Role::kUser: {
          Message& message = add(Message::Role::kUser);
          DI_TRY(content(*messages[i].content, i, message));
          break;
        }
        case Role::kAssistant:
          i += DI_TRY(assistant(i));
          break;
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

  // First the form of every block, then, in an assistant's message, that there are images at all, then the images.
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
    if (out.role == Message::Role::kAssistant && !out.image_sources.empty()) {
      return bad_request("Image in assistant message is not supported");
    }
    for (const ImageSource& source : out.image_sources) {
      if (source.kind == ImageSource::Kind::kDataUrl) DI_TRY(check_image_data_url(source.location, source.path));
    }
    return {};
  }

  ApiResult<void> image(const Block& block, size_t i, size_t b, Message& out) {
    ImageSource source;
    source.path = fmt::format(".messages[{}]", i);
    source.detail = block.detail;
    if (block.type == Block::Type::kFile) {
      DI_TRY(check_file(block, source.path));
      if (block.file_id) source.kind = ImageSource::Kind::kFile;
      source.location = block.file_id ? *block.file_id : *block.file_data;
    } else {
      source.location = block.url;
      if (is_external_url(block.url)) {
        source.kind = ImageSource::Kind::kUrl;
        if (block.url.size() > kMaxImageUrl) {
          return bad_request(
              "{}.image_url.url[{}]: image_url.url external link length {} too long, max link length {}. Consider "
              "passing "
              "file data directly with base64 data url instead.",
              source.path, b, block.url.size(), kMaxImageUrl);
        }
      }
    }
    out.content.append_image(options_.special.image);
    out.image_sources.push_back(std::move(source));
    return {};
  }

  ApiResult<void> check_file(const Block& block, std::string_view path) const {
    if (!block.file_id && !block.file_data) return bad_request("{}: file must have a file_id or file_data", path);
    if (block.file_id && block.file_data) {
      return bad_request("{}: file cannot have both file_id and file_data", path);
    }
    if (block.file_id && block.filename) {
      return bad_request("{}: file cannot have filename when file_id is present", path);
    }
    if (block.file_id) return check_file_id(path, options_);
    const std::optional<DataUrl> data = parse_data_url(*block.file_data);
    if (!data) return bad_request("{}: file_data is not a valid base64 data url", path);
    if (!is_supported_image_mime(data->mime)) {
      return bad_request(
          "{}: You have uploaded an unsupported file. Please make sure your file is valid and has one of the following "
          "formats: webp, png, jpeg, and gif.",
          path);
    }
    if (data->base64 && !is_forgiving_base64(data->body)) {
      return bad_request("{}: file_data is not a valid base64 data url", path);
    }
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
    const bool tool_history = std::any_of(
        request_.messages.begin(), request_.messages.end(),
        [](const RequestMessage& message) { return message.role == Role::kTool || message.tool_calls.has_value(); });
    if (has_tools || tool_history) return bad_request("Function call should not be used with prefix");
    return {};
  }

  ApiResult<void> sampling() {
    SamplingRequest& sampling = request_.sampling;
    sampling.logprobs = request_.logprobs.value_or(false);
    if (request_.n) sampling.n = *request_.n;
    return apply_sampling(sampling, options_, out_);
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
  if (const Read read = chat::read_request(body, rules, extended, request); !read) return invalid_body(read.error());
  if (extended && body.is_object()) {
    if (const Read read = chat::read_extensions(body, rules, request); !read) return invalid_body(read.error());
  }
  return Converter(request, options).run();
}

}  // namespace di::codec::api
