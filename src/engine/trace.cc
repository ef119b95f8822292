#include "engine/trace.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <utility>

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

// The object's members; the caller ends it.
void write_events(JsonWriter& w, const std::vector<TraceSpan>& spans) {
  int64_t origin = spans.empty() ? 0 : spans[0].begin_ns;
  for (const TraceSpan& span : spans) origin = std::min(origin, span.begin_ns);
  w.key("displayTimeUnit").value("ms").key("traceEvents").begin_array();
  name_thread(w, TraceThread::kEngine);
  name_thread(w, TraceThread::kDevice);
  for (const TraceSpan& span : spans) {
    w.begin_object().key("name").value(span.name).key("ph").value("X").key("pid").value(1);
    w.key("tid").value(static_cast<int>(span.thread));
    w.key("ts").value(static_cast<double>(span.begin_ns - origin) * 1e-3);
    w.key("dur").value(static_cast<double>(span.end_ns - span.begin_ns) * 1e-3);
    w.key("args").begin_object().key("step").value(span.step).key("rows").value(span.rows);
    w.key("device_fed").value(span.device_fed).end_object().end_object();
  }
  w.end_array();
}

void write_totals(JsonWriter& w, const std::vector<TraceSpan>& spans) {
  std::map<std::string_view, std::pair<int64_t, int64_t>> totals;  // number and nanoseconds by name
  std::set<uint64_t> steps;
  for (const TraceSpan& span : spans) {
    auto& [n, ns] = totals[span.name];
    ++n;
    ns += span.end_ns - span.begin_ns;
    steps.insert(span.step);
  }
  w.key("otherData").begin_object().key("steps").value(steps.size()).key("totals").begin_object();
  for (const auto& [name, total] : totals) {
    w.key(name).begin_object().key("spans").value(total.first).key("ms");
    w.value(static_cast<double>(total.second) * 1e-6).end_object();
  }
  w.end_object().end_object();
}

}  // namespace

void Trace::add(const TraceSpan& span) {
  if (!on_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  if (keep_all_ && spans_.size() < limit_) spans_.push_back(span);
  if (capturing_ && captured_.size() < limit_) captured_.push_back(span);
}

void Trace::begin_capture() {
  const std::lock_guard lock(mutex_);
  captured_.clear();
  capturing_ = true;
  on_.store(true);
}

std::string Trace::end_capture() {
  std::vector<TraceSpan> spans;
  {
    const std::lock_guard lock(mutex_);
    spans = std::exchange(captured_, {});
    capturing_ = false;
    on_.store(keep_all_);
  }
  std::string out;
  JsonWriter w(out);
  w.begin_object();
  write_events(w, spans);
  write_totals(w, spans);
  w.end_object();
  return out;
}

std::vector<TraceSpan> Trace::spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

std::string Trace::json() const {
  std::string out;
  JsonWriter w(out);
  w.begin_object();
  write_events(w, spans());
  w.end_object();
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
