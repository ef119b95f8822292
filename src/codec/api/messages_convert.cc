// Messages request -> conversation (recipe.md §3.3).
#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "codec/api/images.h"
#include "codec/api/messages_request.h"
#include "codec/api/read_sampling.h"
#include "codec/rust_text.h"

namespace di::codec::api {

namespace {

using messages::Block;
using messages::Choice;
using messages::Image;
using messages::Request;
using messages::RequestMessage;
using messages::ResultBlock;
using messages::Role;

// A payload with at least one trailing '=' gets canonical padding, unless its length can have none.
std::string normalized_base64(std::string_view data) {
  std::string out(data);
  if (!out.ends_with('=')) return out;
  const size_t symbols = out.find_last_not_of('=') + 1;
  if (symbols % 4 == 1) return out;
  out.resize(symbols);
  while (out.size() % 4 != 0) out.push_back('=');
  return out;
}

// Standard base64: canonical padding, no white space, unused bits zero.
bool is_standard_base64(std::string_view data) {
  if (data.size() % 4 != 0) return false;
  size_t symbols = data.size();
  while (symbols > 0 && data.size() - symbols < 2 && data[symbols - 1] == '=') --symbols;
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  static const auto kValues = [&] {
    std::array<int8_t, 256> table{};
    table.fill(-1);
    for (size_t i = 0; i < kAlphabet.size(); ++i)
      table[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
    return table;
  }();
  for (size_t i = 0; i < symbols; ++i) {
    if (kValues[static_cast<unsigned char>(data[i])] < 0) return false;
  }
  const size_t padding = data.size() - symbols;
  if (padding == 0) return true;
  const int last = kValues[static_cast<unsigned char>(data[symbols - 1])];
  return (last & (padding == 2 ? 15 : 3)) == 0;
}

class Converter {
 public:
  Converter(const Request& request, const CodecOptions& options) : request_(request), options_(options) {}

  ApiResult<ConvertedRequest> run() {
    out_.api = Api::kMessages;
    out_.model = request_.model;
    out_.version = DI_TRY(resolve_model(request_.model, options_));
    Conversation& conversation = out_.conversation;
    apply_thinking(request_.thinking, options_.default_thinking_mode, conversation);
    ToolRequest tools = DI_TRY(declared_tools());
    system_field();
    DI_TRY(all_messages());
    DI_TRY(apply_reasoning_history(options_, "content[].thinking", !tools.tools.empty(), conversation));
    DI_TRY(apply_tools(std::move(tools), options_, out_));
    filter_system_tools(conversation);
    conversation.response_format = request_.format.format;
    std::string schema = DI_TRY(check_format(request_.format, options_));
    DI_TRY(apply_constraint(request_.format, std::move(schema), out_));
    DI_TRY(check_stop(request_.stop, false, out_.parsing.stop_sequences));
    SamplingRequest sampling = request_.sampling;
    sampling.clamp_max_tokens = true;
    DI_TRY(apply_sampling(sampling, options_, out_));
    out_.stream = request_.stream.value_or(false);
    out_.parsing.parse_tool_calls = conversation.tools_on();
    out_.parsing.starts_in_tool_calls = conversation.tools_on() && conversation.tool_choice == ToolChoice::kRequired;
    if (conversation.thinking_mode) out_.parsing.thinking_start = ThinkingStart::kReasoningStart;
    return std::move(out_);
  }

 private:
  bool v41() const { return out_.version == ModelVersion::kV41; }

  ApiResult<ToolRequest> declared_tools() {
    ToolRequest tools;
    std::set<std::string_view> dropped;
    for (size_t i = 0; i < request_.tools.size(); ++i) {
      const messages::Tool& tool = request_.tools[i];
      if (tool.server_type) {
        if (options_.messages_web_search != WebSearch::kDrop || !tool.server_type->starts_with("web_search")) {
          return bad_request("tools[{}]: server tools are not supported", i);
        }
        dropped.insert(tool.name);
        continue;
      }
      DI_TRY(validate_tool_name(tool.name, fmt::format("tools[{}]", i)));
      ToolDefinition& definition = tools.tools.emplace_back();
      definition.name = tool.name;
      if (tool.description) definition.description = *tool.description;
      definition.parameters = *tool.input_schema;
      definition.defer_loading = tool.defer_loading && v41();
      tools.has_parameters.push_back(true);
    }
    const bool all_deferred =
        !tools.tools.empty() &&
        std::all_of(tools.tools.begin(), tools.tools.end(), [](const ToolDefinition& t) { return t.defer_loading; });
    if (all_deferred) {
      return bad_request("tools: at least one tool must have defer_loading=false. All tools cannot be deferred.");
    }
    for (const ToolDefinition& tool : tools.tools) known_tools_.emplace(tool.name, tool);
    switch (request_.choice) {
      case Choice::kAuto:
        break;
      case Choice::kAny:
        if (options_.policy == ApiPolicy::kExtended) tools.choice = ToolRequest::Choice::kRequired;
        break;
      case Choice::kNone:
        tools.choice = ToolRequest::Choice::kNone;
        break;
      case Choice::kTool:
        if (dropped.contains(request_.choice_name)) break;
        if (!dropped.empty() && tools.tools.empty()) return unknown_function(request_.choice_name);
        tools.choice = ToolRequest::Choice::kNamed;
        tools.name = request_.choice_name;
        break;
    }
    return tools;
  }

  Message& add(Message::Role role) {
    Message& message = out_.conversation.messages.emplace_back();
    message.role = role;
    return message;
  }

  void system_field() {
    if (!request_.has_system) return;
    Message& message = add(Message::Role::kSystem);
    message.content.append(request_.system_text);
    if (!request_.system_blocks) return;
    bool first_text = true;
    for (size_t i = 0; i < request_.system_blocks->size(); ++i) {
      const std::string_view text = (*request_.system_blocks)[i];
      if (i == 0 && lower_ascii(text.substr(0, 26)) == "x-anthropic-billing-header") continue;
      if (!first_text) message.content.append("\n\n");
      first_text = false;
      message.content.append(text);
    }
  }

  ApiResult<void> all_messages() {
    if (request_.messages.empty()) return bad_request("messages: at least one message is required");
    for (size_t i = 0; i < request_.messages.size(); ++i) {
      const RequestMessage& message = request_.messages[i];
      if (message.blocks && message.blocks->empty() && message.role != Role::kSystem) {
        return bad_request("messages.{}: all messages must have non-empty content", i);
      }
      switch (message.role) {
        case Role::kUser:
          DI_TRY(user(message, i));
          break;
        case Role::kAssistant:
          DI_TRY(assistant(message, i));
          break;
        case Role::kSystem:
          DI_TRY(system(message, i));
          break;
      }
    }
    return settle_pending(request_.messages.size());
  }

  // `where` already has its colon and, except behind a message, its space.
  ApiResult<void> unanswered(const std::string& where) const {
    if (pending_.empty()) return {};
    std::string ids;
    for (const std::string_view id : pending_) ids.append(ids.empty() ? "" : ", ").append(id);
    return bad_request(
        "{}`tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block must "
        "have a "
        "corresponding `tool_result` block in the next message.",
        where, ids);
  }
  ApiResult<void> settle_pending(size_t next) const { return unanswered(fmt::format("messages.{}:", next - 1)); }
  ApiResult<void> interrupted(size_t i) const { return unanswered(fmt::format("messages.{}: ", i)); }

  ApiResult<void> user(const RequestMessage& in, size_t i) {
    if (!in.blocks) {
      DI_TRY(interrupted(i));
      add(Message::Role::kUser).content = std::string(in.text);
      return {};
    }
    results_.clear();
    std::vector<ToolDefinition> referenced;
    bool any_reference = false;
    for (size_t b = 0; b < in.blocks->size(); ++b) {
      const Block& block = (*in.blocks)[b];
      switch (block.type) {
        case Block::Type::kText:
          DI_TRY(interrupted(i));
          add(Message::Role::kUser).content = std::string(block.text);
          break;
        case Block::Type::kDocument:
          DI_TRY(interrupted(i));
          add(Message::Role::kUser).content = document(block.media_type);
          break;
        case Block::Type::kImage: {
          DI_TRY(interrupted(i));
          const std::string path = fmt::format("messages.{}.content[{}]", i, b);
          DI_TRY(image(block.image, path, path, add(Message::Role::kUser)));
          break;
        }
        case Block::Type::kToolResult:
          DI_TRY(tool_result(block, i, b, referenced));
          any_reference = any_reference || !referenced.empty();
          break;
        default:
          return misplaced(block, i);
      }
    }
    if (!results_.empty()) DI_TRY(settle_pending(i));
    if (any_reference && v41()) add(Message::Role::kSystem).tools = std::move(referenced);
    return {};
  }

  static std::unexpected<ApiError> misplaced(const Block& block, size_t i) {
    switch (block.type) {
      case Block::Type::kToolUse:
        return bad_request("messages.{}: `tool_use` blocks can only be in `assistant` messages", i);
      case Block::Type::kServerToolUse:
        return bad_request("messages.{}: `server_tool_use` blocks can only be in `assistant` messages", i);
      case Block::Type::kToolResult:
        return bad_request("messages.{}: `tool_result` blocks can only be in `user` messages", i);
      case Block::Type::kWebSearchToolResult:
        return bad_request("messages.{}: `web_search_tool_result` blocks can only be in `assistant` messages", i);
      case Block::Type::kToolAddition:
        return bad_request("messages.{}: `tool_addition` blocks can only be in `system` messages", i);
      default:
        return bad_request("messages.{}.content: thinking blocks may only be in `assistant` messages", i);
    }
  }

  static std::string document(const std::optional<std::string_view>& media_type) {
    return fmt::format("[Unsupported document type: {}]", media_type.value_or("unknown"));
  }

  ApiResult<void> tool_result(const Block& block, size_t i, size_t b, std::vector<ToolDefinition>& referenced) {
    if (results_.contains(block.id)) {
      return bad_request(
          "messages.{}.content.{}: each tool_use must have a single result. Found multiple `tool_result` blocks with "
          "id: {}",
          i, b, block.id);
    }
    if (pending_.erase(block.id) == 0) {
      return bad_request(
          "unexpected `messages.{}.content.{}: tool_use_id` found in `tool_result` blocks: {}. Each `tool_result` "
          "block must "
          "have a corresponding `tool_use` block in the previous message.",
          i, b, block.id);
    }
    results_.insert(block.id);
    Message message;
    message.role = Message::Role::kTool;
    message.tool_call_id = block.id;
    message.content.append(block.result_text);
    if (block.result_blocks) DI_TRY(result_content(*block.result_blocks, i, b, message, referenced));
    out_.conversation.messages.push_back(std::move(message));
    return {};
  }

  ApiResult<void> result_content(const std::vector<ResultBlock>& blocks, size_t i, size_t b, Message& message,
                                 std::vector<ToolDefinition>& referenced) {
    for (const ResultBlock& block : blocks) {  // an unknown tool is named before a broken image
      if (block.type == ResultBlock::Type::kToolReference && !known_tools_.contains(block.text)) {
        return bad_request("messages.{}.content.{}: tool reference '{}' not found in available tools", i, b,
                           block.text);
      }
    }
    for (size_t k = 0; k < blocks.size(); ++k) {
      const ResultBlock& block = blocks[k];
      if (k > 0) message.content.append("\n\n");
      switch (block.type) {
        case ResultBlock::Type::kText:
          message.content.append(block.text);
          break;
        case ResultBlock::Type::kDocument:
          message.content.append(document(block.media_type));
          break;
        case ResultBlock::Type::kImage: {
          const std::string path = fmt::format("messages.{}.content.{}.tool_result", i, b);
          DI_TRY(image(block.image, fmt::format("{}.content[{}]", path, k), path, message));
          break;
        }
        case ResultBlock::Type::kToolReference: {
          referenced.push_back(known_tools_.at(block.text));
          message.content.append(block.text);
          break;
        }
      }
    }
    return {};
  }

  ApiResult<void> image(const Image& in, const std::string& error_path, const std::string& source_path,
                        Message& message) {
    if (!v41()) {
      message.content.append(kUnsupportedImage);
      return {};
    }
    ImageSource source;
    source.path = source_path;
    switch (in.kind) {
      case Image::Kind::kBase64: {
        const std::string data = normalized_base64(in.value);
        if (!is_standard_base64(data)) return bad_request("{}: base64 decode error", error_path);
        const std::string_view mime = in.media_type == "image/jpg" ? "image/jpeg" : in.media_type;
        source.location = fmt::format("data:{};base64,{}", mime, data);
        break;
      }
      case Image::Kind::kUrl:
        if (!is_external_url(in.value)) return bad_request("{}: invalid url: {}", error_path, rust_debug(in.value));
        if (in.value.size() > kMaxImageUrl) {
          return bad_request(
              "{}: external link length {} too long, max link length {}. Consider passing file data directly with "
              "base64 "
              "data url instead.",
              error_path, in.value.size(), kMaxImageUrl);
        }
        source.kind = ImageSource::Kind::kUrl;
        source.location = in.value;
        break;
      case Image::Kind::kFile:
        DI_TRY(check_file_id(error_path, options_));
        source.kind = ImageSource::Kind::kFile;
        source.location = in.value;
        break;
    }
    message.content.append_image(options_.special.image);
    message.image_sources.push_back(std::move(source));
    return {};
  }

  ApiResult<void> assistant(const RequestMessage& in, size_t i) {
    DI_TRY(interrupted(i));
    Message message;
    message.role = Message::Role::kAssistant;
    if (!in.blocks) {
      message.content = std::string(in.text);
      out_.conversation.messages.push_back(std::move(message));
      return {};
    }
    for (size_t b = 0; b < in.blocks->size(); ++b) DI_TRY(assistant_block((*in.blocks)[b], i, b, message));
    out_.conversation.messages.push_back(std::move(message));
    return {};
  }

  ApiResult<void> assistant_block(const Block& block, size_t i, size_t b, Message& message) {
    const auto text = [&](std::string_view more) -> ApiResult<void> {
      DI_TRY(unanswered(fmt::format("messages.{}.{}: ", i, b)));
      if (!message.content.empty()) message.content.append("\n\n");
      message.content.append(more);
      return {};
    };
    switch (block.type) {
      case Block::Type::kText:
        return text(block.text);
      case Block::Type::kDocument:
        return text(document(block.media_type));
      case Block::Type::kImage: {
        if (!v41()) return text(kUnsupportedImage);
        DI_TRY(text(""));
        const std::string path = fmt::format("messages.{}.content[{}]", i, b);
        Message unused;
        DI_TRY(image(block.image, path, path, unused));  // a broken image is named first
        return bad_request("Image in assistant message is unsupported");
      }
      case Block::Type::kThinking:
        if (!message.reasoning_content) {
          message.reasoning_content = std::string(block.text);
        } else {
          message.reasoning_content->append("\n\n").append(block.text);
        }
        return {};
      case Block::Type::kToolUse:
        if (!pending_.insert(block.id).second) {
          return bad_request("messages.{}.content.{}: `tool_use` ids must be unique", i, b);
        }
        if (!message.tool_calls) message.tool_calls.emplace();
        message.tool_calls->push_back(
            {std::string(block.id), std::string(block.name), to_json(*block.input, JsonStyle::kSpaced)});
        return {};
      case Block::Type::kServerToolUse:
      case Block::Type::kWebSearchToolResult:
        if (options_.messages_web_search == WebSearch::kDrop) return {};
        return bad_request("Unsupported content block: server tools are not supported");
      case Block::Type::kRedactedThinking:
        return {};
      default:
        return misplaced(block, i);
    }
  }

  ApiResult<void> system(const RequestMessage& in, size_t i) {
    DI_TRY(interrupted(i));
    Message message;
    message.role = Message::Role::kSystem;
    std::vector<ToolDefinition> added;
    bool first = true;
    const auto text = [&](std::string_view more) {
      if (!first) message.content.append("\n\n");
      first = false;
      message.content.append(more);
    };
    message.content.append(in.text);
    for (size_t b = 0; in.blocks && b < in.blocks->size(); ++b) {
      const Block& block = (*in.blocks)[b];
      switch (block.type) {
        case Block::Type::kText:
          text(block.text);
          break;
        case Block::Type::kDocument:
          text(document(block.media_type));
          break;
        case Block::Type::kImage: {
          if (!first) message.content.append("\n\n");
          first = false;
          const std::string path = fmt::format("messages.{}.content[{}]", i, b);
          DI_TRY(image(block.image, path, path, message));
          break;
        }
        case Block::Type::kToolAddition: {
          const auto tool = known_tools_.find(block.name);
          if (tool == known_tools_.end()) {
            return bad_request("messages.{}.content.{}: `tool_addition` references unknown tool '{}'", i, b,
                               block.name);
          }
          added.push_back(tool->second);
          break;
        }
        default:
          return misplaced(block, i);
      }
    }
    if (!v41()) {
      if (message.content.empty()) return {};
      Message reminder;
      reminder.content.append("<system-reminder>\n");
      reminder.content.append(message.content);
      reminder.content.append("\n</system-reminder>");
      reminder.image_sources = std::move(message.image_sources);
      out_.conversation.messages.push_back(std::move(reminder));
      return {};
    }
    if (!added.empty()) message.tools = std::move(added);
    out_.conversation.messages.push_back(std::move(message));
    return {};
  }

  const Request& request_;
  const CodecOptions& options_;
  ConvertedRequest out_;
  std::unordered_map<std::string_view, ToolDefinition> known_tools_;
  std::set<std::string_view> pending_;  // calls of the last assistant message without a result
  std::set<std::string_view> results_;  // answered in the message being read
};

}  // namespace

void filter_system_tools(Conversation& conversation) {
  std::unordered_map<std::string_view, const ToolDefinition*> selected;
  for (const ToolDefinition& tool : conversation.tools) selected.emplace(tool.name, &tool);
  std::erase_if(conversation.messages, [&](Message& message) {
    if (message.role != Message::Role::kSystem || !message.tools) return false;
    std::vector<ToolDefinition> kept;
    for (const ToolDefinition& tool : *message.tools) {
      if (const auto at = selected.find(tool.name); at != selected.end()) kept.push_back(*at->second);
    }
    message.tools = std::move(kept);
    return message.tools->empty() && message.content.empty();
  });
}

ApiResult<ConvertedRequest> convert_messages(const Json& body, const CodecOptions& options) {
  Request request;
  if (const Read read = messages::read_request(body, options, request); !read) return invalid_body(read.error());
  if (options.policy == ApiPolicy::kExtended && body.is_object()) {
    const Read read = read_sampling_extensions(body, ReadRules{true}, request.sampling);
    if (!read) return invalid_body(read.error());
  }
  return Converter(request, options).run();
}

}  // namespace di::codec::api
