#include "server/otlp_exporter.h"

#include <chrono>

#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "server/trace_span.h"

namespace di::server {
namespace {

constexpr int64_t kMostWaiting = 4096;  // requests
constexpr size_t kBatch = 256;
constexpr int64_t kTimeoutMs = 10'000;
constexpr int64_t kLastTimeoutMs = 2'000;
constexpr auto kPause = std::chrono::milliseconds(500);  // in which a batch fills

int64_t wall_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

HttpAsk ask_to(const OtlpOptions& options, codec::FetchUrl target) {
  HttpAsk ask;
  ask.url = std::move(target);
  ask.headers = {{"Content-Type", "application/json"}};
  for (const auto& [name, value] : options.headers) ask.headers.emplace_back(name, header_text(value));
  return ask;
}

}  // namespace

Result<std::unique_ptr<OtlpExporter>> OtlpExporter::create(const OtlpOptions& options, const Clock& clock) {
  Result<codec::FetchUrl> url = codec::parse_fetch_url(options.endpoint);
  if (!url)
    return fail(Errc::kInvalidRequest, "--otlp-endpoint {}: expected a URL like http://host:4318", options.endpoint);
  if (url->target.empty() || url->target == "/") url->target = "/v1/traces";
  return std::unique_ptr<OtlpExporter>(new OtlpExporter(options, *std::move(url), clock));
}

OtlpExporter::OtlpExporter(const OtlpOptions& options, codec::FetchUrl target, const Clock& clock)
    : options_(options),
      unix_ns_at_zero_(wall_ns() - clock.now_ns()),
      ask_(ask_to(options, std::move(target))),
      thread_([this] { run(); }) {}

OtlpExporter::~OtlpExporter() {
  stopping_.store(true);
  queue_.close();
}

void OtlpExporter::request(const HttpRequest& request, const RequestRecord& record, const RequestTimeline& timeline) {
  const std::optional<TraceParent> parent = parse_traceparent(request.header("traceparent"));
  const bool sampled = parent ? parent->sampled : static_cast<double>(random_u64() >> 11) * 0x1p-53 < options_.ratio;
  if (!sampled) return;
  if (waiting_.fetch_add(1) >= kMostWaiting) {
    waiting_.fetch_sub(1);
    counters_.dropped.fetch_add(1);
    return;
  }
  SpanIds ids;
  ids.trace_id = parent ? parent->trace_id : random_hex32();
  if (parent) ids.parent_id = parent->parent_id;
  ids.request_id = fmt::format("{:016x}", random_u64() | 1);
  queue_.push(request_spans(record, timeline.view(), ids, unix_ns_at_zero_));
}

void OtlpExporter::run() {
  while (queue_.wait()) {
    if (!stopping_.load()) queue_.wait_closed_for(kPause);
    std::vector<std::string> spans = queue_.take_all();
    waiting_.fetch_sub(static_cast<int64_t>(spans.size()));
    for (size_t at = 0; at < spans.size(); at += kBatch) {
      const size_t n = std::min(kBatch, spans.size() - at);
      const auto first = spans.begin() + static_cast<std::ptrdiff_t>(at);
      send({first, first + static_cast<std::ptrdiff_t>(n)}, stopping_.load() ? kLastTimeoutMs : kTimeoutMs);
    }
  }
}

void OtlpExporter::send(const std::vector<std::string>& spans, int64_t timeout_ms) {
  ask_.body.clear();
  JsonWriter w(ask_.body);
  w.begin_object().key("resourceSpans").begin_array().begin_object();
  w.key("resource").begin_object().key("attributes").begin_array();
  const auto attribute = [&](std::string_view key, std::string_view value) {
    w.begin_object().key("key").value(key).key("value").begin_object().key("stringValue").value(value);
    w.end_object().end_object();
  };
  attribute("service.name", options_.service_name);
  attribute("service.version", DI_VERSION);
  w.end_array().end_object().key("scopeSpans").begin_array().begin_object();
  w.key("scope").begin_object().key("name").value("deepinfer").key("version").value(DI_VERSION).end_object();
  w.key("spans").begin_array();
  for (const std::string& each : spans) w.raw(each);
  w.end_array().end_object().end_array().end_object().end_array().end_object();
  ask_.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  const Result<HttpAnswer> answer = client_.ask(ask_);
  const int status = answer ? answer->status : 0;
  if (status / 100 == 2) {
    counters_.sent.fetch_add(spans.size());
    return;
  }
  if (counters_.failed.fetch_add(spans.size()) == 0)
    DI_LOG(kWarn, "traces: {} does not take them (status {}); this is said once", ask_.url.host, status);
}

}  // namespace di::server
