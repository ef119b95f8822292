// Timelines of recent requests (server.md §14.3): which stage took which time, what came from a cache and why the rest
// did not. Whoever answers a request starts one, notes stages as they end, and finishes it:
//
//   const TimelineRef line = app.timelines().start({http.id, tenant, "/v1/chat/completions", http.received_ns});
//   line->span(Stage::kRender, t0, t1);
//   line->tokens(now, 3);               // a step gave three tokens
//   line->work(Stage::kSocket, ns);     // many short pieces, kept as their sum
//   line->finish({.code = 200, .finish = "stop"}, now);
//
// The ring holds the last 1,000; what it holds of one request is bounded too. All times are of the server's clock, in
// nanoseconds. No text of prompts or answers is kept. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/json.h"

namespace di::server {

enum class Stage : uint8_t {
  kParse,       // the body as JSON and as a request
  kRender,      // conversation to prompt text
  kTokenize,    // prompt text to tokens
  kConstraint,  // compiling a schema, regex or grammar
  kQueue,       // waiting for the first step
  kKvFetch,     // blocks from a tier, named by the detail: host, store
  kPrefill,     // a chunk of the prompt, or all of it
  kTransfer,    // KV from the prefill worker to the decode worker
  kDecode,      // a step; written by tokens()
  kDetokenize,  // tokens to events
  kSocket,      // events to bytes on the connection
};
inline constexpr std::size_t kStages = 11;
std::string_view to_string(Stage stage);

// Where the prompt's tokens came from. What no tier supplied was computed.
struct CacheUse {
  int64_t device_tokens = 0;
  int64_t host_tokens = 0;
  int64_t store_tokens = 0;
  // Why the rest was not found: evicted, expired, other_namespace, tier_read_failed, no_cache_point; empty: no reason
  // is known.
  std::string miss_reason;
};

struct TimelineStart {
  std::string id;  // X-Request-Id
  std::string tenant;
  std::string route;
  int64_t received_ns = 0;
};

struct TimelineEnd {
  int32_t code = 200;  // status; 499 when the client went away
  std::string finish;  // stop, length, tool_calls, abort, error, …
};

// What a timeline holds, for exporters; times on the server's clock.
struct TimelineView {
  struct Span {
    Stage stage = Stage::kParse;
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
    int64_t tokens = 0;
    std::string detail;
  };
  struct Step {
    int64_t at_ns = 0;
    int64_t tokens = 0;
  };
  std::vector<Span> spans;
  std::vector<Step> steps;
  int64_t steps_per_entry = 1;  // steps merged into one entry
  int64_t total_steps = 0;
  int64_t detokenize_ns = 0;  // all pieces together
};

// One request. Calls after finish() are ignored, so late pieces of work do no harm.
class RequestTimeline {
 public:
  // Of one request: beyond these numbers spans are dropped (and counted), and decode steps are merged two by two.
  static constexpr std::size_t kMaxSpans = 256;
  static constexpr std::size_t kMaxSteps = 512;

  RequestTimeline(TimelineStart start, int64_t unix_ms);

  // A stage from begin to end; a stage may occur several times. `tokens`: those it dealt with; 0: not counted.
  void span(Stage stage, int64_t begin_ns, int64_t end_ns, int64_t tokens = 0, std::string_view detail = {});
  // Adds to the stage's total without a place on the time line.
  void work(Stage stage, int64_t ns);
  // A step gave `n` tokens at that time, over all choices.
  void tokens(int64_t at_ns, int64_t n);
  void prompt_tokens(int64_t n);
  void cache(const CacheUse& use);
  void workers(std::string_view prefill, std::string_view decode);
  void finish(const TimelineEnd& end, int64_t at_ns);

  const std::string& id() const { return start_.id; }
  TimelineView view() const;
  // One row of a table: id, tenant, route, phase, ages and tokens.
  std::string summary_json(int64_t now_ns) const;
  // Everything.
  std::string json(int64_t now_ns) const;
  // Trace Event Format, as chrome://tracing and Perfetto read it.
  std::string chrome_json(int64_t now_ns) const;

 private:
  using Span = TimelineView::Span;
  using Step = TimelineView::Step;
  struct Work {
    int64_t ns = 0;
    int64_t pieces = 0;
  };
  double ms_since_start(int64_t ns) const;
  std::string_view phase_locked() const;
  int64_t cached_tokens_locked() const;
  void write_summary_locked(JsonWriter& w, int64_t now_ns) const;
  void write_stages_locked(JsonWriter& w) const;
  void write_cache_locked(JsonWriter& w) const;

  const TimelineStart start_;
  const int64_t unix_ms_;

  mutable std::mutex mutex_;  // guards the members below
  std::vector<Span> spans_;
  std::vector<Step> steps_;
  std::size_t steps_per_entry_ = 1;  // steps merged into one entry of steps_
  std::size_t pending_steps_ = 0;    // in the last entry
  int64_t total_steps_ = 0;
  int64_t output_tokens_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t dropped_spans_ = 0;
  int64_t first_token_ns_ = 0;
  std::array<Work, kStages> work_{};
  CacheUse cache_;
  std::string prefill_worker_;
  std::string decode_worker_;
  std::optional<TimelineEnd> end_;
  int64_t end_ns_ = 0;
};
using TimelineRef = std::shared_ptr<RequestTimeline>;

// The last `capacity` requests, oldest first to go.
class Timelines {
 public:
  explicit Timelines(const Clock& clock, std::size_t capacity = 1000);

  TimelineRef start(TimelineStart start);
  // The newest one of that id (clients may repeat ids); null when it is not among the last.
  TimelineRef find(std::string_view id) const;
  // Newest first.
  std::vector<TimelineRef> recent(std::size_t limit) const;
  // {"requests":[…]}, newest first.
  std::string list_json(std::size_t limit) const;

 private:
  const Clock& clock_;
  const std::size_t capacity_;
  const int64_t unix_ms_at_zero_;  // wall time when the clock read 0, so that times keep the order of events
  mutable std::mutex mutex_;       // guards ring_ and next_
  std::vector<TimelineRef> ring_;
  std::size_t next_ = 0;  // where the next one goes
};

}  // namespace di::server
