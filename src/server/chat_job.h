// The answer to a request of one of the codec's three APIs (Chat Completions, Responses, Messages): tokens go through
// an output processor per choice and out as its events or as one body.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "codec/codec.h"
#include "server/answer_job.h"

namespace di::server {

class ChatJob final : public AnswerJob {
 public:
  // What a request wants of its answer beside the API's own.
  struct Form {
    // The prompt's last assistant token and what follows; where it is given, a turn with tool calls is kept for exact
    // replay.
    std::vector<TokenId> answer_start;
    std::function<void(Json)> on_body;  // gets the finished response (Responses store)
    bool background = false;
    bool tokens_as_ids = false;
    std::optional<std::vector<TokenId>> prompt_ids;  // Chat: shown, and the answer's ids too
    std::string echo;                                // Chat: stands before the content
    bool obfuscation = false;                        // deltas are padded
  };
  // `record.response_id`, `route` and `model` are set.
  ChatJob(App& app, const Service& service, ExchangeRef exchange, codec::ConvertedRequest request, RequestRecord record,
          TimelineRef timeline, Form form);

  bool background() const override { return form_.background; }

  // Of a Responses request, before start(): its body as it would be if nothing were said.
  Json empty_body() const { return parse_json(choices_[0].processor.body()).value_or(Json(Json::Object{})); }

 private:
  struct Choice {
    codec::OutputProcessor processor;
    ChoiceEnd end = ChoiceEnd::kStop;
    std::vector<TokenId> ids;   // of the answer, where the turn may be kept or they are shown
    std::size_t ids_sent = 0;   // of these, in a stream
    bool calls_marked = false;  // it has the mark that tags of calls have
  };

  void write_start() override;
  Result<void> write_tokens(std::size_t choice, const engine::Output& output) override;
  bool stopped(std::size_t choice) const override;
  void write_end(std::size_t choice, ChoiceEnd end, const engine::Output& output) override;
  void write_stream_end() override;
  void write_stream_error(const ApiFailure& failure) override;
  std::string body() override;
  std::string_view keep_alive() const override;
  std::string finish_reason() const override;
  int64_t reasoning_tokens() const override;

  bool is_chat() const { return request_.api == codec::Api::kChat; }
  void keep_turn(const Choice& choice);
  void count_broken_calls(const Choice& choice);
  // Chat's answers need what the codec does not write.
  bool reshapes() const { return form_.prompt_ids || !form_.echo.empty(); }
  void send_start(const codec::StreamEvent& event, std::size_t index);
  void send_event(const codec::StreamEvent& event, Choice& choice);
  void send_events(std::span<const codec::StreamEvent> events, Choice& choice);
  void send_last_chat_events(std::span<const codec::StreamEvent> events, Choice& choice);
  void send_last_messages_events(std::span<const codec::StreamEvent> events, Choice& choice);
  void add_token_ids(Json& chunk, Choice& choice) const;
  std::string usage_chunk() const;
  std::string prompt_logprobs_json() const;
  std::string chat_choice(const Choice& choice) const;
  bool context_is_full(const Choice& choice) const;
  codec::Usage total_usage() const;
  void store(const std::string& body) const;

  const codec::ConvertedRequest request_;
  const std::string response_id_;
  const int64_t created_;
  const Form form_;
  const std::optional<TokenId> call_mark_;
  std::vector<Choice> choices_;
  std::vector<engine::OutputToken> prompt_logprobs_;  // of the prompt's tokens from the second on
  int64_t sequence_number_ = 0;                       // Responses: of the next event
};

}  // namespace di::server
