// A request under way: its prompts in the engine, and the answer that grows from their tokens. Fed by the engine's
// thread, works on the server's workers, one task at a time. What the answer looks like is the business of the
// subclasses: chat_job.h (the codec's three APIs) and completion_job.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codec/codec.h"
#include "engine/api.h"
#include "server/app.h"
#include "server/timeline.h"

namespace di::server {

// How a choice ended.
enum class ChoiceEnd : uint8_t {
  kStop,
  kLength,
  kInsufficient,  // the engine had no memory to go on
  kCancelled,     // POST /v1/requests/{id}/cancel
};

class AnswerJob : public Job, public std::enable_shared_from_this<AnswerJob> {
 public:
  // Submits the prompts; what the engine refuses becomes the answer. Choice p·n + j is the j-th of prompt p.
  void start(std::vector<engine::GenerateRequest> prompts);

  void abort(const ApiFailure& failure) final;
  void cancel() final;
  RequestRecord record() const final;

 protected:
  AnswerJob(App& app, const Service& service, ExchangeRef exchange, RequestRecord record, TimelineRef timeline);

  // ---- the answer's form; called one at a time, on a worker ----
  // The request is in the queue. Streams begin here.
  virtual void write_start() = 0;
  virtual Result<void> write_tokens(std::size_t choice, const engine::Output& output) = 0;
  // A stop string ended the choice.
  virtual bool stopped(std::size_t choice) const = 0;
  virtual void write_end(std::size_t choice, ChoiceEnd end, const engine::Output& output) = 0;
  // After the end of the last choice, in a stream.
  virtual void write_stream_end() = 0;
  virtual void write_stream_error(const ApiFailure& failure) = 0;
  virtual std::string body() = 0;
  virtual std::string_view keep_alive() const = 0;
  virtual std::string finish_reason() const = 0;
  virtual int64_t reasoning_tokens() const { return 0; }

  // One server-sent event; `name` may be empty.
  void send(std::string_view name, std::string_view data);
  void send_raw(std::string_view bytes);
  bool streaming() const { return record_.stream; }
  std::size_t open_choices() const { return open_choices_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  // Of all choices so far; nothing without --usage-details.
  std::optional<codec::SpeculationUsage> speculation_usage() const;

  App& app_;
  const Service& service_;
  const ExchangeRef exchange_;
  const TimelineRef timeline_;

 private:
  struct Delivery {
    std::size_t prompt;
    engine::Output output;
  };
  struct Choice {
    bool finished = false;
    int64_t tokens = 0;
    codec::SpeculationUsage drafts;
  };

  void deliver(std::size_t prompt, engine::Output output);
  bool must_wait() const;
  void schedule_locked();
  void pump();
  void begin();
  static void join(std::vector<Delivery>& deliveries);
  void take(Delivery& delivery);
  void finish_choice(std::size_t index, ChoiceEnd end, const engine::Output& output);
  void complete();
  void fail(const ApiFailure& failure);
  void client_gone();
  void cancel_engine();
  void observe_tokens(std::size_t n);
  // Metrics, timeline and the access line, at the end of the request.
  void report(std::string_view finish, int status, std::string_view error_code);

  std::size_t choices_per_prompt_ = 1;
  std::vector<int64_t> prompt_lengths_;

  mutable std::mutex mutex_;  // guards the members of this paragraph
  RequestRecord record_;
  std::vector<Delivery> inbox_;
  std::optional<ApiFailure> abort_;
  std::vector<engine::RequestId> engine_ids_;
  int64_t held_tokens_ = 0;   // in inbox_, waiting for the stream interval
  int64_t passed_on_ns_ = 0;  // when a token was last passed on; with an interval in milliseconds
  bool started_ = false;      // a token was passed on
  bool ready_ = false;        // submitted: tasks may run
  bool scheduled_ = false;    // a task is queued or running
  bool gone_ = false;         // the client went away or does not read
  bool cancelled_ = false;    // by the API
  bool aborted_ = false;      // counted as such

  // Of the running task.
  std::vector<Choice> choices_;
  bool done_ = false;
  bool begun_ = false;             // begin() was called
  bool whole_body_begun_ = false;  // keep-alive of an answer in one piece: status 200 has gone out
  bool writable_ = true;           // the client is there and takes what it is sent
  std::size_t open_choices_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t cached_tokens_ = 0;
  std::string miss_reason_;  // of the first prompt
  int64_t last_token_ns_ = 0;
  int64_t detokenize_ns_ = 0;  // tokens to events …
  int64_t serialize_ns_ = 0;   // … and events to the connection
  engine::FinishReason last_finish_ = engine::FinishReason::kNone;
};

}  // namespace di::server
