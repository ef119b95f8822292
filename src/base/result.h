// Errors as values (style.md, "Errors"): Result<T> for what the caller or the world did wrong, DI_CHECK for bugs of
// ours, std::optional for expected absence. An error message is one line: what was asked, what was found, what would be
// accepted.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace di {

enum class Errc : uint8_t {
  kInvalidRequest,
  kNotFound,
  kResourceExhausted,
  kUnavailable,
  kDeadlineExceeded,
  kCancelled,
  kCorruption,
  kInternal,
};

std::string_view to_string(Errc code);

struct Error {
  Errc code = Errc::kInternal;
  std::string message;
};

template <class T>
using Result = std::expected<T, Error>;

// return fail(Errc::kNotFound, "model folder {} does not exist", dir);
template <class... Args>
[[nodiscard]] std::unexpected<Error> fail(Errc code, fmt::format_string<Args...> format, Args&&... args) {
  return std::unexpected(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace di

// Yields the value of a Result or returns its error from the enclosing function.
#define DI_TRY(expr)                                        \
  __extension__({                                           \
    auto di_result = (expr);                                \
    if (!di_result) [[unlikely]]                            \
      return std::unexpected(std::move(di_result).error()); \
    *std::move(di_result);                                  \
  })

// The coroutine form. The argument must not contain co_await (an internal compiler error of g++ 12.2).
#define DI_CO_TRY(expr)                                        \
  __extension__({                                              \
    auto di_result = (expr);                                   \
    if (!di_result) [[unlikely]]                               \
      co_return std::unexpected(std::move(di_result).error()); \
    *std::move(di_result);                                     \
  })

// A broken invariant of our own: prints location and values, aborts; on in release builds too.
#define DI_CHECK(condition, ...)                                                                               \
  do {                                                                                                         \
    if (!(condition)) [[unlikely]]                                                                             \
      ::di::check_failed(__FILE__, __LINE__, #condition, std::string(__VA_OPT__(::fmt::format(__VA_ARGS__)))); \
  } while (false)
