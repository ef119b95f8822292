// Responses request -> conversation (recipe.md §3.2).
#include <algorithm>
#include <map>
#include <set>

#include "codec/api/images.h"
#include "codec/api/read_sampling.h"
#include "codec/api/responses_request.h"

namespace di::codec::api {

namespace {

using responses::Block;
using responses::Choice;
using responses::Content;
using responses::Execution;
using responses::FunctionTool;
using responses::Item;
using responses::kApplyPatch;
using responses::kToolSearchName;
using responses::Request;
using responses::Role;
using responses::Tool;

// Function names of namespace tools: (namespace, local name) -> one name that no other tool has.
class Names {
 public:
  explicit Names(ModelVersion version) : version_(version) {}

  void take(std::string_view name) { taken_.emplace(name); }

  // The name of a call in the history: that of the first declared tool, else one of its own.
  const std::string& find(std::string_view name_space, std::string_view name) {
    const auto at = joined_.find(std::make_pair(std::string(name_space), std::string(name)));
    if (at != joined_.end()) return at->second;
    declare(name_space, name);
    return joined_.find(std::make_pair(std::string(name_space), std::string(name)))->second;
  }

  // A new name, also for a pair that has one already.
  std::string declare(std::string_view name_space, std::string_view name) {
    std::string_view separator = "::";
    if (version_ == ModelVersion::kV4) separator = name_space.ends_with('_') || name.starts_with('_') ? "" : "__";
    const std::string base = fmt::format("{}{}{}", name_space, separator, name);
    std::string unique = base;
    for (int n = 1; taken_.contains(unique); ++n) unique = fmt::format("{}_{}", base, n);
    taken_.insert(unique);
    joined_.emplace(std::make_pair(std::string(name_space), std::string(name)), unique);
    return unique;
  }

 private:
  ModelVersion version_;
  std::set<std::string, std::less<>> taken_;
  std::map<std::pair<std::string, std::string>, std::string> joined_;
};

class Converter {
 public:
  Converter(const Request& request, const CodecOptions& options) : request_(request), options_(options) {}

  ApiResult<ConvertedRequest> run() {
    out_.api = Api::kResponses;
    out_.model = request_.model;
    out_.version = DI_TRY(resolve_model(request_.model, options_));
    names_.emplace(out_.version);
    Conversation& conversation = out_.conversation;
    apply_thinking(request_.thinking, options_.default_thinking_mode, conversation);
    responses::fill_echo(request_, out_.echo);
    DI_TRY(declared_tools());
    DI_TRY(input());
    DI_TRY(apply_reasoning_history(options_, "reasoning_text", !tools_.tools.empty(), conversation));
    DI_TRY(choice());
    DI_TRY(apply_tools(std::move(tools_), options_, out_));
    filter_system_tools(conversation);
    conversation.response_format = request_.format.format;
    const bool json_object = request_.format.format.kind == ResponseFormat::Kind::kJsonObject;
    DI_TRY(json_word(json_object));
    std::string schema = DI_TRY(check_format(request_.format, options_));
    DI_TRY(apply_constraint(request_.format, std::move(schema), out_));
    DI_TRY(apply_sampling(request_.sampling, options_, out_));
    out_.stream = request_.stream.value_or(false);
    out_.parsing.parse_tool_calls = conversation.tools_on();
    out_.parsing.starts_in_tool_calls = conversation.tools_on() && conversation.tool_choice == ToolChoice::kRequired;
    out_.parsing.parse_json_output = json_object;
    if (conversation.thinking_mode) out_.parsing.thinking_start = ThinkingStart::kReasoningStart;
    return std::move(out_);
  }

 private:
  bool v41() const { return out_.version == ModelVersion::kV41; }

  void add_tool(std::string name, const FunctionTool& in, std::optional<std::string> description, bool deferred) {
    ToolDefinition& tool = tools_.tools.emplace_back();
    tool.name = std::move(name);
    tool.description = std::move(description);
    tool.strict = in.strict;
    tool.defer_loading = deferred;
    if (in.parameters != nullptr) tool.parameters = *in.parameters;
    tools_.has_parameters.push_back(in.parameters != nullptr);
  }

  static std::optional<std::string> text_of(const std::optional<std::string_view>& text) {
    return text ? std::optional<std::string>(*text) : std::nullopt;
  }

  // Names are checked in declaration order, before anything else about the tools.
  ApiResult<void> check_names(const std::vector<Tool>& tools, const std::string& path) const {
    for (size_t i = 0; i < tools.size(); ++i) {
      const Tool& tool = tools[i];
      const std::string at = fmt::format("{}[{}]", path, i);
      switch (tool.type) {
        case Tool::Type::kFunction:
          DI_TRY(validate_tool_name(tool.function.name, at));
          break;
        case Tool::Type::kNamespace:
          DI_TRY(check_namespace(tool, at));
          break;
        case Tool::Type::kCustom:
          if (tool.function.name != kApplyPatch) {
            return bad_request("Unsupported custom tool: '{}'. Only 'apply_patch' is supported.", tool.function.name);
          }
          break;
        case Tool::Type::kWebSearch:
        case Tool::Type::kWebSearch2025:
          if (options_.responses_web_search == WebSearch::kReject) return bad_request("Server tools are not supported");
          break;
        default:
          break;
      }
    }
    return {};
  }

  static ApiResult<void> check_namespace(const Tool& tool, const std::string& at) {
    DI_TRY(validate_tool_name(tool.function.name, at));
    std::set<std::string_view> names;
    for (size_t j = 0; j < tool.members.size(); ++j) {
      const FunctionTool& member = tool.members[j];
      if (member.custom) {
        return bad_request(
            "Currently custom tools are not allowed inside a namespace. Found custom tool '{}' in {}.tools[{}].",
            member.name, at, j);
      }
      DI_TRY(validate_tool_name(member.name, fmt::format("{}.tools[{}]", at, j)));
      if (!names.insert(member.name).second) return bad_request("Tool names within a namespace must be unique.");
    }
    return {};
  }

  void register_functions(const std::vector<Tool>& tools) {
    for (const Tool& tool : tools) {
      if (tool.type == Tool::Type::kFunction) names_->take(tool.function.name);
    }
  }

  ApiResult<void> declared_tools() {
    DI_TRY(check_names(request_.tools, "tools"));
    register_functions(request_.tools);
    const size_t items = request_.items && v41() ? request_.items->size() : 0;
    for (size_t i = 0; i < items; ++i) {
      DI_TRY(check_names((*request_.items)[i].tools, fmt::format("input[{}].tools", i)));
      register_functions((*request_.items)[i].tools);
    }
    add_tools(request_.tools, false);
    for (size_t i = 0; i < items; ++i) {
      const size_t first = tools_.tools.size();
      add_tools((*request_.items)[i].tools, true);
      if (tools_.tools.size() == first) continue;
      discovered_[i].assign(tools_.tools.begin() + static_cast<ptrdiff_t>(first), tools_.tools.end());
    }
    return {};
  }

  // `found`: by a search in the history; such tools are declared in the conversation, not in front of it.
  void add_tools(const std::vector<Tool>& tools, bool found) {
    for (const Tool& tool : tools) {
      switch (tool.type) {
        case Tool::Type::kFunction:
          add_tool(std::string(tool.function.name), tool.function, text_of(tool.function.description), found);
          break;
        case Tool::Type::kCustom:
          tools_.tools.push_back(responses::apply_patch_tool(out_.version));
          tools_.tools.back().defer_loading = found;
          tools_.has_parameters.push_back(true);
          out_.echo.custom_tools.emplace_back(kApplyPatch);
          break;
        case Tool::Type::kNamespace:
          add_namespace(tool, found);
          break;
        case Tool::Type::kToolSearch:
          if (tool.execution != Execution::kClient) break;
          out_.echo.client_tool_search = out_.echo.client_tool_search || !found;
          if (v41()) add_tool(std::string(kToolSearchName), tool.function, text_of(tool.function.description), found);
          break;
        default:
          break;
      }
    }
  }

  void add_namespace(const Tool& tool, bool found) {
    for (const FunctionTool& member : tool.members) {
      const std::string name = names_->declare(tool.function.name, member.name);
      std::optional<std::string> description = text_of(member.description);
      if (v41() && tool.function.description && !tool.function.description->empty()) {
        description = fmt::format("{}\n{}", *tool.function.description, member.description.value_or(""));
      }
      add_tool(name, member, std::move(description), found);
      out_.echo.namespaces.push_back({name, std::string(tool.function.name), std::string(member.name), found});
    }
  }

  ApiResult<void> choice() {
    using Type = Choice::Type;
    switch (request_.choice.type.value_or(Type::kAuto)) {
      case Type::kAuto:
        break;
      case Type::kNone:
        tools_.choice = ToolRequest::Choice::kNone;
        break;
      case Type::kRequired:
        tools_.choice = ToolRequest::Choice::kRequired;
        break;
      case Type::kFunction:
      case Type::kCustom:
        tools_.choice = ToolRequest::Choice::kNamed;
        tools_.name = request_.choice.name;
        break;
      case Type::kWebSearch:
      case Type::kWebSearch2025:
        if (options_.responses_web_search == WebSearch::kReject) return bad_request("Server tools are not supported");
        break;
    }
    return {};
  }

  Message& add(Message::Role role) {
    Message& message = out_.conversation.messages.emplace_back();
    message.role = role;
    return message;
  }

  ApiResult<void> input() {
    if (request_.instructions && !request_.instructions->empty()) {
      add(Message::Role::kSystem).content = std::string(*request_.instructions);
    }
    if (request_.items) {
      if (request_.items->empty()) return bad_request("Input items array must not be empty");
      for (size_t i = 0; i < request_.items->size(); ++i) DI_TRY(item((*request_.items)[i], i));
      DI_TRY(no_pending());
      emit_group();
    } else if (request_.has_input) {
      add(Message::Role::kUser).content = std::string(request_.input_text);
    }
    if (!request_.has_input && out_.conversation.messages.empty())
      return bad_request("Either input or instructions must be provided");
    return {};
  }

  ApiResult<void> item(const Item& item, size_t i) {
    const bool after_output = after_output_;
    after_output_ = false;
    if (!v41() && (item.type == Item::Type::kToolSearchCall || item.type == Item::Type::kToolSearchOutput)) return {};
    switch (item.type) {
      case Item::Type::kOther:
        return {};
      case Item::Type::kMessage:
        return message(item, i, after_output);
      case Item::Type::kReasoning:
        DI_TRY(no_pending());
        emit_group();
        reasoning(item);
        return {};
      case Item::Type::kWebSearchCall:
        DI_TRY(no_pending());
        emit_group();
        return {};
      case Item::Type::kFunctionCall: {
        std::string name(item.name);
        if (item.name_space) name = names_->find(*item.name_space, item.name);
        return call(item, i, std::move(name), std::string(item.arguments));
      }
      case Item::Type::kCustomToolCall: {
        Json arguments{Json::Object()};
        arguments.set("input", Json(item.arguments));
        return call(item, i, std::string(item.name), to_json(arguments));
      }
      case Item::Type::kToolSearchCall:
        return call(item, i, std::string(kToolSearchName), to_json(*item.search_arguments));
      case Item::Type::kFunctionCallOutput:
      case Item::Type::kCustomToolCallOutput:
      case Item::Type::kToolSearchOutput:
        return output(item, i);
    }
    return {};
  }

  // --- messages ---

  ApiResult<void> message(const Item& item, size_t i, bool after_output) {
    if (v41() && after_output && is_resize_notice(item)) {
      Message notice;
      notice.role = Message::Role::kSystem;
      notice.content.append((*item.content.blocks)[0].text);
      group_[last_output_].notices.push_back(std::move(notice));
      return {};
    }
    DI_TRY(no_pending());
    emit_group();
    if (item.role == Role::kAssistant) return assistant(item, i);
    Message message;
    message.role = item.role == Role::kSystem || (item.role == Role::kDeveloper && v41()) ? Message::Role::kSystem
                                                                                          : Message::Role::kUser;
    DI_TRY(content(item.content, i, message));
    out_.conversation.messages.push_back(std::move(message));
    return {};
  }

  static bool is_resize_notice(const Item& item) {
    if (item.role != Role::kDeveloper || !item.content.blocks || item.content.blocks->size() != 1) return false;
    const Block& block = (*item.content.blocks)[0];
    return block.type == Block::Type::kText && block.input_text && block.text.starts_with("<image_resize_notice>") &&
           block.text.ends_with("</image_resize_notice>");
  }

  ApiResult<void> assistant(const Item& item, size_t i) {
    Message message;
    message.role = Message::Role::kAssistant;
    DI_TRY(content(item.content, i, message));
    auto& messages = out_.conversation.messages;
    if (messages.empty() || messages.back().role != Message::Role::kAssistant || messages.back().tool_calls) {
      messages.push_back(std::move(message));
      return {};
    }
    RichText& text = messages.back().content;
    if (!text.empty() && !message.content.empty()) text.append("\n\n");
    text.append(message.content);
    return {};
  }

  void reasoning(const Item& item) {
    std::string text;
    bool first = true;
    for (const std::string_view part : item.reasoning.value_or(std::vector<std::string_view>())) {
      if (!first) text += "\n";
      first = false;
      text += part;
    }
    if (text.empty()) return;
    auto& messages = out_.conversation.messages;
    if (messages.empty() || messages.back().role != Message::Role::kAssistant || !messages.back().content.empty()) {
      add(Message::Role::kAssistant);
    }
    std::optional<std::string>& slot = messages.back().reasoning_content;
    if (slot) {
      slot->append("\n").append(text);
    } else {
      slot = std::move(text);
    }
  }

  // First the form of every block, then, in an assistant's message, that there are images at all, then the images.
  ApiResult<void> content(const Content& content, size_t i, Message& message, std::string_view field = "content") {
    if (!content.blocks) {
      message.content.append(content.text);
      return {};
    }
    for (size_t b = 0; b < content.blocks->size(); ++b) {
      const Block& block = (*content.blocks)[b];
      if (b > 0) message.content.append("\n\n");
      switch (block.type) {
        case Block::Type::kText:
          message.content.append(block.text);
          break;
        case Block::Type::kFile:
          message.content.append("[Unsupported Document]");
          break;
        case Block::Type::kImage:
          DI_TRY(image(block, i, fmt::format("input[{}].{}[{}]", i, field, b), message));
          break;
      }
    }
    if (message.role == Message::Role::kAssistant && !message.image_sources.empty()) {
      return bad_request("input[{}]: Image in assistant message is unsupported", i);
    }
    for (const ImageSource& source : message.image_sources) {
      if (source.kind == ImageSource::Kind::kDataUrl) DI_TRY(check_image_data_url(source.location, source.path));
    }
    return {};
  }

  ApiResult<void> image(const Block& block, size_t i, const std::string& path, Message& message) {
    if (!v41()) {
      message.content.append(kUnsupportedImage);
      return {};
    }
    const std::string_view url = block.image_url.value_or("");
    if (url.empty() && !block.file_id) return bad_request("{}: input_image must have image_url or file_id", path);
    if (!url.empty() && block.file_id)
      return bad_request("{}: input_image cannot have both image_url and file_id", path);
    if (block.file_id) DI_TRY(check_file_id(path, options_));
    ImageSource source;
    source.path = fmt::format("input[{}]", i);
    source.detail = block.detail;
    source.location = block.file_id ? *block.file_id : url;
    if (block.file_id) {
      source.kind = ImageSource::Kind::kFile;
    } else if (is_external_url(url)) {
      source.kind = ImageSource::Kind::kUrl;
      if (url.size() > kMaxImageUrl) {
        return bad_request(
            "{}: image_url external link length {} too long, max link length {}. Consider passing file data directly "
            "with "
            "base64 data url instead.",
            path, url.size(), kMaxImageUrl);
      }
    }
    message.content.append_image(options_.special.image);
    message.image_sources.push_back(std::move(source));
    return {};
  }

  // --- calls and their outputs ---

  struct GroupCall {
    ToolCall call;
    std::optional<Message> output;
    std::vector<Message> notices;
  };

  ApiResult<void> no_pending() const {
    for (const GroupCall& call : group_) {
      if (!call.output) return bad_request("No tool output found for tool call {}.", call.call.id);
    }
    return {};
  }

  bool group_complete() const {
    return std::all_of(group_.begin(), group_.end(), [](const GroupCall& call) { return call.output.has_value(); });
  }

  static ApiResult<void> check_call_id(std::string_view id, size_t i) {
    if (!id.empty()) return {};
    return bad_request(
        "Invalid 'input[{}].call_id': empty string. Expected a string with minimum length 1, but got an empty string "
        "instead.",
        i);
  }

  ApiResult<void> call(const Item& item, size_t i, std::string name, std::string arguments) {
    if (group_complete()) emit_group();
    DI_TRY(check_call_id(*item.call_id, i));
    if (!call_ids_.emplace(*item.call_id).second) return bad_request("Duplicate 'call_id': {}.", *item.call_id);
    group_.push_back({{std::string(*item.call_id), std::move(name), std::move(arguments)}, {}, {}});
    return {};
  }

  ApiResult<void> output(const Item& item, size_t i) {
    Message message;
    message.role = Message::Role::kTool;
    const bool custom = item.type == Item::Type::kCustomToolCallOutput;  // its id is looked at before its content
    if (!custom) DI_TRY(content(item.content, i, message, "output"));
    if (!item.call_id) {
      DI_TRY(no_pending());
      emit_group();
      out_.conversation.messages.push_back(std::move(message));
      return {};
    }
    DI_TRY(check_call_id(*item.call_id, i));
    if (!call_ids_.contains(*item.call_id)) {
      return bad_request("No tool call found for tool output with call_id {}.", *item.call_id);
    }
    const auto at = std::find_if(group_.begin(), group_.end(),
                                 [&](const GroupCall& call) { return call.call.id == *item.call_id; });
    if (at == group_.end() || at->output) return bad_request("Duplicate tool output for call_id: {}.", *item.call_id);
    message.tool_call_id = *item.call_id;
    const bool search = item.type == Item::Type::kToolSearchOutput;
    if (custom) DI_TRY(content(item.content, i, message, "output"));
    if (search) DI_TRY(search_output(item, i, message));
    at->output = std::move(message);
    last_output_ = static_cast<size_t>(at - group_.begin());
    after_output_ = !search;
    return {};
  }

  ApiResult<void> search_output(const Item& item, size_t i, Message& message) {
    for (const Tool& tool : item.tools) {
      if (tool.type == Tool::Type::kOther) {
        return bad_request("input[{}]: the enum variant ResponsesTool::Unsupported cannot be serialized", i);
      }
    }
    std::string text;
    JsonWriter w(text);
    w.begin_array();
    for (const Tool& tool : item.tools) {
      if (tool.type != Tool::Type::kNamespace) {
        responses::write_tool(w, tool);
        continue;
      }
      for (const FunctionTool& member : tool.members) responses::write_function(w, member, &tool);
    }
    w.end_array();
    message.content = std::move(text);
    if (const auto at = discovered_.find(i); at != discovered_.end()) group_tools_.push_back(std::move(at->second));
    return {};
  }

  // All calls of the group have outputs.
  void emit_group() {
    if (group_.empty()) return;
    std::stable_sort(group_.begin(), group_.end(),
                     [](const GroupCall& a, const GroupCall& b) { return a.call.id < b.call.id; });
    auto& messages = out_.conversation.messages;
    if (messages.empty() || messages.back().role != Message::Role::kAssistant) add(Message::Role::kAssistant);
    Message& assistant = messages.back();
    if (!assistant.tool_calls) assistant.tool_calls.emplace();
    for (GroupCall& call : group_) assistant.tool_calls->push_back(std::move(call.call));
    for (GroupCall& call : group_) {
      messages.push_back(std::move(*call.output));
      for (Message& notice : call.notices) messages.push_back(std::move(notice));
    }
    for (std::vector<ToolDefinition>& tools : group_tools_) add(Message::Role::kSystem).tools = std::move(tools);
    group_tools_.clear();
    group_.clear();
    after_output_ = false;
  }

  ApiResult<void> json_word(bool json_object) {
    if (!json_object || mentions_json(out_.conversation)) return {};
    constexpr std::string_view kMessage =
        "Response input messages must contain the word 'json' in some form to use 'text.format' of type 'json_object'.";
    if (options_.policy == ApiPolicy::kOfficial) return bad_request("{}", kMessage);
    out_.warnings.emplace_back(kMessage);
    return {};
  }

  const Request& request_;
  const CodecOptions& options_;
  ConvertedRequest out_;
  std::optional<Names> names_;
  ToolRequest tools_;
  std::vector<GroupCall> group_;                          // calls whose outputs are being collected
  std::vector<std::vector<ToolDefinition>> group_tools_;  // what the searches of the group found, in order of outputs
  std::map<size_t, std::vector<ToolDefinition>> discovered_;  // by item: tools that a search found
  std::set<std::string, std::less<>> call_ids_;
  bool after_output_ = false;  // the last item was an output of the group
  size_t last_output_ = 0;
};

}  // namespace

ApiResult<ConvertedRequest> convert_responses(const Json& body, const CodecOptions& options) {
  Request request;
  if (const Read read = responses::read_request(body, options, request); !read) return invalid_body(read.error());
  if (options.policy == ApiPolicy::kExtended && body.is_object()) {
    const Read read = read_sampling_extensions(body, ReadRules{true}, request.sampling);
    if (!read) return invalid_body(read.error());
  }
  return Converter(request, options).run();
}

}  // namespace di::codec::api
