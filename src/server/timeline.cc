#include "server/timeline.h"

#include <algorithm>
#include <cmath>

namespace di::server {
namespace {

constexpr std::array<std::string_view, kStages> kStageNames = {"parse",  "render",     "tokenize", "constraint",
                                                               "queue",  "kv_fetch",   "prefill",  "transfer",
                                                               "decode", "detokenize", "socket"};

// Milliseconds with three decimals.
double ms(int64_t ns) {
  return std::round(static_cast<double>(ns) * 1e-3) * 1e-3;
}

// One complete event ("ph":"X") of the Trace Event Format; times in microseconds.
void write_event(JsonWriter& w, std::string_view name, int tid, int64_t begin_ns, int64_t end_ns, int64_t tokens) {
  w.begin_object().key("name").value(name).key("cat").value("request").key("ph").value("X");
  w.key("ts")
      .value(static_cast<double>(begin_ns) * 1e-3)
      .key("dur")
      .value(static_cast<double>(end_ns - begin_ns) * 1e-3);
  w.key("pid").value(1).key("tid").value(tid);
  w.key("args").begin_object();
  if (tokens > 0) w.key("tokens").value(tokens);
  w.end_object().end_object();
}

void write_name(JsonWriter& w, std::string_view kind, int tid, std::string_view name) {
  w.begin_object().key("name").value(kind).key("ph").value("M").key("pid").value(1).key("tid").value(tid);
  w.key("args").begin_object().key("name").value(name).end_object().end_object();
}

}  // namespace

std::string_view to_string(Stage stage) {
  return kStageNames[static_cast<std::size_t>(stage)];
}

RequestTimeline::RequestTimeline(TimelineStart start, int64_t unix_ms) : start_(std::move(start)), unix_ms_(unix_ms) {}

void RequestTimeline::span(Stage stage, int64_t begin_ns, int64_t end_ns, int64_t tokens, std::string_view detail) {
  const std::lock_guard lock(mutex_);
  if (end_) return;
  if (spans_.size() >= kMaxSpans) {
    ++dropped_spans_;
    return;
  }
  spans_.push_back({stage, begin_ns, std::max(begin_ns, end_ns), tokens, std::string(detail)});
}

void RequestTimeline::work(Stage stage, int64_t ns) {
  const std::lock_guard lock(mutex_);
  if (end_) return;
  Work& work = work_[static_cast<std::size_t>(stage)];
  work.ns += ns;
  ++work.pieces;
}

void RequestTimeline::tokens(int64_t at_ns, int64_t n) {
  const std::lock_guard lock(mutex_);
  if (end_) return;
  if (first_token_ns_ == 0) first_token_ns_ = at_ns;
  ++total_steps_;
  output_tokens_ += n;
  if (pending_steps_ > 0 && pending_steps_ < steps_per_entry_) {
    steps_.back().at_ns = at_ns;
    steps_.back().tokens += n;
    ++pending_steps_;
    return;
  }
  if (steps_.size() == kMaxSteps) {
    for (std::size_t i = 0; i < kMaxSteps / 2; ++i)
      steps_[i] = {steps_[2 * i + 1].at_ns, steps_[2 * i].tokens + steps_[2 * i + 1].tokens};
    steps_.resize(kMaxSteps / 2);
    steps_per_entry_ *= 2;
  }
  steps_.push_back({at_ns, n});
  pending_steps_ = 1;
}

void RequestTimeline::prompt_tokens(int64_t n) {
  const std::lock_guard lock(mutex_);
  if (!end_) prompt_tokens_ = n;
}

void RequestTimeline::cache(const CacheUse& use) {
  const std::lock_guard lock(mutex_);
  if (!end_) cache_ = use;
}

void RequestTimeline::workers(std::string_view prefill, std::string_view decode) {
  const std::lock_guard lock(mutex_);
  if (end_) return;
  prefill_worker_ = prefill;
  decode_worker_ = decode;
}

void RequestTimeline::finish(const TimelineEnd& end, int64_t at_ns) {
  const std::lock_guard lock(mutex_);
  if (end_) return;
  end_ = end;
  end_ns_ = at_ns;
}

TimelineView RequestTimeline::view() const {
  const std::lock_guard lock(mutex_);
  return {spans_, steps_, static_cast<int64_t>(steps_per_entry_), total_steps_,
          work_[static_cast<std::size_t>(Stage::kDetokenize)].ns};
}

double RequestTimeline::ms_since_start(int64_t ns) const {
  return ms(ns - start_.received_ns);
}

std::string_view RequestTimeline::phase_locked() const {
  if (end_) return "done";
  if (first_token_ns_ != 0) return "decode";
  const auto seen = [&](Stage stage) {
    return std::any_of(spans_.begin(), spans_.end(), [&](const Span& s) { return s.stage == stage; });
  };
  if (seen(Stage::kTransfer)) return "transfer";
  if (seen(Stage::kQueue) || seen(Stage::kPrefill)) return "prefill";
  return prompt_tokens_ > 0 ? "queue" : "parse";
}

int64_t RequestTimeline::cached_tokens_locked() const {
  return cache_.device_tokens + cache_.host_tokens + cache_.store_tokens;
}

void RequestTimeline::write_summary_locked(JsonWriter& w, int64_t now_ns) const {
  w.key("id").value(start_.id).key("tenant").value(start_.tenant).key("route").value(start_.route);
  w.key("phase").value(phase_locked()).key("received_unix_ms").value(unix_ms_);
  w.key("age_ms").value(ms_since_start(now_ns));
  w.key("duration_ms").value(ms_since_start(end_ ? end_ns_ : now_ns));
  w.key("ttft_ms");
  if (first_token_ns_ == 0) {
    w.null();
  } else {
    w.value(ms_since_start(first_token_ns_));
  }
  w.key("prompt_tokens").value(prompt_tokens_).key("cached_tokens").value(cached_tokens_locked());
  w.key("output_tokens").value(output_tokens_);
  w.key("code");
  if (!end_) {
    w.null().key("finish").null();
  } else {
    w.value(end_->code).key("finish").value(end_->finish);
  }
}

void RequestTimeline::write_stages_locked(JsonWriter& w) const {
  w.key("stages").begin_array();
  for (const Span& span : spans_) {
    w.begin_object().key("stage").value(to_string(span.stage));
    w.key("begin_ms").value(ms_since_start(span.begin_ns)).key("end_ms").value(ms_since_start(span.end_ns));
    if (span.tokens > 0) w.key("tokens").value(span.tokens);
    if (!span.detail.empty()) w.key("detail").value(span.detail);
    w.end_object();
  }
  w.end_array().key("dropped_stages").value(dropped_spans_);
  w.key("steps").begin_array();
  for (const Step& step : steps_) w.begin_array().value(ms_since_start(step.at_ns)).value(step.tokens).end_array();
  w.end_array().key("steps_per_entry").value(steps_per_entry_).key("total_steps").value(total_steps_);
  w.key("work").begin_object();
  for (std::size_t i = 0; i < kStages; ++i) {
    if (work_[i].pieces == 0) continue;
    w.key(kStageNames[i])
        .begin_object()
        .key("ms")
        .value(ms(work_[i].ns))
        .key("pieces")
        .value(work_[i].pieces)
        .end_object();
  }
  w.end_object();
}

void RequestTimeline::write_cache_locked(JsonWriter& w) const {
  w.key("cache").begin_object().key("device_tokens").value(cache_.device_tokens);
  w.key("host_tokens").value(cache_.host_tokens).key("store_tokens").value(cache_.store_tokens);
  w.key("computed_tokens").value(std::max<int64_t>(0, prompt_tokens_ - cached_tokens_locked()));
  w.key("miss_reason");
  if (cache_.miss_reason.empty()) {
    w.null();
  } else {
    w.value(cache_.miss_reason);
  }
  w.end_object().key("workers").begin_object();
  if (!prefill_worker_.empty()) w.key("prefill").value(prefill_worker_);
  if (!decode_worker_.empty()) w.key("decode").value(decode_worker_);
  w.end_object();
}

std::string RequestTimeline::summary_json(int64_t now_ns) const {
  const std::lock_guard lock(mutex_);
  std::string out;
  JsonWriter w(out);
  w.begin_object();
  write_summary_locked(w, now_ns);
  w.end_object();
  return out;
}

std::string RequestTimeline::json(int64_t now_ns) const {
  const std::lock_guard lock(mutex_);
  std::string out;
  JsonWriter w(out);
  w.begin_object();
  write_summary_locked(w, now_ns);
  write_stages_locked(w);
  write_cache_locked(w);
  w.end_object();
  return out;
}

std::string RequestTimeline::chrome_json(int64_t now_ns) const {
  const std::lock_guard lock(mutex_);
  constexpr int kRequestTrack = 1;
  constexpr int kStageTrack = 2;
  constexpr int kStepTrack = 3;
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("displayTimeUnit").value("ms").key("otherData").begin_object();
  write_summary_locked(w, now_ns);
  w.end_object().key("traceEvents").begin_array();
  write_name(w, "process_name", kRequestTrack, "deepinfer");
  write_name(w, "thread_name", kRequestTrack, "request");
  write_name(w, "thread_name", kStageTrack, "stages");
  write_name(w, "thread_name", kStepTrack, "steps");
  const int64_t origin = start_.received_ns;
  write_event(w, start_.route, kRequestTrack, 0, (end_ ? end_ns_ : now_ns) - origin, output_tokens_);
  for (const Span& span : spans_) {
    const std::string name = span.detail.empty() ? std::string(to_string(span.stage))
                                                 : std::string(to_string(span.stage)) + " " + span.detail;
    write_event(w, name, kStageTrack, span.begin_ns - origin, span.end_ns - origin, span.tokens);
  }
  for (std::size_t i = 1; i < steps_.size(); ++i)
    write_event(w, "decode", kStepTrack, steps_[i - 1].at_ns - origin, steps_[i].at_ns - origin, steps_[i].tokens);
  w.end_array().end_object();
  return out;
}

Timelines::Timelines(const Clock& clock, std::size_t capacity)
    : clock_(clock),
      capacity_(std::max<std::size_t>(1, capacity)),
      unix_ms_at_zero_(clock.unix_seconds() * 1000 - clock.now_ns() / kNsPerMs) {}

TimelineRef Timelines::start(TimelineStart start) {
  const int64_t unix_ms = unix_ms_at_zero_ + start.received_ns / kNsPerMs;
  const auto line = std::make_shared<RequestTimeline>(std::move(start), unix_ms);
  const std::lock_guard lock(mutex_);
  if (ring_.size() < capacity_) {
    ring_.push_back(line);
  } else {
    ring_[next_] = line;
  }
  next_ = (next_ + 1) % capacity_;
  return line;
}

std::vector<TimelineRef> Timelines::recent(std::size_t limit) const {
  const std::lock_guard lock(mutex_);
  std::vector<TimelineRef> out;
  for (std::size_t i = 1; i <= ring_.size() && out.size() < limit; ++i)
    out.push_back(ring_[(next_ + capacity_ - i) % capacity_]);
  return out;
}

TimelineRef Timelines::find(std::string_view id) const {
  for (TimelineRef& line : recent(capacity_)) {
    if (line->id() == id) return std::move(line);
  }
  return nullptr;
}

std::string Timelines::list_json(std::size_t limit) const {
  const int64_t now = clock_.now_ns();
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("requests").begin_array();
  for (const TimelineRef& line : recent(limit)) w.raw(line->summary_json(now));
  w.end_array().end_object();
  return out;
}

}  // namespace di::server
