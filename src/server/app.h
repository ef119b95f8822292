// The server's state and its requests: what is loaded, whether it takes new work, and which answers are under way.
// `handle` is what the HTTP listener calls; routes.cc is the table of routes, chat.cc reads a chat request, chat_job.cc
// answers it. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "codec/codec.h"
#include "codec/prompt/replay.h"
#include "engine/api.h"
#include "server/auth.h"
#include "server/cache_diagnosis.h"
#include "server/errors.h"
#include "server/file_store.h"
#include "server/http_server.h"
#include "server/media.h"
#include "server/otlp_exporter.h"
#include "server/profiler.h"
#include "server/request_log.h"
#include "server/request_record.h"
#include "server/responses_store.h"
#include "server/server_metrics.h"
#include "server/timeline.h"
#include "server/ui_feed.h"
#include "server/workers.h"
#include "structured/compile_pool.h"

namespace di::server {

struct Route;

struct ServerConfig {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string uds;          // a Unix socket instead of the two above
  uint16_t admin_port = 0;  // administration, metrics and the page there, not on the port above; 0: on the same
  HttpLimits http;
  TlsFiles tls;
  OtlpOptions otlp;
  std::vector<std::string> served_model_names;  // at least one; the first is reported
  codec::ApiPolicy policy = codec::ApiPolicy::kExtended;
  int32_t worker_threads = 2;
  int32_t max_n = 16;
  int64_t max_messages = 16'384;
  int64_t max_tools = 1'024;
  int64_t max_stop_bytes = 1'024;
  int64_t stream_interval = 1;       // tokens that wait for each other before they are sent
  int64_t stream_interval_ms = 0;    // or for that long, whichever is over first; 0: by number only
  bool early_headers = true;         // a stream begins with the request's place in the queue, not with its first token
  bool queue_while_loading = false;  // requests wait for the model instead of being refused
  int64_t max_images = 64;           // of a request; the official policy has its own limits
  MediaFetchOptions media_fetch;     // images by link; off by default
  int64_t responses_store = 0;       // responses kept; 0: none
  uint64_t files_store = 256 << 20;  // bytes of uploaded files kept; 0: none
  // Exact replay: turns with tool calls keep their tokens (docs/codec.md). Extended policy only.
  uint64_t exact_replay_bytes = uint64_t{64} << 20;  // 0: off
  int64_t exact_replay_age_ms = 3'600'000;
  std::string exact_replay_dir;  // where they outlive the process; empty: nowhere
  bool strict_fields = false;    // unknown members of a body are refused
  bool allow_priority = false;   // everybody may set a priority
  bool nonstream_keep_alive = false;
  bool usage_details = false;            // the usage of an answer says what drafts it had
  bool reasoning_alias = false;          // Chat: `reasoning` beside `reasoning_content`
  bool stream_obfuscation = false;       // deltas are padded, asked for or not
  std::string log_requests;              // file for the bodies of requests; empty: nowhere
  bool enforce_thinking_budget = false;  // `thinking.budget_tokens` ends the thinking
  int64_t diag_responses = 4096;         // prompts of Responses that later ones may be compared with; 0: none
  bool metrics_tenant = false;           // series by tenant
  bool require_auth = false;             // no start on an open address without keys
  AuthOptions auth;
  std::vector<std::string> cors_origins;   // "*": all; empty: no CORS
  Json effective;                          // of /server_info: the options as given
  int64_t liveness_stall_ms = 120'000;     // the engine stands still for that long: not alive
  int64_t max_queue_wait_ms = 600'000;     // 0: no limit
  int64_t request_timeout_ms = 1'800'000;  // 0: no limit
  int64_t drain_delay_ms = 0;
  int64_t drain_timeout_ms = 120'000;
};

// What is there as soon as the tokenizer is.
struct Codec {
  codec::TokenizerRef tokenizer;
  codec::CodecOptions options;  // with the served names
  bool vision = false;          // the model takes images
};

// What is there once the model is loaded. Outlives every request.
struct Service {
  engine::EngineApi* engine = nullptr;
  structured::CompilePool* constraints = nullptr;  // null: none can be asked for
  codec::TokenizerRef tokenizer;
  codec::CodecOptions codec;  // with the served names
  std::string system_fingerprint;
  int64_t created = 0;  // Unix seconds
  bool vision = false;  // the model takes images
  ProfileSource profile;
};

// An answer under way.
class Job {
 public:
  virtual ~Job() = default;
  // Ends it with an error, in the stream if it has begun.
  virtual void abort(const ApiFailure& failure) = 0;
  // Ends it with what there is.
  virtual void cancel() = 0;
  virtual RequestRecord record() const = 0;
  // It goes on without its client.
  virtual bool background() const { return false; }
};

class App {
 public:
  App(const ServerConfig& config, const Clock& clock);
  ~App();
  App(const App&) = delete;
  App& operator=(const App&) = delete;

  // Where a request has come in: the API's port has no administration when that has one of its own.
  enum class Door : uint8_t { kAll, kApi };
  // Never blocks: long work goes to the workers.
  void handle(const ExchangeRef& exchange, Door door = Door::kAll);

  void set_progress(double fraction, std::string stage);
  // Prompts can be counted from now on.
  void set_codec(Codec codec);
  // To take down: stop the listener, stop_workers(), destroy the engine, then app and listener.
  void set_ready(Service service);
  // Drain, in order (server.md §2.6): /readyz says so; new work is refused; what still runs is ended with an error.
  void announce_drain();
  void refuse_new();
  void abort_all();
  // The process is ending: a drain cannot be called off any more.
  void end_for_good();
  // The model will never be there: those who wait for it are told. False: nobody waits.
  bool refuse_held();
  // False: it is too late.
  bool undo_drain();
  // The routes /admin/drain and /admin/undrain, from a worker; false: it is too late to call it off.
  void on_drain_request(std::function<bool(bool drain)> request) { drain_request_ = std::move(request); }
  // Nothing: this server cannot be drained.
  std::optional<bool> request_drain(bool drain);
  // Finishes the tasks that are queued; from then on nothing runs.
  void stop_workers();

  enum class Phase : uint8_t { kLoading, kReady, kDraining, kRefusing };
  Phase phase() const { return phase_.load(); }
  // Nothing while loading.
  const Service* service() const;
  const Codec* codec() const;

  // Why new work is not taken now, if so.
  std::optional<ApiFailure> refusal() const;

  void add_job(const std::shared_ptr<Job>& job);
  // Answers without an end yet, and of these the ones that no client waits for.
  struct OpenJobs {
    int64_t all = 0;
    int64_t background = 0;
  };
  OpenJobs open_jobs() const;
  // Those under way, newest first.
  std::vector<std::shared_ptr<Job>> jobs() const;
  // Metrics and access line of a request that reached the engine.
  void request_finished(const RequestRecord& record, int64_t last_token_ns);

  struct Progress {
    double fraction = 0;
    std::string stage;
  };
  Progress progress() const;

  const ServerConfig& config() const { return config_; }
  const Clock& clock() const { return clock_; }
  ServerMetrics& metrics() { return metrics_; }
  Timelines& timelines() { return timelines_; }
  // Runs once start() was called on it.
  UiFeed& feed() { return feed_; }
  Workers& workers() { return *workers_; }
  Media& media() { return *media_; }
  Auth& auth() { return *auth_; }
  bool auth_required() const { return auth_->required(); }
  ResponsesStore& responses() { return responses_; }
  // Null while loading, and where exact replay is off.
  codec::ReplayStore* turns() const { return codec_loaded_.load() ? turns_.get() : nullptr; }
  FileStore& files() { return files_; }
  PromptHistory& prompts() { return prompts_; }
  Profiler& profiler() { return profiler_; }
  // Null: nothing is traced.
  OtlpExporter* traces() { return traces_.get(); }
  // Error of the configuration, if any (API keys, the collector of traces).
  const std::optional<Error>& config_error() const { return config_error_; }

  // An error as the answer of a request that has none yet, with its metrics and log line.
  void reply_error(Exchange& exchange, const ApiFailure& failure);
  void reply_json(Exchange& exchange, std::string body, int status = 200);

 private:
  const ServerConfig config_;
  const Clock& clock_;
  ServerMetrics metrics_;
  Timelines timelines_;
  std::atomic<Phase> phase_{Phase::kLoading};
  std::atomic<bool> loaded_{false};
  Service service_;  // written once, before loaded_
  std::atomic<bool> codec_loaded_{false};
  Codec codec_;                                // written once, before codec_loaded_
  std::unique_ptr<codec::ReplayStore> turns_;  // the same
  std::optional<Error> config_error_;
  std::unique_ptr<Auth> auth_;
  ResponsesStore responses_;
  PromptHistory prompts_;
  FileStore files_;
  std::unique_ptr<OtlpExporter> traces_;
  std::unique_ptr<RequestLog> request_log_;  // null: bodies are not logged
  std::function<bool(bool)> drain_request_;

  // False: answered already (an error, a preflight request of a browser).
  bool pass_cors(Exchange& exchange) const;
  bool unpack_body(Exchange& exchange);
  void run(const Route& route, const ExchangeRef& exchange);
  // True: the request waits for the model.
  bool hold(const Route& route, const ExchangeRef& exchange);

  mutable std::mutex mutex_;  // guards the members of this paragraph, and changes of phase_
  Progress progress_;
  int64_t stage_began_ns_ = 0;
  std::list<std::weak_ptr<Job>> jobs_;
  bool ending_ = false;                                     // undo_drain() comes too late
  bool aborting_ = false;                                   // jobs that come now are ended at once
  std::vector<std::pair<const Route*, ExchangeRef>> held_;  // they wait for the model

  void write_state(JsonWriter& w) const;

  std::unique_ptr<Workers> workers_;  // its tasks use all of the above
  std::unique_ptr<Media> media_;      // and these the workers too
  UiFeed feed_;                       // its thread too
  Profiler profiler_;                 // and its one
};

// The engine, when it has work, makes steps.
bool is_alive(const App& app);

// The handlers of chat.cc, completions.cc and token_routes.cc. They run on a worker.
void handle_chat_completions(App& app, const ExchangeRef& exchange);
void handle_responses(App& app, const ExchangeRef& exchange);
void handle_messages(App& app, const ExchangeRef& exchange);
void handle_completions(App& app, const ExchangeRef& exchange);
void handle_count_tokens(App& app, const ExchangeRef& exchange);
void handle_input_tokens(App& app, const ExchangeRef& exchange);
void handle_tokenize(App& app, const ExchangeRef& exchange);
void handle_detokenize(App& app, const ExchangeRef& exchange);
void handle_render(App& app, const ExchangeRef& exchange);
void handle_cache_lookup(App& app, const ExchangeRef& exchange);

}  // namespace di::server
