#include "server/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "base/json.h"
#include "server/app.h"
#include "server/build_info.h"
#include "server/ui.h"

namespace di::server {
namespace {

// That the network's thread turns is shown by the answer.
void livez(App& app, const ExchangeRef& exchange) {
  const bool alive = is_alive(app);
  exchange->reply({.status = alive ? 200 : 503,
                   .content_type = "application/json",
                   .headers = {},
                   .body = alive ? R"({"status":"ok"})" : R"({"status":"stalled"})"});
}

// Truthful while loading and draining: balancers send nothing to a server that says 503 here.
void readyz(App& app, const ExchangeRef& exchange) {
  const App::Phase phase = app.phase();
  const App::Progress progress = app.progress();
  const bool ready = phase == App::Phase::kReady;
  std::string body;
  JsonWriter w(body);
  w.begin_object().key("status").value(ready ? "ready" : phase == App::Phase::kLoading ? "loading" : "draining");
  w.key("progress").value(progress.fraction);
  if (!ready) w.key("reason").value(phase == App::Phase::kLoading ? progress.stage : std::string("shutting down"));
  w.end_object();
  HttpResponse response;
  response.status = ready ? 200 : 503;
  response.body = std::move(body);
  if (!ready) response.headers.emplace_back("Retry-After", "2");
  exchange->reply(std::move(response));
}

void health(App& app, const ExchangeRef& exchange) {
  HttpResponse response;
  response.status = app.phase() == App::Phase::kReady ? 200 : 503;
  response.content_type.clear();
  exchange->reply(std::move(response));
}

void ping(App& app, const ExchangeRef& exchange) {
  health(app, exchange);
}

void version(App& app, const ExchangeRef& exchange) {
  std::string body;
  JsonWriter w(body);
#ifdef NDEBUG
  constexpr std::string_view kBuild = "release";
#else
  constexpr std::string_view kBuild = "debug checks";
#endif
  w.begin_object().key("version").value(DI_VERSION).key("git");
  if (git_commit().empty()) {
    w.null();
  } else {
    w.value(git_commit());
  }
  w.key("build").value(kBuild).key("compiler").value(__VERSION__);
  w.key("backend");
  if (app.service() == nullptr) {
    w.null();
  } else {
    w.value(app.service()->engine->info().backend);
  }
  w.end_object();
  app.reply_json(*exchange, std::move(body));
}

void metrics(App& app, const ExchangeRef& exchange) {
  const bool open = exchange->request().header("accept").find("application/openmetrics-text") != std::string_view::npos;
  HttpResponse response;
  response.content_type =
      open ? "application/openmetrics-text; version=1.0.0; charset=utf-8" : "text/plain; version=0.0.4; charset=utf-8";
  response.body = open ? app.metrics().open_metrics() : app.metrics().text();
  exchange->reply(std::move(response));
}

void load(App& app, const ExchangeRef& exchange) {
  const Service* service = app.service();
  const engine::EngineStats stats = service == nullptr ? engine::EngineStats{} : service->engine->stats();
  std::string body;
  JsonWriter(body).begin_object().key("server_load").value(stats.running + stats.waiting).end_object();
  app.reply_json(*exchange, std::move(body));
}

void write_capabilities(JsonWriter& w, bool vision) {
  w.key("capabilities").begin_object().key("thinking").value(true).key("tools").value(true);
  w.key("json_schema").value(true).key("regex").value(true).key("vision").value(vision).key("fim").value(true);
  w.end_object();
}

void write_model(JsonWriter& w, const App& app, const std::string& name) {
  const Service* service = app.service();
  w.begin_object().key("id").value(name).key("object").value("model");
  w.key("created").value(service == nullptr ? app.clock().unix_seconds() : service->created);
  w.key("owned_by").value("deepinfer").key("root").value(app.config().served_model_names[0]).key("parent").null();
  w.key("max_model_len");
  if (service == nullptr) {
    w.null();
  } else {
    w.value(service->engine->info().max_model_len);
  }
  w.key("permission").begin_array().end_array();
  write_capabilities(w, app.codec() != nullptr && app.codec()->vision);
  if (service != nullptr) {
    const int64_t context = service->engine->info().max_model_len;
    w.key("limits")
        .begin_object()
        .key("context")
        .value(context)
        .key("output")
        .value(std::min<int64_t>(context, service->codec.thinking_max_tokens_upper_bound))
        .end_object();
  } else {
    w.key("status").value("loading");
  }
  w.end_object();
}

// Anthropic's form.
void write_messages_model(JsonWriter& w, const App& app, const std::string& name) {
  const Service* service = app.service();
  const std::time_t created = service == nullptr ? app.clock().unix_seconds() : service->created;
  std::tm utc{};
  gmtime_r(&created, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  w.begin_object().key("type").value("model").key("id").value(name).key("display_name").value(name);
  w.key("created_at").value(text).end_object();
}

void messages_models(App& app, const ExchangeRef& exchange) {
  const std::vector<std::string>& names = app.config().served_model_names;
  std::string body;
  JsonWriter w(body);
  w.begin_object().key("data").begin_array();
  for (const std::string& name : names) write_messages_model(w, app, name);
  w.end_array().key("has_more").value(false).key("first_id").value(names.front());
  w.key("last_id").value(names.back());
  if (app.service() == nullptr) w.key("status").value("loading");
  w.end_object();
  app.reply_json(*exchange, std::move(body));
}

bool wants_messages_form(const HttpRequest& request) {
  return !request.header("anthropic-version").empty() || request.path.starts_with("/anthropic/");
}

void models(App& app, const ExchangeRef& exchange) {
  if (wants_messages_form(exchange->request())) return messages_models(app, exchange);
  std::string body;
  JsonWriter w(body);
  w.begin_object().key("object").value("list").key("data").begin_array();
  for (const std::string& name : app.config().served_model_names) write_model(w, app, name);
  w.end_array();
  if (app.service() == nullptr) w.key("status").value("loading");
  w.end_object();
  app.reply_json(*exchange, std::move(body));
}

void model(App& app, const ExchangeRef& exchange) {
  const std::string name(last_segment(exchange->request().path));
  const std::vector<std::string>& names = app.config().served_model_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    app.reply_error(
        *exchange,
        {ErrorKind::kModelNotFound, fmt::format("the model `{}` does not exist", name.substr(0, 200)), {}, "model", 0});
    return;
  }
  std::string body;
  JsonWriter w(body);
  if (wants_messages_form(exchange->request())) {
    write_messages_model(w, app, name);
  } else {
    write_model(w, app, name);
  }
  app.reply_json(*exchange, std::move(body));
}

// Some clients ask for it before anything else.
void balance(App& app, const ExchangeRef& exchange) {
  app.reply_json(*exchange, R"({"is_available":true,"balance_infos":[]})");
}

void not_implemented(App& app, const ExchangeRef& exchange) {
  app.reply_error(*exchange, {ErrorKind::kNotImplemented, "this route is not implemented", {}, {}, 0});
}

std::optional<ResponsesStore::Entry> stored_response(App& app, Exchange& exchange, std::string_view id) {
  auto entry = app.responses().get(exchange.context().tenant, id);
  if (!entry) {
    app.reply_error(
        exchange, {ErrorKind::kNotFound, fmt::format("no stored response with id `{}`", id.substr(0, 100)), {}, {}, 0});
  }
  return entry;
}

void get_response(App& app, const ExchangeRef& exchange) {
  if (const auto entry = stored_response(app, *exchange, last_segment(exchange->request().path)))
    app.reply_json(*exchange, to_json(entry->response));
}

void delete_response(App& app, const ExchangeRef& exchange) {
  const auto entry = stored_response(app, *exchange, last_segment(exchange->request().path));
  if (!entry) return;
  for (const auto& job : app.jobs()) {
    const RequestRecord record = job->record();
    if (record.response_id == entry->id && record.finish.empty()) job->cancel();
  }
  app.responses().remove(entry->tenant, entry->id);
  std::string body;
  JsonWriter w(body);
  w.begin_object().key("id").value(entry->id).key("object").value("response").key("deleted").value(true).end_object();
  app.reply_json(*exchange, std::move(body));
}

// One token through the whole engine.
void health_generate(App& app, const ExchangeRef& exchange) {
  if (const auto refusal = app.refusal()) return app.reply_error(*exchange, *refusal);
  engine::GenerateRequest g;
  g.id = exchange->request().id;
  const auto bos = app.service()->tokenizer->added_id(app.service()->codec.special.bos);
  g.prompt = {bos.value_or(0)};
  g.max_tokens = 1;
  g.deadline_ns = app.clock().now_ns() + 20 * kNsPerSecond;
  const auto id = app.service()->engine->submit(std::move(g), [exchange, sent = false](engine::Output output) mutable {
    if (output.finish == engine::FinishReason::kNone || sent) return;
    sent = true;
    HttpResponse response;
    response.status = output.finish == engine::FinishReason::kError ? 503 : 200;
    response.content_type.clear();
    exchange->reply(std::move(response));
  });
  if (!id) app.reply_error(*exchange, from_error(id.error().error));
}

constexpr Scope kPublic = Scope::kPublic;
constexpr Scope kInference = Scope::kInference;
constexpr Scope kAdmin = Scope::kAdmin;

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", handle_chat_completions, kInference, true, true, true, "Chat Completions"},
    {"POST", "/chat/completions", handle_chat_completions, kInference, true, true, true},
    {"POST", "/beta/chat/completions", handle_chat_completions, kInference, true, true, true},
    {"POST", "/v1/completions", handle_completions, kInference, true, true, true, "Completions"},
    {"POST", "/completions", handle_completions, kInference, true, true, true},
    {"POST", "/beta/completions", handle_completions, kInference, true, true, true},
    {"POST", "/v1/responses", handle_responses, kInference, true, true, true, "Responses"},
    {"POST", "/responses", handle_responses, kInference, true, true, true},
    {"POST", "/beta/responses", handle_responses, kInference, true, true, true},
    {"POST", "/v1/responses/input_tokens", handle_input_tokens, kInference, true, true, false,
     "Count the tokens of a Responses request"},
    {"POST", "/v1/responses/compact", not_implemented, kInference, false, true},
    {"GET", "/v1/responses/{id}", get_response, kInference, true, false, false, "A stored response"},
    {"DELETE", "/v1/responses/{id}", delete_response, kInference, true, false, false, "Forget a stored response"},
    {"POST", "/v1/responses/{id}/cancel", handle_cancel, kInference, false, false, false, "End a response under way"},
    {"GET", "/v1/responses/{id}/input_items", not_implemented, kInference},
    {"POST", "/v1/messages", handle_messages, kInference, true, true, true, "Messages"},
    {"POST", "/anthropic/v1/messages", handle_messages, kInference, true, true, true},
    {"POST", "/anthropic/messages", handle_messages, kInference, true, true, true},
    {"POST", "/v1/messages/count_tokens", handle_count_tokens, kInference, true, true, false,
     "Count the tokens of a Messages request"},
    {"POST", "/anthropic/v1/messages/count_tokens", handle_count_tokens, kInference, true, true},
    {"POST", "/anthropic/messages/count_tokens", handle_count_tokens, kInference, true, true},
    {"POST", "/v1/requests/{id}/cancel", handle_cancel, kInference, false, false, false, "End a request under way"},
    {"GET", "/v1/models", models, kInference, false, false, false, "Served models"},
    {"GET", "/models", models, kInference},
    {"GET", "/beta/models", models, kInference},
    {"GET", "/anthropic/v1/models", messages_models, kInference},
    {"GET", "/v1/models/{id}", model, kInference, false, false, false, "One served model"},
    {"GET", "/models/{id}", model, kInference},
    {"GET", "/beta/models/{id}", model, kInference},
    {"GET", "/anthropic/v1/models/{id}", model, kInference},
    {"POST", "/tokenize", handle_tokenize, kInference, true, true, false, "Text or messages to token ids"},
    {"POST", "/detokenize", handle_detokenize, kInference, true, true, false, "Token ids to text"},
    {"POST", "/v1/render", handle_render, kInference, true, true, false, "The prompt of a request"},
    {"POST", "/v1/files", handle_upload, kInference, true, false, true, "Upload an image"},
    {"GET", "/v1/files", handle_list_files, kInference, true, false, false, "Uploaded files"},
    {"GET", "/v1/files/{id}", handle_file, kInference, true, false, false, "An uploaded file"},
    {"DELETE", "/v1/files/{id}", handle_delete_file, kInference, true, false, false, "Forget an uploaded file"},
    {"GET", "/v1/files/{id}/content", handle_file_content, kInference, true, false, false, "Its bytes"},
    {"GET", "/user/balance", balance, kInference, false, false, false, "Always available"},
    {"GET", "/livez", livez, kPublic, false, false, false, "Alive"},
    {"GET", "/readyz", readyz, kPublic, false, false, false, "Ready for requests, or why not"},
    {"GET", "/health", health, kPublic, false, false, false, "Ready, without a body"},
    {"GET", "/ping", ping, kPublic, false, false, false, "As /health"},
    {"GET", "/health_generate", health_generate, kInference, true, false, false, "Runs one token"},
    {"GET", "/version", version, kPublic, false, false, false, "What runs"},
    {"GET", "/metrics", metrics, Scope::kMetrics, true, false, false, "Prometheus metrics"},
    {"GET", "/load", load, kInference, false, false, false, "Requests in the engine"},
    {"GET", "/v1/loads", handle_loads, kAdmin, false, false, false, "Load and memory of the engine"},
    {"GET", "/server_info", handle_server_info, kAdmin, false, false, false, "Effective configuration"},
    {"GET", "/props", handle_props, kAdmin, false, false, false, "Properties, as llama.cpp names them"},
    {"GET", "/slots", handle_slots, kAdmin, false, false, false, "Requests under way, as llama.cpp names them"},
    {"GET", "/", ui_page, kPublic},
    {"GET", "/ui", ui_redirect, kPublic},
    {"GET", "/ui/", ui_redirect, kPublic},
    {"GET", "/ui/feed", ui_feed, kAdmin, true},
    {"GET", "/ui/{id}", ui_asset, kPublic},
    {"GET", "/admin/requests", admin_requests, kAdmin, true, false, false, "Requests under way and recent ones"},
    {"GET", "/admin/requests/{id}", admin_request, kAdmin, true, false, false, "Timeline of a request"},
    {"POST", "/admin/drain", handle_drain, kAdmin, true, false, false, "Take no new work, finish, end"},
    {"POST", "/admin/undrain", handle_undrain, kAdmin, true, false, false, "Take work again while draining"},
    {"POST", "/admin/log_level", handle_log_level, kAdmin, true, true, false, "Change the log level"},
    {"GET", "/admin/cache/stats", handle_cache_stats, kAdmin, false, false, false, "What the prefix cache holds"},
    {"POST", "/admin/cache/flush", handle_cache_flush, kAdmin, true, true, false, "Forget earlier prompts"},
    {"POST", "/reset_prefix_cache", handle_cache_flush, kAdmin, true, true},  // as vLLM names it
    {"POST", "/admin/profile", handle_profile, kAdmin, true, true, false, "A trace of the engine's next seconds"},
    {"POST", "/admin/cache/lookup", handle_cache_lookup, kAdmin, true, true, false, "How much of a prompt is known"},
    {"GET", "/openapi.json", handle_openapi, kInference, true, false, false, "This description"},
};

// `{id}` in the pattern takes one segment that is not empty.
bool path_matches(std::string_view pattern, std::string_view path) {
  constexpr std::string_view kId = "{id}";
  const size_t at = pattern.find(kId);
  if (at == std::string_view::npos) return pattern == path;
  const std::string_view tail = pattern.substr(at + kId.size());
  if (!path.starts_with(pattern.substr(0, at)) || !path.ends_with(tail) || path.size() <= at + tail.size())
    return false;
  return path.substr(at, path.size() - at - tail.size()).find('/') == std::string_view::npos;
}

bool json_content_type(std::string_view type) {
  const size_t semicolon = type.find(';');
  std::string_view essence = type.substr(0, semicolon);
  while (!essence.empty() && essence.back() == ' ') essence.remove_suffix(1);
  if (essence.empty()) return true;
  if (!equal_ignoring_case(essence, "application/json") && !equal_ignoring_case(essence, "text/json")) return false;
  if (semicolon == std::string_view::npos) return true;
  std::string parameters(type.substr(semicolon + 1));
  std::transform(parameters.begin(), parameters.end(), parameters.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const size_t charset = parameters.find("charset=");
  if (charset == std::string::npos) return true;
  std::string_view value = std::string_view(parameters).substr(charset + 8);
  if (value.starts_with('"')) value.remove_prefix(1);
  return value.starts_with("utf-8") || value.starts_with("utf8");
}

}  // namespace

bool is_alive(const App& app) {
  const Service* service = app.service();
  if (service == nullptr || app.config().liveness_stall_ms == 0) return true;
  const engine::EngineStats stats = service->engine->stats();
  const int64_t still_ms = (app.clock().now_ns() - stats.last_step_ns) / kNsPerMs;
  return stats.running + stats.waiting == 0 || still_ms < app.config().liveness_stall_ms;
}

std::span<const Route> all_routes() {
  return kRoutes;
}

std::string route_label(const HttpRequest& request) {
  for (const Route& route : kRoutes) {
    if (path_matches(route.path, request.path)) return std::string(route.path);
  }
  return "other";
}

std::string_view id_segment(const HttpRequest& request, const Route& route) {
  const size_t at = route.path.find("{id}");
  const std::string_view rest = std::string_view(request.path).substr(at);
  return rest.substr(0, rest.find('/'));
}

std::string_view last_segment(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

RouteDecision no_route(const HttpRequest& request) {
  RouteDecision decision;
  decision.failure =
      ApiFailure{ErrorKind::kNotFound,
                 fmt::format("no such path: {} {}", request.method, std::string_view(request.path).substr(0, 300)),
                 {},
                 {},
                 0};
  return decision;
}

RouteDecision find_route(const HttpRequest& request) {
  RouteDecision decision;
  const bool normal = is_normal_path(request.path);
  std::vector<std::string_view> allowed;
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  for (const Route& route : kRoutes) {
    if (!normal || !path_matches(route.path, request.path)) continue;
    if (route.method == method) {
      decision.route = &route;
      break;
    }
    decision.public_path = route.scope == Scope::kPublic;
    allowed.push_back(route.method == "GET" ? "GET, HEAD" : route.method);
  }
  decision.allow = fmt::format("{}", fmt::join(allowed, ", "));
  if (decision.route == nullptr) {
    if (decision.allow.empty()) {
      decision.failure = no_route(request).failure;
    } else {
      decision.failure = ApiFailure{ErrorKind::kMethodNotAllowed,
                                    fmt::format("{} is not allowed here, expected {}", request.method, decision.allow),
                                    {},
                                    {},
                                    0};
    }
    return decision;
  }
  decision.allow.clear();
  if (!decision.route->json_body) return decision;
  if (!json_content_type(request.header("content-type"))) {
    decision.failure =
        ApiFailure{ErrorKind::kMediaType,
                   fmt::format("Content-Type is `{}`, expected application/json", request.header("content-type")),
                   {},
                   {},
                   0};
  }
  return decision;
}

}  // namespace di::server
