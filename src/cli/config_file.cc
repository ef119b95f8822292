#include "cli/config_file.h"

#include <toml++/toml.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/json.h"

namespace di::cli {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kCommands[] = {"serve", "deepinfer"};

std::string joined(const std::string& prefix, std::string_view key) {
  std::string name(key);
  std::replace(name.begin(), name.end(), '_', '-');
  return prefix.empty() ? name : prefix + "-" + name;
}

std::string prefix_of(const std::string& prefix, std::string_view key) {
  const bool command = std::find(std::begin(kCommands), std::end(kCommands), key) != std::end(kCommands);
  return prefix.empty() && command ? std::string() : joined(prefix, key);
}

Result<std::string> scalar(const Json& value, const std::string& name) {
  if (value.is_string()) return value.as_string();
  if (value.is_bool()) return std::string(value.as_bool() ? "true" : "false");
  if (value.is_number()) return to_json(value);
  return fail(Errc::kInvalidRequest, "{}: expected a text, a number, true, false or a list of them, found {}", name,
              describe_json(value));
}

Result<void> flatten(const Json& table, const std::string& prefix, Settings& out) {
  for (const JsonMember& member : table.as_object()) {
    const std::string name = joined(prefix, member.key);
    if (member.value.is_object()) {
      DI_TRY(flatten(member.value, prefix_of(prefix, member.key), out));
    } else if (member.value.is_array()) {
      std::string list;
      for (const Json& item : member.value.as_array()) {
        if (!list.empty()) list += ',';
        list += DI_TRY(scalar(item, name));
      }
      out.emplace_back(name, std::move(list));
    } else {
      out.emplace_back(name, DI_TRY(scalar(member.value, name)));
    }
  }
  return {};
}

Json to_json_value(const toml::node& node) {
  if (const auto* table = node.as_table()) {
    Json out(Json::Object{});
    for (const auto& [key, value] : *table) out.set(key.str(), to_json_value(value));
    return out;
  }
  if (const auto* array = node.as_array()) {
    Json out(Json::Array{});
    for (const toml::node& item : *array) out.push_back(to_json_value(item));
    return out;
  }
  if (const auto text = node.value<std::string>(); node.is_string()) return Json(*text);
  if (node.is_boolean()) return Json(*node.value<bool>());
  if (node.is_integer()) return Json(*node.value<int64_t>());
  if (node.is_floating_point()) return Json(*node.value<double>());
  return {};
}

Result<Json> parse_toml(const std::string& text, const std::string& path) {
  try {
    return to_json_value(toml::parse(text));
  } catch (const toml::parse_error& e) {
    return fail(Errc::kInvalidRequest, "{}:{}: {}", path, e.source().begin.line, e.description());
  }
}

}  // namespace

Result<Settings> read_config_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return fail(Errc::kNotFound, "cannot read the configuration {}", path);
  std::stringstream text;
  text << file.rdbuf();
  Json root;
  if (path.ends_with(".json")) {
    Result<Json> parsed = parse_json(text.str());
    if (!parsed) return fail(Errc::kInvalidRequest, "{}: {}", path, parsed.error().message);
    if (!parsed->is_object()) return fail(Errc::kInvalidRequest, "{}: expected an object", path);
    root = std::move(*parsed);
  } else {
    root = DI_TRY(parse_toml(text.str(), path));
  }
  Settings out;
  if (const Result<void> ok = flatten(root, {}, out); !ok)
    return fail(Errc::kInvalidRequest, "{}: {}", path, ok.error().message);
  return out;
}

}  // namespace di::cli
