#include "base/log.h"

#include <fmt/ranges.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>

namespace di {
namespace {

// The process-wide sink. spdlog is itself thread-safe; `json` only changes how a message is quoted.
struct Sink {
  std::shared_ptr<spdlog::logger> logger =
      std::make_shared<spdlog::logger>("deepinfer", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  std::atomic<bool> json{false};
  std::array<std::atomic<LogLevel>, kLogRooms.size()> levels;
  Sink() {
    for (std::atomic<LogLevel>& level : levels) level.store(LogLevel::kInfo);
    logger->set_level(spdlog::level::trace);  // the rooms' levels decide
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    logger->flush_on(spdlog::level::info);
  }
};

Sink& sink() {
  static Sink instance;
  return instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kTrace:
      return spdlog::level::trace;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

constexpr std::string_view kLevelNames[] = {"trace", "debug", "info", "warn", "error", "off"};

std::optional<LogLevel> level_of(std::string_view name) {
  const auto found = std::find(std::begin(kLevelNames), std::end(kLevelNames), name);
  if (found == std::end(kLevelNames)) return std::nullopt;
  return static_cast<LogLevel>(found - std::begin(kLevelNames));
}

void append_json_string(std::string& out, std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(byte));
    } else {
      out += c;
    }
  }
}

}  // namespace

LogLevels log_levels(LogLevel level) {
  LogLevels out;
  out.of.fill(level);
  return out;
}

Result<LogLevels> parse_log_levels(std::string_view text) {
  LogLevels out = log_levels(LogLevel::kInfo);
  for (bool first = true; first || !text.empty(); first = false) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const std::size_t equals = part.find('=');
    const std::string_view name = equals == std::string_view::npos ? part : part.substr(equals + 1);
    const std::optional<LogLevel> level = level_of(name);
    if (!level)
      return fail(Errc::kInvalidRequest, "log level `{}`: expected trace, debug, info, warn, error or off", name);
    if (equals == std::string_view::npos) {
      if (!first) return fail(Errc::kInvalidRequest, "log level `{}`: expected ROOM=LEVEL after the first", part);
      out = log_levels(*level);
      continue;
    }
    const auto room = std::find(kLogRooms.begin(), kLogRooms.end(), part.substr(0, equals));
    if (room == kLogRooms.end()) {
      return fail(Errc::kInvalidRequest, "log level: no room `{}`, expected one of {}", part.substr(0, equals),
                  fmt::join(kLogRooms, ", "));
    }
    out.of[static_cast<std::size_t>(room - kLogRooms.begin())] = *level;
  }
  return out;
}

void configure_log(const LogConfig& config) {
  Sink& s = sink();
  s.json.store(config.json, std::memory_order_relaxed);
  set_log_levels(config.levels);
  if (config.json) {
    s.logger->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})");
  } else {
    s.logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  }
}

bool log_enabled(LogLevel level, std::size_t room) {
  return level >= sink().levels[room].load(std::memory_order_relaxed);
}

void log_line(LogLevel level, std::string_view message) {
  Sink& s = sink();
  if (!s.json.load(std::memory_order_relaxed)) {
    s.logger->log(to_spdlog(level), fmt::string_view(message.data(), message.size()));
    return;
  }
  std::string quoted = "\"message\":\"";
  quoted.reserve(message.size() + 24);
  append_json_string(quoted, message);
  quoted += '"';
  s.logger->log(to_spdlog(level), fmt::string_view(quoted.data(), quoted.size()));
}

void log_record(LogLevel level, std::string_view text, std::string_view json_members) {
  const std::string_view line = log_is_json() ? json_members : text;
  sink().logger->log(to_spdlog(level), fmt::string_view(line.data(), line.size()));
}

bool log_is_json() {
  return sink().json.load(std::memory_order_relaxed);
}

void set_log_levels(const LogLevels& levels) {
  for (std::size_t i = 0; i < kLogRooms.size(); ++i) sink().levels[i].store(levels.of[i], std::memory_order_relaxed);
}

}  // namespace di
