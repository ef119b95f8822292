#include "server/routes.h"

#include <algorithm>

#include "base/json.h"
#include "server/app.h"
#include "server/ui.h"

namespace di::server {
namespace {

void livez(App&, const ExchangeRef& exchange) {
  exchange->reply({.status = 200, .content_type = "application/json", .headers = {}, .body = R"({"status":"ok"})"});
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
  JsonWriter(body).begin_object().key("version").value(DI_VERSION).end_object();
  app.reply_json(*exchange, std::move(body));
}

void metrics(App& app, const ExchangeRef& exchange) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = app.metrics().text();
  exchange->reply(std::move(response));
}

void load(App& app, const ExchangeRef& exchange) {
  const Service* service = app.service();
  const engine::EngineStats stats = service == nullptr ? engine::EngineStats{} : service->engine->stats();
  std::string body;
  JsonWriter(body).begin_object().key("server_load").value(stats.running + stats.waiting).end_object();
  app.reply_json(*exchange, std::move(body));
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
  w.key("capabilities")
      .begin_object()
      .key("thinking")
      .value(true)
      .key("tools")
      .value(true)
      .key("json_schema")
      .value(false);
  w.key("regex").value(false).key("vision").value(false).key("fim").value(false).end_object();
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

void models(App& app, const ExchangeRef& exchange) {
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
    app.reply_error(*exchange,
                    {ErrorKind::kModelNotFound, fmt::format("the model `{}` does not exist", name), {}, "model", 0});
    return;
  }
  std::string body;
  JsonWriter w(body);
  write_model(w, app, name);
  app.reply_json(*exchange, std::move(body));
}

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", handle_chat_completions, true, true},
    {"POST", "/chat/completions", handle_chat_completions, true, true},
    {"POST", "/beta/chat/completions", handle_chat_completions, true, true},
    {"GET", "/v1/models", models},
    {"GET", "/models", models},
    {"GET", "/beta/models", models},
    {"GET", "/v1/models/{id}", model},
    {"GET", "/models/{id}", model},
    {"GET", "/beta/models/{id}", model},
    {"GET", "/livez", livez},
    {"GET", "/readyz", readyz},
    {"GET", "/health", health},
    {"GET", "/ping", ping},
    {"GET", "/version", version},
    {"GET", "/metrics", metrics, false, true},
    {"GET", "/load", load},
    {"GET", "/", ui_page},
    {"GET", "/ui", ui_redirect},
    {"GET", "/ui/", ui_redirect},
    {"GET", "/ui/feed", ui_feed, false, true},
    {"GET", "/ui/{id}", ui_asset},
    {"GET", "/admin/requests", admin_requests},
    {"GET", "/admin/requests/{id}", admin_request},
};

bool path_matches(std::string_view pattern, std::string_view path) {
  constexpr std::string_view kId = "/{id}";
  if (!pattern.ends_with(kId)) return pattern == path;
  const std::string_view prefix = pattern.substr(0, pattern.size() - kId.size() + 1);  // with the slash
  return path.starts_with(prefix) && path.size() > prefix.size() &&
         path.substr(prefix.size()).find('/') == std::string_view::npos;
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

std::string_view last_segment(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

RouteDecision find_route(const HttpRequest& request) {
  RouteDecision decision;
  const bool normal = is_normal_path(request.path);
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);
  for (const Route& route : kRoutes) {
    if (!normal || !path_matches(route.path, request.path)) continue;
    if (route.method == method) {
      decision.route = &route;
      break;
    }
    decision.allow = route.method == "GET" ? "GET, HEAD" : std::string(route.method);
  }
  if (decision.route == nullptr) {
    if (decision.allow.empty()) {
      decision.failure =
          ApiFailure{ErrorKind::kNotFound, fmt::format("no such path: {} {}", request.method, request.path), {}, {}, 0};
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
  } else if (const std::string_view encoding = request.header("content-encoding");
             !encoding.empty() && !equal_ignoring_case(encoding, "identity")) {
    decision.failure =
        ApiFailure{ErrorKind::kMediaType, fmt::format("Content-Encoding is `{}`, expected none", encoding), {}, {}, 0};
  }
  return decision;
}

}  // namespace di::server
