// A time line of the pipeline: which step was scheduled, computed, sampled and handed out when, on which thread.
// Written as Chrome trace events (chrome://tracing, Perfetto). Thread-safe; recording costs one short lock per span.
#pragma once

#include <atomic>
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
  enum class Keep : uint8_t { kAll, kCaptures };
  // kCaptures: only what comes between begin_capture() and end_capture(). Spans beyond `limit` are dropped.
  explicit Trace(Keep keep = Keep::kAll, std::size_t limit = 4'000'000)
      : keep_all_(keep == Keep::kAll), limit_(limit), on_(keep_all_) {}

  void add(const TraceSpan& span);
  std::vector<TraceSpan> spans() const;
  // {"traceEvents": […]}, times in microseconds from the first span.
  std::string json() const;
  Result<void> write(const std::string& file) const;

  // One capture at a time.
  void begin_capture();
  // The spans that ended since, in the same form, with "otherData": the steps and, by name of span, their number and
  // milliseconds.
  std::string end_capture();

 private:
  const bool keep_all_;
  const std::size_t limit_;
  std::atomic<bool> on_;      // some list is written to
  mutable std::mutex mutex_;  // guards the members below
  std::vector<TraceSpan> spans_;
  bool capturing_ = false;
  std::vector<TraceSpan> captured_;
};

}  // namespace di::engine
