#include "cli/bench_client.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <queue>
#include <utility>

#include "base/clock.h"
#include "base/cpu_time.h"
#include "base/json.h"
#include "cli/stream_check.h"

namespace di::cli {
namespace {

// `answer`: it is no reasoning.
bool has_text(const Json& event, std::string& text, bool& answer) {
  answer = true;
  const auto take = [&](const Json* value) {
    if (value == nullptr || !value->is_string() || value->as_string().empty()) return false;
    text = value->as_string();
    return true;
  };
  if (const Json* choices = event.find_value("choices"); choices != nullptr && choices->size() > 0) {
    const Json& choice = choices->as_array()[0];
    const Json* delta = choice.find_value("delta");
    if (delta == nullptr) return take(choice.find_value("text"));
    if (take(delta->find_value("content"))) return true;
    answer = false;
    if (take(delta->find_value("reasoning_content"))) return true;
    return delta->find_value("tool_calls") != nullptr;
  }
  if (const Json* delta = event.find_value("delta")) {
    if (delta->is_string()) return take(delta);
    for (const char* key : {"text", "thinking", "partial_json"}) {
      if (take(delta->find_value(key))) return true;
      answer = false;
    }
  }
  return false;
}

void read_usage(const Json& event, LoadResult& result) {
  const Json* usage = event.find_value("usage");
  if (usage == nullptr) {
    const Json* response = event.find_value("response");
    if (response == nullptr) response = event.find_value("message");
    if (response != nullptr) usage = response->find_value("usage");
  }
  if (usage == nullptr) return;
  const auto number = [&](const char* a, const char* b) {
    const Json* value = usage->find_value(a);
    if (value == nullptr) value = usage->find_value(b);
    return value == nullptr ? int64_t{0} : value->to_i64().value_or(0);
  };
  // Messages count what came from the cache apart.
  const int64_t prompt = number("prompt_tokens", "input_tokens") + number("cache_read_input_tokens", "") +
                         number("cache_creation_input_tokens", "");
  if (prompt > 0) result.prompt_tokens = prompt;
  const int64_t output = number("completion_tokens", "output_tokens");
  if (output > 0) result.output_tokens = output;
}

class Load;

struct Connection {
  int fd = -1;
  bool connected = false;
  bool probe = false;
  size_t request = SIZE_MAX;  // the one under way
  std::string out;
  size_t written = 0;
  ResponseReader reader;
  std::string event;      // bytes of an unfinished event
  std::string body;       // of an error, or of a whole answer
  bool finished = false;  // the stream's last event was seen
  bool is_stream = false;
  StreamCheck check;
};

class Load {
 public:
  Load(const LoadOptions& options, const std::vector<LoadRequest>& requests, const HttpAddress& address)
      : options_(options), requests_(requests), address_(address), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    report_.results.resize(requests.size());
    follower_.assign(requests.size(), SIZE_MAX);
    for (size_t i = 0; i < requests.size(); ++i) {
      report_.results[i].prompt_tokens = requests[i].prompt_tokens;
      if (requests[i].after < 0) {
        due_.emplace(requests[i].send_at_ns, i);
      } else {
        follower_[static_cast<size_t>(requests[i].after)] = i;
      }
    }
  }
  ~Load() {
    for (const auto& connection : connections_) {
      if (connection->fd >= 0) close(connection->fd);
    }
    close(epoll_);
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  LoadReport run(const std::function<void(size_t)>& progress) {
    const double cpu = process_cpu_seconds();
    start_ns_ = clock_.now_ns();
    size_t told = 0;
    while (done_ < requests_.size()) {
      start_due();
      probe_due();
      wait();
      abort_due();
      if (progress && done_ != told) progress(told = done_);
    }
    int64_t end = 0;
    for (const LoadResult& result : report_.results) end = std::max(end, result.end_ns);
    report_.duration_ns = end;
    report_.client_cpu_s = process_cpu_seconds() - cpu;
    if (!lags_.empty()) {
      const auto p99 = lags_.begin() + static_cast<std::ptrdiff_t>(lags_.size() * 99 / 100);
      std::nth_element(lags_.begin(), p99, lags_.end());
      report_.p99_lag_ns = *p99;
      report_.max_lag_ns = *std::max_element(p99, lags_.end());
    }
    return std::move(report_);
  }

 private:
  int64_t now() const { return clock_.now_ns() - start_ns_; }

  Connection* connection_for(bool probe) {
    std::vector<Connection*>& idle = probe ? idle_probes_ : idle_;
    if (!idle.empty()) {
      Connection* connection = idle.back();
      idle.pop_back();
      return connection;
    }
    auto connection = std::make_unique<Connection>();
    connection->probe = probe;
    connections_.push_back(std::move(connection));
    return connections_.back().get();
  }

  // With a request to send: connects first where that is needed.
  void begin(Connection& connection, std::string bytes) {
    connection.out = std::move(bytes);
    connection.written = 0;
    connection.reader.reset();
    connection.event.clear();
    connection.body.clear();
    connection.finished = connection.is_stream = false;
    connection.check = StreamCheck();
    if (connection.fd < 0) {
      connection.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      const int on = 1;
      setsockopt(connection.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      address_.connect(connection.fd);
      epoll_event event{};
      event.events = EPOLLIN | EPOLLOUT;
      event.data.ptr = &connection;
      epoll_ctl(epoll_, EPOLL_CTL_ADD, connection.fd, &event);
      connection.connected = false;
      return;
    }
    flush(connection);
  }

  void flush(Connection& connection) {
    while (connection.written < connection.out.size()) {
      const ssize_t n = send(connection.fd, connection.out.data() + connection.written,
                             connection.out.size() - connection.written, MSG_NOSIGNAL);
      if (n < 0 && errno == EAGAIN) break;
      if (n <= 0) return lost(connection, "the connection broke while sending");
      connection.written += static_cast<size_t>(n);
    }
    const bool all = connection.written == connection.out.size();
    epoll_event event{};
    event.events = all ? EPOLLIN : EPOLLIN | EPOLLOUT;
    event.data.ptr = &connection;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, connection.fd, &event);
  }

  bool has_place() const { return options_.max_concurrency == 0 || running_ < options_.max_concurrency; }

  void start_due() {
    while (!due_.empty() && has_place()) {
      const auto [due, index] = due_.top();
      const int64_t at = now();
      if (due > at) return;
      due_.pop();
      if (due > 0 && !waited_for_place_) lags_.push_back(at - due);
      const LoadRequest& request = requests_[index];
      Connection& connection = *connection_for(false);
      connection.request = index;
      report_.results[index].due_ns = due;
      report_.results[index].sent_ns = at;
      ++running_;
      report_.peak_concurrency = std::max<int64_t>(report_.peak_concurrency, running_);
      const std::string body = request.after < 0
                                   ? request.body
                                   : options_.next_body(index, report_.results[static_cast<size_t>(request.after)]);
      std::string bytes =
          fmt::format("POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
                      request.path, options_.host, body.size());
      for (const std::string& header : options_.headers) bytes += header + "\r\n";
      begin(connection, bytes + "\r\n" + body);
    }
  }

  void probe_due() {
    if (options_.probe_interval_ns == 0 || probing_ || now() < next_probe_ns_) return;
    next_probe_ns_ = now() + options_.probe_interval_ns;
    probing_ = true;
    probe_sent_ns_ = now();
    begin(*connection_for(true), fmt::format("GET /livez HTTP/1.1\r\nHost: {}\r\n\r\n", options_.host));
  }

  void abort_due() {
    const int64_t at = now();
    for (const auto& connection : connections_) {
      if (connection->probe || connection->request == SIZE_MAX) continue;
      const LoadRequest& request = requests_[connection->request];
      LoadResult& result = report_.results[connection->request];
      if (request.abort_after_ns > 0 && at - result.sent_ns >= request.abort_after_ns) {
        result.aborted = true;
        lost(*connection, "aborted");
      } else if (at - result.sent_ns > options_.timeout_ns) {
        lost(*connection, "no answer in time");
      }
    }
  }

  void wait() {
    int timeout_ms = 100;
    const auto until = [&](int64_t at) {
      timeout_ms = static_cast<int>(std::clamp<int64_t>((at - now()) / kNsPerMs, 0, timeout_ms));
    };
    if (!due_.empty() && has_place()) until(due_.top().first);
    if (options_.probe_interval_ns > 0 && !probing_) until(next_probe_ns_);
    waited_for_place_ = !has_place();
    epoll_event events[256];
    const int n = epoll_wait(epoll_, events, 256, timeout_ms);
    const int64_t turn = now();
    for (int i = 0; i < n; ++i) {
      auto& connection = *static_cast<Connection*>(events[i].data.ptr);
      if (connection.fd < 0) continue;
      if ((events[i].events & (EPOLLERR | EPOLLHUP)) != 0 && !connection.connected) {
        lost(connection, "cannot connect");
        continue;
      }
      connection.connected = true;
      if ((events[i].events & EPOLLOUT) != 0) flush(connection);
      if (connection.fd >= 0 && (events[i].events & EPOLLIN) != 0) receive(connection);
    }
    if (n > 0) lags_.push_back(now() - turn);
  }

  void receive(Connection& connection) {
    char block[65536];
    for (;;) {
      const ssize_t n = recv(connection.fd, block, sizeof block, 0);
      if (n < 0 && errno == EAGAIN) return;
      if (n <= 0) return lost(connection, "the connection was closed before the end");
      connection.reader.feed(std::string_view(block, static_cast<size_t>(n)),
                             [&](std::string_view body) { take(connection, body); });
      if (connection.reader.broken()) return lost(connection, "the answer is no valid HTTP");
      if (connection.reader.done()) return complete(connection);
    }
  }

  void take(Connection& connection, std::string_view bytes) {
    if (connection.probe) return;
    if (connection.reader.status() != 200) {
      connection.body += bytes;
      return;
    }
    connection.event += bytes;
    for (;;) {
      const size_t end = connection.event.find("\n\n");
      if (end == std::string::npos) return;
      take_event(connection, std::string_view(connection.event).substr(0, end));
      connection.event.erase(0, end + 2);
    }
  }

  void take_event(Connection& connection, std::string_view event) {
    LoadResult& result = report_.results[connection.request];
    const size_t data = event.starts_with("data: ") ? 0 : event.find("\ndata: ");
    if (data == std::string_view::npos) return;  // a comment
    std::string_view text = event.substr(data == 0 ? 6 : data + 7);
    connection.is_stream = true;
    if (text == "[DONE]") {
      connection.finished = true;
      if (options_.verify) connection.check.done();
      return;
    }
    // Reading every chunk as JSON costs most of the client's time: it is needed for its text, its usage and its form.
    const bool has_usage = text.find("\"usage\":{") != std::string_view::npos;
    std::string piece;
    bool answer = false;
    const Result<Json> json = parse_json(text);
    if (!json) {
      result.error = "an event is no JSON: " + json.error().message;
      return;
    }
    if (options_.verify) connection.check.take(*json);
    if (json->find_value("error") != nullptr && json->find_value("choices") == nullptr)
      result.error = "error in the stream: " + std::string(text.substr(0, 200));
    const Json* type = json->find_value("type");
    if (type != nullptr && type->is_string()) {
      const std::string& name = type->as_string();
      if (name == "message_stop" || name == "response.completed" || name == "response.incomplete")
        connection.finished = true;
    }
    if (has_usage) read_usage(*json, result);
    if (!has_text(*json, piece, answer)) return;
    const int64_t at = now();
    if (result.chunks == 0) result.first_ns = at;
    ++result.chunks;
    result.chunk_ns.push_back(at);
    if (options_.keep_text) result.text += piece;
    if (answer && follower_[connection.request] != SIZE_MAX) result.answer += piece;
  }

  void complete(Connection& connection) {
    if (connection.probe) {
      report_.probe_ns.push_back(now() - probe_sent_ns_);
      probing_ = false;
      idle_probes_.push_back(&connection);
      return;
    }
    LoadResult& result = report_.results[connection.request];
    result.end_ns = now();
    if (connection.reader.status() != 200) {
      result.error = fmt::format("status {}: {}", connection.reader.status(), connection.body.substr(0, 200));
    } else if (connection.is_stream && !connection.finished) {
      result.error = "the stream has no end event";
    } else if (options_.verify && connection.is_stream) {
      connection.check.end();
      if (result.error.empty()) result.error = connection.check.fault();
      if (result.error.empty() && !connection.event.empty()) result.error = "bytes after the last event";
    }
    if (!connection.is_stream && result.error.empty()) {
      if (const Result<Json> json = parse_json(connection.event)) read_usage(*json, result);
      result.first_ns = result.end_ns;
      result.chunks = 1;
    }
    result.ok = result.error.empty();
    if (result.output_tokens == 0) result.output_tokens = result.chunks;
    finish(connection);
    idle_.push_back(&connection);
  }

  void lost(Connection& connection, const char* why) {
    close(connection.fd);
    connection.fd = -1;
    if (connection.probe) {
      probing_ = false;
      idle_probes_.push_back(&connection);
      return;
    }
    if (connection.request == SIZE_MAX) {
      std::erase(idle_, &connection);
      idle_.push_back(&connection);
      return;
    }
    LoadResult& result = report_.results[connection.request];
    result.end_ns = now();
    result.error = why;
    finish(connection);
    idle_.push_back(&connection);
  }

  void finish(Connection& connection) {
    size_t follower = follower_[connection.request];
    const LoadResult& before = report_.results[connection.request];
    connection.request = SIZE_MAX;
    --running_;
    ++done_;
    if (follower == SIZE_MAX) return;
    if (before.ok) {
      due_.emplace(now() + requests_[follower].think_ns, follower);
      return;
    }
    for (; follower != SIZE_MAX; follower = follower_[follower], ++done_)
      report_.results[follower].error = "the turn before it failed";
  }

  const LoadOptions& options_;
  const std::vector<LoadRequest>& requests_;
  const HttpAddress address_;
  const int epoll_;
  const SystemClock clock_;
  int64_t start_ns_ = 0;
  LoadReport report_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> idle_;
  std::vector<Connection*> idle_probes_;
  using Due = std::pair<int64_t, size_t>;  // time, request
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::vector<size_t> follower_;  // of each request, SIZE_MAX: none
  std::vector<int64_t> lags_;
  size_t done_ = 0;
  int32_t running_ = 0;
  bool waited_for_place_ = false;
  bool probing_ = false;
  int64_t next_probe_ns_ = 0;
  int64_t probe_sent_ns_ = 0;
};

}  // namespace

Result<LoadReport> run_load(const LoadOptions& options, const std::vector<LoadRequest>& requests,
                            const std::function<void(size_t)>& progress) {
  const HttpAddress address = DI_TRY(HttpAddress::resolve({options.host, options.port}));
  return Load(options, requests, address).run(progress);
}

}  // namespace di::cli
