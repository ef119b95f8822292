// Chat Completions chunks and response (recipe.md §6.1).
#include "codec/api/events.h"

namespace di::codec::api {

void append_logprobs(std::string& out, const LogprobList& list) {
  const auto open_token = [&](const LogprobEntry::Token& token) {
    out += "{\"token\":";
    append_json_string(out, token.text);
    out += ",\"logprob\":";
    append_json_number(out, token.logprob);
    out += ",\"bytes\":[";
    for (size_t i = 0; i < token.bytes.size(); ++i) {
      if (i > 0) out.push_back(',');
      out += fmt::format("{}", static_cast<unsigned char>(token.bytes[i]));
    }
    out += "]";
  };
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0) out.push_back(',');
    open_token(list[i].token);
    out += ",\"top_logprobs\":[";
    for (size_t k = 0; k < list[i].top.size(); ++k) {
      if (k > 0) out.push_back(',');
      open_token(list[i].top[k]);
      out.push_back('}');
    }
    out += "]}";
  }
}

std::string_view chat_finish_reason(EndKind end) {
  switch (end) {
    case EndKind::kLength:
      return "length";
    case EndKind::kContentFilter:
      return "content_filter";
    case EndKind::kToolCalls:
      return "tool_calls";
    default:
      return "stop";
  }
}

namespace {

class ChatWriter final : public EventWriter {
 public:
  explicit ChatWriter(const ResponseState& state) : state_(state) {}

  void start() override {
    if (!state_.info.deltas) return;
    JsonWriter w(head_);
    w.begin_object().key("id").value(state_.info.id).key("object").value("chat.completion.chunk");
    w.key("created").value(state_.info.created).key("model").value(state_.info.model);
    w.key("system_fingerprint").value(state_.fingerprint);
    head_ += fmt::format(",\"choices\":[{{\"index\":{},\"delta\":", state_.info.choice_index);
    tail_ = state_.request->include_usage || !state_.request->stream ? ",\"finish_reason\":null}],\"usage\":null}"
                                                                     : ",\"finish_reason\":null}]}";
    no_reasoning_ = state_.thinking() ? ",\"reasoning_content\":null}" : "}";
    if (state_.starts_in_reasoning()) {
      chunk([](std::string& out) { out += R"({"role":"assistant","content":null,"reasoning_content":""})"; });
    } else {
      chunk([&](std::string& out) { out.append(R"({"role":"assistant","content":"")").append(no_reasoning_); });
    }
  }

  void content(std::string_view text, const LogprobListRef& logprobs) override {
    content_ += text;
    add_logprobs(content_logprobs_, logprobs);
    chunk(
        [&](std::string& out) {
          out += "{\"content\":";
          append_json_string(out, text);
          out += no_reasoning_;
        },
        logprobs, "content");
  }

  void reasoning(std::string_view text, const LogprobListRef& logprobs) override {
    reasoning_ += text;
    add_logprobs(reasoning_logprobs_, logprobs);
    chunk(
        [&](std::string& out) {
          out += "{\"content\":null,\"reasoning_content\":";
          append_json_string(out, text);
          append_alias(out, text);
          out.push_back('}');
        },
        logprobs, "reasoning_content");
  }

  void call_begin(size_t index, const ToolCall& call) override {
    calls_.push_back(call);
    chunk([&](std::string& out) {
      out += fmt::format("{{\"tool_calls\":[{{\"index\":{},\"id\":", index);
      append_json_string(out, call.id);
      out += ",\"type\":\"function\",\"function\":{\"name\":";
      append_json_string(out, call.name);
      out += ",\"arguments\":\"\"}}]}";
    });
  }

  void call_arguments(size_t index, std::string_view text) override {
    calls_[index].arguments += text;
    chunk([&](std::string& out) {
      out += fmt::format("{{\"tool_calls\":[{{\"index\":{},\"function\":{{\"arguments\":", index);
      append_json_string(out, text);
      out += "}}]}";
    });
  }

  void finish(EndKind end, const std::string&) override {
    end_ = chat_finish_reason(end);
    if (!state_.info.deltas) return;
    std::string data = head_;
    data.append("{\"content\":\"\"").append(no_reasoning_).append(",\"logprobs\":null,\"finish_reason\":\"");
    data.append(end_).append("\"}],\"usage\":").append(chat_usage_json(state_.usage)).append("}");
    state_.emit({}, std::move(data));
  }

  std::string choice() const override {
    std::string out =
        fmt::format("{{\"index\":{},\"message\":{{\"role\":\"assistant\",\"content\":", state_.info.choice_index);
    append_json_string(out, content_);
    if (state_.starts_in_reasoning() || !reasoning_.empty()) {
      out += ",\"reasoning_content\":";
      append_json_string(out, reasoning_);
      append_alias(out, reasoning_);
    }
    if (!calls_.empty()) append_calls(out);
    out += "},\"logprobs\":";
    append_logprobs_object(out);
    out += ",\"finish_reason\":";
    append_json_string(out, end_);
    return out + "}";
  }

  std::string body() const override {
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("id").value(state_.info.id).key("object").value("chat.completion");
    w.key("created").value(state_.info.created).key("model").value(state_.info.model);
    w.key("choices").begin_array().raw(choice()).end_array();
    w.key("usage").raw(chat_usage_json(state_.usage));
    w.key("system_fingerprint").value(state_.fingerprint).end_object();
    return out;
  }

 private:
  template <class Delta>
  void chunk(const Delta& delta, const LogprobListRef& logprobs = nullptr, std::string_view logprob_key = {}) {
    if (!state_.info.deltas) return;
    std::string data;
    data.reserve(head_.size() + tail_.size() + 96);
    data += head_;
    delta(data);
    if (logprobs == nullptr) {
      data += ",\"logprobs\":null";
    } else {
      data.append(",\"logprobs\":{\"").append(logprob_key).append("\":[");
      append_logprobs(data, *logprobs);
      data += "]}";
    }
    if (state_.request->continuous_usage) {
      data.append(",\"finish_reason\":null}],\"usage\":").append(chat_usage_json(state_.usage)).append("}");
    } else {
      data += tail_;
    }
    state_.emit({}, std::move(data));
  }

  void append_alias(std::string& out, std::string_view text) const {
    if (!state_.info.reasoning_alias) return;
    out += ",\"reasoning\":";
    append_json_string(out, text);
  }

  static void add_logprobs(std::string& all, const LogprobListRef& logprobs) {
    if (logprobs == nullptr) return;
    if (!all.empty()) all.push_back(',');
    append_logprobs(all, *logprobs);
  }

  void append_logprobs_object(std::string& out) const {
    if (content_logprobs_.empty() && reasoning_logprobs_.empty()) {
      out += "null";
      return;
    }
    out += "{";
    if (!content_logprobs_.empty()) out.append("\"content\":[").append(content_logprobs_).append("]");
    if (!reasoning_logprobs_.empty()) {
      if (!content_logprobs_.empty()) out += ",";
      out.append("\"reasoning_content\":[").append(reasoning_logprobs_).append("]");
    }
    out += "}";
  }

  void append_calls(std::string& out) const {
    out += ",\"tool_calls\":";
    JsonWriter w(out);
    w.begin_array();
    for (size_t i = 0; i < calls_.size(); ++i) {
      w.begin_object().key("index").value(i).key("id").value(calls_[i].id).key("type").value("function");
      w.key("function").begin_object().key("name").value(calls_[i].name);
      w.key("arguments").value(calls_[i].arguments).end_object().end_object();
    }
    w.end_array();
  }

  const ResponseState& state_;
  std::string head_;
  std::string tail_;
  std::string_view no_reasoning_;
  std::string content_;
  std::string reasoning_;
  std::string content_logprobs_;
  std::string reasoning_logprobs_;
  std::vector<ToolCall> calls_;
  std::string_view end_;
};

}  // namespace

std::unique_ptr<EventWriter> make_chat_writer(const ResponseState& state) {
  return std::make_unique<ChatWriter>(state);
}

}  // namespace di::codec::api

namespace di::codec {

std::string chat_usage_json(const Usage& usage) {
  std::string out;
  JsonWriter w(out);
  const uint32_t prompt = usage.prompt.prompt_tokens;
  const uint32_t hit = usage.prompt.cache_hit_tokens;
  w.begin_object().key("prompt_tokens").value(prompt).key("completion_tokens").value(usage.completion_tokens);
  w.key("total_tokens").value(prompt + usage.completion_tokens);
  w.key("prompt_tokens_details").begin_object().key("cached_tokens").value(hit);
  if (usage.cache_write_tokens) w.key("cache_write_tokens").value(*usage.cache_write_tokens);
  w.end_object();
  if (usage.reasoning_tokens || usage.speculation) {
    w.key("completion_tokens_details").begin_object();
    if (usage.reasoning_tokens) w.key("reasoning_tokens").value(*usage.reasoning_tokens);
    if (usage.speculation) {
      w.key("spec_verified_tokens").value(usage.speculation->verified_tokens);
      w.key("spec_accepted_tokens").value(usage.speculation->accepted_tokens);
    }
    w.end_object();
  }
  w.key("prompt_cache_hit_tokens").value(hit);
  w.key("prompt_cache_miss_tokens").value(prompt > hit ? prompt - hit : 0U).end_object();
  return out;
}

}  // namespace di::codec
