#include "cli/common_main.h"

#include <cstdlib>
#include <optional>

namespace di::cli {
namespace {

// "90s", "5m", "1h", "250ms", or a plain number of seconds, as milliseconds.
std::optional<int64_t> parse_duration(const std::string& text) {
  char* end = nullptr;
  const double n = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const double factor = unit == "ms"                  ? 1
                        : unit.empty() || unit == "s" ? 1e3
                        : unit == "m"                 ? 60e3
                        : unit == "h"                 ? 3600e3
                                                      : -1;
  if (end == text.c_str() || factor < 0 || n < 0) return std::nullopt;
  return static_cast<int64_t>(n * factor);
}

}  // namespace

void add_duration(CLI::App& app, const std::string& name, int64_t& target_ms, const std::string& help) {
  const auto set = [&target_ms](const std::string& text) { target_ms = parse_duration(text).value_or(target_ms); };
  const auto check = [](const std::string& text) {
    return parse_duration(text) ? std::string()
                                : "`" + text + "` is no duration; expected a form like 90s, 5m or 250ms";
  };
  app.add_option_function<std::string>(name, set, help)->type_name("DURATION")->check(check);
}

void add_model_folder(CLI::App& app, std::string& folder, bool required) {
  CLI::Option* option =
      app.add_option("model,-m,--model", folder, "Model folder: config.json, *.safetensors, tokenizer.json")
          ->type_name("DIR");
  if (required) option->required();
}

}  // namespace di::cli
