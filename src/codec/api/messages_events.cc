// Anthropic Messages events and response (recipe.md §6.2).
#include "codec/api/events.h"

namespace di::codec::api {

namespace {

std::string_view stop_reason(EndKind end) {
  switch (end) {
    case EndKind::kLength:
      return "max_tokens";
    case EndKind::kStopSequence:
      return "stop_sequence";
    case EndKind::kToolCalls:
      return "tool_use";
    case EndKind::kContentFilter:
      return "refusal";
    default:
      return "end_turn";
  }
}

class MessagesWriter final : public EventWriter {
 public:
  explicit MessagesWriter(const ResponseState& state) : state_(state) {}

  void start() override {
    std::string data;
    JsonWriter w(data);
    w.begin_object().key("type").value("message_start").key("message").begin_object();
    w.key("id").value(state_.info.id).key("type").value("message").key("role").value("assistant");
    w.key("model").value(state_.info.model).key("content").begin_array().end_array();
    w.key("stop_reason").null().key("stop_sequence").null().key("usage").raw(usage(0)).end_object().end_object();
    emit("message_start", std::move(data));
    if (state_.thinking()) open(Kind::kThinking);
  }

  void content(std::string_view text, const LogprobListRef&) override {
    open(Kind::kText);
    blocks_.back().text += text;
    delta("text_delta", "text", text);
  }

  void reasoning(std::string_view text, const LogprobListRef&) override {
    open(Kind::kThinking);
    blocks_.back().text += text;
    delta("thinking_delta", "thinking", text);
  }

  void call_begin(size_t, const ToolCall& call) override {
    close();
    open(Kind::kToolUse, &call);
  }

  void call_arguments(size_t, std::string_view text) override {
    blocks_.back().text += text;
    delta("input_json_delta", "partial_json", text);
  }

  void finish(EndKind end, const std::string& stop_text) override {
    close();
    end_ = stop_reason(end);
    if (end == EndKind::kStopSequence) stop_text_ = stop_text;
    std::string data;
    JsonWriter w(data);
    w.begin_object().key("type").value("message_delta").key("delta").begin_object();
    w.key("stop_reason").value(end_).key("stop_sequence").value(stop_text_);
    if (state_.info.extra_members) w.key("stop_details").null();
    w.end_object().key("usage").raw(final_usage()).end_object();
    emit("message_delta", std::move(data));
    emit("message_stop", "{\"type\":\"message_stop\"}");
  }

  std::string body() const override {
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("id").value(state_.info.id).key("type").value("message").key("role").value("assistant");
    w.key("model").value(state_.info.model).key("content").begin_array();
    for (const Block& block : blocks_) {
      w.begin_object();
      switch (block.kind) {
        case Kind::kText:
          w.key("type").value("text").key("text").value(block.text);
          break;
        case Kind::kThinking:
          w.key("type").value("thinking").key("thinking").value(block.text).key("signature").value(signature());
          break;
        case Kind::kToolUse: {
          w.key("type").value("tool_use").key("id").value(block.id).key("name").value(block.name).key("input");
          const Result<Json> input = parse_json(block.text);
          if (input) {
            w.value(*input);
          } else {
            w.begin_object().end_object();
          }
          break;
        }
      }
      w.end_object();
    }
    w.end_array().key("stop_reason");
    if (end_.empty()) {
      w.null();
    } else {
      w.value(end_);
    }
    w.key("stop_sequence").value(stop_text_);
    if (state_.info.extra_members) w.key("stop_details").null();
    w.key("usage").raw(final_usage()).end_object();
    return out;
  }

 private:
  enum class Kind : uint8_t { kThinking, kText, kToolUse };
  struct Block {
    Kind kind;
    std::string text;  // or the input's JSON text
    std::string id;
    std::string name;
  };

  void emit(std::string_view name, std::string data) const {
    if (state_.info.deltas) state_.emit(name, std::move(data));
  }

  const std::string& signature() const { return state_.info.signature ? *state_.info.signature : state_.info.id; }

  std::string usage(uint32_t output_tokens) const {
    const PromptUsage& prompt = state_.usage.prompt;
    const uint32_t fresh =
        prompt.prompt_tokens > prompt.cache_hit_tokens ? prompt.prompt_tokens - prompt.cache_hit_tokens : 0;
    const std::optional<SpeculationUsage>& drafts = state_.usage.speculation;
    return fmt::format(
        "{{\"input_tokens\":{},\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":{},\"output_tokens\":{},"
        "\"service_tier\":\"standard\"{}}}",
        fresh, prompt.cache_hit_tokens, output_tokens,
        drafts ? fmt::format(",\"spec_verified_tokens\":{},\"spec_accepted_tokens\":{}", drafts->verified_tokens,
                             drafts->accepted_tokens)
               : std::string());
  }

  std::string final_usage() const {
    std::string out = usage(state_.usage.completion_tokens);
    if (!state_.info.extra_members) return out;
    // With the token that ends the thinking, which came if anything came behind it; the one that begins it is the
    // prompt's.
    uint32_t thinking = state_.usage.reasoning_tokens.value_or(0);
    if (thinking > 0 && blocks_.size() > 1) ++thinking;
    out.pop_back();
    return out + fmt::format(",\"output_tokens_details\":{{\"thinking_tokens\":{}}}}}", thinking);
  }

  // Makes a block of this kind the open one.
  void open(Kind kind, const ToolCall* call = nullptr) {
    if (is_open_ && call == nullptr && blocks_.back().kind == kind) return;
    close();
    is_open_ = true;
    blocks_.push_back(
        {kind, {}, call != nullptr ? call->id : std::string(), call != nullptr ? call->name : std::string()});
    std::string data =
        fmt::format("{{\"type\":\"content_block_start\",\"index\":{},\"content_block\":", blocks_.size() - 1);
    switch (kind) {
      case Kind::kThinking:
        data += R"({"type":"thinking","thinking":"","signature":""})";
        break;
      case Kind::kText:
        data += R"({"type":"text","text":""})";
        break;
      case Kind::kToolUse:
        data += R"({"type":"tool_use","id":)";
        append_json_string(data, call->id);
        data += ",\"name\":";
        append_json_string(data, call->name);
        data += ",\"input\":{}}";
        break;
    }
    emit("content_block_start", data + "}");
    if (blocks_.size() == 1) emit("ping", "{\"type\":\"ping\"}");
  }

  void close() {
    if (!is_open_) return;
    is_open_ = false;
    if (blocks_.back().kind == Kind::kThinking) delta("signature_delta", "signature", signature());
    emit("content_block_stop", fmt::format("{{\"type\":\"content_block_stop\",\"index\":{}}}", blocks_.size() - 1));
  }

  void delta(std::string_view type, std::string_view key, std::string_view text) const {
    if (!state_.info.deltas) return;
    std::string data = fmt::format(
        "{{\"type\":\"content_block_delta\",\"index\":{},\"delta\":{{\"type\":\"{}\",\"{}\":", blocks_.size() - 1, type,
        key);
    append_json_string(data, text);
    state_.emit("content_block_delta", data + "}}");
  }

  const ResponseState& state_;
  std::vector<Block> blocks_;
  bool is_open_ = false;
  std::string_view end_;
  std::optional<std::string> stop_text_;
};

}  // namespace

std::unique_ptr<EventWriter> make_messages_writer(const ResponseState& state) {
  return std::make_unique<MessagesWriter>(state);
}

}  // namespace di::codec::api
