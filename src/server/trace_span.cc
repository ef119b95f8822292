#include "server/trace_span.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "base/rng.h"

namespace di::server {
namespace {

constexpr int64_t kStepsPerEvent = 100;
constexpr int kKindInternal = 1;
constexpr int kKindServer = 2;

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}
bool is_id(std::string_view text) {
  return is_hex(text) && text.find_first_not_of('0') != std::string_view::npos;
}

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

std::string_view span_name(Stage stage) {
  switch (stage) {
    case Stage::kParse:
      return "http.parse";
    case Stage::kKvFetch:
      return "kv.fetch";
    case Stage::kTransfer:
      return "pd.transfer";
    default:
      return to_string(stage);
  }
}

class SpanWriter {
 public:
  SpanWriter(std::string& out, const SpanIds& ids, int64_t unix_ns_at_zero)
      : w_(out), ids_(ids), unix_ns_at_zero_(unix_ns_at_zero) {}

  // Between open() and close(): attributes, then events.
  void open(std::string_view name, int kind, std::string_view id, std::string_view parent, int64_t begin, int64_t end) {
    w_.begin_object().key("traceId").value(ids_.trace_id).key("spanId").value(id);
    if (!parent.empty()) w_.key("parentSpanId").value(parent);
    w_.key("name").value(name).key("kind").value(kind);
    w_.key("startTimeUnixNano").value(wall(begin)).key("endTimeUnixNano").value(wall(std::max(begin, end)));
    w_.key("attributes").begin_array();
  }
  void child(std::string_view name, int64_t begin, int64_t end) {
    open(name, kKindInternal, fmt::format("{:016x}", random_u64() | 1), ids_.request_id, begin, end);
  }
  void attribute(std::string_view key, std::string_view value) {
    begin(key).key("stringValue").value(value).end_object().end_object();
  }
  void attribute(std::string_view key, int64_t value) {
    begin(key).key("intValue").value(std::to_string(value)).end_object().end_object();  // 64 bits are text in OTLP
  }
  void attribute(std::string_view key, double value) {
    begin(key).key("doubleValue").value(value).end_object().end_object();
  }
  void list_attribute(std::string_view key, std::string_view only) {
    begin(key).key("arrayValue").begin_object().key("values").begin_array();
    w_.begin_object().key("stringValue").value(only).end_object();
    w_.end_array().end_object().end_object().end_object();
  }
  void end_attributes() { w_.end_array(); }
  void begin_events() { w_.key("events").begin_array(); }
  void event(std::string_view name, int64_t at_ns, int64_t tokens) {
    w_.begin_object().key("timeUnixNano").value(wall(at_ns)).key("name").value(name).key("attributes").begin_array();
    attribute("tokens", tokens);
    w_.end_array().end_object();
  }
  void end_events() { w_.end_array(); }
  void close() { w_.end_object(); }
  void close(bool error, std::string_view message) {
    w_.key("status").begin_object().key("code").value(error ? 2 : 1);
    if (error) w_.key("message").value(message);
    w_.end_object().end_object();
  }

 private:
  JsonWriter& begin(std::string_view key) {
    return w_.begin_object().key("key").value(key).key("value").begin_object();
  }
  std::string wall(int64_t ns) const { return std::to_string(unix_ns_at_zero_ + ns); }

  JsonWriter w_;
  const SpanIds& ids_;
  const int64_t unix_ns_at_zero_;
};

void write_attributes(SpanWriter& w, const RequestRecord& r) {
  w.attribute("gen_ai.operation.name", r.route.ends_with("/completions") && !r.route.ends_with("chat/completions")
                                           ? std::string_view("text_completion")
                                           : std::string_view("chat"));
  w.attribute("gen_ai.request.model", r.model);
  w.attribute("gen_ai.request.id", r.id);
  w.attribute("gen_ai.request.n", int64_t{r.n});
  w.attribute("gen_ai.request.max_tokens", r.max_tokens);
  w.attribute("gen_ai.request.temperature", r.temperature);
  w.attribute("gen_ai.request.top_p", r.top_p);
  w.attribute("gen_ai.response.model", r.model);
  w.attribute("gen_ai.response.id", r.response_id);
  w.list_attribute("gen_ai.response.finish_reasons", r.finish);
  for (const char* name : {"gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens"})
    w.attribute(name, r.prompt_tokens);
  for (const char* name : {"gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens"})
    w.attribute(name, r.output_tokens);
  w.attribute("gen_ai.latency.e2e", seconds(r.sent_ns - r.received_ns));
  if (r.first_sent_ns > 0) w.attribute("gen_ai.latency.time_to_first_token", seconds(r.first_sent_ns - r.received_ns));
  if (r.scheduled_ns > 0) w.attribute("gen_ai.latency.time_in_queue", seconds(r.scheduled_ns - r.queued_ns));
  if (r.first_token_ns > 0) {
    w.attribute("gen_ai.latency.time_in_model_prefill", seconds(r.first_token_ns - r.scheduled_ns));
    if (r.finished_ns > 0)
      w.attribute("gen_ai.latency.time_in_model_decode", seconds(r.finished_ns - r.first_token_ns));
  }
  w.attribute("deepinfer.cached_tokens", r.cached_tokens);
  if (r.draft_rounds > 0) {
    w.attribute("deepinfer.spec_accept_len",
                1.0 + static_cast<double>(r.drafts_accepted) / static_cast<double>(r.draft_rounds));
  }
  w.attribute("http.response.status_code", int64_t{r.status});
}

void write_decode(SpanWriter& w, const TimelineView& line) {
  w.child("decode", line.steps.front().at_ns, line.steps.back().at_ns);
  w.attribute("deepinfer.steps", line.total_steps);
  w.end_attributes();
  w.begin_events();
  int64_t steps = 0;
  int64_t tokens = 0;
  for (const TimelineView::Step& step : line.steps) {
    steps += line.steps_per_entry;
    tokens += step.tokens;
    if (steps < kStepsPerEvent) continue;
    w.event("steps", step.at_ns, tokens);
    steps = tokens = 0;
  }
  w.end_events();
  w.close();
}

}  // namespace

std::optional<TraceParent> parse_traceparent(std::string_view header) {
  // 00-<trace id>-<parent id>-<flags>; later versions may add to it.
  if (header.size() < 55 || header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  const std::string_view version = header.substr(0, 2);
  const std::string_view flags = header.substr(53, 2);
  if (!is_hex(version) || version == "ff" || !is_hex(flags)) return std::nullopt;
  if (header.size() > 55 && (version == "00" || header[55] != '-')) return std::nullopt;
  TraceParent out{std::string(header.substr(3, 32)), std::string(header.substr(36, 16)), false};
  if (!is_id(out.trace_id) || !is_id(out.parent_id)) return std::nullopt;
  const char low = flags[1];
  out.sampled = ((low <= '9' ? low - '0' : low - 'a' + 10) & 1) != 0;
  return out;
}

std::string request_spans(const RequestRecord& r, const TimelineView& line, const SpanIds& ids,
                          int64_t unix_ns_at_zero) {
  std::string out;
  SpanWriter w(out, ids, unix_ns_at_zero);
  w.open("llm_request", kKindServer, ids.request_id, ids.parent_id, r.received_ns, r.sent_ns);
  write_attributes(w, r);
  w.end_attributes();
  const bool failed = r.finish == "error";
  w.close(failed, r.error);
  for (const TimelineView::Span& span : line.spans) {
    w.child(span_name(span.stage), span.begin_ns, span.end_ns);
    if (span.tokens > 0) w.attribute("tokens", span.tokens);
    if (!span.detail.empty()) w.attribute("tier", std::string_view(span.detail));
    w.end_attributes();
    w.close();
  }
  if (line.steps.empty()) return out;
  write_decode(w, line);
  if (line.detokenize_ns > 0) {
    // Many short pieces between the steps, shown as their sum.
    const int64_t begin = line.steps.front().at_ns;
    w.child("detokenize", begin, begin + line.detokenize_ns);
    w.end_attributes();
    w.close();
  }
  return out;
}

}  // namespace di::server
