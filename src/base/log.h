// Logging for every room: one line per event on standard error, text or JSON. The library behind it (spdlog) stays in
// log.cc. Prompt text is never logged at the default level. Thread-safe.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace di {

enum class LogLevel : int { kTrace, kDebug, kInfo, kWarn, kError, kOff };

struct LogConfig {
  LogLevel level = LogLevel::kInfo;
  bool json = false;  // one JSON object per line instead of text
};

void configure_log(const LogConfig& config);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view message);
// A line that is also data: as JSON it has these members (`"key":value,…`) instead of the text.
void log_record(LogLevel level, std::string_view text, std::string_view json_members);
bool log_is_json();
// Changes the level alone.
void set_log_level(LogLevel level);

}  // namespace di

// DI_LOG(kInfo, "serving {} on port {}", name, port);
#define DI_LOG(level, ...)                                                                                           \
  do {                                                                                                               \
    if (::di::log_enabled(::di::LogLevel::level)) ::di::log_line(::di::LogLevel::level, ::fmt::format(__VA_ARGS__)); \
  } while (false)
