// Responses requests that go on without their client (`background`, server.md §6): what the client gets at once is the
// response as it stands, the rest goes into the store of responses. Thread-safe.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "server/app.h"
#include "server/http.h"

namespace di::server {

// Stands between the job and the client. A stream goes through while somebody reads it; that the client has gone is
// nothing to the job.
class BackgroundExchange final : public Exchange {
 public:
  // `response_id`: the entry of the store, which is there already.
  BackgroundExchange(App& app, ExchangeRef client, std::string response_id);

  // The job is under way: the client is told how it stands. Until then errors are its answer, and the entry goes.
  void accept();

  const HttpRequest& request() const override { return client_->request(); }
  void replace_body(std::string body) override { client_->replace_body(std::move(body)); }
  void rename(std::string id) override { client_->rename(std::move(id)); }
  void reply(HttpResponse response) override;
  void begin_stream(HttpResponse response, std::string keep_alive) override;
  bool write(std::string_view bytes) override;
  void end_stream() override;
  void on_disconnect(std::function<void()>) override {}

 private:
  App& app_;
  const ExchangeRef client_;
  const std::string id_;
  std::mutex mutex_;       // guards the members below
  bool accepted_ = false;  // the client has its answer
  bool refused_ = false;   // before that
};

// The response before its first token: what `body` says of a finished one without its end.
Json pending_response(Json body);
// An error of the job as the stored response shows it.
Json failed_response(Json response, std::string_view code, std::string_view message);

}  // namespace di::server
