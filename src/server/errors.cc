#include "server/errors.h"

#include "base/json.h"

namespace di::server {
namespace {

struct ErrorForm {
  int status;
  int anthropic_status;
  std::string_view type;
  std::string_view code;
  std::string_view anthropic_type;
};

constexpr std::string_view kInvalid = "invalid_request_error";
constexpr size_t kLongestMessage = 1000;

ErrorForm form_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidRequest:
      return {400, 400, kInvalid, "invalid_value", kInvalid};
    case ErrorKind::kContextLength:
      return {400, 400, kInvalid, "context_length_exceeded", kInvalid};
    case ErrorKind::kUnauthorized:
      return {401, 401, "authentication_error", "invalid_api_key", "authentication_error"};
    case ErrorKind::kForbidden:
      return {403, 403, "permission_error", "permission_denied", "permission_error"};
    case ErrorKind::kRateLimited:
      return {429, 429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error"};
    case ErrorKind::kModelNotFound:
      return {404, 404, kInvalid, "model_not_found", "not_found_error"};
    case ErrorKind::kNotFound:
      return {404, 404, "not_found_error", "not_found", "not_found_error"};
    case ErrorKind::kMethodNotAllowed:
      return {405, 405, kInvalid, "method_not_allowed", kInvalid};
    case ErrorKind::kRequestTimeout:
      return {408, 408, "timeout_error", "request_timeout", "timeout_error"};
    case ErrorKind::kTooLarge:
      return {413, 413, kInvalid, "request_too_large", "request_too_large"};
    case ErrorKind::kMediaType:
      return {415, 415, kInvalid, "unsupported_media_type", kInvalid};
    case ErrorKind::kHeadersTooLarge:
      return {431, 431, kInvalid, "headers_too_large", kInvalid};
    case ErrorKind::kInternal:
      return {500, 500, "server_error", "internal_error", "api_error"};
    case ErrorKind::kNotImplemented:
      return {501, 501, "server_error", "not_implemented", "api_error"};
    case ErrorKind::kOverloaded:
      return {503, 529, "server_error", "overloaded", "overloaded_error"};
    case ErrorKind::kDraining:
      return {503, 529, "server_error", "draining", "overloaded_error"};
    case ErrorKind::kNotReady:
      return {503, 529, "server_error", "not_ready", "overloaded_error"};
    case ErrorKind::kQueueTimeout:
      return {503, 529, "server_error", "queue_timeout", "overloaded_error"};
    case ErrorKind::kDeadline:
      return {504, 504, "timeout_error", "request_timeout", "timeout_error"};
  }
  return {500, 500, "server_error", "internal_error", "api_error"};
}

// Cut at a character border.
std::string_view shortened(std::string_view message) {
  if (message.size() <= kLongestMessage) return message;
  size_t end = kLongestMessage;
  while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0U) == 0x80U) --end;
  return message.substr(0, end);
}

}  // namespace

ErrorFamily error_family(std::string_view path) {
  return path == "/anthropic" || path.starts_with("/anthropic/") || path == "/v1/messages" ||
                 path.starts_with("/v1/messages/")
             ? ErrorFamily::kAnthropic
             : ErrorFamily::kOpenAi;
}

int http_status(ErrorKind kind, ErrorFamily family) {
  const ErrorForm form = form_of(kind);
  return family == ErrorFamily::kAnthropic ? form.anthropic_status : form.status;
}

std::string_view default_code(ErrorKind kind) {
  return form_of(kind).code;
}

std::string error_body(const ApiFailure& failure, ErrorFamily family, std::string_view request_id) {
  const ErrorForm form = form_of(failure.kind);
  std::string out;
  JsonWriter w(out);
  if (family == ErrorFamily::kAnthropic) {
    w.begin_object().key("type").value("error").key("error").begin_object();
    w.key("type").value(form.anthropic_type).key("message").value(shortened(failure.message)).end_object();
    w.key("request_id").value(request_id).end_object();
    return out;
  }
  w.begin_object().key("error").begin_object();
  w.key("message").value(shortened(failure.message)).key("type").value(form.type).key("param");
  if (failure.param.empty()) {
    w.null();
  } else {
    w.value(failure.param);
  }
  w.key("code").value(failure.code.empty() ? form.code : std::string_view(failure.code)).end_object().end_object();
  return out;
}

HttpResponse error_response(const ApiFailure& failure, ErrorFamily family, std::string_view request_id) {
  HttpResponse response;
  response.status = http_status(failure.kind, family);
  response.body = error_body(failure, family, request_id);
  if (failure.retry_after_s > 0) response.headers.emplace_back("Retry-After", std::to_string(failure.retry_after_s));
  // SDKs retry 408, 409, 429 and everything from 500 on; tell them where that helps (server.md §2.3).
  if (response.status == 500 || response.status == 501) response.headers.emplace_back("x-should-retry", "false");
  if (response.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (response.status == 429 || response.status == 503 || response.status == 504 || response.status == 529)
    response.headers.emplace_back("x-should-retry", "true");
  return response;
}

ApiFailure from_error(const Error& error) {
  ApiFailure failure{ErrorKind::kInternal, error.message, {}, {}, 0};
  switch (error.code) {
    case Errc::kInvalidRequest:
      failure.kind = ErrorKind::kInvalidRequest;
      break;
    case Errc::kNotFound:
      failure.kind = ErrorKind::kNotFound;
      break;
    case Errc::kResourceExhausted:
      failure.kind = ErrorKind::kOverloaded;
      break;
    case Errc::kUnavailable:
      failure.kind = ErrorKind::kDraining;
      break;
    case Errc::kDeadlineExceeded:
      failure.kind = ErrorKind::kDeadline;
      break;
    case Errc::kCancelled:
    case Errc::kCorruption:
    case Errc::kInternal:
      failure.message = "internal error";
      break;
  }
  if (http_status(failure.kind) == 503) failure.retry_after_s = 1;
  return failure;
}

}  // namespace di::server
