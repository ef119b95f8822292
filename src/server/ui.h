// What serves the web page (server.md §14): its files, its feed of figures and the timelines of requests. The page
// itself is src/server/web/, put into the program when it is built. Thread-safe.
#pragma once

#include "server/http.h"

namespace di::server {

class App;

// GET /admin/requests?limit=N: the recent requests, newest first.
void admin_requests(App& app, const ExchangeRef& exchange);
// GET /admin/requests/{id}?format=json|chrome: one timeline.
void admin_request(App& app, const ExchangeRef& exchange);

}  // namespace di::server
