#include "server/completion_job.h"

#include <algorithm>

#include "base/json.h"

namespace di::server {
namespace {

// The codec's parser for plain text: stop strings and characters over several tokens are its business. Its Chat events
// are read back here.
codec::ConvertedRequest plain_request(const CompletionSpec& spec) {
  codec::ConvertedRequest out;
  out.api = codec::Api::kChat;
  out.model = spec.model;
  out.stream = true;
  out.conversation.thinking_mode = false;
  out.parsing.stop_sequences = spec.stop;
  out.parsing.include_stop_text = spec.include_stop_text;
  return out;
}

std::size_t characters_in(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

}  // namespace

CompletionJob::CompletionJob(App& app, const Service& service, ExchangeRef exchange, CompletionSpec spec,
                             RequestRecord record, TimelineRef timeline)
    : AnswerJob(app, service, std::move(exchange), record, std::move(timeline)),
      spec_(std::move(spec)),
      response_id_(record.response_id),
      created_(record.created) {
  const codec::ConvertedRequest request = plain_request(spec_);
  for (std::size_t i = 0; i < spec_.prompt_texts.size() * static_cast<std::size_t>(spec_.n); ++i) {
    codec::ResponseInfo info;
    info.id = response_id_;
    info.model = spec_.model;
    info.created = created_;
    info.tokens_as_ids = spec_.tokens_as_ids;
    choices_.push_back(
        {codec::OutputProcessor(request, service.tokenizer, std::move(info)), {}, {}, 0, {}, false, {}, 0, false});
  }
}

void CompletionJob::write_start() {
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    std::vector<codec::StreamEvent> events;
    choices_[i].processor.ready({}, std::nullopt, events);
  }
  prompt_logprobs_.resize(spec_.prompt_texts.size());
}

// The prompt in front of the answer; with its probabilities, which come with the first output.
void CompletionJob::echo(std::size_t index, const engine::Output& output) {
  Choice& choice = choices_[index];
  const std::size_t prompt = index / static_cast<std::size_t>(spec_.n);
  if (!output.prompt_logprobs.empty()) prompt_logprobs_[prompt] = output.prompt_logprobs;
  if (!spec_.echo || choice.echoed) return;
  choice.echoed = true;
  Logprobs part;
  const std::vector<int32_t>& tokens = spec_.prompt_tokens[prompt];
  const auto text_of = [&](int32_t id) {
    return spec_.tokens_as_ids ? fmt::format("token_id:{}", id) : service_.tokenizer->decode(std::span(&id, 1));
  };
  for (std::size_t i = 0; spec_.logprobs >= 0 && i < tokens.size(); ++i) {
    const std::vector<engine::OutputToken>& known = prompt_logprobs_[prompt];
    part.tokens.push_back(text_of(tokens[i]));
    auto& top = part.top.emplace_back();
    if (i == 0 || i > known.size()) {
      part.token_logprobs.emplace_back();  // nothing precedes the first token
    } else {
      part.token_logprobs.emplace_back(known[i - 1].logprob);
      for (const engine::TokenLogprob& other : known[i - 1].top) top.emplace_back(text_of(other.token), other.logprob);
    }
    part.offsets.push_back(choice.characters);
    choice.characters += characters_in(service_.tokenizer->decode(std::span(&tokens[i], 1)));
  }
  choice.logprobs = part;
  choice.text = spec_.prompt_texts[prompt];
  choice.characters = characters_in(choice.text);
  if (streaming()) send({}, chunk(index, choice.text, part, {}));
}

Result<void> CompletionJob::write_tokens(std::size_t index, const engine::Output& output) {
  echo(index, output);
  Choice& choice = choices_[index];
  std::vector<TokenId> ids;
  std::vector<codec::TokenLogprob> logprobs;
  for (const engine::OutputToken& token : output.tokens) {
    ids.push_back(token.token);
    if (spec_.token_ids) choice.ids.push_back(token.token);
    if (spec_.logprobs < 0) continue;
    codec::TokenLogprob entry{token.logprob, {}};
    for (const engine::TokenLogprob& top : token.top) entry.top.emplace_back(top.token, top.logprob);
    logprobs.push_back(std::move(entry));
  }
  std::vector<codec::StreamEvent> events;
  std::optional<std::span<const codec::TokenLogprob>> given;
  if (spec_.logprobs >= 0) given = logprobs;
  const Result<void> ok = choice.processor.tokens(ids, given, events);
  take_events(index, events);
  return ok;
}

// Text and probabilities of the codec's Chat events.
void CompletionJob::take_events(std::size_t index, const std::vector<codec::StreamEvent>& events) {
  Choice& choice = choices_[index];
  for (const codec::StreamEvent& event : events) {
    const Result<Json> json = parse_json(event.data);
    const Json* list = json ? json->find("choices") : nullptr;
    if (list == nullptr || list->size() == 0) continue;
    const Json& source = list->as_array()[0];
    const Json* delta = source.find("delta");
    const Json* content = delta == nullptr ? nullptr : delta->find_value("content");
    const std::string text = content == nullptr ? std::string() : content->as_string();
    Logprobs part;
    const Json* logprobs = source.find_value("logprobs");
    const Json* entries = logprobs == nullptr ? nullptr : logprobs->find_value("content");
    for (std::size_t i = 0; entries != nullptr && i < entries->size(); ++i) {
      const Json& entry = entries->as_array()[i];
      part.tokens.push_back(entry.find("token")->as_string());
      part.token_logprobs.emplace_back(static_cast<float>(entry.find("logprob")->to_double().value_or(0)));
      auto& top = part.top.emplace_back();
      if (const Json* alternatives = entry.find_value("top_logprobs")) {
        for (const Json& other : alternatives->as_array()) {
          top.emplace_back(other.find("token")->as_string(),
                           static_cast<float>(other.find("logprob")->to_double().value_or(0)));
        }
      }
      part.offsets.push_back(choice.characters);
      std::string bytes;
      for (const Json& byte : entry.find("bytes")->as_array()) bytes.push_back(static_cast<char>(*byte.to_i64()));
      choice.characters += characters_in(bytes);
    }
    choice.text += text;
    if (spec_.logprobs < 0) choice.characters += characters_in(text);
    if (streaming()) {
      if (!text.empty()) send({}, chunk(index, text, part, {}));
      continue;
    }
    Logprobs& all = choice.logprobs;
    all.tokens.insert(all.tokens.end(), part.tokens.begin(), part.tokens.end());
    all.token_logprobs.insert(all.token_logprobs.end(), part.token_logprobs.begin(), part.token_logprobs.end());
    all.top.insert(all.top.end(), part.top.begin(), part.top.end());
    all.offsets.insert(all.offsets.end(), part.offsets.begin(), part.offsets.end());
  }
}

bool CompletionJob::stopped(std::size_t index) const {
  return choices_[index].processor.stopped_by_sequence();
}

void CompletionJob::write_end(std::size_t index, ChoiceEnd end, const engine::Output& output) {
  echo(index, output);
  Choice& choice = choices_[index];
  std::vector<codec::StreamEvent> events;
  const bool length = end == ChoiceEnd::kLength || end == ChoiceEnd::kInsufficient;
  choice.processor.finish(length ? codec::FinishReason::kLength : codec::FinishReason::kStop, events);
  choice.processor.close(events);
  take_events(index, events);
  choice.finish = end == ChoiceEnd::kInsufficient ? "insufficient_system_resource" : length ? "length" : "stop";
  if (streaming()) send({}, chunk(index, {}, {}, choice.finish));
}

void CompletionJob::write_stream_end() {
  if (spec_.include_usage) {
    std::string out;
    JsonWriter w(out);
    write_head(w);
    w.key("choices").begin_array().end_array().key("usage").raw(usage()).end_object();
    send({}, out);
  }
  send_raw("data: [DONE]\n\n");
}

void CompletionJob::write_stream_error(const ApiFailure& failure) {
  send({}, error_body(failure, ErrorFamily::kOpenAi, exchange_->request().id));
  send_raw("data: [DONE]\n\n");
}

void CompletionJob::write_head(JsonWriter& w) const {
  w.begin_object().key("id").value(response_id_).key("object").value("text_completion");
  w.key("created").value(created_).key("model").value(spec_.model);
  w.key("system_fingerprint").value(service_.system_fingerprint);
}

void CompletionJob::write_choice(JsonWriter& w, std::size_t index, std::string_view text, const Logprobs& logprobs,
                                 std::string_view finish) const {
  w.begin_object().key("text").value(text).key("index").value(index).key("logprobs");
  if (spec_.logprobs < 0) {
    w.null();
  } else {
    w.begin_object().key("tokens").begin_array();
    for (const std::string& token : logprobs.tokens) w.value(token);
    w.end_array().key("token_logprobs").begin_array();
    for (const std::optional<float>& logprob : logprobs.token_logprobs) w.value(logprob);
    w.end_array().key("top_logprobs").begin_array();
    for (std::size_t i = 0; i < logprobs.top.size(); ++i) {
      if (!logprobs.token_logprobs[i]) {
        w.null();
        continue;
      }
      w.begin_object();
      for (const auto& [token, logprob] : logprobs.top[i]) w.key(token).value(logprob);
      w.end_object();
    }
    w.end_array().key("text_offset").begin_array();
    for (const std::size_t offset : logprobs.offsets) w.value(offset);
    w.end_array().end_object();
  }
  if (spec_.token_ids) write_ids(w, index);
  w.key("finish_reason");
  if (finish.empty()) {
    w.null();
  } else {
    w.value(finish);
  }
  w.end_object();
}

// As vLLM writes them: the output's that no chunk has shown yet, and the prompt's in a choice's first.
void CompletionJob::write_ids(JsonWriter& w, std::size_t index) const {
  const Choice& choice = choices_[index];
  const auto list = [&](std::string_view name, std::span<const int32_t> ids) {
    w.key(name).begin_array();
    for (const int32_t id : ids) w.value(id);
    w.end_array();
  };
  if (!choice.prompt_shown) list("prompt_token_ids", spec_.prompt_tokens[index / static_cast<std::size_t>(spec_.n)]);
  list("token_ids", std::span(choice.ids).subspan(choice.ids_sent));
}

std::string CompletionJob::chunk(std::size_t index, std::string_view text, const Logprobs& logprobs,
                                 std::string_view finish) {
  std::string out;
  JsonWriter w(out);
  write_head(w);
  w.key("choices").begin_array();
  write_choice(w, index, text, logprobs, finish);
  w.end_array();
  if (spec_.continuous_usage) {
    w.key("usage").raw(usage());
  } else if (spec_.include_usage) {
    w.key("usage").null();
  }
  w.end_object();
  choices_[index].ids_sent = choices_[index].ids.size();
  choices_[index].prompt_shown = true;
  return out;
}

std::string CompletionJob::usage() const {
  codec::Usage total;
  total.prompt = {static_cast<uint32_t>(prompt_tokens()), static_cast<uint32_t>(cached_tokens())};
  for (const Choice& choice : choices_) total.completion_tokens += choice.processor.usage().completion_tokens;
  total.speculation = speculation_usage();
  return codec::chat_usage_json(total);
}

std::string CompletionJob::body() {
  std::string out;
  JsonWriter w(out);
  write_head(w);
  w.key("choices").begin_array();
  for (std::size_t i = 0; i < choices_.size(); ++i)
    write_choice(w, i, choices_[i].text, choices_[i].logprobs, choices_[i].finish);
  w.end_array().key("usage").raw(usage()).end_object();
  return out;
}

}  // namespace di::server
