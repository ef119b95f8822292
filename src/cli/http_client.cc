#include "cli/http_client.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace di::cli {
namespace {

constexpr int kPollMs = 100;
constexpr int kMostConnectS = 30;

// A connected socket, closed at the end.
class Socket {
 public:
  static Result<Socket> open(const HttpTarget& target) {
    const HttpAddress address = DI_TRY(HttpAddress::resolve(target));
    Socket out;
    out.fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval limit{kMostConnectS, 0};
    setsockopt(out.fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);  // also of connect()
    if (!address.connect(out.fd_))
      return fail(Errc::kUnavailable, "cannot connect to http://{}:{}", target.host, target.port);
    return out;
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }

  bool send_all(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  bool readable(int timeout_ms) const {
    pollfd wanted{fd_, POLLIN, 0};
    return poll(&wanted, 1, timeout_ms) > 0;
  }
  // Nothing: the other side has closed, or the connection broke.
  std::string_view receive() {
    ssize_t n = 0;
    do {
      n = recv(fd_, block_, sizeof block_, 0);
    } while (n < 0 && errno == EINTR);
    return {block_, n > 0 ? static_cast<std::size_t>(n) : 0};
  }

 private:
  Socket() = default;
  int fd_ = -1;
  char block_[16384];
};

std::string head_of(const char* method, const HttpTarget& target, const std::string& path,
                    const std::vector<std::string>& headers) {
  std::string out = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", method, path, target.host);
  for (const std::string& header : headers) out += header + "\r\n";
  return out;
}

}  // namespace

Result<HttpTarget> parse_base_url(const std::string& option, const std::string& url) {
  std::string rest = url;
  if (rest.starts_with("https://")) return fail(Errc::kInvalidRequest, "{} {}: https is not offered", option, url);
  if (rest.starts_with("http://")) rest.erase(0, 7);
  rest = rest.substr(0, rest.find('/'));
  const std::size_t colon = rest.rfind(':');
  HttpTarget out;
  out.host = rest.substr(0, colon);
  if (colon != std::string::npos) out.port = static_cast<uint16_t>(std::strtoul(rest.c_str() + colon + 1, nullptr, 10));
  if (out.host.empty() || out.port == 0)
    return fail(Errc::kInvalidRequest, "{} {}: expected http://HOST:PORT", option, url);
  return out;
}

Result<HttpAddress> HttpAddress::resolve(const HttpTarget& target) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(target.host.c_str(), nullptr, &hints, &found) != 0 || found == nullptr)
    return fail(Errc::kUnavailable, "cannot resolve {}", target.host);
  HttpAddress out;
  out.address_ = *reinterpret_cast<sockaddr_in*>(found->ai_addr);  // NOLINT: the socket API
  freeaddrinfo(found);
  out.address_.sin_port = htons(target.port);
  return out;
}

bool HttpAddress::connect(int fd) const {
  return ::connect(fd, reinterpret_cast<const sockaddr*>(&address_), sizeof address_) == 0;  // NOLINT: the socket API
}

Result<std::pair<int, std::string>> http_get(const HttpTarget& target, const std::string& path,
                                             const std::vector<std::string>& headers) {
  Socket socket = DI_TRY(Socket::open(target));
  ResponseReader reader;
  std::string body;
  const bool sent = socket.send_all(head_of("GET", target, path, headers) + "\r\n");
  while (sent && !reader.done() && !reader.broken() && socket.readable(kMostConnectS * 1000)) {
    const std::string_view part = socket.receive();
    if (part.empty()) break;
    reader.feed(part, [&](std::string_view bytes) { body += bytes; });
  }
  if (!reader.done()) return fail(Errc::kUnavailable, "no answer from http://{}:{}{}", target.host, target.port, path);
  return std::pair(reader.status(), std::move(body));
}

Result<PostResult> http_post(const HttpTarget& target, const std::string& path, const std::string& body,
                             const PostOptions& options) {
  Socket socket = DI_TRY(Socket::open(target));
  const auto lost = [&](const char* when) {
    return fail(Errc::kUnavailable, "http://{}:{} closed the connection {}", target.host, target.port, when);
  };
  std::string head = head_of("POST", target, path, options.headers);
  head += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.size());
  if (!socket.send_all(head) || !socket.send_all(body)) return lost("while the request was sent");
  PostResult out;
  ResponseReader reader;
  while (!reader.done()) {
    if (options.interrupted && options.interrupted()) {
      out.interrupted = true;
      break;
    }
    if (!socket.readable(kPollMs)) continue;
    const std::string_view part = socket.receive();
    if (part.empty()) return lost("before the end of the answer");
    reader.feed(part, [&](std::string_view bytes) {
      if (reader.status() == 200 && options.on_stream) {
        options.on_stream(bytes);
      } else {
        out.body += bytes;
      }
    });
    if (reader.broken()) return fail(Errc::kUnavailable, "http://{}:{}: no valid HTTP", target.host, target.port);
  }
  out.status = reader.status();
  return out;
}

}  // namespace di::cli
