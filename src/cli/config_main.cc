#include "cli/config_main.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cli/config_file.h"

namespace di::cli {
namespace {

std::string environment_name(const std::string& option) {
  std::string name = "DEEPINFER_" + option;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::toupper(c)); });
  return name;
}

// An option of serve or of the program as a whole.
const CLI::Option* find_setting(const CLI::App& root, const std::string& name) {
  for (const CLI::App* app : {static_cast<const CLI::App*>(root.get_subcommand("serve")), &root}) {
    for (const CLI::Option* option : app->get_options()) {
      if (option->check_lname(name)) return option;
    }
  }
  return nullptr;
}

bool is_setting(const CLI::Option& option) {
  if (option.get_lnames().empty()) return false;
  const std::string& name = option.get_lnames()[0];
  if (option.get_group().empty()) return false;  // taken for the sake of others' command lines
  return name != "help" && name != "help-all" && name != "version" && name != "config" && name != "json";
}

bool is_secret(const std::string& name) {
  return name == "api-key";
}

std::string value_of(const CLI::Option& option) {
  if (option.count() == 0) return option.get_default_str();
  std::string out;
  for (const std::string& value : option.results()) out += (out.empty() ? "" : ",") + value;
  return out;
}

std::string_view origin_of(const CLI::Option& option, const ConfigOrigins& origins) {
  const std::string& name = option.get_lnames()[0];
  const auto in = [&](const std::set<std::string>& names) {
    return std::any_of(option.get_lnames().begin(), option.get_lnames().end(),
                       [&](const std::string& n) { return names.contains(n); });
  };
  if (in(origins.command_line)) return "command line";
  if (option.count() == 0) return "built-in";
  return origins.file.contains(name) ? "file" : "environment";
}

void list_words(const CLI::App& app, const std::string& path, std::string& out) {
  std::string words;
  std::vector<const CLI::App*> subs;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App* s) { return !s->get_group().empty(); })) {
    words += sub->get_name() + " ";
    subs.push_back(sub);
  }
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words += "--" + name + " ";
  }
  out += path + "|" + words + "\n";
  for (const CLI::App* sub : subs) list_words(*sub, path.empty() ? sub->get_name() : path + " " + sub->get_name(), out);
}

}  // namespace

Result<ConfigOrigins> apply_config_file(const CLI::App& root, int argc, char** argv) {
  ConfigOrigins origins;
  std::string path;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!argument.starts_with("--")) continue;
    const size_t equals = argument.find('=');
    std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    if (name == "config")
      path = equals != std::string::npos ? argument.substr(equals + 1) : i + 1 < argc ? argv[i + 1] : "";
    origins.command_line.insert(std::move(name));
  }
  if (const char* named = std::getenv("DEEPINFER_CONFIG"); path.empty() && named != nullptr) path = named;
  if (path.empty()) return origins;
  for (const auto& [name, value] : DI_TRY(read_config_file(path))) {
    const CLI::Option* option = find_setting(root, name);
    if (option == nullptr || !is_setting(*option))
      return fail(Errc::kInvalidRequest, "{}: `{}` is no option of serve", path, name);
    const std::string& key = option->get_lnames()[0];
    if (setenv(environment_name(key).c_str(), value.c_str(), 0) == 0 &&
        value == std::getenv(environment_name(key).c_str()))
      origins.file.insert(key);
  }
  return origins;
}

Json effective_config(const CLI::App& command, const ConfigOrigins& origins) {
  Json out(Json::Object{});
  for (const CLI::Option* option : command.get_options()) {
    if (!is_setting(*option)) continue;
    const std::string& name = option->get_lnames()[0];
    Json entry(Json::Object{});
    const std::string value = value_of(*option);
    entry.set("value", Json(is_secret(name) && !value.empty() ? std::string("***") : value));
    entry.set("origin", Json(origin_of(*option, origins)));
    out.set(name, std::move(entry));
  }
  return out;
}

int print_config(const CLI::App& command, const ConfigOrigins& origins, bool json) {
  const Json config = effective_config(command, origins);
  if (json) {
    std::printf("%s\n", to_json(config, JsonStyle::kSpaced).c_str());
    return 0;
  }
  for (const JsonMember& member : config.as_object()) {
    std::printf("%-28s %-32s # %s\n", member.key.c_str(), member.value.find("value")->as_string().c_str(),
                member.value.find("origin")->as_string().c_str());
  }
  return 0;
}

int print_config_schema(const CLI::App& command) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("$schema").value("https://json-schema.org/draft/2020-12/schema");
  w.key("type").value("object").key("additionalProperties").value(false).key("properties").begin_object();
  for (const CLI::Option* option : command.get_options()) {
    if (!is_setting(*option)) continue;
    w.key(option->get_lnames()[0]).begin_object().key("description").value(option->get_description());
    const bool flag = option->get_expected_max() == 0;
    w.key("type").begin_array().value(flag ? "boolean" : "string");
    if (!flag) w.value("number").value("array");
    w.end_array();
    if (!option->get_default_str().empty()) w.key("default").value(option->get_default_str());
    w.end_object();
  }
  w.end_object().end_object();
  std::printf("%s\n", out.c_str());
  return 0;
}

int print_completion(const CLI::App& root, const std::string& shell) {
  std::string table;
  list_words(root, "", table);
  std::string cases;
  std::string fish;
  for (size_t at = 0; at < table.size();) {
    const size_t end = table.find('\n', at);
    const std::string line = table.substr(at, end - at);
    at = end + 1;
    const size_t bar = line.find('|');
    const std::string path = line.substr(0, bar);
    const std::string words = line.substr(bar + 1);
    cases += "    \"" + path + "\") words=\"" + words + "\" ;;\n";
    fish += "complete -c deepinfer -f -n 'test (__deepinfer_path) = \"" + path + "\"' -a '" + words + "'\n";
  }
  // The words of the command that was typed so far; with none left to offer, files.
  const std::string body =
      "  local path=\"\" words=\"\" word\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    case $word in -*) break ;; [a-z]*) path=\"${path:+$path }$word\" ;; esac\n"
      "  done\n"
      "  case \"$path\" in\n" +
      cases +
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n"
      "  [[ ${#COMPREPLY[@]} -gt 0 ]] || COMPREPLY=($(compgen -f -- \"${COMP_WORDS[COMP_CWORD]}\"))\n";
  if (shell == "fish") {
    std::printf(
        "function __deepinfer_path\n  set -l path\n  for word in (commandline -opc)[2..-1]\n"
        "    string match -q -- '-*' $word; and break\n    set -a path $word\n  end\n  echo \"$path\"\nend\n%s",
        fish.c_str());
    return 0;
  }
  if (shell == "zsh") std::printf("autoload -U +X bashcompinit && bashcompinit\n");
  std::printf("_deepinfer() {\n%s}\ncomplete -F _deepinfer deepinfer\n", body.c_str());
  return 0;
}

}  // namespace di::cli
