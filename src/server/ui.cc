#include "server/ui.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "server/app.h"
#include "server/routes.h"

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

}  // namespace

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
