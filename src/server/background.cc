#include "server/background.h"

#include <utility>

namespace di::server {

BackgroundExchange::BackgroundExchange(App& app, ExchangeRef client, std::string response_id)
    : app_(app), client_(std::move(client)), id_(std::move(response_id)) {
  context() = client_->context();
}

void BackgroundExchange::accept() {
  {
    const std::lock_guard lock(mutex_);
    if (refused_ || accepted_) return;
    accepted_ = true;
  }
  const auto entry = app_.responses().get(context().tenant, id_);
  if (!entry) return app_.reply_error(*client_, {ErrorKind::kNotFound, "the response was deleted", {}, {}, 0});
  app_.reply_json(*client_, to_json(entry->response));
}

// Only errors come this way: an answer in one piece has gone into the store.
void BackgroundExchange::reply(HttpResponse response) {
  if (response.status == 200) return;
  bool refused = false;
  {
    const std::lock_guard lock(mutex_);
    refused = refused_ = !accepted_;
  }
  if (refused) {
    app_.responses().remove(context().tenant, id_);
    return client_->reply(std::move(response));
  }
  const Result<Json> body = parse_json(response.body);
  const Json* error = body ? body->find_value("error") : nullptr;
  const auto text = [&](std::string_view key) {
    const Json* value = error == nullptr ? nullptr : error->find_value(key);
    return value != nullptr && value->is_string() ? value->as_string() : std::string("internal_error");
  };
  if (const auto entry = app_.responses().get(context().tenant, id_))
    app_.responses().update(entry->tenant, id_, failed_response(entry->response, text("code"), text("message")));
}

void BackgroundExchange::begin_stream(HttpResponse response, std::string keep_alive) {
  {
    const std::lock_guard lock(mutex_);
    accepted_ = true;
  }
  client_->begin_stream(std::move(response), std::move(keep_alive));
}

bool BackgroundExchange::write(std::string_view bytes) {
  client_->write(bytes);
  return true;
}

void BackgroundExchange::end_stream() {
  client_->end_stream();
}

Json pending_response(Json body) {
  body.set("status", Json("in_progress"));
  body.set("output", Json(Json::Array{}));
  for (const char* end : {"completed_at", "incomplete_details", "error", "usage"}) body.set(end, Json());
  body.set("background", Json(true));
  body.set("store", Json(true));
  return body;
}

Json failed_response(Json response, std::string_view code, std::string_view message) {
  Json error(Json::Object{});
  error.set("code", Json(code));
  error.set("message", Json(message));
  response.set("status", Json("failed"));
  response.set("error", std::move(error));
  return response;
}

}  // namespace di::server
