// A time line of the pipeline: which step was scheduled, computed, sampled and handed out when, on which thread.
// Written as Chrome trace events (chrome://tracing, Perfetto). Thread-safe; recording costs one short lock per span.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"

namespace di::engine {

enum class TraceThread : uint8_t { kEngine = 1, kDevice = 2 };

struct TraceSpan {
  const char* name = "";  // a string literal: schedule, launch, post, wait, forward, sample, …
  TraceThread thread = TraceThread::kEngine;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  uint64_t step = 0;
  int32_t rows = 0;        // of the step
  int32_t device_fed = 0;  // sequences of the step whose token came from the step before on the device side
};

class Trace {
 public:
  // Spans beyond `limit` are dropped.
  explicit Trace(size_t limit = 4'000'000) : limit_(limit) {}

  void add(const TraceSpan& span);
  std::vector<TraceSpan> spans() const;
  // {"traceEvents": […]}, times in microseconds from the first span.
  std::string json() const;
  Result<void> write(const std::string& file) const;

 private:
  size_t limit_;
  mutable std::mutex mutex_;  // guards spans_
  std::vector<TraceSpan> spans_;
};

}  // namespace di::engine
