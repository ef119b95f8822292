// deepinfer chat: a conversation in the terminal. Without a terminal it reads questions from standard input, one a
// line, and prints only the answers.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "base/log.h"
#include "cli/local_client.h"
#include "cli/local_model.h"
#include "cli/terminal.h"

namespace di::cli {
namespace {

constexpr const char* kHelp = R"(/think, /nothink     let the model reason before it answers, or not
/effort LEVEL        low, medium, high, max
/system TEXT         instructions for the whole conversation (empty: none)
/read FILE           put a text file in front of the next question
/temp X, /seed N     sampling
/max N               longest answer in tokens
/retry, /undo        answer the last question again; take it back
/ctx, /stats         tokens used; figures of the last answer
/save FILE, /load FILE
/quit                leave (also Ctrl-D)
A line that ends in \ goes on in the next one. Ctrl-C stops an answer.
)";

struct Session {
  std::string system;
  Json::Array turns;  // user and assistant messages
  std::string attachment;
  bool thinking = false;
  std::string effort;
  double temperature = -1;
  int64_t seed = -1;
  int32_t max_tokens = 0;
  Json usage;
  double seconds = 0;
  double first_seconds = 0;
};

Json message(std::string_view role, std::string text) {
  Json m(Json::Object{});
  m.set("role", Json(role));
  m.set("content", Json(std::move(text)));
  return m;
}

Json request_body(const Session& s, const std::string& model) {
  Json body(Json::Object{});
  body.set("model", Json(model));
  Json::Array messages;
  if (!s.system.empty()) messages.push_back(message("system", s.system));
  messages.insert(messages.end(), s.turns.begin(), s.turns.end());
  body.set("messages", Json(std::move(messages)));
  body.set("stream", Json(true));
  Json thinking(Json::Object{});
  thinking.set("type", Json(s.thinking ? "enabled" : "disabled"));
  body.set("thinking", std::move(thinking));
  if (s.thinking && !s.effort.empty()) body.set("reasoning_effort", Json(s.effort));
  if (s.temperature >= 0) body.set("temperature", Json(s.temperature));
  if (s.seed >= 0) body.set("seed", Json(s.seed));
  if (s.max_tokens > 0) body.set("max_tokens", Json(s.max_tokens));
  return body;
}

// Asks with the conversation as it stands and appends the answer. False on an error, which is printed.
bool ask(Session& s, server::App& app, const std::string& model, const Terminal& terminal) {
  std::string answer;
  bool in_reasoning = false;
  const int64_t started = app.clock().now_ns();
  int64_t first = 0;
  interrupt_flag().store(false);
  const ChatEnd end = stream_chat(app, request_body(s, model), [&](const ChatDelta& delta) {
    if (first == 0) first = app.clock().now_ns();
    if (!delta.reasoning.empty() && terminal.interactive) {
      if (!in_reasoning) std::fputs(terminal.dim, stdout);
      in_reasoning = true;
      std::fwrite(delta.reasoning.data(), 1, delta.reasoning.size(), stdout);
    }
    if (!delta.content.empty()) {
      if (in_reasoning) std::fprintf(stdout, "%s\n\n", terminal.plain);
      in_reasoning = false;
      answer += delta.content;
      std::fwrite(delta.content.data(), 1, delta.content.size(), stdout);
    }
    std::fflush(stdout);
    return !interrupt_flag().load();
  });
  if (in_reasoning) std::fputs(terminal.plain, stdout);
  std::fputs("\n", stdout);
  std::fflush(stdout);
  if (!end.error.empty()) {
    std::fprintf(stderr, "deepinfer chat: %s\n", end.error.c_str());
    return false;
  }
  s.usage = end.usage;
  s.seconds = static_cast<double>(app.clock().now_ns() - started) * 1e-9;
  s.first_seconds = first == 0 ? 0 : static_cast<double>(first - started) * 1e-9;
  s.turns.push_back(message("assistant", std::move(answer)));
  return true;
}

int64_t usage_of(const Session& s, std::string_view key) {
  const Json* value = s.usage.find_value(key);
  return value == nullptr ? 0 : value->to_i64().value_or(0);
}

void print_status(const Session& s, const Terminal& terminal) {
  const int64_t tokens = usage_of(s, "completion_tokens");
  const double rate = s.seconds > s.first_seconds ? static_cast<double>(tokens) / (s.seconds - s.first_seconds) : 0;
  std::printf("%s[prompt %lld, cached %lld, answer %lld tokens, %.0f tok/s, first after %.0f ms]%s\n", terminal.dim,
              static_cast<long long>(usage_of(s, "prompt_tokens")),
              static_cast<long long>(usage_of(s, "prompt_cache_hit_tokens")), static_cast<long long>(tokens), rate,
              s.first_seconds * 1e3, terminal.plain);
}

void save(const Session& s, const std::string& path) {
  std::ofstream out(path);
  Json file(Json::Object{});
  file.set("system", Json(s.system));
  file.set("messages", Json(s.turns));
  out << to_json(file) << "\n";
  if (!out) std::printf("cannot write %s\n", path.c_str());
}

void load(Session& s, const std::string& path) {
  const Result<Json> file = parse_json_file(path);
  const Json* turns = file ? file->find_value("messages") : nullptr;
  if (turns == nullptr || !turns->is_array()) {
    std::printf("%s\n", file ? "the file holds no messages" : file.error().message.c_str());
    return;
  }
  s.turns = turns->as_array();
  if (const Json* system = file->find_value("system"); system != nullptr && system->is_string())
    s.system = system->as_string();
}

void read_file(Session& s, const std::string& path) {
  std::ifstream in(path);
  if (!in) {
    std::printf("cannot read %s\n", path.c_str());
    return;
  }
  std::ostringstream text;
  text << in.rdbuf();
  s.attachment += text.str() + "\n\n";
  std::printf("%zu bytes go in front of the next question\n", s.attachment.size());
}

enum class After : uint8_t { kNothing, kAsk, kQuit };

After command(Session& s, const std::string& line, const Terminal& terminal, int64_t context) {
  const size_t space = line.find(' ');
  const std::string name = line.substr(1, space == std::string::npos ? space : space - 1);
  const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
  const auto undo = [&] {
    if (!s.turns.empty()) s.turns.pop_back();
  };
  if (name == "quit" || name == "exit") return After::kQuit;
  if (name == "help")
    std::fputs(kHelp, stdout);
  else if (name == "think")
    s.thinking = true;
  else if (name == "nothink")
    s.thinking = false;
  else if (name == "effort")
    s.effort = rest;
  else if (name == "system")
    s.system = rest;
  else if (name == "read")
    read_file(s, rest);
  else if (name == "temp")
    s.temperature = std::strtod(rest.c_str(), nullptr);
  else if (name == "seed")
    s.seed = std::strtoll(rest.c_str(), nullptr, 10);
  else if (name == "max")
    s.max_tokens = static_cast<int32_t>(std::strtol(rest.c_str(), nullptr, 10));
  else if (name == "save")
    save(s, rest);
  else if (name == "load")
    load(s, rest);
  else if (name == "stats")
    print_status(s, terminal);
  else if (name == "ctx")
    std::printf("%lld of %lld tokens\n", static_cast<long long>(usage_of(s, "total_tokens")),
                static_cast<long long>(context));
  else if (name == "undo") {
    undo();
    undo();
  } else if (name == "retry") {
    undo();
    if (!s.turns.empty()) return After::kAsk;
  } else
    std::printf("no such command: /%s (/help lists them)\n", name.c_str());
  return After::kNothing;
}

bool read_input(std::string& line, const Terminal& terminal) {
  line.clear();
  for (std::string part;;) {
    if (terminal.interactive) {
      std::fputs(line.empty() ? "> " : ". ", stdout);
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, part)) return !line.empty();
    if (part.ends_with('\\')) {
      line += part.substr(0, part.size() - 1) + "\n";
      continue;
    }
    line += part;
    return true;
  }
}

// Loads the model, calls use(session, app, model name, terminal, context) with a session of these options, and takes it
// all down again. What `use` returns is the exit status.
template <class Use>
int with_session(const ChatOptions& options, const char* command_name, const Use& use) {
  const Terminal terminal = Terminal::detect();
  const SystemClock clock;
  server::ServerConfig config;
  config.served_model_names = served_names(options.model);
  server::App app(config, clock);
  auto model = load_model(options.model, config.policy, clock);
  if (!model) {
    std::fprintf(stderr, "deepinfer %s: %s\n", command_name, model.error().message.c_str());
    return model.error().exit_status;
  }
  app.set_ready((*model)->service(clock));
  catch_interrupts();
  Session session;
  session.system = options.system;
  session.thinking = options.thinking;
  session.effort = options.effort;
  session.temperature = options.temperature;
  session.seed = options.seed;
  session.max_tokens = options.max_tokens;
  const int status =
      use(session, app, config.served_model_names[0], terminal, int64_t{(*model)->engine->info().max_model_len});
  app.stop_workers();
  model->reset();
  return status;
}

int converse(Session& session, server::App& app, const std::string& model, const Terminal& terminal, int64_t context) {
  if (terminal.interactive) std::printf("%s — /help for commands, Ctrl-D to leave\n", model.c_str());
  int status = kOk;
  for (std::string line; read_input(line, terminal);) {
    if (line.empty()) continue;
    After after = After::kAsk;
    if (terminal.interactive && line.starts_with('/')) {
      after = command(session, line, terminal, context);
    } else {
      session.turns.push_back(message("user", std::exchange(session.attachment, {}) + line));
    }
    if (after == After::kQuit) break;
    if (after != After::kAsk) continue;
    if (!ask(session, app, model, terminal)) {
      session.turns.pop_back();
      status = kFailed;
    } else if (terminal.interactive) {
      print_status(session, terminal);
    }
  }
  if (terminal.interactive) std::printf("\n");
  return terminal.interactive ? kOk : status;
}

}  // namespace

int chat(const ChatOptions& options) {
  return with_session(options, "chat", converse);
}

int run(const ChatOptions& options) {
  return with_session(
      options, "run",
      [&](Session& session, server::App& app, const std::string& model, const Terminal& terminal, int64_t) {
        std::string prompt = options.prompt;
        if (prompt.empty() || prompt == "-") {
          std::ostringstream text;
          text << std::cin.rdbuf();
          prompt = text.str();
        }
        session.turns.push_back(message("user", std::move(prompt)));
        const bool ok = ask(session, app, model, terminal);
        return ok ? (interrupt_flag().load() ? 130 : kOk) : kFailed;
      });
}

}  // namespace di::cli
