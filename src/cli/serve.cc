// deepinfer serve: the port opens at once and says truthfully that it is loading; signals end the server in order.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/log.h"
#include "cli/local_model.h"
#include "cli/service_manager.h"

namespace di::cli {
namespace {

// SIGINT and SIGTERM as a file descriptor. Blocked before any thread starts, so that no thread is interrupted by them.
class Signals {
 public:
  Signals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC);
    wake_ = eventfd(0, EFD_CLOEXEC);
  }
  ~Signals() {
    close(fd_);
    close(wake_);
  }
  // From any thread: wait() returns.
  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(wake_, &one, sizeof one);
  }
  // The signal's number; 0 after wake() or the timeout (milliseconds, -1: none).
  int wait(int timeout_ms) {
    pollfd fds[2] = {{fd_, POLLIN, 0}, {wake_, POLLIN, 0}};
    if (poll(fds, 2, timeout_ms) <= 0) return 0;
    signalfd_siginfo info{};
    if ((fds[0].revents & POLLIN) != 0 && read(fd_, &info, sizeof info) == sizeof info)
      return static_cast<int>(info.ssi_signo);
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = read(wake_, &count, sizeof count);
    return 0;
  }

 private:
  int fd_ = -1;
  int wake_ = -1;
};

bool is_loopback(const std::string& host) {
  return host == "localhost" || host.starts_with("127.") || host == "::1";
}

// The secret of the cache namespaces: of the file, which is made when it is not there; else of this run.
Result<std::string> kv_secret(const std::string& path) {
  const auto fresh = [] { return server::random_hex32() + server::random_hex32(); };
  if (path.empty()) return fresh();
  if (std::ifstream file(path); file) {
    std::string secret((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
    if (secret.size() < 16)
      return fail(Errc::kInvalidRequest, "--kv-secret-file {}: {} bytes, at least 16 are expected", path,
                  secret.size());
    return secret;
  }
  std::string secret = fresh();
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written = fd >= 0 && write(fd, secret.data(), secret.size()) == static_cast<ssize_t>(secret.size());
  if (fd >= 0) close(fd);
  if (!written) return fail(Errc::kUnavailable, "--kv-secret-file {}: cannot be written", path);
  return secret;
}

// At once, without taking anything down: the second signal means it.
[[noreturn]] void leave_now(int signal_number) {
  std::_Exit(128 + signal_number);
}

// Requests with a client, and responses that go on without one.
std::string under_way(const server::App& app, const server::HttpServer& http) {
  const int64_t background = app.open_jobs().background;
  std::string out = fmt::format("{} requests under way", http.open_exchanges());
  if (background > 0) out += fmt::format(" and {} background responses", background);
  return out;
}

// server.md §2.6, in its order. `signalled`: a signal asked for it, so that it cannot be called off, and a further one
// leaves at once. A first signal on top of /admin/drain (a service manager's, after its stop hook) only ends the pause
// before new requests are refused. False: called off by /admin/undrain.
bool drain(server::App& app, server::HttpServer& http, Signals& signals, const server::ServerConfig& config,
           const Clock& clock, const std::atomic<bool>& wanted, bool signalled, ServiceManager& manager) {
  DI_LOG(kInfo, "draining: {}", under_way(app, http));
  signalled ? app.end_for_good() : app.announce_drain();
  bool heard = signalled && wanted.load();  // a signal after the drain was asked for
  const auto pause = [&](int64_t ms) {
    manager.alive(clock);
    const int number = signals.wait(manager.pause_ms(static_cast<int>(ms)));
    if (number == 0) return;
    if (signalled) leave_now(number);
    signalled = heard = true;
    app.end_for_good();
  };
  const auto called_off = [&] { return !signalled && !wanted.load(); };
  const int64_t refuse_at = clock.now_ns() + config.drain_delay_ms * kNsPerMs;
  while (!heard && !called_off() && clock.now_ns() < refuse_at) pause((refuse_at - clock.now_ns()) / kNsPerMs + 1);
  if (called_off()) return false;
  app.refuse_new();
  const int64_t deadline = clock.now_ns() + config.drain_timeout_ms * kNsPerMs;
  const auto idle = [&] { return http.wait_until_idle(0) && app.open_jobs().all == 0; };
  while (!idle() && clock.now_ns() < deadline) {
    pause(20);
    if (called_off()) return false;
  }
  if (!idle()) DI_LOG(kWarn, "the time to drain is over: {} end with an error", under_way(app, http));
  app.abort_all();
  for (int i = 0; i < 100 && !idle(); ++i) pause(20);
  http.stop_accepting();
  return true;
}

// What the variables of OpenTelemetry say where the command line says nothing: the collector, its headers
// (`name=value`, separated by commas), the name of this service.
void read_otel_environment(server::OtlpOptions& o) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (o.endpoint.empty()) o.endpoint = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
  if (std::string base = variable("OTEL_EXPORTER_OTLP_ENDPOINT"); o.endpoint.empty() && !base.empty()) {
    while (base.ends_with('/')) base.pop_back();
    o.endpoint = base + "/v1/traces";
  }
  if (const std::string name = variable("OTEL_SERVICE_NAME"); !name.empty()) o.service_name = name;
  const std::string headers = variable("OTEL_EXPORTER_OTLP_HEADERS");
  for (size_t at = 0; at < headers.size();) {
    const size_t end = std::min(headers.find(',', at), headers.size());
    const std::string item = headers.substr(at, end - at);
    if (const size_t equals = item.find('='); equals != std::string::npos)
      o.headers.emplace_back(item.substr(0, equals), item.substr(equals + 1));
    at = end + 1;
  }
}

// What the options ask for, or why it cannot be had.
Result<server::ServerConfig> server_config(const ServeOptions& options) {
  server::ServerConfig config = options.server;
  config.served_model_names = served_names(options.model);
  config.drain_delay_ms = options.drain_delay_ms >= 0                       ? options.drain_delay_ms
                          : is_loopback(config.host) || !config.uds.empty() ? 0
                                                                            : 5000;
  config.auth.kv_secret = DI_TRY(kv_secret(options.kv_secret_file));
  if (config.media_fetch.policy.enabled && config.media_fetch.policy.allow_domains.empty())
    return fail(Errc::kInvalidRequest, "--media-fetch: no --media-allow-domain names a host to fetch from");
  if (!config.exact_replay_dir.empty()) {
    std::error_code problem;
    std::filesystem::create_directories(config.exact_replay_dir, problem);
    if (access(config.exact_replay_dir.c_str(), W_OK | X_OK) != 0)
      return fail(Errc::kInvalidRequest, "--exact-replay-dir {}: no folder that can be written to",
                  config.exact_replay_dir);
  }
  read_otel_environment(config.otlp);
  return config;
}

Result<void> check_auth(const server::App& app) {
  if (app.config_error()) return std::unexpected(*app.config_error());
  const server::ServerConfig& config = app.config();
  if (!config.uds.empty() || is_loopback(config.host) || app.auth_required()) return {};
  if (config.require_auth)
    return fail(Errc::kInvalidRequest, "--require-auth: {} is reachable from other machines and there is no API key",
                config.host);
  DI_LOG(kWarn, "{} is reachable from other machines and no API key is required", config.host);
  return {};
}

int failed(const Error& error, int status) {
  std::fprintf(stderr, "deepinfer serve: %s\n", error.message.c_str());
  return status;
}

// One line every ten seconds while there is work: what runs, how fast, what the cache gave (server.md §11).
class StatusLine {
 public:
  static constexpr int kEveryMs = 10'000;

  void log(const server::App& app) {
    const server::Service* service = app.service();
    if (service == nullptr) return;
    const engine::EngineStats now = service->engine->stats();
    const engine::EngineStats before = std::exchange(last_, now);
    if (now.running + now.waiting == 0 && now.steps == before.steps) return;
    const auto per_second = [](uint64_t later, uint64_t earlier) {
      return static_cast<double>(later - earlier) * 1e3 / kEveryMs;
    };
    const auto part = [](auto of, auto all) {
      return all == 0 ? 0.0 : 100.0 * static_cast<double>(of) / static_cast<double>(all);
    };
    const uint64_t rounds = now.speculation.rounds - before.speculation.rounds;
    const double accepted = rounds == 0
                                ? 0.0
                                : 1.0 + static_cast<double>(now.speculation.accepted - before.speculation.accepted) /
                                            static_cast<double>(rounds);
    DI_LOG(
        kInfo,
        "running {}, waiting {}, prefill {:.0f} tok/s, decode {:.0f} tok/s, KV {:.1f} %, hit {:.1f} %, accept length "
        "{:.2f}",
        now.running, now.waiting, per_second(now.prompt_tokens, before.prompt_tokens),
        per_second(now.generated_tokens, before.generated_tokens), part(now.used_blocks, now.total_blocks),
        part(now.prefix_hits - before.prefix_hits, now.prefix_queries - before.prefix_queries), accepted);
  }

 private:
  engine::EngineStats last_;
};

// Waits for signals and drain requests, until it is over.
// False: the device was lost, and nothing is to be waited for.
bool run_until_drained(server::App& app, server::HttpServer& http, Signals& signals, std::atomic<bool>& drain_wanted,
                       const std::atomic<bool>& device_lost, int signal_number, const Clock& clock) {
  ServiceManager manager;
  StatusLine status;
  manager.tell("READY=1");
  int64_t logged_ns = clock.now_ns();
  for (;;) {
    while (signal_number == 0 && !drain_wanted.load()) {
      if (device_lost.load()) return false;
      if (server::is_alive(app)) manager.alive(clock);
      signal_number = signals.wait(manager.pause_ms(StatusLine::kEveryMs));
      if (clock.now_ns() - logged_ns < StatusLine::kEveryMs * kNsPerMs) continue;
      logged_ns = clock.now_ns();
      if (log_enabled(LogLevel::kInfo, log_room(__FILE__))) status.log(app);
    }
    if (signal_number != 0) manager.tell("STOPPING=1");
    if (drain(app, http, signals, app.config(), clock, drain_wanted, signal_number != 0, manager)) return true;
    DI_LOG(kInfo, "not draining any more");
    app.undo_drain();
    signal_number = 0;
  }
}

// After the answers that say that the device has failed. What is left of this process would wait for the device.
[[noreturn]] void end_at_once(server::App& app, server::HttpServer& http) {
  std::fprintf(stderr,
               "deepinfer serve: the device has failed: this process ends, for a supervisor to start it again\n");
  app.announce_drain();
  http.wait_until_idle(1000);
  std::_Exit(kFailed);
}

// Both of a server's doors, or the status to end with.
std::expected<std::string, int> open_doors(const server::ServerConfig& config, server::HttpServer& http,
                                           server::HttpServer& admin) {
  Result<void> listening =
      config.uds.empty() ? http.start(config.host, config.port, config.tls) : http.start_unix(config.uds, config.tls);
  if (listening && config.admin_port != 0) listening = admin.start(config.host, config.admin_port, config.tls);
  if (!listening) {
    return std::unexpected(
        failed(listening.error(), listening.error().code == Errc::kUnavailable ? kPortInUse : kUsage));
  }
  const std::string_view scheme = config.tls.certificate.empty() ? "http" : "https";
  std::string url = config.uds.empty() ? fmt::format("{}://{}:{}", scheme, config.host, http.port())
                                       : fmt::format("unix:{}", config.uds);
  DI_LOG(kInfo, "listening on {}", url);
  if (config.admin_port != 0) DI_LOG(kInfo, "administration on {}://{}:{}", scheme, config.host, config.admin_port);
  return url;
}

}  // namespace

int serve(const ServeOptions& options) {
  Signals signals;
  const SystemClock clock;
  Result<server::ServerConfig> made = server_config(options);
  if (!made) return failed(made.error(), kUsage);
  const server::ServerConfig config = std::move(*made);
  server::App app(config, clock);
  if (const Result<void> ok = check_auth(app); !ok) return failed(ok.error(), kUsage);
  const auto door = config.admin_port == 0 ? server::App::Door::kAll : server::App::Door::kApi;
  const auto api = [&app, door](const server::ExchangeRef& exchange) { app.handle(exchange, door); };
  server::HttpServer http(config.http, api, clock);
  server::HttpServer admin(config.http, [&app](const server::ExchangeRef& exchange) { app.handle(exchange); }, clock);
  app.metrics().watch(http.counters());
  const std::expected<std::string, int> opened = open_doors(config, http, admin);
  if (!opened) return opened.error();
  const std::string& url = *opened;
  // Reads the counters of `http` each second, so it ends before them however this function is left.
  app.feed().start();
  const std::unique_ptr<server::UiFeed, void (*)(server::UiFeed*)> running_feed(
      &app.feed(), [](server::UiFeed* feed) { feed->stop(); });

  std::atomic<bool> drain_wanted{false};
  // Said at once: a call that is taken back before this thread hears of it leaves nothing behind.
  app.on_drain_request([&](bool wanted) {
    if (!wanted && !app.undo_drain()) return false;
    drain_wanted.store(wanted);
    if (wanted) app.announce_drain();
    signals.wake();
    return true;
  });

  std::unique_ptr<LocalModel> model;
  std::optional<LoadError> load_failure;
  std::atomic<bool> loaded{false};
  std::atomic<bool> device_lost{false};
  std::thread loader([&] {
    LoadHooks hooks;
    hooks.progress = [&app](double part, std::string_view stage) { app.set_progress(part, std::string(stage)); };
    hooks.device_lost = [&](const Error&) {
      device_lost.store(true);
      signals.wake();
    };
    hooks.codec = [&app](const server::Codec& codec) { app.set_codec(codec); };
    auto result = load_model(options.model, config.policy, clock, hooks);
    if (result) {
      model = std::move(*result);
      DI_LOG(kInfo, "{}", model->summary);
      app.set_ready(model->service(clock));
      DI_LOG(kInfo, "ready: {}/v1/chat/completions; web page: {}/", url, url);
    } else {
      load_failure = result.error();
    }
    loaded.store(true);
    signals.wake();
  });

  int signal_number = signals.wait(-1);
  if (signal_number != 0 && !loaded.load()) {
    DI_LOG(kInfo, "stopped while loading");
    if (app.refuse_held()) http.wait_until_idle(1000);
    std::_Exit(kOk);  // the loader cannot be interrupted
  }
  loader.join();
  if (load_failure) {
    std::fprintf(stderr, "deepinfer serve: %s\n", load_failure->message.c_str());
    return load_failure->exit_status;
  }
  if (!run_until_drained(app, http, signals, drain_wanted, device_lost, signal_number, clock)) end_at_once(app, http);
  app.feed().stop();  // it reads the engine's figures too
  http.stop();
  admin.stop();
  app.stop_workers();
  model.reset();
  DI_LOG(kInfo, "stopped");
  return kOk;
}

}  // namespace di::cli
