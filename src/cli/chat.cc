// deepinfer chat: a conversation in the terminal, with a model of its own or with a running server (--url). Without a
// terminal it reads questions from standard input, one a line, and prints only the answers.
// long because every command of the conversation is here
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>

#include "base/log.h"
#include "cli/chat_image.h"
#include "cli/constraint_options.h"
#include "cli/http_client.h"
#include "cli/line_editor.h"
#include "cli/local_client.h"
#include "cli/local_model.h"
#include "cli/markdown_printer.h"
#include "cli/terminal.h"

namespace di::cli {
namespace {

constexpr const char* kHelp = R"(Conversation
  /retry               answer the last question again
  /undo                take the last question and its answer back
  /clear               start a new conversation
  /system TEXT         instructions for the whole conversation (alone: none)
  /read FILE           put a text file in front of the next question
  /image FILE          show a picture with the next question
  /save FILE           keep the conversation in a file
  /load FILE           go on with one that was kept
Answers
  /think, /nothink     let the model reason before it answers, or not
  /effort LEVEL        low, medium, high or max
  /fold                hide the reasoning, or show it again
  /json [SCHEMA|FILE]  answers as JSON, as the schema says; /text for free text again
  /regex EXPRESSION    answers that match
  /grammar TEXT|FILE   answers of an EBNF or Lark grammar
  /tools FILE          tool definitions (a JSON array); you type what the calls return; alone: none
  /temp X, /seed N     sampling (alone: the default)
  /max N               longest answer in tokens (alone: the default)
Figures
  /stats               of the last answer
  /ctx                 how much of the context is used
  /raw                 the last request and answer as JSON
  /help, /?            this list
  /quit, /bye          leave

Enter sends. A line that ends in \ goes on in the next one; so does text between two lines of """, and pasted text
keeps its lines (Alt+Enter types a line end). Arrow keys recall what was typed before. Ctrl-C stops an answer, Ctrl-D
leaves.
)";

const std::vector<std::string> kCommands = {"/retry", "/undo",    "/clear",   "/system", "/read", "/image", "/save",
                                            "/load",  "/think",   "/nothink", "/effort", "/fold", "/json",  "/text",
                                            "/regex", "/grammar", "/tools",   "/temp",   "/seed", "/max",   "/stats",
                                            "/ctx",   "/raw",     "/help",    "/quit",   "/bye"};

struct Session {
  std::string system;
  Json::Array turns;  // messages of user, assistant and tools
  std::string attachment;
  Json::Array images;  // of the next question: parts of its content
  bool thinking = false;
  bool folded = false;
  std::string effort;
  double temperature = -1;
  int64_t seed = -1;
  int32_t max_tokens = 0;
  Json constraint;  // members of the request that bind the answer; null: free text
  Json tools;       // null: none
  Json request;     // the last one sent
  Json usage;
  std::string finish_reason;
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
  if (const Json::Object* members = s.constraint.if_object()) {
    for (const JsonMember& m : *members) body.set(m.key, m.value);
  }
  if (!s.tools.is_null()) body.set("tools", s.tools);
  return body;
}

// Shows an answer as it comes.
class AnswerView {
 public:
  AnswerView(const Terminal& terminal, bool folded)
      : terminal_(terminal), folded_(folded), text_(terminal.interactive && *terminal.dim != '\0') {}

  void reasoning(std::string_view text) {
    if (!terminal_.interactive) return;
    if (!in_reasoning_) std::printf("%s%s", terminal_.dim, folded_ ? "thinking…" : "");
    in_reasoning_ = true;
    if (!folded_) std::fwrite(text.data(), 1, text.size(), stdout);
  }
  void content(std::string_view text) {
    end_reasoning(true);
    print(text_.feed(text));
  }
  void finish() {
    end_reasoning(false);
    print(text_.finish());
    std::fputs("\n", stdout);
    std::fflush(stdout);
  }

 private:
  void end_reasoning(bool content_follows) {
    if (!in_reasoning_) return;
    in_reasoning_ = false;
    std::fputs(folded_ ? "\r\x1b[K" : "", stdout);
    std::printf("%s%s", terminal_.plain, content_follows && !folded_ ? "\n\n" : "");
  }
  static void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

  const Terminal& terminal_;
  bool folded_;
  MarkdownPrinter text_;
  bool in_reasoning_ = false;
};

// Who answers.
struct Peer {
  std::string model;
  int64_t context = 0;  // tokens; 0: unknown
  std::function<ChatEnd(const Json& body, const std::function<bool(const ChatDelta&)>& on_delta)> send;
};

// Asks with the conversation as it stands and appends the answer. False on an error, which is printed.
bool ask(Session& s, const Peer& peer, const Terminal& terminal) {
  const SystemClock clock;
  std::string answer;
  std::string reasoning;
  AnswerView view(terminal, s.folded);
  const int64_t started = clock.now_ns();
  int64_t first = 0;
  interrupt_flag().store(false);
  s.request = request_body(s, peer.model);
  ChatEnd end = peer.send(s.request, [&](const ChatDelta& delta) {
    if (first == 0) first = clock.now_ns();
    if (!delta.reasoning.empty()) view.reasoning(delta.reasoning);
    if (!delta.content.empty()) view.content(delta.content);
    reasoning += delta.reasoning;
    answer += delta.content;
    std::fflush(stdout);
    return !interrupt_flag().load();
  });
  view.finish();
  if (!end.error.empty()) {
    std::fprintf(stderr, "deepinfer chat: %s\n", end.error.c_str());
    return false;
  }
  s.usage = end.usage;
  s.finish_reason = end.finish_reason;
  s.seconds = static_cast<double>(clock.now_ns() - started) * 1e-9;
  s.first_seconds = first == 0 ? 0 : static_cast<double>(first - started) * 1e-9;
  Json turn = message("assistant", std::move(answer));
  if (!reasoning.empty()) turn.set("reasoning_content", Json(std::move(reasoning)));
  if (!end.tool_calls.empty()) turn.set("tool_calls", Json(std::move(end.tool_calls)));
  s.turns.push_back(std::move(turn));
  return true;
}

int64_t usage_of(const Session& s, std::string_view key) {
  const Json* value = s.usage.find_value(key);
  return value == nullptr ? 0 : value->to_i64().value_or(0);
}

void print_status(const Session& s, const Terminal& terminal) {
  if (s.usage.is_null()) {
    const bool stopped = s.finish_reason == "interrupted";  // such an answer has none
    std::printf("%s%s%s\n", terminal.dim, stopped ? "stopped" : "no figures", terminal.plain);
    return;
  }
  const int64_t tokens = usage_of(s, "completion_tokens");
  const double rate =
      tokens > 1 && s.seconds > s.first_seconds ? static_cast<double>(tokens - 1) / (s.seconds - s.first_seconds) : 0;
  std::printf("%s%lld prompt tokens", terminal.dim, static_cast<long long>(usage_of(s, "prompt_tokens")));
  if (const int64_t cached = usage_of(s, "prompt_cache_hit_tokens"); cached > 0)
    std::printf(" (%lld cached)", static_cast<long long>(cached));
  std::printf(" · %lld tokens", static_cast<long long>(tokens));
  if (rate > 0) std::printf(" · %.0f tok/s", rate);
  std::printf(" · first after %.0f ms", s.first_seconds * 1e3);
  if (s.finish_reason == "length") std::printf(" · cut at the longest answer (/max)");
  std::printf("%s\n", terminal.plain);
}

void save(const Session& s, const std::string& path) {
  std::ofstream out(path);
  Json file(Json::Object{});
  file.set("system", Json(s.system));
  file.set("messages", Json(s.turns));
  out << to_json(file) << "\n";
  std::printf(out ? "%zu messages are in %s\n" : "%zu messages: cannot write %s\n", s.turns.size(), path.c_str());
}

void load(Session& s, const std::string& path) {
  const Result<Json> file = parse_json_file(path);
  const Json* turns = file ? file->find_value("messages") : nullptr;
  if (turns == nullptr || !turns->is_array()) {
    std::printf("%s\n", file ? "the file holds no messages" : file.error().message.c_str());
    return;
  }
  s.turns = turns->as_array();
  s.usage = Json();
  if (const Json* system = file->find_value("system"); system != nullptr && system->is_string())
    s.system = system->as_string();
  std::printf("%zu messages\n", s.turns.size());
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

void read_image(Session& s, const std::string& path) {
  Result<Json> part = image_part(path);
  if (!part) {
    std::printf("%s\n", part.error().message.c_str());
    return;
  }
  s.images.push_back(std::move(*part));
  std::printf("%zu %s with the next question\n", s.images.size(),
              s.images.size() == 1 ? "picture goes" : "pictures go");
}

// With what /read and /image have put before it.
Json question(Session& s, const std::string& line) {
  Json out = message("user", std::exchange(s.attachment, {}) + line);
  if (s.images.empty()) return out;
  Json text(Json::Object{});
  text.set("type", Json("text"));
  text.set("text", *out.find("content"));
  s.images.push_back(std::move(text));
  out.set("content", Json(std::exchange(s.images, {})));
  return out;
}

// A JSON text given as it is or as the name of a file that holds it.
Result<Json> json_argument(const std::string& text) {
  return text.starts_with('{') || text.starts_with('[') ? parse_json(text) : parse_json_file(text);
}

void set_constraint(Session& s, const ConstraintOptions& options) {
  Result<Json> members = constraint_members(options);
  if (members) {
    s.constraint = std::move(*members);
  } else {
    std::printf("%s\n", members.error().message.c_str());
  }
}

void set_tools(Session& s, const std::string& argument) {
  if (argument.empty()) {
    s.tools = Json();
    return;
  }
  const Result<Json> tools = json_argument(argument);
  if (!tools || !tools->is_array()) {
    std::printf("no tools: %s\n", tools ? "expected a JSON array of tools" : tools.error().message.c_str());
    return;
  }
  s.tools = *tools;
  std::printf("%zu tools\n", tools->size());
}

// Back to before the last question, with all that came after it; false when there is none.
bool undo(Session& s, bool keep_question) {
  size_t at = s.turns.size();
  while (at > 0 && s.turns[at - 1].find("role")->as_string() != "user") --at;
  if (at == 0) return false;
  s.turns.resize(keep_question ? at : at - 1);
  return true;
}

// The number that a setting is given, -1 for none; `now` where the text is no number of this range.
double number_given(const std::string& text, double now, double low, double high) {
  char* end = nullptr;
  const double value = text.empty() ? -1 : std::strtod(text.c_str(), &end);
  if (text.empty() || (end != text.c_str() && *end == '\0' && value >= low && value <= high)) return value;
  std::printf("expected a number from %.17g to %.17g, found %s\n", low, high, text.c_str());
  return now;
}

// Settings; true when the name is one.
bool set_option(Session& s, const std::string& name, const std::string& rest) {
  if (name == "think" || name == "nothink") {
    s.thinking = name == "think";
  } else if (name == "effort") {
    if (rest == "low" || rest == "medium" || rest == "high" || rest == "max") {
      s.effort = rest;
      s.thinking = true;
    } else {
      std::printf("the effort is low, medium, high or max\n");
    }
  } else if (name == "fold") {
    s.folded = !s.folded;
    std::printf("the reasoning is %s\n", s.folded ? "hidden" : "shown");
  } else if (name == "system") {
    s.system = rest;
  } else if (name == "temp") {
    s.temperature = number_given(rest, s.temperature, 0, 2);
  } else if (name == "seed") {
    s.seed = static_cast<int64_t>(number_given(rest, static_cast<double>(s.seed), 0, 1LL << 53));
  } else if (name == "max") {
    s.max_tokens = static_cast<int32_t>(number_given(rest, s.max_tokens, 1, 393216));
  } else if (name == "json") {
    set_constraint(s, {.json = rest.empty(), .json_schema = rest});
  } else if (name == "regex") {
    set_constraint(s, {.regex = rest});
  } else if (name == "grammar") {
    set_constraint(s, {.grammar = rest});
  } else if (name == "text") {
    s.constraint = Json();
  } else if (name == "tools") {
    set_tools(s, rest);
  } else {
    return false;
  }
  return true;
}

enum class After : uint8_t { kNothing, kAsk, kQuit };

After command(Session& s, const std::string& line, const Terminal& terminal, int64_t context) {
  const size_t space = line.find(' ');
  const std::string name = line.substr(1, space == std::string::npos ? space : space - 1);
  std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
  while (rest.ends_with(' ')) rest.pop_back();
  if (set_option(s, name, rest)) return After::kNothing;
  if (name == "quit" || name == "exit" || name == "bye") return After::kQuit;
  if (name == "help" || name == "?") {
    std::fputs(kHelp, stdout);
  } else if (name == "read") {
    read_file(s, rest);
  } else if (name == "image") {
    read_image(s, rest);
  } else if (name == "save") {
    save(s, rest);
  } else if (name == "load") {
    load(s, rest);
  } else if (name == "stats") {
    print_status(s, terminal);
  } else if (name == "ctx") {
    std::printf("%lld of %lld tokens\n", static_cast<long long>(usage_of(s, "total_tokens")),
                static_cast<long long>(context));
  } else if (name == "raw") {
    std::printf("%s\n%s\n", to_json(s.request, JsonStyle::kSpaced).c_str(),
                s.turns.empty() ? "" : to_json(s.turns.back(), JsonStyle::kSpaced).c_str());
  } else if (name == "clear") {
    s.turns.clear();
    s.attachment.clear();
    s.images.clear();
    s.usage = Json();
    std::printf("a new conversation\n");
  } else if (name == "undo") {
    std::printf(undo(s, false) ? "the last question is taken back\n" : "there is no question\n");
  } else if (name == "retry") {
    if (undo(s, true)) return After::kAsk;
    std::printf("there is no question\n");
  } else {
    std::printf("no such command: /%s (/help lists them)\n", name.c_str());
  }
  return After::kNothing;
}

// One line, with its end cut off. False at the end of the input.
bool read_line(LineEditor& editor, const char* prompt, const Terminal& terminal, std::string& line) {
  if (!terminal.interactive) return static_cast<bool>(std::getline(std::cin, line));
  for (;;) {
    switch (editor.read(prompt, line)) {
      case LineEditor::End::kLine:
        return true;
      case LineEditor::End::kEndOfInput:
        return false;
      case LineEditor::End::kInterrupted:
        std::printf("%sCtrl-D or /quit leaves%s\n", terminal.dim, terminal.plain);
    }
  }
}

// A question or command, which may have several lines.
bool read_input(LineEditor& editor, std::string& text, const Terminal& terminal) {
  constexpr std::string_view kBlock = R"(""")";
  text.clear();
  bool block = false;
  for (std::string part; read_line(editor, text.empty() && !block ? "> " : ". ", terminal, part);) {
    if (!block && part.ends_with('\\')) {
      text += part.substr(0, part.size() - 1) + "\n";
      continue;
    }
    if (terminal.interactive && !block && part.starts_with(kBlock)) {
      block = true;
      part.erase(0, kBlock.size());
    }
    if (block && !part.ends_with(kBlock)) {
      text += part + "\n";
      continue;
    }
    text += block ? part.substr(0, part.size() - kBlock.size()) : part;
    if (terminal.interactive) editor.remember(text);
    return true;
  }
  return !text.empty();
}

// Lets the user answer the calls of the last turn. False when there are none.
bool answer_tool_calls(Session& s, LineEditor& editor, const Terminal& terminal) {
  const Json calls = s.turns.back().find("tool_calls") == nullptr ? Json() : *s.turns.back().find("tool_calls");
  if (!calls.is_array()) return false;
  for (const Json& call : calls.as_array()) {
    const Json& function = *call.find("function");
    std::printf("%scalls%s %s(%s)\n", terminal.dim, terminal.plain, function.find("name")->as_string().c_str(),
                function.find("arguments")->as_string().c_str());
    std::string result;
    if (!read_line(editor, "result> ", terminal, result)) return false;
    Json turn = message("tool", std::move(result));
    turn.set("tool_call_id", *call.find("id"));
    s.turns.push_back(std::move(turn));
  }
  return true;
}

std::string history_path() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0')
    return std::string(state) + "/deepinfer/chat_history";
  const char* home = std::getenv("HOME");
  return home == nullptr ? std::string() : std::string(home) + "/.local/state/deepinfer/chat_history";
}

// How far loading is, on one line that goes away.
std::function<void(double, std::string_view)> progress_line(const Terminal& terminal) {
  if (!terminal.interactive) return {};
  return [](double part, std::string_view stage) {
    std::fprintf(stderr, "\r\x1b[K%.*s %.0f %%", static_cast<int>(stage.size()), stage.data(), part * 100);
  };
}

Session session_of(const ChatOptions& options, Json constraint) {
  Session session;
  session.constraint = std::move(constraint);
  session.system = options.system;
  session.thinking = options.thinking;
  session.effort = options.effort;
  session.temperature = options.temperature;
  session.seed = options.seed;
  session.max_tokens = options.max_tokens;
  return session;
}

// The first model of the server's list, or the one asked for.
Result<Peer> remote_peer(const ChatOptions& options) {
  const HttpTarget target = DI_TRY(parse_base_url("--url", options.url, Tls::kOffered, options.ca_cert));
  PostOptions post;
  if (!options.api_key.empty()) post.headers.push_back("Authorization: Bearer " + options.api_key);
  const auto [status, body] = DI_TRY(http_get(target, "/v1/models", post.headers));
  if (status != 200) {
    const std::string why = error_message(body);
    return fail(Errc::kUnavailable, "{}/v1/models answers with status {}{}{}", options.url, status,
                why.empty() ? "" : ": ", why);
  }
  Peer peer;
  const std::vector<std::string>& names = options.model.served_model_names;
  const Result<Json> list = parse_json(body);
  const Json* models = list ? list->find_value("data") : nullptr;
  for (std::size_t i = 0; models != nullptr && i < models->size(); ++i) {
    const Json& model = models->as_array()[i];
    const Json* id = model.find_value("id");
    if (id == nullptr || !id->is_string() || (!names.empty() && id->as_string() != names[0])) continue;
    peer.model = id->as_string();
    const Json* context = model.find_value("max_model_len");
    peer.context = context == nullptr ? 0 : context->to_i64().value_or(0);
    break;
  }
  if (peer.model.empty() && !names.empty()) peer.model = names[0];  // an alias that is not listed: the server decides
  if (peer.model.empty())
    return fail(Errc::kUnavailable, "{} lists no model; name one (--served-model-name)", options.url);
  post.interrupted = [] { return interrupt_flag().load(); };
  peer.send = [target, post](const Json& request, const std::function<bool(const ChatDelta&)>& on_delta) {
    ChatEvents events(on_delta);
    bool left = false;
    PostOptions streamed = post;
    streamed.on_stream = [&](std::string_view bytes) { left = left || !events.feed(bytes); };
    streamed.interrupted = [&] { return left || post.interrupted(); };
    const Result<PostResult> sent = http_post(target, "/v1/chat/completions", to_json(request), streamed);
    if (sent && sent->interrupted) events.interrupt();
    ChatEnd end = events.end();
    if (!sent) {
      end.error = sent.error().message;
    } else if (sent->status != 200 && !sent->interrupted) {
      end.error = error_message(sent->body);
      if (end.error.empty()) end.error = fmt::format("status {}", sent->status);
    } else if (end.error.empty() && end.finish_reason.empty()) {
      end.error = "the stream ended without a reason";
    }
    return end;
  };
  return peer;
}

// With a running server. What `use` returns is the exit status.
template <class Use>
int with_server(const ChatOptions& options, Json constraint, const Use& use) {
  const Result<Peer> peer = remote_peer(options);
  if (!peer) {
    std::fprintf(stderr, "deepinfer chat: %s\n", peer.error().message.c_str());
    return peer.error().code == Errc::kInvalidRequest ? kUsage : kFailed;
  }
  catch_interrupts();
  Session session = session_of(options, std::move(constraint));
  return use(session, *peer, Terminal::detect());
}

// Loads the model, calls use(session, peer, terminal) with a session of these options, and takes it all down again;
// with
// --url, a server stands in its place. What `use` returns is the exit status.
template <class Use>
int with_session(const ChatOptions& options, const char* command_name, const Use& use) {
  Result<Json> constraint = constraint_members(options.constraint);
  if (!constraint) {
    std::fprintf(stderr, "deepinfer %s: %s\n", command_name, constraint.error().message.c_str());
    return kUsage;
  }
  if (!options.url.empty()) return with_server(options, std::move(*constraint), use);
  const Terminal terminal = Terminal::detect();
  const SystemClock clock;
  server::ServerConfig config;
  config.served_model_names = served_names(options.model);
  server::App app(config, clock);
  auto model = load_model(options.model, config.policy, clock, {progress_line(terminal), {}});
  if (terminal.interactive) std::fputs("\r\x1b[K", stderr);
  if (!model) {
    std::fprintf(stderr, "deepinfer %s: %s\n", command_name, model.error().message.c_str());
    return model.error().exit_status;
  }
  app.set_ready((*model)->service(clock));
  catch_interrupts();
  Session session = session_of(options, std::move(*constraint));
  const Peer peer{config.served_model_names[0], (*model)->engine->info().max_model_len,
                  [&app](const Json& body, const std::function<bool(const ChatDelta&)>& on_delta) {
                    return stream_chat(app, body, on_delta);
                  }};
  const int status = use(session, peer, terminal);
  app.stop_workers();
  model->reset();
  return status;
}

int converse(Session& session, const Peer& peer, const Terminal& terminal) {
  LineEditor editor(terminal.interactive ? history_path() : std::string());
  editor.set_completions(kCommands);
  if (terminal.interactive) {
    std::printf("%s, %lld tokens of context. /help lists commands, Ctrl-D leaves.\n\n", peer.model.c_str(),
                static_cast<long long>(peer.context));
  }
  int status = kOk;
  for (std::string line; read_input(editor, line, terminal);) {
    if (line.empty()) continue;
    After after = After::kAsk;
    if (terminal.interactive && line.starts_with('/')) {
      after = command(session, line, terminal, peer.context);
    } else {
      session.turns.push_back(question(session, line));
    }
    if (after == After::kQuit) break;
    if (after != After::kAsk) continue;
    bool answered = ask(session, peer, terminal);
    while (answered && terminal.interactive && answer_tool_calls(session, editor, terminal))
      answered = ask(session, peer, terminal);
    if (!answered) {
      undo(session, false);
      status = kFailed;
    } else if (terminal.interactive) {
      print_status(session, terminal);
    }
    if (terminal.interactive) std::printf("\n");
  }
  return terminal.interactive ? kOk : status;
}
}  // namespace

int chat(const ChatOptions& options) {
  return with_session(options, "chat", converse);
}

int run(const ChatOptions& options) {
  return with_session(options, "run", [&](Session& session, const Peer& peer, const Terminal& terminal) {
    std::string prompt = options.prompt;
    if (prompt.empty() || prompt == "-") {
      if (isatty(STDIN_FILENO) != 0) std::fputs("The question, ended by Ctrl-D:\n", stderr);
      prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
    }
    if (prompt.find_first_not_of(" \t\r\n") == std::string::npos) {
      std::fputs("deepinfer run: there is no question: give it behind the model, or on standard input\n", stderr);
      return kUsage;
    }
    session.turns.push_back(message("user", std::move(prompt)));
    const bool ok = ask(session, peer, terminal);
    return ok ? (interrupt_flag().load() ? 130 : kOk) : kFailed;
  });
}

}  // namespace di::cli
