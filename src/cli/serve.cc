// deepinfer serve: the port opens at once and says truthfully that it is loading; signals end the server in order.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "cli/local_model.h"

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

// At once, without taking anything down: the second signal means it.
[[noreturn]] void leave_now(int signal_number) {
  std::_Exit(128 + signal_number);
}

// server.md §2.6, in its order. Each pause ends at once on a further signal.
void drain(server::App& app, server::HttpServer& http, Signals& signals, const server::ServerConfig& config,
           const Clock& clock) {
  DI_LOG(kInfo, "draining: {} requests under way", http.open_exchanges());
  app.announce_drain();
  if (config.drain_delay_ms > 0) {
    if (const int again = signals.wait(static_cast<int>(config.drain_delay_ms))) leave_now(again);
  }
  app.refuse_new();
  const int64_t deadline = clock.now_ns() + config.drain_timeout_ms * kNsPerMs;
  while (!http.wait_until_idle(0) && clock.now_ns() < deadline) {
    if (const int again = signals.wait(20)) leave_now(again);
  }
  app.abort_all();
  http.wait_until_idle(2000);
  http.stop_accepting();
}

}  // namespace

int serve(const ServeOptions& options) {
  Signals signals;
  const SystemClock clock;
  server::ServerConfig config = options.server;
  config.served_model_names = served_names(options.model);
  config.drain_delay_ms = options.drain_delay_ms >= 0 ? options.drain_delay_ms : is_loopback(config.host) ? 0 : 5000;

  server::App app(config, clock);
  server::HttpServer http(config.http, [&app](const server::ExchangeRef& exchange) { app.handle(exchange); }, clock);
  app.metrics().watch(http.counters());
  app.feed().start();
  if (const Result<void> listening = http.start(config.host, config.port); !listening) {
    std::fprintf(stderr, "deepinfer serve: %s\n", listening.error().message.c_str());
    return listening.error().code == Errc::kUnavailable ? kPortInUse : kUsage;
  }
  DI_LOG(kInfo, "listening on http://{}:{}", config.host, http.port());
  if (!is_loopback(config.host))
    DI_LOG(kWarn, "{} is reachable from other machines and no API key is required", config.host);

  std::unique_ptr<LocalModel> model;
  std::optional<LoadError> load_failure;
  std::atomic<bool> loaded{false};
  std::thread loader([&] {
    auto result = load_model(options.model, config.policy, clock, [&app](double part, std::string_view stage) {
      app.set_progress(part, std::string(stage));
    });
    if (result) {
      model = std::move(*result);
      DI_LOG(kInfo, "{}", model->summary);
      app.set_ready(model->service(clock));
      DI_LOG(kInfo, "ready: http://{}:{}/v1/chat/completions", config.host, http.port());
    } else {
      load_failure = result.error();
    }
    loaded.store(true);
    signals.wake();
  });

  int signal_number = signals.wait(-1);
  if (signal_number != 0 && !loaded.load()) {
    DI_LOG(kInfo, "stopped while loading");
    std::_Exit(kOk);  // the loader cannot be interrupted
  }
  loader.join();
  if (load_failure) {
    std::fprintf(stderr, "deepinfer serve: %s\n", load_failure->message.c_str());
    return load_failure->exit_status;
  }
  while (signal_number == 0) signal_number = signals.wait(-1);
  drain(app, http, signals, config, clock);
  http.stop();
  app.stop_workers();
  model.reset();
  DI_LOG(kInfo, "stopped");
  return kOk;
}

}  // namespace di::cli
