// A request as spans of OpenTelemetry, in OTLP's JSON form (server.md §11). No text of prompts or answers. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/request_record.h"
#include "server/timeline.h"

namespace di::server {

// The W3C header `traceparent` of a request.
struct TraceParent {
  std::string trace_id;   // 32 hex digits
  std::string parent_id;  // 16
  bool sampled = false;
};
// Nothing when the header is absent or not of that form (ids of zeros and version ff are not).
std::optional<TraceParent> parse_traceparent(std::string_view header);

// Ids of the spans: what the client gave, else drawn.
struct SpanIds {
  std::string trace_id;
  std::string parent_id;   // empty: none
  std::string request_id;  // 16 hex digits, of the span llm_request
};

// The span llm_request and those of its stages: JSON objects, comma-separated. `unix_ns_at_zero`: wall time when the
// server's clock read 0.
std::string request_spans(const RequestRecord& record, const TimelineView& timeline, const SpanIds& ids,
                          int64_t unix_ns_at_zero);

}  // namespace di::server
