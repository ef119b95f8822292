#include "cli/command_line.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace di::cli {
namespace {

class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string out;
    if (option->get_type_size() != 0) {
      out = " " + form(option->get_type_name());
      if (!option->get_default_str().empty()) out += "=" + option->get_default_str();
      if (option->get_expected_max() == CLI::detail::expected_max_vector_size) out += " ...";
      if (option->get_required()) out += " (required)";
    }
    return out;
  }

  // Of both forms of a switch, without the value that a bare one stands for.
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    for (size_t at = name.find('{'); at != std::string::npos; at = name.find('{')) {
      name.erase(at, name.find('}', at) - at + 1);
    }
    return name;
  }

 private:
  // "TEXT:{a,b}" is a|b, "INT:INT in [1 - 16]" is INT.
  static std::string form(const std::string& type) {
    const size_t colon = type.find(':');
    if (colon != std::string::npos && type.compare(0, 4, "TEXT") == 0 && type.compare(colon + 1, 1, "{") == 0) {
      std::string words = type.substr(colon + 2, type.find('}') - colon - 2);
      std::replace(words.begin(), words.end(), ',', '|');
      return words;
    }
    return type.substr(0, colon);
  }
};

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t next = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      diagonal = row[j];
      row[j] = next;
    }
  }
  return row[b.size()];
}

const CLI::App& deepest(const CLI::App& root) {
  const CLI::App* at = &root;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

// "deepinfer bench serve"
std::string path_of(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : path_of(*app.get_parent()) + " " + app.get_name();
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  std::vector<const CLI::App*> found =
      app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
  return found;
}

// The name that begins like `word`, or else the nearest one; empty when none is near.
std::string nearest_name(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* sub : commands_of(app)) names.push_back(sub->get_name());
  std::string best;
  size_t distance = word.size() / 3 + 1;
  for (const std::string& name : names) {
    if (word.size() > 3 && name.starts_with(word)) return name;
    if (const size_t d = edit_distance(word, name); d < distance) {
      distance = d;
      best = name;
    }
  }
  return best;
}

// Options of llama.cpp's server and of vLLM that have another name here.
struct Elsewhere {
  std::string_view option;
  std::string_view here;
};
constexpr Elsewhere kElsewhere[] = {
    {"-c", "--max-model-len"},
    {"--ctx-size", "--max-model-len"},
    {"-np", "--max-num-seqs"},
    {"--parallel", "--max-num-seqs"},
    {"-b", "--max-num-batched-tokens"},
    {"--batch-size", "--max-num-batched-tokens"},
    {"-t", "--threads"},
    {"-a", "--served-model-name"},
    {"--alias", "--served-model-name"},
    {"-n", "--max-tokens"},
    {"--n-predict", "--max-tokens"},
    {"--predict", "--max-tokens"},
    {"-s", "--seed"},
    {"-sys", "--system"},
    {"--system-prompt", "--system"},
    {"-ngl", "--device"},
    {"--gpu-layers", "--device"},
    {"--n-gpu-layers", "--device"},
    {"--gpu-memory-utilization", "--kv-memory"},
    {"--num-gpu-blocks-override", "--kv-memory"},
    {"--speculative-config", "--spec"},
    {"--ssl-certfile", "--tls-cert"},
    {"--ssl-keyfile", "--tls-key"},
    {"--ssl-ca-certs", "--tls-ca"},
    {"--allowed-origins", "--cors-origins"},
    {"--uvicorn-log-level", "--log-level"},
    {"--api-keys", "--api-key"},
};

std::string about_word(const CLI::App& app, const std::string& argument) {
  const std::string word = argument.substr(0, argument.find('='));
  std::string text;
  if (word.starts_with("-") && word.size() > 1) {
    text = "unknown option " + word + " of " + path_of(app);
    for (const Elsewhere& known : kElsewhere) {
      const std::string name(known.here.substr(2));
      const std::vector<const CLI::Option*> options = app.get_options();
      const bool has =
          std::any_of(options.begin(), options.end(), [&](const CLI::Option* o) { return o->check_lname(name); });
      if (word == known.option && has) return text + "; here it is " + std::string(known.here);
    }
  } else if (!commands_of(app).empty()) {
    text = "unknown command `" + word + "` of " + path_of(app);
  } else {
    return "unexpected argument `" + argument + "` of " + path_of(app);
  }
  if (const std::string near = nearest_name(app, word); !near.empty()) return text + "; did you mean " + near + "?";
  return text + " (--help lists what there is)";
}

// `text` as a number; not finite when it is none.
double number_of(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end == text.c_str() || *end != '\0' ? std::nan("") : value;
}

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() {
  return std::make_shared<HelpFormatter>();
}

std::string explain_parse_error(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App& app = deepest(root);
  const int kind = error.get_exit_code();
  const bool incomplete = kind == static_cast<int>(CLI::ExitCodes::RequiredError);
  if (incomplete || kind == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    // The option is what is wrong, not the value behind it.
    const std::vector<std::string> left = root.remaining(true);
    const auto option = std::find_if(left.begin(), left.end(), [](const std::string& a) { return a.starts_with("-"); });
    if (!left.empty()) return about_word(app, option == left.end() ? left.front() : *option);
  }
  if (incomplete && !commands_of(app).empty()) {
    std::string text = app.get_parent() == nullptr ? "" : app.get_name() + ": ";
    text += "a command is missing:";
    for (const CLI::App* sub : commands_of(app)) text += " " + sub->get_name();
    return text + " (--help says what they do)";
  }
  // CLI11 leaves out the name of an option that --help does not list; the check itself has named it.
  const std::string what = error.what();
  return (what.starts_with(": ") ? what.substr(2) : what) + (incomplete ? " (--help lists what there is)" : "");
}

CLI::Validator above_zero() {
  return {[](const std::string& text) {
            const double value = number_of(text);
            return value > 0 && std::isfinite(value) ? std::string()
                                                     : "expected a number above 0, found `" + text + "`";
          },
          ""};
}

CLI::Validator not_negative() {
  return {[](const std::string& text) {
            const double value = number_of(text);
            return value >= 0 && std::isfinite(value) ? std::string() : "expected 0 or more, found `" + text + "`";
          },
          ""};
}

CLI::Validator token_count() {
  return {
      [](std::string& text) {
        const char last = text.empty() ? '\0' : text.back();
        const double factor = last == 'k' ? 1e3 : last == 'K' ? 1024 : last == 'm' ? 1e6 : last == 'M' ? 1048576 : 0;
        const double value = factor > 0 ? number_of(text.substr(0, text.size() - 1)) * factor : number_of(text);
        if (!(value >= 1 && value < 9e15 && value == std::floor(value)))
          return "expected a number of tokens above 0, such as 32768 or 32K, found `" + text + "`";
        text = std::to_string(static_cast<int64_t>(value));
        return std::string();
      },
      ""};
}

}  // namespace di::cli
