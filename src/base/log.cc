#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <string>

namespace di {
namespace {

// The process-wide sink. spdlog is itself thread-safe; `json` only changes how a message is quoted.
struct Sink {
  std::shared_ptr<spdlog::logger> logger =
      std::make_shared<spdlog::logger>("deepinfer", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  std::atomic<bool> json{false};
  Sink() {
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

void configure_log(const LogConfig& config) {
  Sink& s = sink();
  s.json.store(config.json, std::memory_order_relaxed);
  s.logger->set_level(to_spdlog(config.level));
  if (config.json) {
    s.logger->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})");
  } else {
    s.logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  }
}

bool log_enabled(LogLevel level) {
  return sink().logger->should_log(to_spdlog(level));
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

void set_log_level(LogLevel level) {
  sink().logger->set_level(to_spdlog(level));
}

}  // namespace di
