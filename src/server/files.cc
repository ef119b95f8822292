// The routes of uploaded files (server.md §8.3). Images only; what they are for is decided by who names them.
#include <algorithm>
#include <charconv>

#include "base/json.h"
#include "server/app.h"
#include "server/file_store.h"
#include "server/routes.h"

namespace di::server {
namespace {

constexpr int64_t kShortestLife = 3600;
constexpr int64_t kLongestLife = 2'592'000;
constexpr size_t kMostListed = 1000;

ApiFailure invalid(std::string_view param, std::string message) {
  return {ErrorKind::kInvalidRequest, std::move(message), "invalid_value", std::string(param), 0};
}

std::optional<int64_t> number(std::string_view text) {
  int64_t out = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  if (text.empty() || error != std::errc() || stop != end) return std::nullopt;
  return out;
}

void write_file(JsonWriter& w, const StoredFile& file) {
  w.begin_object().key("id").value(file.id).key("object").value("file").key("bytes").value(file.bytes->size());
  w.key("created_at").value(file.created).key("expires_at");
  if (file.expires == 0) {
    w.null();
  } else {
    w.value(file.expires);
  }
  w.key("filename").value(file.name).key("purpose").value(file.purpose).key("status").value("processed");
  w.key("status_details").null().end_object();
}

// False: answered, since this server keeps none.
bool files_are_kept(App& app, Exchange& exchange) {
  if (app.files().enabled()) return true;
  app.reply_error(exchange, {ErrorKind::kNotImplemented, "this server keeps no files (--files-store)", {}, {}, 0});
  return false;
}

std::expected<StoredFile, ApiFailure> read_upload(const HttpRequest& request, int64_t now) {
  const Result<std::vector<FormPart>> parts = parse_form(request.header("content-type"), request.body);
  if (!parts) return std::unexpected(invalid({}, parts.error().message));
  StoredFile file;
  file.created = now;
  bool given = false;
  std::optional<int64_t> life;
  for (const FormPart& part : *parts) {
    if (part.name == "file") {
      given = true;
      file.name = part.filename.substr(0, 512);
      file.media_type = sniff_image(part.content);
      file.bytes = std::make_shared<const std::string>(part.content);
    } else if (part.name == "purpose") {
      file.purpose = part.content;
    } else if (part.name == "expires_after[anchor]" && part.content != "created_at") {
      return std::unexpected(invalid(part.name, "expires_after[anchor]: expected created_at"));
    } else if (part.name == "expires_after[seconds]") {
      life = number(part.content);
      if (!life || *life < kShortestLife || *life > kLongestLife) {
        return std::unexpected(
            invalid(part.name, fmt::format("expires_after[seconds]: expected {} to {}", kShortestLife, kLongestLife)));
      }
    }
  }
  if (!given)
    return std::unexpected(ApiFailure{ErrorKind::kInvalidRequest, "missing field `file`", "missing_field", "file", 0});
  if (file.purpose != "user_data" && file.purpose != "vision")
    return std::unexpected(
        invalid("purpose", fmt::format("purpose is `{}`, expected user_data or vision", file.purpose.substr(0, 100))));
  if (file.media_type.empty()) return std::unexpected(invalid("file", "file: expected a JPEG, PNG, GIF or WebP image"));
  if (life) file.expires = now + *life;
  return file;
}

std::string query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view item = query.substr(0, end);
    if (item.starts_with(name) && item.substr(name.size()).starts_with('='))
      return std::string(item.substr(name.size() + 1));
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return {};
}

// The file that the path names, or an answer.
std::optional<StoredFile> named_file(App& app, Exchange& exchange, std::string_view id) {
  if (!files_are_kept(app, exchange)) return std::nullopt;
  auto file = app.files().get(exchange.context().tenant, id, app.clock().unix_seconds());
  if (!file)
    app.reply_error(exchange,
                    {ErrorKind::kNotFound, fmt::format("no file with id `{}`", id.substr(0, 100)), {}, {}, 0});
  return file;
}

std::string_view second_last_segment(std::string_view path) {
  return last_segment(path.substr(0, path.rfind('/')));
}

}  // namespace

void handle_upload(App& app, const ExchangeRef& exchange) {
  if (!files_are_kept(app, *exchange)) return;
  auto file = read_upload(exchange->request(), app.clock().unix_seconds());
  if (!file) return app.reply_error(*exchange, file.error());
  file->id = "file-api-" + random_hex32();
  file->tenant = exchange->context().tenant;
  const StoredFile copy = *file;
  if (const Result<void> ok = app.files().add(std::move(*file), copy.created); !ok)
    return app.reply_error(*exchange, {ErrorKind::kTooLarge, ok.error().message, "files_full", "file", 0});
  std::string body;
  JsonWriter w(body);
  write_file(w, copy);
  app.reply_json(*exchange, std::move(body));
}

void handle_list_files(App& app, const ExchangeRef& exchange) {
  if (!files_are_kept(app, *exchange)) return;
  const std::string& query = exchange->request().query;
  const std::string limit_text = query_value(query, "limit");
  const std::optional<int64_t> limit = limit_text.empty() ? std::optional<int64_t>(kMostListed) : number(limit_text);
  if (!limit || *limit < 1 || *limit > static_cast<int64_t>(kMostListed))
    return app.reply_error(*exchange, invalid("limit", "limit: expected 1 to 1000"));
  const std::string order = query_value(query, "order");
  if (!order.empty() && order != "asc" && order != "desc")
    return app.reply_error(*exchange, invalid("order", "order: expected asc or desc"));
  const std::string purpose = query_value(query, "purpose");
  std::vector<StoredFile> files = app.files().all(exchange->context().tenant, app.clock().unix_seconds());
  if (!purpose.empty()) std::erase_if(files, [&](const StoredFile& f) { return f.purpose != purpose; });
  if (order != "asc") std::reverse(files.begin(), files.end());
  if (const std::string after = query_value(query, "after"); !after.empty()) {
    const auto at = std::find_if(files.begin(), files.end(), [&](const StoredFile& f) { return f.id == after; });
    files.erase(files.begin(), at == files.end() ? files.end() : at + 1);
  }
  const bool more = files.size() > static_cast<size_t>(*limit);
  if (more) files.resize(static_cast<size_t>(*limit));
  std::string body;
  JsonWriter w(body);
  w.begin_object().key("object").value("list").key("data").begin_array();
  for (const StoredFile& file : files) write_file(w, file);
  w.end_array();
  const auto id = [&](std::string_view key, bool first) {
    w.key(key);
    if (files.empty()) {
      w.null();
    } else {
      w.value(first ? files.front().id : files.back().id);
    }
  };
  id("first_id", true);
  id("last_id", false);
  w.key("has_more").value(more).end_object();
  app.reply_json(*exchange, std::move(body));
}

void handle_file(App& app, const ExchangeRef& exchange) {
  const auto file = named_file(app, *exchange, last_segment(exchange->request().path));
  if (!file) return;
  std::string body;
  JsonWriter w(body);
  write_file(w, *file);
  app.reply_json(*exchange, std::move(body));
}

void handle_file_content(App& app, const ExchangeRef& exchange) {
  const auto file = named_file(app, *exchange, second_last_segment(exchange->request().path));
  if (!file) return;
  HttpResponse response;
  response.content_type = file->media_type;
  response.headers = {{"X-Content-Type-Options", "nosniff"}};
  response.body = *file->bytes;
  exchange->reply(std::move(response));
}

void handle_delete_file(App& app, const ExchangeRef& exchange) {
  const auto file = named_file(app, *exchange, last_segment(exchange->request().path));
  if (!file) return;
  app.files().remove(file->tenant, file->id);
  std::string body;
  JsonWriter w(body);
  w.begin_object().key("id").value(file->id).key("object").value("file").key("deleted").value(true).end_object();
  app.reply_json(*exchange, std::move(body));
}

}  // namespace di::server
