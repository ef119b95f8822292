#include "server/app.h"

#include <algorithm>

#include "base/log.h"
#include "server/routes.h"

namespace di::server {

App::App(const ServerConfig& config, const Clock& clock)
    : config_(config),
      clock_(clock),
      metrics_(config.served_model_names.at(0)),
      timelines_(clock),
      workers_(std::make_unique<Workers>(config.worker_threads)),
      feed_(clock, {.metrics = [this] { return metrics_.text(); },
                    .write_state = [this](JsonWriter& w) { write_state(w); },
                    .unix_ms =
                        [this, start_ns = clock.now_ns(), start_s = clock.unix_seconds()] {
                          return start_s * 1000 + (clock_.now_ns() - start_ns) / kNsPerMs;
                        }}) {}

App::~App() = default;

void App::set_progress(double fraction, std::string stage) {
  metrics_.set_load_progress(fraction);
  const std::lock_guard lock(mutex_);
  progress_ = {fraction, std::move(stage)};
}

void App::set_ready(Service service) {
  service_ = std::move(service);
  metrics_.attach(*service_.engine);
  if (service_.constraints != nullptr) metrics_.watch(*service_.constraints);
  set_progress(1.0, "ready");
  loaded_.store(true);
  Phase expected = Phase::kLoading;  // a drain that came first stays
  phase_.compare_exchange_strong(expected, Phase::kReady);
}

const Service* App::service() const {
  return loaded_.load() ? &service_ : nullptr;
}

App::Progress App::progress() const {
  const std::lock_guard lock(mutex_);
  return progress_;
}

void App::announce_drain() {
  phase_.store(Phase::kDraining);
}
void App::refuse_new() {
  phase_.store(Phase::kRefusing);
  feed_.close_streams();
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

std::optional<ApiFailure> App::refusal() const {
  if (phase_.load() == Phase::kRefusing)
    return ApiFailure{ErrorKind::kDraining, "the server is shutting down", {}, {}, 5};
  if (!loaded_.load()) return ApiFailure{ErrorKind::kNotReady, "the model is still loading", {}, {}, 2};
  return std::nullopt;
}

void App::add_job(const std::shared_ptr<Job>& job) {
  const std::lock_guard lock(mutex_);
  if (jobs_.size() % 64 == 0) std::erase_if(jobs_, [](const std::weak_ptr<Job>& j) { return j.expired(); });
  jobs_.push_back(job);
}

void App::abort_all() {
  std::list<std::weak_ptr<Job>> jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs.swap(jobs_);
  }
  for (const std::weak_ptr<Job>& weak : jobs) {
    if (const std::shared_ptr<Job> job = weak.lock())
      job->abort({ErrorKind::kDraining, "the server is shutting down", {}, {}, 5});
  }
}

void App::handle(const ExchangeRef& exchange) {
  const RouteDecision decision = find_route(exchange->request());
  if (decision.failure) {
    HttpResponse response =
        error_response(*decision.failure, error_family(exchange->request().path), exchange->request().id);
    if (!decision.allow.empty()) response.headers.emplace_back("Allow", decision.allow);
    metrics_.error(default_code(decision.failure->kind));
    exchange->reply(std::move(response));
    return;
  }
  const Route& route = *decision.route;
  if (!route.blocking) {
    route.handler(*this, exchange);
    return;
  }
  workers_->post([this, &route, exchange] {
    try {
      route.handler(*this, exchange);
    } catch (const std::exception& e) {
      DI_LOG(kError, "request {}: {}", exchange->request().id, e.what());
      reply_error(*exchange, {ErrorKind::kInternal, "internal error", {}, {}, 0});
    }
  });
}

void App::reply_error(Exchange& exchange, const ApiFailure& failure) {
  const HttpRequest& request = exchange.request();
  const HttpResponse response = error_response(failure, error_family(request.path), request.id);
  metrics_.error(failure.code.empty() ? default_code(failure.kind) : std::string_view(failure.code));
  const double seconds = static_cast<double>(clock_.now_ns() - request.received_ns) * 1e-9;
  metrics_.request_done(request.path, response.status, seconds);
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
