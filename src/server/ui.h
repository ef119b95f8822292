// What serves the web page (server.md §14): its files, its feed of figures and the timelines of requests. The page
// itself is src/server/web/, put into the program when it is built. Thread-safe.
#pragma once

#include "server/http.h"

namespace di::server {

class App;

// GET /: the page. GET /ui, /ui/: sends there.
void ui_page(App& app, const ExchangeRef& exchange);
void ui_redirect(App& app, const ExchangeRef& exchange);
// GET /ui/{name}: one of its files.
void ui_asset(App& app, const ExchangeRef& exchange);
// GET /ui/feed: figures as server-sent events (ui_feed.h).
void ui_feed(App& app, const ExchangeRef& exchange);
// GET /admin/requests?limit=N: the recent requests, newest first.
void admin_requests(App& app, const ExchangeRef& exchange);
// GET /admin/requests/{id}?format=json|chrome: one timeline.
void admin_request(App& app, const ExchangeRef& exchange);

}  // namespace di::server
