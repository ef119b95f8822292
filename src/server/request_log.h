// Bodies of requests in a file, for whoever has to find out what a client sends (server.md §11): one JSON object a line
// with time, id, tenant, path and body. Off unless a file is named. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/result.h"

namespace di::server {

class RequestLog {
 public:
  // The file is appended to; readable by its owner only. Beyond `most_bytes` it becomes PATH.1, in the place of an
  // earlier one.
  static Result<std::unique_ptr<RequestLog>> open(const std::string& path, uint64_t most_bytes = uint64_t{64} << 20);
  ~RequestLog();
  RequestLog(const RequestLog&) = delete;
  RequestLog& operator=(const RequestLog&) = delete;

  // A body that is no JSON is written as a string. What cannot be written is dropped, with one warning.
  void write(int64_t unix_seconds, std::string_view id, std::string_view tenant, std::string_view path,
             std::string_view body);

 private:
  RequestLog(std::string path, uint64_t most_bytes) : path_(std::move(path)), most_bytes_(most_bytes) {}
  Result<void> reopen();

  const std::string path_;
  const uint64_t most_bytes_;
  std::mutex mutex_;  // guards the members below
  int fd_ = -1;
  uint64_t bytes_ = 0;
  bool failing_ = false;
};

}  // namespace di::server
