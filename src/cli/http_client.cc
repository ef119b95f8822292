#include "cli/http_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <memory>
#include <optional>

namespace di::cli {
namespace {

constexpr int kPollMs = 100;
constexpr int kMostConnectS = 30;

std::string last_problem() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* text = ERR_reason_error_string(code);
  return text == nullptr ? "the connection broke" : text;
}

// A connected socket, closed at the end. With TLS it does not block: what it waits for, it waits for in poll().
class Socket {
 public:
  static Result<Socket> open(const HttpTarget& target) {
    const HttpAddress address = DI_TRY(HttpAddress::resolve(target));
    Socket out;
    out.fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval limit{kMostConnectS, 0};
    setsockopt(out.fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);  // also of connect()
    if (!address.connect(out.fd_)) return fail(Errc::kUnavailable, "cannot connect to {}", target.url());
    if (target.tls) DI_TRY(out.begin_tls(target));
    return out;
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)), tls_(std::move(other.tls_)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }

  bool send_all(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = tls_ != nullptr ? SSL_write(tls_.get(), bytes.data(),
                                                    static_cast<int>(std::min<std::size_t>(bytes.size(), INT_MAX)))
                                        : send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0 && tls_ != nullptr && wait_for_tls(static_cast<int>(n), kMostConnectS * 1000)) continue;
      if (n < 0 && tls_ == nullptr && errno == EINTR) continue;
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  bool readable(int timeout_ms) const {
    if (tls_ != nullptr && SSL_pending(tls_.get()) > 0) return true;
    return poll_for(POLLIN, timeout_ms);
  }
  // Bytes that have come; empty text: the other side has closed, or the connection broke; nothing: none yet (a part of
  // a TLS record).
  std::optional<std::string_view> receive() {
    ssize_t n = 0;
    if (tls_ != nullptr) {
      n = SSL_read(tls_.get(), block_, sizeof block_);
      if (n <= 0 && SSL_get_error(tls_.get(), static_cast<int>(n)) == SSL_ERROR_WANT_READ) return std::nullopt;
      ERR_clear_error();
    } else {
      do {
        n = recv(fd_, block_, sizeof block_, 0);
      } while (n < 0 && errno == EINTR);
    }
    return std::string_view(block_, n > 0 ? static_cast<std::size_t>(n) : 0);
  }

 private:
  Socket() = default;

  bool poll_for(short events, int timeout_ms) const {
    pollfd wanted{fd_, events, 0};
    return poll(&wanted, 1, timeout_ms) > 0;
  }
  // After a call that returned `result`: true when what it waits for is there.
  bool wait_for_tls(int result, int timeout_ms) const {
    const int why = SSL_get_error(tls_.get(), result);
    return (why == SSL_ERROR_WANT_READ && poll_for(POLLIN, timeout_ms)) ||
           (why == SSL_ERROR_WANT_WRITE && poll_for(POLLOUT, timeout_ms));
  }

  // The server must show a certificate for its name, signed by an authority that is trusted.
  Result<void> begin_tls(const HttpTarget& target) {
    const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    if (context == nullptr) return fail(Errc::kInternal, "TLS cannot start: {}", last_problem());
    SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
    SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    const bool trusts = target.ca_file.empty()
                            ? SSL_CTX_set_default_verify_paths(context.get()) == 1
                            : SSL_CTX_load_verify_locations(context.get(), target.ca_file.c_str(), nullptr) == 1;
    if (!trusts) return fail(Errc::kInvalidRequest, "--ca-cert {}: {}", target.ca_file, last_problem());
    tls_.reset(SSL_new(context.get()));
    in_addr number{};
    X509_VERIFY_PARAM* wanted = SSL_get0_param(tls_.get());
    if (inet_pton(AF_INET, target.host.c_str(), &number) == 1) {
      X509_VERIFY_PARAM_set1_ip_asc(wanted, target.host.c_str());
    } else {
      SSL_set1_host(tls_.get(), target.host.c_str());
      std::string name = target.host;  // the macro for this casts as C does
      SSL_ctrl(tls_.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, name.data());
    }
    SSL_set_fd(tls_.get(), fd_);
    fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
    for (int result = 0; (result = SSL_connect(tls_.get())) != 1;) {
      if (wait_for_tls(result, kMostConnectS * 1000)) continue;
      const long verdict = SSL_get_verify_result(tls_.get());
      if (verdict != X509_V_OK) {
        ERR_clear_error();
        return fail(Errc::kUnavailable,
                    "{}: the server's certificate is not accepted: {} (--ca-cert FILE names other authorities)",
                    target.url(), X509_verify_cert_error_string(verdict));
      }
      return fail(Errc::kUnavailable, "{}: no TLS connection: {}", target.url(), last_problem());
    }
    return {};
  }

  struct Freed {
    void operator()(SSL* session) const { SSL_free(session); }
  };
  int fd_ = -1;
  std::unique_ptr<SSL, Freed> tls_;
  char block_[16384];
};

std::string head_of(const char* method, const HttpTarget& target, const std::string& path,
                    const std::vector<std::string>& headers) {
  std::string out = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", method, path, target.host);
  for (const std::string& header : headers) out += header + "\r\n";
  return out;
}

}  // namespace

std::string HttpTarget::url() const {
  return fmt::format("{}://{}:{}", tls ? "https" : "http", host, port);
}

Result<HttpTarget> parse_base_url(const std::string& option, const std::string& url, Tls tls,
                                  const std::string& ca_file) {
  std::string rest = url;
  HttpTarget out;
  out.ca_file = ca_file;
  out.tls = rest.starts_with("https://");
  if (out.tls && tls == Tls::kRefused)
    return fail(Errc::kInvalidRequest, "{} {}: https is not offered here, expected http://HOST:PORT", option, url);
  if (out.tls) out.port = 443;
  if (const std::size_t scheme = rest.find("://"); scheme != std::string::npos) {
    if (!out.tls && !rest.starts_with("http://"))
      return fail(Errc::kInvalidRequest, "{} {}: expected http{}://HOST:PORT", option, url,
                  tls == Tls::kOffered ? "[s]" : "");
    rest.erase(0, scheme + 3);
  }
  rest = rest.substr(0, rest.find('/'));
  const std::size_t colon = rest.rfind(':');
  out.host = rest.substr(0, colon);
  if (colon != std::string::npos) out.port = static_cast<uint16_t>(std::strtoul(rest.c_str() + colon + 1, nullptr, 10));
  if (out.host.empty() || out.port == 0)
    return fail(Errc::kInvalidRequest, "{} {}: expected http{}://HOST:PORT", option, url,
                tls == Tls::kOffered ? "[s]" : "");
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
    const std::optional<std::string_view> part = socket.receive();
    if (!part) continue;
    if (part->empty()) break;
    reader.feed(*part, [&](std::string_view bytes) { body += bytes; });
  }
  if (!reader.done()) return fail(Errc::kUnavailable, "no answer from {}{}", target.url(), path);
  return std::pair(reader.status(), std::move(body));
}

Result<PostResult> http_post(const HttpTarget& target, const std::string& path, const std::string& body,
                             const PostOptions& options) {
  Socket socket = DI_TRY(Socket::open(target));
  const auto lost = [&](const char* when) {
    return fail(Errc::kUnavailable, "{} closed the connection {}", target.url(), when);
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
    const std::optional<std::string_view> part = socket.receive();
    if (!part) continue;
    if (part->empty()) return lost("before the end of the answer");
    reader.feed(*part, [&](std::string_view bytes) {
      if (reader.status() == 200 && options.on_stream) {
        options.on_stream(bytes);
      } else {
        out.body += bytes;
      }
    });
    if (reader.broken()) return fail(Errc::kUnavailable, "{}: no valid HTTP", target.url());
  }
  out.status = reader.status();
  return out;
}

}  // namespace di::cli
