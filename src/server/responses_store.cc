#include "server/responses_store.h"

#include <algorithm>

#include "server/app.h"
#include "server/fields.h"

namespace di::server {
namespace {

Json input_items(const Json& body) {
  const Json* input = body.find_value("input");
  if (input == nullptr) return Json(Json::Array{});
  if (input->is_array()) return *input;
  Json message(Json::Object{});
  message.set("role", Json("user"));
  message.set("content", *input);
  Json items(Json::Array{});
  items.push_back(std::move(message));
  return items;
}

// Tools of the official service that this one has no counterpart for: dropped by the codec, named in a header.
std::vector<std::string> dropped_tools(const Json& body) {
  std::vector<std::string> out;
  const Json* tools = body.find_value("tools");
  if (tools == nullptr || !tools->is_array()) return out;
  static constexpr std::string_view kOffered[] = {"function", "custom", "namespace", "tool_search"};
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json* type = tools->as_array()[i].find_value("type");
    const std::string* name = type == nullptr ? nullptr : type->if_string();
    if (name == nullptr || std::find(std::begin(kOffered), std::end(kOffered), *name) != std::end(kOffered)) continue;
    out.push_back(fmt::format("tool_not_supported;tools[{}].{}", i, *name));
  }
  return out;
}

}  // namespace

void ResponsesStore::put(const std::string& tenant, const Json& input, Json response) {
  const Json* id = response.find_value("id");
  if (id == nullptr || !id->is_string()) return;
  std::string name = id->as_string();
  response.set("store", Json(true));
  const std::lock_guard lock(mutex_);
  while (static_cast<int64_t>(entries_.size()) >= most_) entries_.pop_front();
  entries_.push_back({std::move(name), tenant, input, std::move(response)});
}

void ResponsesStore::update(std::string_view tenant, std::string_view id, Json response) {
  response.set("store", Json(true));
  const std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.id == id && entry.tenant == tenant) entry.response = std::move(response);
  }
}

std::optional<ResponsesStore::Entry> ResponsesStore::get(std::string_view tenant, std::string_view id) const {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.id == id && e.tenant == tenant; });
  if (found == entries_.end()) return std::nullopt;
  return *found;
}

bool ResponsesStore::remove(std::string_view tenant, std::string_view id) {
  const std::lock_guard lock(mutex_);
  return std::erase_if(entries_, [&](const Entry& e) { return e.id == id && e.tenant == tenant; }) > 0;
}

std::expected<JoinedRequest, ApiFailure> join_previous(App& app, std::string_view tenant, Json& body) {
  JoinedRequest out;
  if (!body.is_object()) return out;
  out.warnings = dropped_tools(body);
  const std::optional<std::string> previous = DI_TRY(string_field(body, "previous_response_id"));
  const bool background = DI_TRY(bool_field(body, "background")).value_or(false);
  const ResponsesStore& store = app.responses();
  if (previous && !store.enabled()) {
    return invalid_field("previous_response_id",
                         "previous_response_id is not supported: this server does not store responses",
                         "unsupported_parameter");
  }
  const std::optional<bool> store_field = DI_TRY(bool_field(body, "store"));
  if (background && (!store.enabled() || !store_field.value_or(true))) {
    return invalid_field("background",
                         "background needs a stored response: `store`, and a server that stores responses",
                         "unsupported_parameter");
  }
  if (const Json* input = body.find_value("input"); input != nullptr && input->is_array()) {
    for (size_t i = 0; i < input->size(); ++i) {
      const Json* type = input->as_array()[i].find_value("type");
      if (type != nullptr && type->if_string() != nullptr && *type->if_string() == "item_reference")
        return invalid_field(fmt::format("input[{}].type", i), "item_reference is not supported: items are not stored",
                             "unsupported_parameter");
    }
  }
  if (!store.enabled()) return out;
  Json items = input_items(body);
  if (previous) {
    const auto entry = store.get(tenant, *previous);
    if (!entry) {
      return std::unexpected(ApiFailure{ErrorKind::kNotFound,
                                        fmt::format("no stored response with id `{}`", previous->substr(0, 100)),
                                        "previous_response_not_found", "previous_response_id", 0});
    }
    Json joined = entry->input;
    if (const Json* output = entry->response.find_value("output"); output != nullptr && output->is_array()) {
      for (const Json& item : output->as_array()) joined.push_back(item);
    }
    for (const Json& item : items.as_array()) joined.push_back(item);
    items = std::move(joined);
    body.set("input", items);
    body.set("previous_response_id", Json());
    out.previous = *previous;
  }
  out.keep = store_field.value_or(true);
  out.background = background;
  body.set("background", Json());
  out.input = std::move(items);
  return out;
}

}  // namespace di::server
