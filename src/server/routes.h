// The table of routes (server.md §3). A new route is a line in routes.cc and a handler.
#pragma once

#include <optional>
#include <string>

#include "server/errors.h"
#include "server/http.h"

namespace di::server {

class App;

struct Route {
  std::string_view method;  // GET routes answer HEAD too
  std::string_view path;    // a last segment `{id}` takes any one segment
  void (*handler)(App&, const ExchangeRef&) = nullptr;
  bool json_body = false;  // the content type is checked
  bool blocking = false;   // runs on a worker, not on the network's thread
};

struct RouteDecision {
  const Route* route = nullptr;
  std::optional<ApiFailure> failure;  // set when there is no route
  std::string allow;                  // of a wrong method
};

RouteDecision find_route(const HttpRequest& request);

// Last segment of the path.
std::string_view last_segment(std::string_view path);

}  // namespace di::server
