#include "server/request_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/json.h"
#include "base/log.h"

namespace di::server {

Result<std::unique_ptr<RequestLog>> RequestLog::open(const std::string& path, uint64_t most_bytes) {
  std::unique_ptr<RequestLog> log(new RequestLog(path, most_bytes));
  DI_TRY(log->reopen());
  return log;
}

RequestLog::~RequestLog() {
  if (fd_ >= 0) close(fd_);
}

Result<void> RequestLog::reopen() {
  if (fd_ >= 0) close(fd_);
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd_ < 0) return fail(Errc::kUnavailable, "--log-requests {}: {}", path_, std::strerror(errno));
  struct stat now{};
  bytes_ = fstat(fd_, &now) == 0 ? static_cast<uint64_t>(now.st_size) : 0;
  return {};
}

void RequestLog::write(int64_t unix_seconds, std::string_view id, std::string_view tenant, std::string_view path,
                       std::string_view body) {
  std::string line;
  line.reserve(body.size() + 160);
  JsonWriter w(line);
  w.begin_object().key("time").value(unix_seconds).key("id").value(id).key("tenant").value(tenant);
  w.key("path").value(path).key("body");
  if (const Result<Json> json = parse_json(body)) {
    w.value(*json);
  } else {
    w.value(body);
  }
  w.end_object();
  line.push_back('\n');

  const std::lock_guard lock(mutex_);
  if (bytes_ > 0 && bytes_ + line.size() > most_bytes_) {
    std::rename(path_.c_str(), (path_ + ".1").c_str());
    if (const Result<void> ok = reopen(); !ok && !failing_) DI_LOG(kWarn, "{}", ok.error().message);
  }
  const bool written = fd_ >= 0 && ::write(fd_, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  if (!written && !failing_) DI_LOG(kWarn, "--log-requests {}: cannot be written", path_);
  failing_ = !written;
  bytes_ += line.size();
}

}  // namespace di::server
