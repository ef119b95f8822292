#include "base/result.h"

#include <cstdio>
#include <cstdlib>

namespace di {

std::string_view to_string(Errc code) {
  switch (code) {
    case Errc::kInvalidRequest:
      return "invalid_request";
    case Errc::kNotFound:
      return "not_found";
    case Errc::kResourceExhausted:
      return "resource_exhausted";
    case Errc::kUnavailable:
      return "unavailable";
    case Errc::kDeadlineExceeded:
      return "deadline_exceeded";
    case Errc::kCancelled:
      return "cancelled";
    case Errc::kCorruption:
      return "corruption";
    case Errc::kInternal:
      return "internal";
  }
  return "internal";
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "deepinfer: broken invariant at %s:%d: %s%s%s\n", file, line, condition,
               message.empty() ? "" : ": ", message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace di
