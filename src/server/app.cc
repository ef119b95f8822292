#include "server/app.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "base/json.h"
#include "base/log.h"
#include "base/sha256.h"
#include "server/compress.h"
#include "server/routes.h"

namespace di::server {

namespace {

// Requests that may wait for the model.
constexpr std::size_t kMaxHeld = 4096;

// One line per request, without a word of it.
void log_access(const RequestRecord& r, int64_t first_token_ns, double tpot_s) {
  const auto ms = [](int64_t from, int64_t to) { return static_cast<double>(to - from) * 1e-6; };
  const double queue = r.scheduled_ns > 0 ? ms(r.queued_ns, r.scheduled_ns) : 0.0;
  const double ttft = first_token_ns > 0 ? ms(r.received_ns, first_token_ns) : 0.0;
  const double e2e = ms(r.received_ns, r.sent_ns);
  if (!log_is_json()) {
    log_line(LogLevel::kInfo,
             fmt::format("{} tenant={} route={} code={} prompt={} cached={} output={} reasoning={} queue={:.1f}ms "
                         "ttft={:.1f}ms tpot={:.2f}ms e2e={:.1f}ms finish={}",
                         r.id, r.tenant, r.route, r.status, r.prompt_tokens, r.cached_tokens, r.output_tokens,
                         r.reasoning_tokens, queue, ttft, tpot_s * 1e3, e2e, r.finish));
    return;
  }
  std::string line;
  JsonWriter w(line);
  w.begin_object().key("message").value("request").key("id").value(r.id).key("tenant").value(r.tenant);
  w.key("route").value(r.route).key("model").value(r.model).key("code").value(r.status);
  w.key("prompt_tokens").value(r.prompt_tokens).key("cached_tokens").value(r.cached_tokens);
  w.key("output_tokens").value(r.output_tokens).key("reasoning_tokens").value(r.reasoning_tokens);
  w.key("queue_ms").value(queue).key("ttft_ms").value(ttft).key("tpot_ms").value(tpot_s * 1e3).key("e2e_ms").value(e2e);
  w.key("finish").value(r.finish).end_object();
  log_record(LogLevel::kInfo, {}, std::string_view(line).substr(1, line.size() - 2));
}

// What the ids of a kept turn mean: a digest of the tokenizer, and the template.
std::string turn_identity(const Codec& codec) {
  std::string text;
  for (TokenId id = 0; id < codec.tokenizer->vocab_size(); ++id) {
    const std::string_view bytes = codec.tokenizer->token_bytes(id);
    text += fmt::format("{} {} ", bytes.size(), codec.tokenizer->is_added(id) ? 1 : 0);
    text += bytes;
  }
  const Sha256 digest = sha256(text);
  const bool v4 = !codec.options.models.empty() && codec.options.models.begin()->second == codec::ModelVersion::kV4;
  return fmt::format("{}-{:02x}", v4 ? "v4" : "v41", fmt::join(std::span(digest).first(16), ""));
}

// What a request may bring: of the official service, or less (server.md §2.7).
MediaOptions media_options(const ServerConfig& config) {
  MediaOptions out;
  out.fetch = config.media_fetch;
  if (!config.media_fetch.policy.enabled) out.threads = out.decoders;
  if (config.policy == codec::ApiPolicy::kOfficial) {
    out.limits.max_pixels = 0;
  } else {
    out.limits.max_images = static_cast<std::size_t>(config.max_images);
  }
  return out;
}

}  // namespace

App::App(const ServerConfig& config, const Clock& clock)
    : config_(config),
      clock_(clock),
      metrics_(config.served_model_names.at(0)),
      timelines_(clock),
      responses_(config.responses_store),
      prompts_(config.diag_responses),
      files_(config.files_store),
      workers_(std::make_unique<Workers>(config.worker_threads)),
      media_(std::make_unique<Media>(media_options(config), files_, clock)),
      feed_(clock, {.metrics = [this] { return metrics_.text(); },
                    .write_state = [this](JsonWriter& w) { write_state(w); },
                    .unix_ms =
                        [this, start_ns = clock.now_ns(), start_s = clock.unix_seconds()] {
                          return start_s * 1000 + (clock_.now_ns() - start_ns) / kNsPerMs;
                        }}) {
  Result<std::unique_ptr<Auth>> auth = Auth::create(config.auth, clock);
  if (!auth) {
    config_error_ = auth.error();
    auth = Auth::create({}, clock);
  }
  auth_ = std::move(*auth);
  metrics_.watch(media_->cache());
  if (!config.log_requests.empty()) {
    Result<std::unique_ptr<RequestLog>> log = RequestLog::open(config.log_requests);
    if (!log) {
      config_error_ = log.error();
      return;
    }
    request_log_ = std::move(*log);
  }
  if (config.otlp.endpoint.empty()) return;
  Result<std::unique_ptr<OtlpExporter>> traces = OtlpExporter::create(config.otlp, clock);
  if (!traces) {
    config_error_ = traces.error();
    return;
  }
  traces_ = std::move(*traces);
  metrics_.watch(traces_->counters());
}

App::~App() = default;

void App::stop_workers() {
  feed_.stop();
  profiler_.stop();
  media_->stop();
  workers_->stop();
  if (codec::ReplayStore* store = turns()) {
    if (const Result<void> saved = store->save(); !saved) DI_LOG(kError, "{}", saved.error().message);
  }
}

void App::set_progress(double fraction, std::string stage) {
  metrics_.set_load_progress(fraction);
  const std::lock_guard lock(mutex_);
  if (stage != progress_.stage) {
    const int64_t now = clock_.now_ns();
    if (!progress_.stage.empty())
      metrics_.startup_stage(progress_.stage, static_cast<double>(now - stage_began_ns_) * 1e-9);
    stage_began_ns_ = now;
  }
  progress_ = {fraction, std::move(stage)};
}

void App::set_codec(Codec codec) {
  codec_ = std::move(codec);
  if (config_.exact_replay_bytes > 0 && config_.policy == codec::ApiPolicy::kExtended) {
    codec::ReplayOptions options;
    options.max_bytes = config_.exact_replay_bytes;
    options.max_age_s = config_.exact_replay_age_ms / 1000;
    if (!config_.exact_replay_dir.empty()) {
      options.identity = turn_identity(codec_);
      options.file = config_.exact_replay_dir + "/turns-" + options.identity;
    }
    turns_ = std::make_unique<codec::ReplayStore>(std::move(options), clock_);
    metrics_.watch(*turns_);
  }
  codec_loaded_.store(true);
}

void App::set_ready(Service service) {
  if (!codec_loaded_.load()) set_codec({service.tokenizer, service.codec, service.vision});
  service_ = std::move(service);
  metrics_.attach(*service_.engine);
  if (service_.constraints != nullptr) metrics_.watch(*service_.constraints);
  set_progress(1.0, "ready");
  loaded_.store(true);
  std::vector<std::pair<const Route*, ExchangeRef>> held;
  {
    const std::lock_guard lock(mutex_);
    Phase expected = Phase::kLoading;  // a drain that came first stays
    phase_.compare_exchange_strong(expected, Phase::kReady);
    held.swap(held_);
  }
  for (const auto& [route, exchange] : held) run(*route, exchange);
}

const Service* App::service() const {
  return loaded_.load() ? &service_ : nullptr;
}

const Codec* App::codec() const {
  return codec_loaded_.load() ? &codec_ : nullptr;
}

App::Progress App::progress() const {
  const std::lock_guard lock(mutex_);
  return progress_;
}

void App::announce_drain() {
  const std::lock_guard lock(mutex_);
  phase_.store(Phase::kDraining);
}

void App::refuse_new() {
  {
    const std::lock_guard lock(mutex_);
    phase_.store(Phase::kRefusing);
  }
  feed_.close_streams();
  profiler_.stop();
}

void App::end_for_good() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  if (phase_.load() != Phase::kRefusing) phase_.store(Phase::kDraining);
}

// What the web page shows beside the figures.
void App::write_state(JsonWriter& w) const {
  const Phase phase = phase_.load();
  const Progress now = progress();
  w.key("version").value(DI_VERSION).key("model").value(config_.served_model_names[0]);
  w.key("phase").value(phase == Phase::kReady ? "ready" : phase == Phase::kLoading ? "loading" : "draining");
  w.key("progress").value(now.fraction).key("stage").value(now.stage);
  const Service* loaded = service();
  if (loaded == nullptr) return;
  const engine::EngineInfo& info = loaded->engine->info();
  w.key("engine").begin_object().key("backend").value(info.backend).key("kv_dtype").value(info.kv_dtype);
  w.key("max_model_len").value(info.max_model_len).key("max_num_seqs").value(info.max_num_seqs);
  w.key("block_tokens").value(info.block_tokens).key("blocks").value(info.n_blocks).end_object();
}

bool App::undo_drain() {
  const std::lock_guard lock(mutex_);
  if (ending_) return false;
  phase_.store(loaded_.load() ? Phase::kReady : Phase::kLoading);
  return true;
}

std::optional<bool> App::request_drain(bool drain) {
  if (!drain_request_) return std::nullopt;
  return drain_request_(drain);
}

std::optional<ApiFailure> App::refusal() const {
  if (phase_.load() == Phase::kRefusing)
    return ApiFailure{ErrorKind::kDraining, "the server is shutting down", {}, {}, 5};
  if (!loaded_.load()) return ApiFailure{ErrorKind::kNotReady, "the model is still loading", {}, {}, 2};
  return std::nullopt;
}

namespace {

void abort_for_shutdown(Job& job) {
  job.abort({ErrorKind::kDraining, "the server is shutting down", {}, {}, 5});
}

}  // namespace

void App::add_job(const std::shared_ptr<Job>& job) {
  bool too_late = false;
  {
    const std::lock_guard lock(mutex_);
    if (jobs_.size() % 64 == 0) std::erase_if(jobs_, [](const std::weak_ptr<Job>& j) { return j.expired(); });
    jobs_.push_back(job);
    too_late = aborting_;
  }
  if (too_late) abort_for_shutdown(*job);
}

void App::abort_all() {
  {
    const std::lock_guard lock(mutex_);
    aborting_ = true;
  }
  for (const std::shared_ptr<Job>& job : jobs()) abort_for_shutdown(*job);
}

App::OpenJobs App::open_jobs() const {
  OpenJobs out;
  for (const std::shared_ptr<Job>& job : jobs()) {
    if (!job->record().finish.empty()) continue;
    ++out.all;
    if (job->background()) ++out.background;
  }
  return out;
}

std::vector<std::shared_ptr<Job>> App::jobs() const {
  std::vector<std::shared_ptr<Job>> out;
  const std::lock_guard lock(mutex_);
  for (auto it = jobs_.rbegin(); it != jobs_.rend(); ++it) {
    if (auto job = it->lock()) out.push_back(std::move(job));
  }
  return out;
}

bool App::pass_cors(Exchange& exchange) const {
  const HttpRequest& request = exchange.request();
  const std::string_view origin = request.header("origin");
  if (config_.cors_origins.empty() || origin.empty()) return true;
  const bool allowed = std::any_of(config_.cors_origins.begin(), config_.cors_origins.end(),
                                   [&](const std::string& o) { return o == "*" || o == origin; });
  if (!allowed) return true;
  Headers& headers = exchange.context().answer_headers;
  headers.emplace_back("Access-Control-Allow-Origin", header_text(origin));
  headers.emplace_back("Vary", "Origin");
  if (request.method != "OPTIONS") return true;
  headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
  headers.emplace_back("Access-Control-Allow-Headers", "authorization, content-type, x-api-key, x-request-id");
  headers.emplace_back("Access-Control-Max-Age", "600");
  exchange.reply({.status = 204, .content_type = {}, .headers = {}, .body = {}});
  return false;
}

// False: answered already, since the body is not in the coding that it claims, or too large.
bool App::unpack_body(Exchange& exchange) {
  const HttpRequest& request = exchange.request();
  const std::string_view coding = request.header("content-encoding");
  if (coding.empty() || equal_ignoring_case(coding, "identity") || request.body.empty()) return true;
  Result<std::string> body = decode_content(coding, request.body, config_.http.body_bytes);
  if (body) {
    exchange.replace_body(std::move(*body));
    return true;
  }
  const bool large = body.error().code == Errc::kResourceExhausted;
  const bool known = body.error().message.find("Content-Encoding") == std::string::npos;
  ApiFailure failure{large   ? ErrorKind::kTooLarge
                     : known ? ErrorKind::kInvalidRequest
                             : ErrorKind::kMediaType,
                     body.error().message,
                     {},
                     {},
                     0};
  if (known && !large) failure.code = "invalid_encoding";
  reply_error(exchange, failure);
  return false;
}

void App::handle(const ExchangeRef& exchange, Door door) {
  const HttpRequest& request = exchange->request();
  if (!pass_cors(*exchange)) return;
  RouteDecision decision = find_route(request);
  if (door == Door::kApi && decision.route != nullptr && decision.route->is_administration())
    decision = no_route(request);
  // Before anything is said about the path: without a key, known and unknown ones look the same.
  const Scope scope = decision.route != nullptr ? decision.route->scope
                      : decision.public_path    ? Scope::kPublic
                                                : Scope::kInference;
  if (const auto refused = auth_->admit(request, scope, exchange->context())) return reply_error(*exchange, *refused);
  if (decision.failure) {
    HttpResponse response = error_response(*decision.failure, error_family(request.path), request.id);
    if (!decision.allow.empty()) response.headers.emplace_back("Allow", decision.allow);
    metrics_.error(default_code(decision.failure->kind));
    exchange->reply(std::move(response));
    return;
  }
  const Route& route = *decision.route;
  if (route.limited) {
    if (const auto limit = auth_->begin_request(exchange->context())) {
      metrics_.rejected("rate_limit");
      return reply_error(*exchange, *limit);
    }
  }
  if (!route.blocking) {
    route.handler(*this, exchange);
    return;
  }
  if (!hold(route, exchange)) run(route, exchange);
}

void App::run(const Route& route, const ExchangeRef& exchange) {
  workers_->post([this, &route, exchange] {
    try {
      if (!unpack_body(*exchange)) return;
      const HttpRequest& request = exchange->request();
      if (request_log_ != nullptr && route.limited && route.json_body)
        request_log_->write(clock_.unix_seconds(), request.id, exchange->context().tenant, request.path, request.body);
      route.handler(*this, exchange);
    } catch (const std::exception& e) {
      DI_LOG(kError, "request {}: {}", exchange->request().id, e.what());
      reply_error(*exchange, {ErrorKind::kInternal, "internal error", {}, {}, 0});
    }
  });
}

bool App::hold(const Route& route, const ExchangeRef& exchange) {
  if (!config_.queue_while_loading || !route.limited || !route.json_body) return false;
  const std::lock_guard lock(mutex_);
  if (phase_.load() != Phase::kLoading || held_.size() >= kMaxHeld) return false;
  held_.emplace_back(&route, exchange);
  return true;
}

bool App::refuse_held() {
  std::vector<std::pair<const Route*, ExchangeRef>> held;
  {
    const std::lock_guard lock(mutex_);
    held.swap(held_);
  }
  for (const auto& [route, exchange] : held)
    reply_error(*exchange, {ErrorKind::kDraining, "the server is shutting down", {}, {}, 0});
  return !held.empty();
}

void App::request_finished(const RequestRecord& r, int64_t last_token_ns) {
  const auto seconds = [](int64_t from, int64_t to) { return static_cast<double>(to - from) * 1e-9; };
  ServerMetrics& m = metrics_;
  const double total = seconds(r.received_ns, r.sent_ns);
  m.request_done(r.route, r.status, total);
  m.prompt_tokens.add(static_cast<uint64_t>(r.prompt_tokens));
  m.prompt_tokens_cached.add(static_cast<uint64_t>(r.cached_tokens));
  m.preemptions_per_request.observe(r.preemptions);
  m.stage_parse.observe(seconds(0, r.parse_ns));
  m.stage_render.observe(seconds(0, r.render_ns));
  m.stage_tokenize.observe(seconds(0, r.tokenize_ns));
  m.stage_detokenize.observe(seconds(0, r.detokenize_ns));
  m.stage_serialize.observe(seconds(0, r.serialize_ns));
  if (r.scheduled_ns > 0) m.stage_queue.observe(seconds(r.queued_ns, r.scheduled_ns));
  const int64_t tokens = r.output_tokens;
  const int64_t first_token_ns = r.first_sent_ns;
  const double tpot = tokens > 1 ? seconds(first_token_ns, last_token_ns) / static_cast<double>(tokens - 1) : 0;
  if (r.finish != "abort" && r.finish != "error") {
    m.prompt_tokens_per_request.observe(static_cast<double>(r.prompt_tokens));
    m.generation_tokens_per_request.observe(static_cast<double>(tokens));
    m.longest_output_per_request.observe(static_cast<double>(r.longest_output));
    m.computed_tokens_per_request.observe(static_cast<double>(r.prompt_tokens - r.cached_tokens));
    m.e2e_latency.observe(total);
    if (tokens > 1) m.time_per_output_token.observe(tpot);
    if (r.scheduled_ns > 0) m.queue_time.observe(seconds(r.queued_ns, r.scheduled_ns));
    if (r.first_token_ns > 0) {
      m.prefill_time.observe(seconds(r.scheduled_ns, r.first_token_ns));
      if (r.finished_ns > 0) {
        m.decode_time.observe(seconds(r.first_token_ns, r.finished_ns));
        m.inference_time.observe(seconds(r.scheduled_ns, r.finished_ns));
      }
    }
  }
  if (config_.metrics_tenant) metrics_.tenant_done(r);
  auth_->count_tokens(r.tenant, r.prompt_tokens + tokens);
  if (log_enabled(LogLevel::kInfo, log_room(__FILE__))) log_access(r, first_token_ns, tpot);
}

void App::reply_error(Exchange& exchange, const ApiFailure& failure) {
  const HttpRequest& request = exchange.request();
  const HttpResponse response = error_response(failure, error_family(request.path), request.id);
  metrics_.error(failure.code.empty() ? default_code(failure.kind) : std::string_view(failure.code));
  const double seconds = static_cast<double>(clock_.now_ns() - request.received_ns) * 1e-9;
  metrics_.request_done(route_label(request), response.status, seconds);
  DI_LOG(kInfo, "{} {} {} -> {} {}", request.id, request.method, request.path, response.status,
         failure.code.empty() ? default_code(failure.kind) : std::string_view(failure.code));
  exchange.reply(response);
}

void App::reply_json(Exchange& exchange, std::string body, int status) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(body);
  exchange.reply(std::move(response));
}

}  // namespace di::server
