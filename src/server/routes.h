// The table of routes (server.md §3). A new route is a line in routes.cc and a handler.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/auth.h"
#include "server/errors.h"
#include "server/http.h"

namespace di::server {

class App;

struct Route {
  std::string_view method;  // GET routes answer HEAD too
  std::string_view path;    // `{id}` takes any one segment
  void (*handler)(App&, const ExchangeRef&) = nullptr;
  Scope scope = Scope::kInference;
  bool blocking = false;          // runs on a worker, not on the network's thread
  bool json_body = false;         // the content type is checked
  bool limited = false;           // counts against the key's limits
  std::string_view summary = {};  // for /openapi.json; empty: an alias that is not listed

  // Belongs to the administration's port, where there is one: administration, metrics and the web page.
  bool is_administration() const {
    return scope == Scope::kAdmin || scope == Scope::kMetrics || path == "/" || path.starts_with("/ui");
  }
};

struct RouteDecision {
  const Route* route = nullptr;
  std::optional<ApiFailure> failure;  // set when there is no route
  std::string allow;                  // of a wrong method
  bool public_path = false;           // the path is public, whatever the method
};

RouteDecision find_route(const HttpRequest& request);
// As if its path did not exist.
RouteDecision no_route(const HttpRequest& request);

// The table itself.
std::span<const Route> all_routes();

// The request's route as a metric label: paths that no route has are one.
std::string route_label(const HttpRequest& request);

// The segment in the place of `{id}`.
std::string_view id_segment(const HttpRequest& request, const Route& route);

// Last segment of the path.
std::string_view last_segment(std::string_view path);

// files.cc
void handle_upload(App& app, const ExchangeRef& exchange);
void handle_list_files(App& app, const ExchangeRef& exchange);
void handle_file(App& app, const ExchangeRef& exchange);
void handle_file_content(App& app, const ExchangeRef& exchange);
void handle_delete_file(App& app, const ExchangeRef& exchange);

// admin.cc
void handle_drain(App& app, const ExchangeRef& exchange);
void handle_undrain(App& app, const ExchangeRef& exchange);
void handle_log_level(App& app, const ExchangeRef& exchange);
void handle_cache_stats(App& app, const ExchangeRef& exchange);
void handle_cache_flush(App& app, const ExchangeRef& exchange);
void handle_profile(App& app, const ExchangeRef& exchange);
void handle_loads(App& app, const ExchangeRef& exchange);
void handle_server_info(App& app, const ExchangeRef& exchange);
void handle_props(App& app, const ExchangeRef& exchange);
void handle_slots(App& app, const ExchangeRef& exchange);
void handle_cancel(App& app, const ExchangeRef& exchange);
void handle_openapi(App& app, const ExchangeRef& exchange);

}  // namespace di::server
