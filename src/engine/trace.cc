#include "engine/trace.h"

#include <algorithm>
#include <fstream>

#include "base/json.h"

namespace di::engine {
namespace {

std::string_view thread_name(TraceThread thread) {
  return thread == TraceThread::kEngine ? "engine" : "device";
}

void name_thread(JsonWriter& w, TraceThread thread) {
  w.begin_object().key("name").value("thread_name").key("ph").value("M").key("pid").value(1);
  w.key("tid").value(static_cast<int>(thread));
  w.key("args").begin_object().key("name").value(thread_name(thread)).end_object().end_object();
}

}  // namespace

void Trace::add(const TraceSpan& span) {
  const std::lock_guard lock(mutex_);
  if (spans_.size() < limit_) spans_.push_back(span);
}

std::vector<TraceSpan> Trace::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

std::string Trace::json() const {
  const std::vector<TraceSpan> all = spans();
  int64_t origin = all.empty() ? 0 : all[0].begin_ns;
  for (const TraceSpan& span : all) origin = std::min(origin, span.begin_ns);
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("displayTimeUnit").value("ms").key("traceEvents").begin_array();
  name_thread(w, TraceThread::kEngine);
  name_thread(w, TraceThread::kDevice);
  for (const TraceSpan& span : all) {
    w.begin_object().key("name").value(span.name).key("ph").value("X").key("pid").value(1);
    w.key("tid").value(static_cast<int>(span.thread));
    w.key("ts").value(static_cast<double>(span.begin_ns - origin) * 1e-3);
    w.key("dur").value(static_cast<double>(span.end_ns - span.begin_ns) * 1e-3);
    w.key("args").begin_object().key("step").value(span.step).key("rows").value(span.rows);
    w.key("device_fed").value(span.device_fed).end_object().end_object();
  }
  w.end_array().end_object();
  return out;
}

Result<void> Trace::write(const std::string& file) const {
  std::ofstream out(file, std::ios::binary);
  out << json() << '\n';
  out.flush();
  if (!out) return fail(Errc::kUnavailable, "the trace could not be written to {}", file);
  return {};
}

}  // namespace di::engine
