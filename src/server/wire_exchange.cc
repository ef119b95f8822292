#include "server/wire_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "server/compress.h"

namespace di::server {
namespace {

constexpr size_t kWorthPacking = 1400;  // bytes: below, an answer is one packet anyway

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 304:
      return "Not Modified";
    case 308:
      return "Permanent Redirect";
    case 400:
      return "Bad Request";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 529:
      return "Overloaded";
    default:
      return "Status";
  }
}

}  // namespace

std::string head_text(const HttpResponse& response, std::string_view request_id, bool close, int http_minor,
                      std::optional<size_t> length) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  if (!response.content_type.empty()) out += fmt::format("Content-Type: {}\r\n", response.content_type);
  for (const auto& [name, value] : response.headers) out += fmt::format("{}: {}\r\n", name, value);
  if (!request_id.empty()) out += fmt::format("X-Request-Id: {}\r\nrequest-id: {}\r\n", request_id, request_id);
  out += fmt::format("X-DeepInfer-Version: {}\r\n", DI_VERSION);
  if (length) {
    out += fmt::format("Content-Length: {}\r\n", *length);
  } else if (http_minor >= 1) {
    out += "Transfer-Encoding: chunked\r\n";
  }
  if (close) {
    out += "Connection: close\r\n";
  } else if (http_minor == 0) {
    out += "Connection: keep-alive\r\n";
  }
  out += "\r\n";
  return out;
}

WireExchange::WireExchange(HttpRequest request, int http_minor, bool close, size_t buffer_limit,
                           std::function<void()> wake)
    : request_(std::move(request)),
      http_minor_(http_minor),
      buffer_limit_(buffer_limit),
      wake_(std::move(wake)),
      close_(close) {}

// As gzip where the client takes it and something is saved. Streams stay as they are: each event has to arrive by
// itself.
void WireExchange::pack(HttpResponse& response) const {
  if (response.status != 200 || response.body.size() < kWorthPacking || request_.method == "HEAD" ||
      !accepts_gzip(request_.header("accept-encoding")) || response.content_type.starts_with("image/p"))
    return;
  const bool coded = std::any_of(response.headers.begin(), response.headers.end(),
                                 [](const auto& h) { return equal_ignoring_case(h.first, "content-encoding"); });
  std::string packed = coded ? std::string() : gzip(response.body);
  if (packed.empty() || packed.size() >= response.body.size()) return;
  response.body = std::move(packed);
  response.headers.emplace_back("Content-Encoding", "gzip");
  response.headers.emplace_back("Vary", "Accept-Encoding");
}

void WireExchange::reply(HttpResponse response) {
  pack(response);
  const std::lock_guard lock(mutex_);
  if (started_ || gone_) return;
  started_ = ended_ = true;
  add_context_headers(response);
  pending_ += head_text(response, request_.id, close_, http_minor_, response.body.size());
  if (request_.method != "HEAD") pending_ += response.body;
  wake_();
}

void WireExchange::begin_stream(HttpResponse response, std::string keep_alive) {
  const std::lock_guard lock(mutex_);
  if (started_ || gone_) return;
  started_ = streaming_ = true;
  if (http_minor_ == 0) close_ = true;
  add_context_headers(response);
  pending_ += head_text(response, request_.id, close_, http_minor_, std::nullopt);
  keep_alive_ = std::move(keep_alive);
  append_chunk(response.body);
  wake_();
}

bool WireExchange::write(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (gone_ || overflow_) return false;
  if (!streaming_ || ended_) return true;
  if (pending_.size() + bytes.size() > buffer_limit_) {
    overflow_ = true;
    wake_();
    return false;
  }
  // What is already waiting has woken the connection.
  const bool first = pending_.empty();
  append_chunk(bytes);
  if (first) wake_();
  return true;
}

void WireExchange::end_stream() {
  const std::lock_guard lock(mutex_);
  if (gone_ || !streaming_ || ended_) return;
  ended_ = true;
  if (http_minor_ >= 1) pending_ += "0\r\n\r\n";
  wake_();
}

void WireExchange::on_disconnect(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    if (!gone_) {
      on_disconnect_ = std::move(callback);
      return;
    }
  }
  callback();
}

WireExchange::Taken WireExchange::take() {
  const std::lock_guard lock(mutex_);
  Taken taken{std::move(pending_), ended_, streaming_, overflow_};
  pending_.clear();
  if (ended_) on_disconnect_ = nullptr;
  return taken;
}

bool WireExchange::close() const {
  const std::lock_guard lock(mutex_);
  return close_;
}

bool WireExchange::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflow_;
}

void WireExchange::probe() {
  const std::lock_guard lock(mutex_);
  if (ended_ || http_minor_ == 0) return;
  if (!started_) {
    pending_ += "HTTP/1.1 100 Continue\r\n\r\n";
  } else if (streaming_) {
    append_chunk(keep_alive_);
  }
  wake_();
}

void WireExchange::send_keep_alive() {
  const std::lock_guard lock(mutex_);
  if (streaming_ && !ended_) append_chunk(keep_alive_);
}

void WireExchange::disconnected() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    if (gone_) return;
    gone_ = true;
    pending_.clear();
    if (!ended_) callback = std::move(on_disconnect_);
    on_disconnect_ = nullptr;
  }
  if (callback) callback();
}

void WireExchange::add_context_headers(HttpResponse& response) {
  const Headers& more = context().answer_headers;
  response.headers.insert(response.headers.end(), more.begin(), more.end());
}

void WireExchange::append_chunk(std::string_view bytes) {
  if (bytes.empty()) return;
  if (http_minor_ == 0) {
    pending_ += bytes;
    return;
  }
  fmt::format_to(std::back_inserter(pending_), "{:x}\r\n", bytes.size());
  pending_ += bytes;
  pending_ += "\r\n";
}

}  // namespace di::server
