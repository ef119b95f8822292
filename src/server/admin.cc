// Administration, load and introspection (server.md §2.5, §9, §15.4).
#include <algorithm>

#include "base/json.h"
#include "base/log.h"
#include "server/app.h"
#include "server/fields.h"
#include "server/routes.h"

namespace di::server {
namespace {

// The segment of the path that stands for an id, counted from 0.
std::string path_segment(const HttpRequest& request, size_t index) {
  std::string_view rest = request.path;
  rest.remove_prefix(1);
  for (; index > 0; --index) rest.remove_prefix(std::min(rest.size(), rest.find('/') + 1));
  return std::string(rest.substr(0, rest.find('/')));
}

engine::EngineStats stats_of(const App& app) {
  return app.service() == nullptr ? engine::EngineStats{} : app.service()->engine->stats();
}

bool has_id(const RequestRecord& record, std::string_view id) {
  return record.id == id || record.response_id == id;
}

std::string status_json(std::string_view status) {
  std::string out;
  JsonWriter(out).begin_object().key("status").value(status).end_object();
  return out;
}

// The stored response, whose end may still be on its way, or as much as is known of one that is not stored.
void cancelled_response(App& app, const ExchangeRef& exchange, const std::string& id, bool found) {
  if (auto entry = app.responses().get(exchange->context().tenant, id)) {
    if (found) entry->response.set("status", Json("cancelled"));
    return app.reply_json(*exchange, to_json(entry->response));
  }
  if (!found) {
    return app.reply_error(
        *exchange,
        {ErrorKind::kNotFound, fmt::format("no response with id `{}` is under way", id.substr(0, 100)), {}, {}, 0});
  }
  std::string body;
  JsonWriter w(body);
  w.begin_object().key("id").value(id).key("object").value("response").key("status").value("cancelled").end_object();
  app.reply_json(*exchange, std::move(body));
}

}  // namespace

void handle_cancel(App& app, const ExchangeRef& exchange) {
  const HttpRequest& request = exchange->request();
  const std::string id = path_segment(request, 2);
  bool found = false;
  for (const auto& job : app.jobs()) {
    const RequestRecord record = job->record();
    if (!has_id(record, id) || !record.finish.empty()) continue;
    if (record.tenant != exchange->context().tenant && !exchange->context().admin) continue;
    job->cancel();
    found = true;
  }
  if (request.path.starts_with("/v1/responses/")) return cancelled_response(app, exchange, id, found);
  std::string body;
  JsonWriter(body)
      .begin_object()
      .key("id")
      .value(id)
      .key("status")
      .value(found ? "cancelled" : "not_found")
      .end_object();
  app.reply_json(*exchange, std::move(body));
}

void handle_drain(App& app, const ExchangeRef& exchange) {
  if (!app.request_drain(true))
    return app.reply_error(*exchange, {ErrorKind::kNotImplemented, "this server cannot be drained", {}, {}, 0});
  app.reply_json(*exchange, status_json("draining"));
}

void handle_undrain(App& app, const ExchangeRef& exchange) {
  if (app.phase() != App::Phase::kDraining && app.phase() != App::Phase::kRefusing)
    return app.reply_json(*exchange, status_json("not_draining"));
  if (!app.request_drain(false))
    return app.reply_error(*exchange, {ErrorKind::kNotImplemented, "this server cannot be drained", {}, {}, 0});
  app.reply_json(*exchange, status_json("ready"));
}

void handle_log_level(App& app, const ExchangeRef& exchange) {
  const Result<Json> body = parse_json(exchange->request().body);
  if (!body)
    return app.reply_error(*exchange, {ErrorKind::kInvalidRequest, body.error().message, "invalid_json", {}, 0});
  const auto level = string_field(*body, "level");
  if (!level) return app.reply_error(*exchange, level.error());
  static constexpr std::string_view kLevels[] = {"trace", "debug", "info", "warn", "error", "off"};
  const auto found = std::find(std::begin(kLevels), std::end(kLevels), level->value_or(""));
  if (found == std::end(kLevels)) {
    return app.reply_error(
        *exchange,
        {ErrorKind::kInvalidRequest, "level: expected trace, debug, info, warn, error or off", {}, "level", 0});
  }
  set_log_level(static_cast<LogLevel>(found - std::begin(kLevels)));
  std::string out;
  JsonWriter(out).begin_object().key("level").value(*found).end_object();
  app.reply_json(*exchange, std::move(out));
}

void handle_loads(App& app, const ExchangeRef& exchange) {
  const engine::EngineStats s = stats_of(app);
  std::string body;
  JsonWriter w(body);
  w.begin_object().key("loads").begin_array().begin_object().key("rank").value(0);
  w.key("running").value(s.running).key("waiting").value(s.waiting).key("waiting_tokens").value(s.waiting_tokens);
  w.key("kv_used").value(s.used_blocks).key("kv_total").value(s.total_blocks).key("swa_used").value(s.used_slots);
  w.end_object().end_array().end_object();
  app.reply_json(*exchange, std::move(body));
}

void handle_server_info(App& app, const ExchangeRef& exchange) {
  std::string body;
  JsonWriter w(body);
  w.begin_object().key("version").value(DI_VERSION).key("config").value(app.config().effective);
  w.key("served_model_names").begin_array();
  for (const std::string& name : app.config().served_model_names) w.value(name);
  w.end_array().key("engine");
  if (app.service() == nullptr) {
    w.null();
  } else {
    const engine::EngineInfo& info = app.service()->engine->info();
    w.begin_object().key("backend").value(info.backend).key("max_model_len").value(info.max_model_len);
    w.key("max_num_seqs").value(info.max_num_seqs).key("block_tokens").value(info.block_tokens);
    w.key("blocks").value(info.n_blocks).key("kv_dtype").value(info.kv_dtype).key("vocab_size").value(info.vocab_size);
    w.end_object();
  }
  w.end_object();
  app.reply_json(*exchange, std::move(body));
}

void handle_props(App& app, const ExchangeRef& exchange) {
  std::string body;
  JsonWriter w(body);
  w.begin_object().key("total_slots");
  if (app.service() == nullptr) {
    w.null();
  } else {
    w.value(app.service()->engine->info().max_num_seqs);
  }
  w.key("model_alias").value(app.config().served_model_names[0]).key("build_info").value(DI_VERSION);
  w.key("default_generation_settings").begin_object().key("n_ctx");
  if (app.service() == nullptr) {
    w.null();
  } else {
    w.value(app.service()->engine->info().max_model_len);
  }
  w.end_object().end_object();
  app.reply_json(*exchange, std::move(body));
}

// Without prompts: those are nobody else's business.
void handle_slots(App& app, const ExchangeRef& exchange) {
  std::string body;
  JsonWriter w(body);
  w.begin_array();
  int64_t id = 0;
  for (const auto& job : app.jobs()) {
    const RequestRecord r = job->record();
    if (!r.finish.empty()) continue;
    w.begin_object().key("id").value(id++).key("is_processing").value(r.scheduled_ns > 0);
    w.key("n_prompt_tokens").value(r.prompt_tokens).key("n_decoded").value(r.output_tokens).end_object();
  }
  w.end_array();
  app.reply_json(*exchange, std::move(body));
}

}  // namespace di::server
