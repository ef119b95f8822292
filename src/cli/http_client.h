// The client's side of HTTP/1.1, as much of it as bench, top and chat need; chat and top over TLS too.
#pragma once

#include <netinet/in.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace di::cli {

struct HttpTarget {
  std::string host;
  uint16_t port = 80;
  bool tls = false;
  // PEM file of the authorities that a server's certificate may come from; empty: those that the system trusts (or
  // SSL_CERT_FILE, as everywhere with OpenSSL).
  std::string ca_file = {};

  std::string url() const;  // without a path
};
enum class Tls : uint8_t { kRefused, kOffered };
// http[s]://HOST[:PORT][/…]. Errors name the option.
Result<HttpTarget> parse_base_url(const std::string& option, const std::string& url, Tls tls = Tls::kRefused,
                                  const std::string& ca_file = {});

class HttpAddress {
 public:
  static Result<HttpAddress> resolve(const HttpTarget& target);
  // False: not connected (yet, for sockets that do not block).
  bool connect(int fd) const;

 private:
  sockaddr_in address_{};
};

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

// One plain request, for whole answers such as /metrics; status and body.
Result<std::pair<int, std::string>> http_get(const HttpTarget& target, const std::string& path,
                                             const std::vector<std::string>& headers = {});

struct PostOptions {
  std::vector<std::string> headers;                 // whole lines
  std::function<void(std::string_view)> on_stream;  // pieces of the body of an answer with status 200
  std::function<bool()> interrupted;                // asked some ten times a second; true: the connection is closed
};
struct PostResult {
  int status = 0;
  std::string body;          // of any other status
  bool interrupted = false;  // the rest is missing
};
// A JSON body, and an answer that may take its time.
Result<PostResult> http_post(const HttpTarget& target, const std::string& path, const std::string& body,
                             const PostOptions& options);

}  // namespace di::cli
