#include "cli/local_client.h"

#include <condition_variable>
#include <future>
#include <mutex>

#include "base/queue.h"

namespace di::cli {
namespace {

server::HttpRequest post_request(const server::App& app, const std::string& path, std::string body) {
  server::HttpRequest request;
  request.method = "POST";
  request.path = path;
  request.headers = {{"Content-Type", "application/json"}};
  request.body = std::move(body);
  request.id = server::random_hex32();
  request.received_ns = app.clock().now_ns();
  return request;
}

server::HttpRequest chat_request(const server::App& app, std::string body) {
  return post_request(app, "/v1/chat/completions", std::move(body));
}

class WholeExchange final : public server::Exchange {
 public:
  WholeExchange(server::HttpRequest request, std::function<void(LocalAnswer)> done)
      : request_(std::move(request)), done_(std::move(done)) {}
  const server::HttpRequest& request() const override { return request_; }
  void replace_body(std::string body) override { request_.body = std::move(body); }
  void rename(std::string id) override { request_.id = std::move(id); }
  void reply(server::HttpResponse response) override { finish(response.status, std::move(response.body)); }
  void begin_stream(server::HttpResponse response, std::string) override {
    const std::lock_guard lock(mutex_);
    status_ = response.status;
    text_ = std::move(response.body);
  }
  bool write(std::string_view bytes) override {
    const std::lock_guard lock(mutex_);
    text_ += bytes;
    return true;
  }
  void end_stream() override { finish(status_, std::move(text_)); }
  void on_disconnect(std::function<void()>) override {}

 private:
  void finish(int status, std::string body) {
    if (done_) std::exchange(done_, nullptr)(LocalAnswer{status, request_.id, std::move(body)});
  }

  server::HttpRequest request_;
  std::function<void(LocalAnswer)> done_;
  std::mutex mutex_;  // guards the members below
  int status_ = 0;
  std::string text_;
};

// Events as they come, through a queue to the thread that reads them.
class StreamExchange final : public server::Exchange {
 public:
  explicit StreamExchange(server::HttpRequest request) : request_(std::move(request)) {}
  const server::HttpRequest& request() const override { return request_; }
  void replace_body(std::string body) override { request_.body = std::move(body); }
  void rename(std::string id) override { request_.id = std::move(id); }
  void reply(server::HttpResponse response) override {
    queue_.push(std::move(response.body));
    queue_.close();
  }
  void begin_stream(server::HttpResponse response, std::string) override { write(response.body); }
  bool write(std::string_view bytes) override { return bytes.empty() || queue_.push(std::string(bytes)); }
  void end_stream() override { queue_.close(); }
  void on_disconnect(std::function<void()> callback) override {
    const std::lock_guard lock(mutex_);
    on_disconnect_ = std::move(callback);
  }

  std::optional<std::string> next() { return queue_.pop(); }
  void leave() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      callback = std::move(on_disconnect_);
    }
    if (callback) callback();
  }

 private:
  server::HttpRequest request_;
  Queue<std::string> queue_;
  std::mutex mutex_;  // guards on_disconnect_
  std::function<void()> on_disconnect_;
};

}  // namespace

void post_chat(server::App& app, std::string body, std::function<void(LocalAnswer)> done) {
  app.handle(std::make_shared<WholeExchange>(chat_request(app, std::move(body)), std::move(done)));
}

LocalAnswer post_and_wait(server::App& app, const std::string& path, std::string body) {
  std::promise<LocalAnswer> answer;
  app.handle(std::make_shared<WholeExchange>(post_request(app, path, std::move(body)),
                                             [&](LocalAnswer found) { answer.set_value(std::move(found)); }));
  return answer.get_future().get();
}

ChatEnd stream_chat(server::App& app, const Json& body, const std::function<bool(const ChatDelta&)>& on_delta) {
  const auto exchange = std::make_shared<StreamExchange>(chat_request(app, to_json(body)));
  app.handle(exchange);
  ChatEvents events(on_delta);
  bool left = false;
  while (const std::optional<std::string> text = exchange->next()) {
    if (left || events.take(*text)) continue;
    left = true;
    exchange->leave();
  }
  return events.end();
}

}  // namespace di::cli
