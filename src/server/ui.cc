#include "server/ui.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "server/app.h"
#include "server/routes.h"
#include "server/web_assets.h"

namespace di::server {
namespace {

// The value of a parameter as it stands in the query; those read here need no decoding.
std::optional<std::string_view> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view part = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (part.starts_with(name) && part.size() > name.size() && part[name.size()] == '=')
      return part.substr(name.size() + 1);
  }
  return std::nullopt;
}

// Nothing from elsewhere, nothing inline; data: and blob: are for pictures that the user attaches.
constexpr std::string_view kContentPolicy =
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

void send_asset(App& app, const ExchangeRef& exchange, std::string_view name) {
  const std::span<const WebAsset> assets = web_assets();
  const auto asset = std::find_if(assets.begin(), assets.end(), [&](const WebAsset& a) { return a.name == name; });
  if (asset == assets.end()) {
    return app.reply_error(
        *exchange, {ErrorKind::kNotFound, fmt::format("no such path: GET /ui/{}", name.substr(0, 128)), {}, {}, 0});
  }
  HttpResponse response;
  response.content_type = asset->content_type;
  response.headers = {{"Content-Security-Policy", std::string(kContentPolicy)},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"},  // kept, but asked for again: a new build shows at once
                      {"ETag", std::string(asset->etag)}};
  if (exchange->request().header("if-none-match") == asset->etag) {
    response.status = 304;
  } else {
    response.body = asset->bytes;
  }
  exchange->reply(std::move(response));
}

}  // namespace

void ui_page(App& app, const ExchangeRef& exchange) {
  send_asset(app, exchange, "index.html");
}

// Relative, so that it holds behind a proxy that puts the server below a path.
void ui_redirect(App&, const ExchangeRef& exchange) {
  HttpResponse response;
  response.status = 308;
  response.content_type.clear();
  response.headers.emplace_back("Location", exchange->request().path.ends_with('/') ? "../" : "./");
  exchange->reply(std::move(response));
}

void ui_asset(App& app, const ExchangeRef& exchange) {
  send_asset(app, exchange, last_segment(exchange->request().path));
}

void ui_feed(App& app, const ExchangeRef& exchange) {
  if (app.feed().subscribe(exchange)) return;
  if (app.phase() == App::Phase::kRefusing)
    return app.reply_error(*exchange, {ErrorKind::kDraining, "the server is shutting down", {}, {}, 5});
  app.reply_error(*exchange, {ErrorKind::kOverloaded,
                              fmt::format("{} dashboards are open, no more are served", UiFeed::kMaxSubscribers),
                              {},
                              {},
                              5});
}

void admin_requests(App& app, const ExchangeRef& exchange) {
  std::size_t limit = 1000;
  if (const auto text = query_value(exchange->request().query, "limit")) {
    const auto [end, status] = std::from_chars(text->data(), text->data() + text->size(), limit);
    if (status != std::errc() || end != text->data() + text->size() || limit < 1 || limit > 1000) {
      return app.reply_error(*exchange,
                             {ErrorKind::kInvalidRequest, fmt::format("limit is `{}`, expected 1 to 1000", *text),
                              "invalid_value", "limit", 0});
    }
  }
  app.reply_json(*exchange, app.timelines().list_json(limit));
}

void admin_request(App& app, const ExchangeRef& exchange) {
  const HttpRequest& request = exchange->request();
  const std::string_view id = last_segment(request.path);
  const std::string_view format = query_value(request.query, "format").value_or("json");
  if (format != "json" && format != "chrome") {
    return app.reply_error(*exchange,
                           {ErrorKind::kInvalidRequest, fmt::format("format is `{}`, expected json or chrome", format),
                            "invalid_value", "format", 0});
  }
  const TimelineRef line = app.timelines().find(id);
  if (line == nullptr) {
    return app.reply_error(
        *exchange,
        {ErrorKind::kNotFound, fmt::format("no request `{}` among the last 1,000", id.substr(0, 128)), {}, {}, 0});
  }
  const int64_t now = app.clock().now_ns();
  app.reply_json(*exchange, format == "chrome" ? line->chrome_json(now) : line->json(now));
}

}  // namespace di::server
