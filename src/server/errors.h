// Errors on the wire (server.md §2.3): one table from what went wrong to status, type and code, and the two envelopes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "server/http.h"

namespace di::server {

enum class ErrorKind : uint8_t {
  kInvalidRequest,    // 400, code given by the caller
  kContextLength,     // 400
  kUnauthorized,      // 401
  kForbidden,         // 403
  kModelNotFound,     // 404
  kNotFound,          // 404
  kMethodNotAllowed,  // 405
  kRequestTimeout,    // 408, the body did not arrive
  kTooLarge,          // 413
  kMediaType,         // 415
  kRateLimited,       // 429
  kHeadersTooLarge,   // 431
  kInternal,          // 500
  kNotImplemented,    // 501
  kOverloaded,        // 503
  kDraining,          // 503
  kNotReady,          // 503
  kQueueTimeout,      // 503
  kDeadline,          // 504
};

// Which clients read it: the envelope depends on the path.
enum class ErrorFamily : uint8_t { kOpenAi, kAnthropic };
ErrorFamily error_family(std::string_view path);

struct ApiFailure {
  ErrorKind kind = ErrorKind::kInternal;
  std::string message;
  std::string code;           // empty: that of the kind
  std::string param;          // empty: null
  int32_t retry_after_s = 0;  // > 0: sent as Retry-After
};

int http_status(ErrorKind kind, ErrorFamily family = ErrorFamily::kOpenAi);
std::string_view default_code(ErrorKind kind);

// {"error":{"message","type","param","code"}}, or Anthropic's form.
std::string error_body(const ApiFailure& failure, ErrorFamily family, std::string_view request_id);
HttpResponse error_response(const ApiFailure& failure, ErrorFamily family, std::string_view request_id);

// What an error of the engine or another room is for the client.
ApiFailure from_error(const Error& error);

}  // namespace di::server
