#include "server/chat_job.h"

#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "server/background.h"

namespace di::server {
namespace {

constexpr std::string_view kDone = "data: [DONE]\n\n";
constexpr int64_t kTurnSaveSeconds = 60;

std::vector<codec::TokenLogprob> logprobs_of(const engine::Output& output) {
  std::vector<codec::TokenLogprob> out;
  for (const engine::OutputToken& token : output.tokens) {
    codec::TokenLogprob entry;
    entry.logprob = token.logprob;
    for (const engine::TokenLogprob& top : token.top) entry.top.emplace_back(top.token, top.logprob);
    out.push_back(std::move(entry));
  }
  return out;
}

// What the codec cannot know of a Chat choice: ends of ours.
void mark_chat_end(Json& choice, ChoiceEnd end) {
  if (end == ChoiceEnd::kInsufficient) choice.set("finish_reason", Json("insufficient_system_resource"));
  if (end == ChoiceEnd::kCancelled) choice.set("stop_reason", Json("cancelled"));
}

Json json_list(std::span<const TokenId> ids) {
  Json::Array out;
  out.reserve(ids.size());
  for (const TokenId id : ids) out.emplace_back(static_cast<int64_t>(id));
  return Json(std::move(out));
}

// Of a random length, against those who read lengths of packets.
std::string padded(std::string event) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  const uint64_t random = random_u64();
  event.pop_back();
  event += ",\"obfuscation\":\"";
  uint64_t rest = random;
  for (uint64_t i = 0; i < 1 + random % 16; ++i) {
    rest = rest * 6364136223846793005U + 1442695040888963407U;
    event.push_back(kAlphabet[(rest >> 33U) % kAlphabet.size()]);
  }
  return event + "\"}";
}

}  // namespace

ChatJob::ChatJob(App& app, const Service& service, ExchangeRef exchange, codec::ConvertedRequest request,
                 RequestRecord record, TimelineRef timeline, Form form)
    : AnswerJob(app, service, std::move(exchange), record, std::move(timeline)),
      request_(std::move(request)),
      response_id_(record.response_id),
      created_(record.created),
      form_(std::move(form)),
      call_mark_(service.tokenizer->added_id(service.codec.special.dsml)) {
  for (uint32_t i = 0; i < request_.sampling.n; ++i) {
    codec::ResponseInfo info;
    info.id = response_id_;
    info.model = request_.model;
    info.created = created_;
    info.clock = [&app] { return app.clock().unix_seconds(); };
    info.choice_index = i;
    info.deltas = request_.stream;
    info.extra_members = service.codec.policy == codec::ApiPolicy::kExtended;
    info.reasoning_alias = app.config().reasoning_alias && info.extra_members;
    info.tokens_as_ids = form_.tokens_as_ids;
    choices_.push_back(
        {codec::OutputProcessor(request_, service.tokenizer, std::move(info)), ChoiceEnd::kStop, {}, 0, false});
  }
}

std::string_view ChatJob::keep_alive() const {
  return request_.api == codec::Api::kMessages ? "event: ping\ndata: {\"type\": \"ping\"}\n\n" : ": keep-alive\n\n";
}

void ChatJob::write_start() {
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    std::vector<codec::StreamEvent> events;
    choices_[i].processor.ready({static_cast<uint32_t>(prompt_tokens()), 0}, service_.system_fingerprint, events);
    if (streaming() && is_chat() && reshapes() && !events.empty()) {
      send_start(events[0], i);
    } else {
      send_events(events, choices_[i]);
    }
  }
}

// The chunk with the role, with the prompt's ids in the first of all; then what the answer goes on with.
void ChatJob::send_start(const codec::StreamEvent& event, std::size_t index) {
  Result<Json> chunk = parse_json(event.data);
  if (!chunk) return send_event(event, choices_[index]);
  Json& choice = chunk->find("choices")->as_array()[0];
  if (form_.prompt_ids) {
    if (index == 0) chunk->set("prompt_token_ids", json_list(*form_.prompt_ids));
    choice.set("token_ids", Json(Json::Array{}));
  }
  send({}, to_json(*chunk));
  if (form_.echo.empty()) return;
  Json delta(Json::Object{});
  delta.set("content", Json(form_.echo));
  if (request_.conversation.thinking_mode) delta.set("reasoning_content", Json());
  choice.set("delta", std::move(delta));
  if (form_.prompt_ids && index == 0) chunk->set("prompt_token_ids", Json());
  send({}, to_json(*chunk));
}

// Those that no chunk of the choice has shown yet.
void ChatJob::add_token_ids(Json& chunk, Choice& choice) const {
  const std::span<const TokenId> rest = std::span(choice.ids).subspan(choice.ids_sent);
  chunk.find("choices")->as_array()[0].set("token_ids", json_list(rest));
  choice.ids_sent = choice.ids.size();
}

Result<void> ChatJob::write_tokens(std::size_t index, const engine::Output& output) {
  codec::OutputProcessor& processor = choices_[index].processor;
  if (!output.prompt_logprobs.empty()) prompt_logprobs_ = output.prompt_logprobs;
  std::vector<TokenId> ids;
  ids.reserve(output.tokens.size());
  for (const engine::OutputToken& token : output.tokens) {
    ids.push_back(token.token);
    if (token.token == call_mark_) choices_[index].calls_marked = true;
  }
  if (!form_.answer_start.empty() || form_.prompt_ids)
    choices_[index].ids.insert(choices_[index].ids.end(), ids.begin(), ids.end());
  std::vector<codec::TokenLogprob> logprobs;
  std::optional<std::span<const codec::TokenLogprob>> given;
  if (request_.sampling.logprobs) given = logprobs = logprobs_of(output);
  processor.correct_usage({static_cast<uint32_t>(prompt_tokens()), static_cast<uint32_t>(cached_tokens())});
  if (const auto drafts = speculation_usage()) processor.set_speculation(*drafts);
  std::vector<codec::StreamEvent> events;
  const Result<void> ok = processor.tokens(ids, given, events);
  // A stop string ends the choice in here; its last events wait for write_end().
  if (processor.stopped_by_sequence()) {
    send_last_chat_events(events, choices_[index]);
  } else {
    send_events(events, choices_[index]);
  }
  return ok;
}

bool ChatJob::stopped(std::size_t index) const {
  return choices_[index].processor.stopped_by_sequence();
}

void ChatJob::write_end(std::size_t index, ChoiceEnd end, const engine::Output&) {
  Choice& choice = choices_[index];
  choice.end = end;
  choice.processor.correct_usage({static_cast<uint32_t>(prompt_tokens()), static_cast<uint32_t>(cached_tokens())});
  if (const auto drafts = speculation_usage()) choice.processor.set_speculation(*drafts);
  std::vector<codec::StreamEvent> events;
  if (end == ChoiceEnd::kLength || end == ChoiceEnd::kInsufficient) {
    choice.processor.finish(codec::FinishReason::kLength, events);
  } else {
    choice.processor.finish(codec::FinishReason::kStop, events);
  }
  choice.processor.close(events);
  // Before the client can see the end and ask again.
  keep_turn(choice);
  count_broken_calls(choice);
  if (streaming() && open_choices() == 0 && form_.on_body) store(choices_[0].processor.body());
  if (is_chat()) {
    send_last_chat_events(events, choice);
  } else if (request_.api == codec::Api::kMessages) {
    send_last_messages_events(events, choice);
  } else {
    send_events(events, choice);
  }
}

// Of a turn that the model ended itself: calls whose arguments are no JSON object, and tags that made no call.
void ChatJob::count_broken_calls(const Choice& choice) {
  if (!request_.parsing.parse_tool_calls || choice.end != ChoiceEnd::kStop || choice.processor.stopped_by_sequence())
    return;
  uint64_t broken = choice.calls_marked && choice.processor.tool_calls().empty() ? 1 : 0;
  for (const codec::ToolCall& call : choice.processor.tool_calls()) {
    const Result<Json> arguments = parse_json(call.arguments);
    if (!arguments || !arguments->is_object()) ++broken;
  }
  if (broken > 0) app_.metrics().tool_call_parse_failures.add(broken);
}

// A turn with tool calls that the model ended itself: its tokens stand for its text when it comes back.
void ChatJob::keep_turn(const Choice& choice) {
  codec::ReplayStore* turns = app_.turns();
  if (turns == nullptr || form_.answer_start.empty() || choice.end != ChoiceEnd::kStop ||
      choice.processor.stopped_by_sequence() || choice.processor.tool_calls().empty()) {
    return;
  }
  turns->put(record().tenant,
             {choice.processor.tool_calls(), choice.processor.content_text(), choice.processor.reasoning_text()},
             codec::replay_tokens(form_.answer_start, choice.ids, form_.answer_start[0],
                                  service_.engine->info().eos_token_id, request_.conversation.thinking_mode));
  if (const Result<void> saved = turns->save_if_older(kTurnSaveSeconds); !saved)
    DI_LOG(kWarn, "{}", saved.error().message);
}

void ChatJob::send_event(const codec::StreamEvent& event, Choice& choice) {
  ++sequence_number_;
  const bool delta = is_chat() || event.name.ends_with(".delta");
  if (form_.prompt_ids) {
    if (Result<Json> chunk = parse_json(event.data)) {
      add_token_ids(*chunk, choice);
      return send(event.name, form_.obfuscation ? padded(to_json(*chunk)) : to_json(*chunk));
    }
  }
  send(event.name, form_.obfuscation && delta ? padded(event.data) : event.data);
}

void ChatJob::send_events(std::span<const codec::StreamEvent> events, Choice& choice) {
  if (!streaming()) return;
  for (const codec::StreamEvent& event : events) send_event(event, choice);
}

// The last event carries the usage: with several choices that of all of them, in the last one only.
void ChatJob::send_last_chat_events(std::span<const codec::StreamEvent> events, Choice& choice) {
  if (!streaming() || events.empty()) return;
  if (!is_chat() ||
      (choices_.size() == 1 && choice.end != ChoiceEnd::kInsufficient && choice.end != ChoiceEnd::kCancelled)) {
    return send_events(events, choice);
  }
  send_events(events.first(events.size() - 1), choice);
  Result<Json> event = parse_json(events.back().data);
  if (!event) return send_events(events.last(1), choice);
  if (form_.prompt_ids) add_token_ids(*event, choice);
  mark_chat_end(event->find("choices")->as_array()[0], choice.end);
  if (choices_.size() > 1) {
    // A choice that a stop string ends is written before it is counted as closed.
    const std::size_t open = open_choices() - (choice.processor.stopped_by_sequence() ? 1 : 0);
    event->set("usage", Json());
    if (open == 0) event->set("usage", parse_json(codec::chat_usage_json(total_usage())).value_or(Json()));
  }
  send({}, to_json(*event));
}

void ChatJob::send_last_messages_events(std::span<const codec::StreamEvent> events, Choice& choice) {
  if (!context_is_full(choice)) return send_events(events, choice);
  for (const codec::StreamEvent& event : events) {
    Result<Json> data = event.name == "message_delta" ? parse_json(event.data) : Result<Json>(Json());
    if (event.name != "message_delta" || !data) {
      send(event.name, event.data);
      continue;
    }
    data->find("delta")->set("stop_reason", Json("model_context_window_exceeded"));
    send(event.name, to_json(*data));
  }
}

// The answer ended because the context was used up before max_tokens (server.md §7).
bool ChatJob::context_is_full(const Choice& choice) const {
  if (choice.end != ChoiceEnd::kLength || service_.codec.policy != codec::ApiPolicy::kExtended) return false;
  const uint32_t completion = choice.processor.usage().completion_tokens;
  if (request_.sampling.max_tokens && completion >= *request_.sampling.max_tokens) return false;
  return prompt_tokens() + completion >= service_.engine->info().max_model_len;
}

void ChatJob::write_stream_end() {
  if (!is_chat()) return;
  if (request_.include_usage && service_.codec.policy == codec::ApiPolicy::kExtended) send({}, usage_chunk());
  send_raw(kDone);
}

void ChatJob::write_stream_error(const ApiFailure& failure) {
  switch (request_.api) {
    case codec::Api::kChat:
      send({}, error_body(failure, ErrorFamily::kOpenAi, exchange_->request().id));
      send_raw(kDone);
      return;
    case codec::Api::kMessages:
      send("error", error_body(failure, ErrorFamily::kAnthropic, exchange_->request().id));
      return;
    case codec::Api::kResponses:
      break;
  }
  const std::string_view code = failure.code.empty() ? default_code(failure.kind) : std::string_view(failure.code);
  Json response = failed_response(empty_body(), code, failure.message);
  if (form_.on_body) form_.on_body(response);
  Json event(Json::Object{});
  event.set("type", Json("response.failed"));
  event.set("sequence_number", Json(sequence_number_++));
  event.set("response", std::move(response));
  send("response.failed", to_json(event));
}

codec::Usage ChatJob::total_usage() const {
  codec::Usage total = choices_[0].processor.usage();
  for (std::size_t i = 1; i < choices_.size(); ++i) {
    const codec::Usage usage = choices_[i].processor.usage();
    total.completion_tokens += usage.completion_tokens;
    if (usage.reasoning_tokens) total.reasoning_tokens = total.reasoning_tokens.value_or(0) + *usage.reasoning_tokens;
  }
  total.speculation = speculation_usage();
  return total;
}

std::string ChatJob::usage_chunk() const {
  std::string out;
  JsonWriter w(out);
  w.begin_object()
      .key("id")
      .value(response_id_)
      .key("object")
      .value("chat.completion.chunk")
      .key("created")
      .value(created_);
  w.key("model").value(request_.model).key("system_fingerprint").value(service_.system_fingerprint);
  w.key("choices").begin_array().end_array().key("usage").raw(codec::chat_usage_json(total_usage())).end_object();
  return out;
}

std::string ChatJob::chat_choice(const Choice& choice) const {
  std::string text = choice.processor.chat_choice();
  if (choice.end != ChoiceEnd::kInsufficient && choice.end != ChoiceEnd::kCancelled && !reshapes()) return text;
  Result<Json> object = parse_json(text);
  if (!object) return text;
  mark_chat_end(*object, choice.end);
  if (form_.prompt_ids) object->set("token_ids", json_list(choice.ids));
  if (!form_.echo.empty()) {
    Json& message = *object->find("message");
    const Json* content = message.find_value("content");
    message.set("content", Json(form_.echo + (content == nullptr ? std::string() : content->as_string())));
  }
  return to_json(*object);
}

void ChatJob::store(const std::string& body) const {
  Result<Json> response = parse_json(body);
  if (!response) return;
  if (choices_[0].end == ChoiceEnd::kCancelled) response->set("status", Json("cancelled"));
  form_.on_body(std::move(*response));
}

std::string ChatJob::body() {
  const Choice& first = choices_[0];
  const bool ours = first.end == ChoiceEnd::kInsufficient || first.end == ChoiceEnd::kCancelled;
  std::string out;
  if (!is_chat() || (choices_.size() == 1 && !ours && !reshapes())) {
    out = first.processor.body();
    if (request_.api == codec::Api::kMessages && context_is_full(first)) {
      Result<Json> object = parse_json(out);
      if (object) {
        object->set("stop_reason", Json("model_context_window_exceeded"));
        out = to_json(*object);
      }
    }
    if (!prompt_logprobs_.empty()) {
      out.pop_back();
      out += ",\"prompt_logprobs\":" + prompt_logprobs_json() + "}";
    }
    if (form_.on_body) store(out);
    return out;
  }
  JsonWriter w(out);
  w.begin_object().key("id").value(response_id_).key("object").value("chat.completion").key("created").value(created_);
  w.key("model").value(request_.model).key("choices").begin_array();
  for (const Choice& choice : choices_) w.raw(chat_choice(choice));
  w.end_array().key("usage").raw(codec::chat_usage_json(total_usage()));
  w.key("system_fingerprint").value(service_.system_fingerprint);
  if (!prompt_logprobs_.empty()) w.key("prompt_logprobs").raw(prompt_logprobs_json());
  if (form_.prompt_ids) w.key("prompt_token_ids").value(json_list(*form_.prompt_ids));
  w.end_object();
  return out;
}

// As vLLM writes them: null for the first token, then an object of the token and its alternatives by id.
std::string ChatJob::prompt_logprobs_json() const {
  std::string out;
  JsonWriter w(out);
  w.begin_array().null();
  for (const engine::OutputToken& token : prompt_logprobs_) {
    w.begin_object();
    const auto write = [&](int32_t id, float logprob, std::optional<int64_t> rank) {
      w.key(std::to_string(id)).begin_object().key("logprob").value(logprob).key("rank").value(rank);
      w.key("decoded_token").value(service_.tokenizer->decode(std::span(&id, 1))).end_object();
    };
    bool among = false;
    for (std::size_t i = 0; i < token.top.size(); ++i) {
      among = among || token.top[i].token == token.token;
      write(token.top[i].token, token.top[i].logprob, static_cast<int64_t>(i) + 1);
    }
    if (!among) write(token.token, token.logprob, std::nullopt);
    w.end_object();
  }
  w.end_array();
  return out;
}

std::string ChatJob::finish_reason() const {
  const Choice& first = choices_[0];
  if (first.end == ChoiceEnd::kInsufficient) return "insufficient_system_resource";
  if (first.end == ChoiceEnd::kCancelled) return "cancelled";
  return std::string(first.processor.chat_finish_reason());
}

int64_t ChatJob::reasoning_tokens() const {
  int64_t total = 0;
  for (const Choice& choice : choices_) total += choice.processor.usage().reasoning_tokens.value_or(0);
  return total;
}

}  // namespace di::server
