// OpenAI Responses events and response (recipe.md §6.3).
#include <algorithm>

#include "codec/api/custom_input.h"
#include "codec/api/events.h"

namespace di::codec::api {

namespace {

enum class ItemKind : uint8_t { kReasoning, kMessage, kFunctionCall, kCustomCall, kSearchCall };

struct Item {
  ItemKind kind = ItemKind::kMessage;
  std::string id;
  std::string_view status = "in_progress";
  std::string_view phase = "final_answer";
  std::string text;       // or arguments, or custom input
  bool has_part = false;  // reasoning, message: a content part was opened
  std::string logprobs;   // JSON, without brackets
  std::string call_id;
  std::string name;
  std::optional<std::string> name_space;
  CustomInputDecoder decoder;
};

class ResponsesWriter final : public EventWriter {
 public:
  explicit ResponsesWriter(const ResponseState& state) : state_(state) {}

  void start() override {
    response_event("response.created");
    response_event("response.in_progress");
  }

  void content(std::string_view text, const LogprobListRef& logprobs) override {
    Item& item = open_text(ItemKind::kMessage);
    item.text += text;
    std::string list;
    if (logprobs != nullptr) append_logprobs(list, *logprobs);
    if (!list.empty()) item.logprobs += (item.logprobs.empty() ? "" : ",") + list;
    if (!state_.info.deltas) return;
    emit("response.output_text.delta", [&](std::string& out) {
      out += ",\"content_index\":0,\"delta\":";
      append_json_string(out, text);
      append_item_id(out, item);
      out.append(",\"logprobs\":[").append(list).append("]");
      append_output_index(out);
    });
  }

  void reasoning(std::string_view text, const LogprobListRef&) override {
    Item& item = open_text(ItemKind::kReasoning);
    item.text += text;
    emit("response.reasoning_text.delta", [&](std::string& out) {
      out += ",\"content_index\":0,\"delta\":";
      append_json_string(out, text);
      append_item_id(out, item);
      append_output_index(out);
    });
  }

  void call_begin(size_t, const ToolCall& call) override {
    if (active_ && items_.back().kind == ItemKind::kMessage) items_.back().phase = "commentary";
    close("completed");
    const ResponsesEcho& echo = state_.request->echo;
    Item item;
    item.call_id = call.id;
    item.name = call.name;
    const bool custom =
        std::find(echo.custom_tools.begin(), echo.custom_tools.end(), call.name) != echo.custom_tools.end();
    if (custom) {
      item.kind = ItemKind::kCustomCall;
    } else if (echo.client_tool_search && call.name == "tool_search") {
      item.kind = ItemKind::kSearchCall;
    } else {
      item.kind = ItemKind::kFunctionCall;
      split_namespace(item);
    }
    open(std::move(item));
  }

  void call_arguments(size_t, std::string_view text) override {
    Item& item = items_.back();
    if (item.kind == ItemKind::kSearchCall) {
      item.text += text;
      return;
    }
    std::string decoded;
    if (item.kind == ItemKind::kCustomCall) {
      item.decoder.feed(text, decoded);
      if (decoded.empty()) return;
      text = decoded;
    }
    call_delta(item, text);
  }

  void finish(EndKind end, const std::string&) override {
    incomplete_ = end == EndKind::kLength          ? std::optional<std::string_view>("max_output_tokens")
                  : end == EndKind::kContentFilter ? std::optional<std::string_view>("content_filter")
                                                   : std::nullopt;
    status_ = incomplete_ ? "incomplete" : "completed";
    close(status_);
    completed_at_ = state_.info.clock ? state_.info.clock() : state_.info.created;
    response_event(incomplete_ ? "response.incomplete" : "response.completed");
  }

  std::string body() const override {
    std::string out;
    append_response(out);
    return out;
  }

 private:
  void split_namespace(Item& item) const {
    const auto& tools = state_.request->echo.namespaces;
    const auto at =
        std::find_if(tools.begin(), tools.end(), [&](const auto& tool) { return tool.function == item.name; });
    if (at == tools.end()) return;
    item.name_space = at->name_space;
    item.name = at->name;
  }

  // One event: `body` appends the members between the type and the sequence number, each with its comma.
  template <class Body>
  void emit(std::string_view name, const Body& body) {
    if (!state_.info.deltas) return;
    std::string data = "{\"type\":\"";
    data.append(name).push_back('"');
    body(data);
    data += fmt::format(",\"sequence_number\":{}}}", sequence_++);
    state_.emit(name, std::move(data));
  }
  // The events whose last member is the text.
  template <class Body>
  void emit_done(std::string_view name, const Item& item, const Body& body) {
    if (!state_.info.deltas) return;
    std::string data = "{\"type\":\"";
    data.append(name).append("\",\"content_index\":0");
    append_item_id(data, item);
    body(data);
    append_output_index(data);
    data += fmt::format(",\"sequence_number\":{},\"text\":", sequence_++);
    append_json_string(data, item.text);
    state_.emit(name, data + "}");
  }

  static void append_item_id(std::string& out, const Item& item) {
    out += ",\"item_id\":";
    append_json_string(out, item.id);
  }
  void append_output_index(std::string& out) const { out += fmt::format(",\"output_index\":{}", items_.size() - 1); }

  void response_event(std::string_view name) {
    emit(name, [&](std::string& out) {
      out += ",\"response\":";
      append_response(out);
    });
  }

  Item& open_text(ItemKind kind) {
    if (!active_ || items_.back().kind != kind) {
      close("completed");
      Item item;
      item.kind = kind;
      open(std::move(item));
      items_.back().has_part = true;
      emit("response.content_part.added", [&](std::string& out) { append_part_event(out, items_.back(), true); });
    }
    return items_.back();
  }

  void open(Item item) {
    constexpr std::string_view kPrefixes[] = {"rs", "msg", "fc", "ctc", "tsc"};
    item.id = fmt::format("{}_{}_{}", kPrefixes[static_cast<size_t>(item.kind)], state_.info.id, items_.size());
    items_.push_back(std::move(item));
    active_ = true;
    item_event("response.output_item.added");
  }

  void item_event(std::string_view name) {
    emit(name, [&](std::string& out) {
      out += ",\"item\":";
      append_item(out, items_.back());
      append_output_index(out);
    });
  }

  void call_delta(Item& item, std::string_view text) {
    item.text += text;
    const char* name = item.kind == ItemKind::kCustomCall ? "response.custom_tool_call_input.delta"
                                                          : "response.function_call_arguments.delta";
    emit(name, [&](std::string& out) {
      out += ",\"delta\":";
      append_json_string(out, text);
      append_item_id(out, item);
      append_output_index(out);
    });
  }

  void close(std::string_view status) {
    if (!active_) return;
    active_ = false;
    Item& item = items_.back();
    item.status = status;
    switch (item.kind) {
      case ItemKind::kReasoning:
      case ItemKind::kMessage:
        emit_done(item.kind == ItemKind::kMessage ? "response.output_text.done" : "response.reasoning_text.done", item,
                  [&](std::string& out) {
                    if (item.kind == ItemKind::kMessage)
                      out.append(",\"logprobs\":[").append(item.logprobs).append("]");
                  });
        emit("response.content_part.done", [&](std::string& out) { append_part_event(out, item, false); });
        break;
      case ItemKind::kFunctionCall:
        call_done("response.function_call_arguments.done", "arguments", item);
        break;
      case ItemKind::kCustomCall: {
        std::string rest;
        item.decoder.finish(rest);
        if (!rest.empty()) call_delta(item, rest);
        call_done("response.custom_tool_call_input.done", "input", item);
        break;
      }
      case ItemKind::kSearchCall:
        break;
    }
    if (item.kind == ItemKind::kSearchCall && !search_arguments(item)) item.status = "incomplete";
    item_event("response.output_item.done");
  }

  void call_done(std::string_view name, std::string_view key, const Item& item) {
    emit(name, [&](std::string& out) {
      out.append(",\"").append(key).append("\":");
      append_json_string(out, item.text);
      append_item_id(out, item);
      append_output_index(out);
    });
  }

  static std::optional<Json> search_arguments(const Item& item) {
    if (item.status != "completed") return std::nullopt;
    Result<Json> parsed = parse_json(item.text);
    if (!parsed) return std::nullopt;
    return *std::move(parsed);
  }

  void append_part_event(std::string& out, const Item& item, bool empty) const {
    out += ",\"content_index\":0";
    append_item_id(out, item);
    append_output_index(out);
    out += ",\"part\":";
    append_part(out, item, empty);
  }

  static void append_part(std::string& out, const Item& item, bool empty) {
    if (item.kind == ItemKind::kReasoning) {
      out += "{\"type\":\"reasoning_text\",\"text\":";
    } else {
      out.append("{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[")
          .append(empty ? "" : item.logprobs)
          .append("],\"text\":");
    }
    append_json_string(out, empty ? std::string_view() : std::string_view(item.text));
    out.push_back('}');
  }

  void append_item(std::string& out, const Item& item) const {
    const bool closed = item.status != "in_progress";
    JsonWriter w(out);
    constexpr std::string_view kTypes[] = {"reasoning", "message", "function_call", "custom_tool_call",
                                           "tool_search_call"};
    w.begin_object().key("type").value(kTypes[static_cast<size_t>(item.kind)]).key("id").value(item.id);
    w.key("status").value(item.status);
    switch (item.kind) {
      case ItemKind::kReasoning:
      case ItemKind::kMessage: {
        if (item.kind == ItemKind::kMessage) w.key("role").value("assistant").key("phase").value(item.phase);
        std::string part;
        if (closed) append_part(part, item, false);
        w.key("content").begin_array();
        if (closed) w.raw(part);
        w.end_array();
        if (item.kind == ItemKind::kReasoning) {
          w.key("summary").begin_array().end_array().key("encrypted_content").value(state_.info.id + "-0");
        }
        break;
      }
      case ItemKind::kFunctionCall:
        w.key("call_id").value(item.call_id).key("name").value(item.name);
        if (item.name_space) w.key("namespace").value(*item.name_space);
        w.key("arguments").value(item.text);
        break;
      case ItemKind::kCustomCall:
        w.key("call_id").value(item.call_id).key("name").value(item.name).key("input").value(item.text);
        break;
      case ItemKind::kSearchCall: {
        w.key("call_id").value(item.call_id).key("execution").value("client").key("arguments");
        const std::optional<Json> arguments = search_arguments(item);
        w.value(arguments ? *arguments : Json(Json::Object{}));
        break;
      }
    }
    w.end_object();
  }

  void append_response(std::string& out) const {
    const ResponsesEcho& echo = state_.request->echo;
    JsonWriter w(out);
    const auto repeat = [&](std::string_view key, const Json& otherwise) {
      const Json* said = echo.repeated.find_value(key);
      w.key(key).value(said == nullptr ? otherwise : *said);
    };
    w.begin_object().key("id").value(state_.info.id).key("object").value("response");
    w.key("created_at").value(state_.info.created).key("status").value(status_).key("background").value(false);
    w.key("completed_at").value(completed_at_).key("content_filters").null().key("error").null();
    w.key("frequency_penalty").value(0.0).key("incomplete_details");
    if (incomplete_) {
      w.begin_object().key("reason").value(*incomplete_).end_object();
    } else {
      w.null();
    }
    w.key("instructions").value(echo.instructions).key("max_output_tokens").value(echo.max_output_tokens);
    repeat("max_tool_calls", Json());
    w.key("model").value(state_.info.model).key("moderation").null();
    w.key("output").begin_array();
    if (status_ != "in_progress") {
      for (const Item& item : items_) {
        std::string text;
        append_item(text, item);
        w.raw(text);
      }
    }
    w.end_array();
    repeat("parallel_tool_calls", Json(true));
    w.key("presence_penalty").value(0.0);
    for (const char* key : {"previous_response_id", "prompt_cache_key", "prompt_cache_retention"}) repeat(key, Json());
    for (const char* key : {"prompt_cache_options", "prompt_cache_diagnostics"}) {
      if (const Json* said = echo.repeated.find_value(key)) w.key(key).value(*said);
    }
    w.key("reasoning").begin_object().key("effort").value(echo.effort).key("summary").value(echo.summary).end_object();
    repeat("safety_identifier", Json());
    w.key("service_tier").value("default");
    repeat("store", Json(false));
    w.key("temperature").value(echo.temperature.value_or(1.0F));
    w.key("text")
        .begin_object()
        .key("format")
        .value(echo.text_format)
        .key("verbosity")
        .value(echo.verbosity)
        .end_object();
    w.key("tool_choice").value(echo.tool_choice).key("tools").value(echo.tools);
    w.key("top_logprobs").value(echo.top_logprobs.value_or(0)).key("top_p").value(echo.top_p.value_or(1.0F));
    repeat("truncation", Json("disabled"));
    w.key("usage");
    if (status_ == "in_progress") {
      w.null();
    } else {
      append_usage(w);
    }
    w.key("user").value(echo.user);
    repeat("metadata", Json(Json::Object{}));
    w.end_object();
  }

  void append_usage(JsonWriter& w) const {
    const Usage& usage = state_.usage;
    w.begin_object().key("input_tokens").value(usage.prompt.prompt_tokens);
    w.key("input_tokens_details").begin_object().key("cached_tokens").value(usage.prompt.cache_hit_tokens);
    if (usage.cache_write_tokens) w.key("cache_write_tokens").value(*usage.cache_write_tokens);
    w.end_object();
    w.key("output_tokens").value(usage.completion_tokens).key("output_tokens_details").begin_object();
    w.key("reasoning_tokens").value(usage.reasoning_tokens.value_or(0));
    if (usage.speculation) {
      w.key("spec_verified_tokens").value(usage.speculation->verified_tokens);
      w.key("spec_accepted_tokens").value(usage.speculation->accepted_tokens);
    }
    w.end_object();
    w.key("total_tokens").value(usage.prompt.prompt_tokens + usage.completion_tokens).end_object();
  }

  const ResponseState& state_;
  std::vector<Item> items_;
  bool active_ = false;  // the last item is open
  int64_t sequence_ = 0;
  std::string_view status_ = "in_progress";
  std::optional<std::string_view> incomplete_;
  std::optional<int64_t> completed_at_;
};

}  // namespace

std::unique_ptr<EventWriter> make_responses_writer(const ResponseState& state) {
  return std::make_unique<ResponsesWriter>(state);
}

}  // namespace di::codec::api
