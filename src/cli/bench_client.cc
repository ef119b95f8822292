#include "cli/bench_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <deque>
#include <memory>

#include "base/clock.h"
#include "base/cpu_time.h"
#include "base/json.h"

namespace di::cli {
namespace {

Result<sockaddr_in> address_of(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0 || found == nullptr)
    return fail(Errc::kUnavailable, "cannot resolve {}", host);
  sockaddr_in address = *reinterpret_cast<sockaddr_in*>(found->ai_addr);  // NOLINT: the socket API
  freeaddrinfo(found);
  address.sin_port = htons(port);
  return address;
}

const sockaddr* as_sockaddr(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);  // NOLINT: the socket API
}

// Reads an HTTP/1.1 response piece by piece; hands the body's bytes on.
class ResponseReader {
 public:
  int status() const { return status_; }
  bool done() const { return done_; }
  bool broken() const { return broken_; }
  void reset() { *this = ResponseReader(); }

  template <class Sink>
  void feed(std::string_view data, const Sink& body) {
    pending_.append(data);
    while (!done_ && !broken_ && step(body)) {
    }
  }

 private:
  template <class Sink>
  bool step(const Sink& body) {
    if (!head_) return read_head();
    if (!chunked_) {
      const size_t take = std::min<size_t>(pending_.size(), left_);
      if (take > 0) body(std::string_view(pending_).substr(0, take));
      consume(take);
      left_ -= take;
      done_ = left_ == 0;
      return false;
    }
    if (in_chunk_) {
      if (pending_.size() < left_ + 2) return false;
      body(std::string_view(pending_).substr(0, left_));
      consume(left_ + 2);
      in_chunk_ = false;
      return true;
    }
    const size_t end = pending_.find("\r\n");
    if (end == std::string::npos) return false;
    size_t size = 0;
    if (std::from_chars(pending_.data(), pending_.data() + end, size, 16).ec != std::errc()) broken_ = true;
    consume(end + 2);
    left_ = size;
    in_chunk_ = size > 0;
    if (size == 0) done_ = true;
    return true;
  }

  bool read_head() {
    const size_t end = pending_.find("\r\n\r\n");
    if (end == std::string::npos) return false;
    std::string head = pending_.substr(0, end);
    consume(end + 4);
    std::transform(head.begin(), head.end(), head.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (head.size() < 12 || std::from_chars(head.data() + 9, head.data() + 12, status_).ec != std::errc()) {
      broken_ = true;
      return false;
    }
    if (status_ == 100) return true;
    head_ = true;
    chunked_ = head.find("transfer-encoding: chunked") != std::string::npos;
    const size_t length = head.find("content-length: ");
    if (!chunked_ && length != std::string::npos)
      std::from_chars(head.data() + length + 16, head.data() + head.size(), left_);
    if (!chunked_ && left_ == 0) done_ = true;
    return true;
  }

  void consume(size_t n) { pending_.erase(0, n); }

  std::string pending_;
  bool head_ = false;
  bool chunked_ = false;
  bool in_chunk_ = false;
  bool done_ = false;
  bool broken_ = false;
  size_t left_ = 0;
  int status_ = 0;
};

bool has_text(const Json& event, std::string& text) {
  const auto take = [&](const Json* value) {
    if (value == nullptr || !value->is_string() || value->as_string().empty()) return false;
    text = value->as_string();
    return true;
  };
  if (const Json* choices = event.find_value("choices"); choices != nullptr && choices->size() > 0) {
    const Json& choice = choices->as_array()[0];
    const Json* delta = choice.find_value("delta");
    if (delta == nullptr) return take(choice.find_value("text"));
    if (take(delta->find_value("content")) || take(delta->find_value("reasoning_content"))) return true;
    return delta->find_value("tool_calls") != nullptr;
  }
  if (const Json* delta = event.find_value("delta")) {
    if (delta->is_string()) return take(delta);
    for (const char* key : {"text", "thinking", "partial_json"}) {
      if (take(delta->find_value(key))) return true;
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
  const int64_t prompt = number("prompt_tokens", "input_tokens");
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
};

class Load {
 public:
  Load(const LoadOptions& options, const std::vector<LoadRequest>& requests, sockaddr_in address)
      : options_(options), requests_(requests), address_(address), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    report_.results.resize(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) report_.results[i].prompt_tokens = requests[i].prompt_tokens;
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
    if (connection.fd < 0) {
      connection.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      const int on = 1;
      setsockopt(connection.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      connect(connection.fd, as_sockaddr(address_), sizeof address_);
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

  void start_due() {
    while (next_ < requests_.size()) {
      const LoadRequest& request = requests_[next_];
      const int64_t at = now();
      if (request.send_at_ns > at) return;
      if (options_.max_concurrency > 0 && running_ >= options_.max_concurrency) return;
      if (request.send_at_ns > 0 && (options_.max_concurrency == 0 || running_ < options_.max_concurrency))
        report_.max_lag_ns = std::max(report_.max_lag_ns, waited_for_place_ ? 0 : at - request.send_at_ns);
      Connection& connection = *connection_for(false);
      connection.request = next_;
      report_.results[next_].sent_ns = at;
      ++next_;
      ++running_;
      report_.peak_concurrency = std::max<int64_t>(report_.peak_concurrency, running_);
      std::string bytes =
          fmt::format("POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
                      request.path, options_.host, request.body.size());
      for (const std::string& header : options_.headers) bytes += header + "\r\n";
      begin(connection, bytes + "\r\n" + request.body);
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
    if (next_ < requests_.size() && (options_.max_concurrency == 0 || running_ < options_.max_concurrency))
      until(requests_[next_].send_at_ns);
    if (options_.probe_interval_ns > 0 && !probing_) until(next_probe_ns_);
    waited_for_place_ = options_.max_concurrency > 0 && running_ >= options_.max_concurrency;
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
    if (n > 0) report_.max_lag_ns = std::max(report_.max_lag_ns, now() - turn);
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
      return;
    }
    // Reading every chunk as JSON costs most of the client's time: it is needed for its text, its usage and its form.
    const bool has_usage = text.find("\"usage\":{") != std::string_view::npos;
    std::string piece;
    const Result<Json> json = parse_json(text);
    if (!json) {
      result.error = "an event is no JSON: " + json.error().message;
      return;
    }
    if (json->find_value("error") != nullptr && json->find_value("choices") == nullptr)
      result.error = "error in the stream: " + std::string(text.substr(0, 200));
    const Json* type = json->find_value("type");
    if (type != nullptr && type->is_string()) {
      const std::string& name = type->as_string();
      if (name == "message_stop" || name == "response.completed" || name == "response.incomplete")
        connection.finished = true;
    }
    if (has_usage) read_usage(*json, result);
    if (!has_text(*json, piece)) return;
    const int64_t at = now();
    if (result.chunks == 0) result.first_ns = at;
    ++result.chunks;
    result.chunk_ns.push_back(at);
    if (options_.keep_text) result.text += piece;
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
    } else if (options_.verify && !connection.event.empty()) {
      result.error = "bytes after the last event";
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
    connection.request = SIZE_MAX;
    --running_;
    ++done_;
  }

  const LoadOptions& options_;
  const std::vector<LoadRequest>& requests_;
  const sockaddr_in address_;
  const int epoll_;
  const SystemClock clock_;
  int64_t start_ns_ = 0;
  LoadReport report_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> idle_;
  std::vector<Connection*> idle_probes_;
  size_t next_ = 0;
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
  const sockaddr_in address = DI_TRY(address_of(options.host, options.port));
  return Load(options, requests, address).run(progress);
}

Result<HttpTarget> parse_base_url(const std::string& option, const std::string& url) {
  std::string rest = url;
  if (rest.starts_with("https://")) return fail(Errc::kInvalidRequest, "{} {}: https is not offered", option, url);
  if (rest.starts_with("http://")) rest.erase(0, 7);
  rest = rest.substr(0, rest.find('/'));
  const size_t colon = rest.rfind(':');
  HttpTarget out;
  out.host = rest.substr(0, colon);
  if (colon != std::string::npos) out.port = static_cast<uint16_t>(std::strtoul(rest.c_str() + colon + 1, nullptr, 10));
  if (out.host.empty() || out.port == 0)
    return fail(Errc::kInvalidRequest, "{} {}: expected http://HOST:PORT", option, url);
  return out;
}

Result<std::pair<int, std::string>> http_get(const std::string& host, uint16_t port, const std::string& path,
                                             const std::vector<std::string>& headers) {
  const sockaddr_in address = DI_TRY(address_of(host, port));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit{30, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  std::string request = fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", path, host);
  for (const std::string& header : headers) request += header + "\r\n";
  request += "\r\n";
  ResponseReader reader;
  std::string body;
  bool sent = connect(fd, as_sockaddr(address), sizeof address) == 0 &&
              send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size());
  char block[16384];
  while (sent && !reader.done() && !reader.broken()) {
    const ssize_t n = recv(fd, block, sizeof block, 0);
    if (n <= 0) break;
    reader.feed(std::string_view(block, static_cast<size_t>(n)), [&](std::string_view part) { body += part; });
  }
  close(fd);
  if (!reader.done()) return fail(Errc::kUnavailable, "no answer from http://{}:{}{}", host, port, path);
  return std::pair(reader.status(), std::move(body));
}

}  // namespace di::cli
