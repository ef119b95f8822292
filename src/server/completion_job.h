// The answer to a Completions request (server.md §5): text without roles, for one or several prompts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "codec/codec.h"
#include "server/answer_job.h"

namespace di::server {

struct CompletionSpec {
  std::string model;  // as requested
  int32_t n = 1;
  bool echo = false;
  bool include_usage = false;
  bool continuous_usage = false;  // every chunk has the usage so far
  int32_t logprobs = -1;          // alternatives per token; -1: none
  std::vector<std::string> stop;
  bool include_stop_text = false;
  bool token_ids = false;                           // choices have the ids of prompt and output
  bool tokens_as_ids = false;                       // log probabilities name tokens by their ids
  std::vector<std::string> prompt_texts;            // of each prompt, for echo
  std::vector<std::vector<int32_t>> prompt_tokens;  // the same, for logprobs with echo
};

class CompletionJob final : public AnswerJob {
 public:
  CompletionJob(App& app, const Service& service, ExchangeRef exchange, CompletionSpec spec, RequestRecord record,
                TimelineRef timeline);

 private:
  // Parallel lists of the completions format.
  struct Logprobs {
    std::vector<std::string> tokens;
    std::vector<std::optional<float>> token_logprobs;
    std::vector<std::vector<std::pair<std::string, float>>> top;
    std::vector<std::size_t> offsets;  // of the token in the text, in characters
  };
  struct Choice {
    codec::OutputProcessor processor;
    std::string text;
    Logprobs logprobs;
    std::size_t characters = 0;  // of the text so far
    std::string finish;
    bool echoed = false;
    std::vector<int32_t> ids;   // of the output, with token_ids
    std::size_t ids_sent = 0;   // of these, in a stream
    bool prompt_shown = false;  // its ids, in a stream
  };

  void write_start() override;
  Result<void> write_tokens(std::size_t choice, const engine::Output& output) override;
  bool stopped(std::size_t choice) const override;
  void write_end(std::size_t choice, ChoiceEnd end, const engine::Output& output) override;
  void write_stream_end() override;
  void write_stream_error(const ApiFailure& failure) override;
  std::string body() override;
  std::string_view keep_alive() const override { return ": keep-alive\n\n"; }
  std::string finish_reason() const override { return choices_[0].finish; }

  void echo(std::size_t index, const engine::Output& output);
  void take_events(std::size_t index, const std::vector<codec::StreamEvent>& events);
  std::string chunk(std::size_t index, std::string_view text, const Logprobs& logprobs, std::string_view finish);
  void write_choice(JsonWriter& w, std::size_t index, std::string_view text, const Logprobs& logprobs,
                    std::string_view finish) const;
  void write_ids(JsonWriter& w, std::size_t index) const;
  void write_head(JsonWriter& w) const;
  std::string usage() const;

  const CompletionSpec spec_;
  const std::string response_id_;
  const int64_t created_;
  std::vector<Choice> choices_;
  std::vector<std::vector<engine::OutputToken>> prompt_logprobs_;  // of each prompt's tokens from the second on
};

}  // namespace di::server
