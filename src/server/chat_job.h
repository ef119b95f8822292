// The answer to one chat request: tokens from the engine go through an output processor per choice and out as events or
// as one body. Fed by the engine's thread, works on the server's workers, one task at a time.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "engine/api.h"
#include "server/app.h"

namespace di::server {

class ChatJob final : public Job, public std::enable_shared_from_this<ChatJob> {
 public:
  ChatJob(App& app, const Service& service, ExchangeRef exchange, codec::ConvertedRequest request,
          TimelineRef timeline);

  // Submits to the engine; what it refuses becomes the answer.
  void start(engine::GenerateRequest generate);
  // Ends the answer with an error, in the stream if it has begun.
  void abort(const ApiFailure& failure) override;

 private:
  struct Choice {
    codec::OutputProcessor processor;
    bool finished = false;
    bool insufficient = false;  // the engine had no memory to go on
    int64_t tokens = 0;
  };

  void deliver(engine::Output output);
  void schedule_locked();
  void pump();
  void begin();
  void take(engine::Output& output);
  void finish_choice(Choice& choice, const engine::Output& output);
  void send_events(std::span<const codec::StreamEvent> events, const Choice* finished);
  void send(std::string_view data);
  void complete();
  void fail(const ApiFailure& failure);
  void client_gone();
  std::string usage_chunk() const;
  std::string full_body() const;
  codec::Usage total_usage() const;
  void observe_tokens(size_t n);
  void note_timeline(std::string_view finish, int status, int64_t now);
  void report(std::string_view finish, int status);

  App& app_;
  const Service& service_;
  const ExchangeRef exchange_;
  const codec::ConvertedRequest request_;
  const TimelineRef timeline_;
  const std::string response_id_;
  const int64_t created_;
  std::vector<Choice> choices_;

  std::mutex mutex_;  // guards the members of this paragraph
  std::vector<engine::Output> inbox_;
  std::optional<ApiFailure> abort_;
  bool ready_ = false;      // submitted: tasks may run
  bool scheduled_ = false;  // a task is queued or running
  bool gone_ = false;       // the client went away or does not read
  bool aborted_ = false;    // counted as such

  // Of the running task.
  engine::RequestId engine_id_;
  bool done_ = false;
  bool streaming_ = false;
  bool writable_ = true;  // the client is there and takes what it is sent
  size_t open_choices_ = 0;
  int64_t last_token_ns_ = 0;
  int64_t first_token_ns_ = 0;
  engine::Output last_output_;
};

}  // namespace di::server
