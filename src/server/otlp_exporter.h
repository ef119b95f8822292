// Sends spans to an OpenTelemetry collector: OTLP over HTTP in JSON (server.md §11). Requests hand theirs over and go
// on; a thread of its own sends them in batches, and drops what a slow collector leaves no room for. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/queue.h"
#include "base/result.h"
#include "server/http.h"
#include "server/http_client.h"
#include "server/request_record.h"
#include "server/timeline.h"

namespace di::server {

struct OtlpOptions {
  std::string endpoint;  // http://host:4318; /v1/traces is added where the path is empty. Empty: no tracing
  double ratio = 0.01;   // of the requests that bring no decision of their own
  std::string service_name = "deepinfer";
  Headers headers;  // of every export, such as a key
};

struct OtlpCounters {
  std::atomic<uint64_t> sent{0};     // requests whose spans a collector took
  std::atomic<uint64_t> dropped{0};  // no room
  std::atomic<uint64_t> failed{0};   // not taken: no connection, or another status than 2xx
};

class OtlpExporter {
 public:
  // Errors: kInvalidRequest, when the endpoint is no http(s) URL.
  static Result<std::unique_ptr<OtlpExporter>> create(const OtlpOptions& options, const Clock& clock);
  // Sends what is there, for two seconds at most.
  ~OtlpExporter();
  OtlpExporter(const OtlpExporter&) = delete;
  OtlpExporter& operator=(const OtlpExporter&) = delete;

  // At the end of a request. A `traceparent` decides whether it is sampled; without one the ratio does.
  void request(const HttpRequest& http, const RequestRecord& record, const RequestTimeline& timeline);
  const OtlpCounters& counters() const { return counters_; }

 private:
  OtlpExporter(const OtlpOptions& options, codec::FetchUrl target, const Clock& clock);
  void run();
  void send(const std::vector<std::string>& spans, int64_t timeout_ms);

  const OtlpOptions options_;
  const int64_t unix_ns_at_zero_;
  OtlpCounters counters_;
  std::atomic<int64_t> waiting_{0};
  std::atomic<bool> stopping_{false};
  Queue<std::string> queue_;  // spans of a request each
  HttpAsk ask_;               // of the thread only
  const HttpClient client_;
  std::jthread thread_;  // uses all of the above
};

}  // namespace di::server
