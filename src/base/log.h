// Logging for every room: one line per event on standard error, text or JSON. Each room has a level of its own. The
// library behind it (spdlog) stays in log.cc. Prompt text is never logged at the default level. Thread-safe.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace di {

enum class LogLevel : int { kTrace, kDebug, kInfo, kWarn, kError, kOff };

// The rooms of src/.
inline constexpr std::array<std::string_view, 10> kLogRooms = {"base",  "codec", "structured", "device", "kernels",
                                                               "model", "kv",    "engine",     "server", "cli"};

// The room of a source file, by its path; files outside src/ (tests) count as `base`.
constexpr std::size_t log_room(std::string_view file) {
  const std::size_t at = file.rfind("src/");
  if (at == std::string_view::npos) return 0;
  const std::string_view rest = file.substr(at + 4);
  const std::string_view folder = rest.substr(0, rest.find('/'));
  for (std::size_t i = 0; i < kLogRooms.size(); ++i) {
    if (kLogRooms[i] == folder) return i;
  }
  return 0;
}

struct LogLevels {
  std::array<LogLevel, kLogRooms.size()> of{};
};
// "info", or "info,kv=debug,server=warn": the level of all rooms, then of some.
Result<LogLevels> parse_log_levels(std::string_view text);
// All rooms at one level.
LogLevels log_levels(LogLevel level);

struct LogConfig {
  LogLevels levels = log_levels(LogLevel::kInfo);
  bool json = false;  // one JSON object per line instead of text
};

void configure_log(const LogConfig& config);
bool log_enabled(LogLevel level, std::size_t room);
// What is handed in is written: asking log_enabled() first is the caller's business.
void log_line(LogLevel level, std::string_view message);
// A line that is also data: as JSON it has these members (`"key":value,…`) instead of the text.
void log_record(LogLevel level, std::string_view text, std::string_view json_members);
bool log_is_json();
// Changes the levels alone.
void set_log_levels(const LogLevels& levels);

}  // namespace di

// DI_LOG(kInfo, "serving {} on port {}", name, port);
#define DI_LOG(level, ...)                                               \
  do {                                                                   \
    constexpr std::size_t di_room = ::di::log_room(__FILE__);            \
    if (::di::log_enabled(::di::LogLevel::level, di_room))               \
      ::di::log_line(::di::LogLevel::level, ::fmt::format(__VA_ARGS__)); \
  } while (false)
