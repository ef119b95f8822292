// The answer to a request on a connection, as the handler gives it and the connection sends it: bytes in a bounded
// buffer. Thread-safe; knows nothing of sockets.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/http.h"

namespace di::server {

// Status line and headers, with the blank line. `length` absent: chunked (HTTP/1.0: until the end of the connection).
std::string head_text(const HttpResponse& response, std::string_view request_id, bool close, int http_minor,
                      std::optional<size_t> length);

class WireExchange final : public Exchange {
 public:
  // `wake` is called, from any thread, when there is something to take(). `close`: the connection ends after the
  // answer.
  WireExchange(HttpRequest request, int http_minor, bool close, size_t buffer_limit, std::function<void()> wake);

  const HttpRequest& request() const override { return request_; }
  void replace_body(std::string body) override { request_.body = std::move(body); }
  void rename(std::string id) override { request_.id = std::move(id); }
  void reply(HttpResponse response) override;
  void begin_stream(HttpResponse response, std::string keep_alive) override;
  bool write(std::string_view bytes) override;
  void end_stream() override;
  void on_disconnect(std::function<void()> callback) override;

  // ---- the connection's side ----
  struct Taken {
    std::string bytes;
    bool ended = false;  // nothing comes after these
    bool streaming = false;
    bool overflow = false;  // the buffer ran over: the client reads too slowly
  };
  Taken take();
  bool close() const;
  bool overflowed() const;
  // Puts in something that a living client ignores and a dead one's kernel answers with a reset.
  void probe();
  void send_keep_alive();
  // The client is gone.
  void disconnected();

 private:
  void append_chunk(std::string_view bytes);
  void pack(HttpResponse& response) const;
  void add_context_headers(HttpResponse& response);

  HttpRequest request_;  // does not change once a handler has it
  const int http_minor_;
  const size_t buffer_limit_;
  const std::function<void()> wake_;

  mutable std::mutex mutex_;  // guards the members below
  bool close_;
  std::string pending_;
  std::string keep_alive_;
  bool started_ = false;
  bool streaming_ = false;
  bool ended_ = false;
  bool overflow_ = false;
  bool gone_ = false;
  std::function<void()> on_disconnect_;
};

}  // namespace di::server
