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
  const std::optional<bool> called_off = app.request_drain(false);
  if (!called_off)
    return app.reply_error(*exchange, {ErrorKind::kNotImplemented, "this server cannot be drained", {}, {}, 0});
  app.reply_json(*exchange, status_json(*called_off ? "ready" : "draining"));
}

void handle_log_level(App& app, const ExchangeRef& exchange) {
  const Result<Json> body = parse_json(exchange->request().body);
  if (!body)
    return app.reply_error(*exchange, {ErrorKind::kInvalidRequest, body.error().message, "invalid_json", {}, 0});
  const auto level = string_field(*body, "level");
  if (!level) return app.reply_error(*exchange, level.error());
  const std::string text = level->value_or("");
  const Result<LogLevels> levels = parse_log_levels(text);
  if (!levels) return app.reply_error(*exchange, {ErrorKind::kInvalidRequest, levels.error().message, {}, "level", 0});
  set_log_levels(*levels);
  std::string out;
  JsonWriter(out).begin_object().key("level").value(text).end_object();
  app.reply_json(*exchange, std::move(out));
}

void handle_cache_stats(App& app, const ExchangeRef& exchange) {
  const engine::EngineStats s = stats_of(app);
  std::string body;
  JsonWriter w(body);
  w.begin_object().key("device").begin_object().key("blocks").value(s.total_blocks).key("used").value(s.used_blocks);
  w.key("kept").value(s.kept_blocks).key("evicted").value(s.evicted_blocks).key("queried_tokens");
  w.value(s.prefix_queries).key("hit_tokens").value(s.prefix_hits).end_object();
  w.key("host").begin_object().key("windows").value(s.windows.entries).key("bytes").value(s.windows.bytes);
  w.key("hits").value(s.windows.hits).key("hits_lower").value(s.windows.hits_lower).key("misses");
  w.value(s.windows.misses).end_object().end_object();
  app.reply_json(*exchange, std::move(body));
}

// `tier`: device (absent: the same), with the windows on the host that belong to it. There is no other tier.
void handle_cache_flush(App& app, const ExchangeRef& exchange) {
  if (const auto refusal = app.refusal()) return app.reply_error(*exchange, *refusal);
  const std::string& text = exchange->request().body;
  const Result<Json> body = text.empty() ? Result<Json>(Json(Json::Object{})) : parse_json(text);
  if (!body)
    return app.reply_error(*exchange, {ErrorKind::kInvalidRequest, body.error().message, "invalid_json", {}, 0});
  const auto tier = string_field(*body, "tier");
  if (!tier) return app.reply_error(*exchange, tier.error());
  if (tier->value_or("device") != "device") {
    return app.reply_error(*exchange, {ErrorKind::kInvalidRequest, "tier: expected device", {}, "tier", 0});
  }
  app.service()->engine->flush_cache();
  app.reply_json(*exchange, status_json("flushed"));
}

// {"seconds": N}: a Chrome trace of what the engine does in the next N seconds.
void handle_profile(App& app, const ExchangeRef& exchange) {
  if (const auto refusal = app.refusal()) return app.reply_error(*exchange, *refusal);
  const Result<Json> body = parse_json(exchange->request().body);
  if (!body)
    return app.reply_error(*exchange, {ErrorKind::kInvalidRequest, body.error().message, "invalid_json", {}, 0});
  const auto seconds = number_field(*body, "seconds", Profiler::kLeastSeconds, Profiler::kMostSeconds);
  if (!seconds) return app.reply_error(*exchange, seconds.error());
  if (!*seconds)
    return app.reply_error(*exchange, {ErrorKind::kInvalidRequest, "seconds: missing", "missing_field", "seconds", 0});
  const ProfileSource& source = app.service()->profile;
  if (!source.begin)
    return app.reply_error(*exchange, {ErrorKind::kNotImplemented, "this engine cannot be profiled", {}, {}, 0});
  if (!app.profiler().start(source, **seconds, exchange))
    return app.reply_error(*exchange, {ErrorKind::kOverloaded, "a profile is being taken already", {}, {}, 5});
}

void handle_loads(App& app, const ExchangeRef& exchange) {
  const engine::EngineStats s = stats_of(app);
  std::string body;
  JsonWriter w(body);
  w.begin_object().key("loads").begin_array().begin_object().key("rank").value(0);
  w.key("running").value(s.running).key("waiting").value(s.waiting).key("waiting_tokens").value(s.waiting_tokens);
  w.key("kv_used").value(s.used_blocks).key("kv_total").value(s.total_blocks).key("swa_used").value(s.used_slots);
  const auto ratio = [](uint64_t part, uint64_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  w.key("cached_tokens_ratio").value(ratio(s.prefix_hits, s.prefix_queries));
  w.key("spec_accept_len")
      .value(s.speculation.rounds == 0 ? 0.0 : 1 + ratio(s.speculation.accepted, s.speculation.rounds));
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
