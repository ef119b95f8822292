// deepinfer bench startup (server.md §13.1, §15.4): how long a server takes from its start to its first answers, cold
// (the model's files are not in memory, no step costs are known) and warm (the same once more).
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/clock.h"
#include "base/json.h"
#include "cli/bench_client.h"
#include "cli/bench_report.h"
#include "cli/local_model.h"
#include "cli/options.h"
#include "cli/page_cache.h"
#include "server/ui_feed.h"

extern char** environ;

namespace di::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostNs = 600 * kNsPerSecond;
constexpr int64_t kNapNs = kNsPerMs;

// Moments of one start, milliseconds from the first instruction of this program that led to it; then seconds by stage.
struct Start {
  std::map<std::string, double> ms;
  std::map<std::string, double> stages;
};

// A server of this program, ended at the end.
class Child {
 public:
  static Result<Child> start(const std::vector<std::string>& arguments) {
    std::vector<std::string> words = {fs::read_symlink("/proc/self/exe").string()};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    Child child;
    const int failed = posix_spawn(&child.pid_, words[0].c_str(), &files, nullptr, pointers.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    if (failed != 0) return fail(Errc::kUnavailable, "cannot start {}: error {}", words[0], failed);
    return child;
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (pid_ > 0) static_cast<void>(end());
  }
  bool ended() {
    int status = 0;
    if (pid_ < 0 || waitpid(pid_, &status, WNOHANG) == 0) return false;
    pid_ = -1;
    return true;
  }
  // Its exit status after SIGTERM; -1: killed by something.
  int end() {
    kill(pid_, SIGTERM);
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  Child() = default;
  pid_t pid_ = -1;
};

Result<uint16_t> free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);  // NOLINT: the socket API
  const bool found = bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0;
  close(fd);
  if (!found) return fail(Errc::kUnavailable, "no free port");
  return ntohs(address.sin_port);
}

Result<double> wait_for(Child& child, const HttpTarget& target, const char* path, int64_t begun) {
  const SystemClock clock;
  for (;;) {
    const auto answer = http_get(target, path);
    const int64_t now = clock.now_ns();
    if (answer && answer->first == 200) return static_cast<double>(now - begun) * 1e-6;
    if (child.ended()) return fail(Errc::kUnavailable, "the server ended before {} answered", path);
    if (now - begun > kMostNs) return fail(Errc::kUnavailable, "{} did not answer within 10 minutes", path);
    clock.sleep_until(now + kNapNs);
  }
}

Result<Start> one_start(const BenchStartupOptions& o, const std::string& cache) {
  const HttpTarget target{"127.0.0.1", DI_TRY(free_port())};
  std::vector<std::string> arguments = {"serve",       o.folder,   "--host",
                                        target.host,   "--port",   fmt::format("{}", target.port),
                                        "--log-level", "error",    "--spec-curve-cache",
                                        cache,         "--engine", o.engine,
                                        "--device",    o.device};
  const SystemClock clock;
  const int64_t begun = clock.now_ns();
  Child child = DI_TRY(Child::start(arguments));
  Start out;
  out.ms["front end"] = DI_TRY(wait_for(child, target, "/livez", begun));
  out.ms["ready"] = DI_TRY(wait_for(child, target, "/readyz", begun));
  LoadRequest request;
  request.path = "/v1/chat/completions";
  request.body =
      R"({"model":"deepseek-v4.1-flash","messages":[{"role":"user","content":"What is 3 times 4?"}],"stream":true,)"
      R"("thinking":{"type":"disabled"},"max_tokens":8})";
  const int64_t asked = clock.now_ns();
  const LoadReport load = DI_TRY(run_load({.host = target.host, .port = target.port}, {request}));
  if (!load.results[0].ok) return fail(Errc::kUnavailable, "the first request failed: {}", load.results[0].error);
  out.ms["first token"] = static_cast<double>(asked + load.results[0].first_ns - begun) * 1e-6;
  const auto metrics = DI_TRY(http_get(target, "/metrics"));
  for (const server::MetricSample& sample : server::parse_metrics_text(metrics.second)) {
    if (sample.name == "deepinfer:startup_seconds") out.stages[std::string(sample.label("stage"))] = sample.value;
  }
  const int64_t told = clock.now_ns();
  if (const int status = child.end(); status != 0)
    return fail(Errc::kUnavailable, "the server ended with status {}", status);
  out.ms["to its end"] = static_cast<double>(clock.now_ns() - told) * 1e-6;
  return out;
}

using Series = std::map<std::string, std::vector<double>>;

Series collect(const std::vector<Start>& starts) {
  Series out;
  for (const Start& start : starts) {
    for (const auto& [name, value] : start.ms) out[name].push_back(value);
    for (const auto& [name, value] : start.stages) out["stage " + name].push_back(value * 1e3);
  }
  for (auto& [name, values] : out) std::sort(values.begin(), values.end());
  return out;
}

void print_table(const char* title, const Series& series) {
  std::printf("%-28s %10s %10s %10s %10s %10s\n", title, "p10 ms", "p50 ms", "p90 ms", "p99 ms", "largest");
  for (const auto& [name, values] : series)
    std::printf("  %-26s %10.1f %10.1f %10.1f %10.1f %10.1f\n", name.c_str(), percentile(values, 10),
                percentile(values, 50), percentile(values, 90), percentile(values, 99), values.back());
  std::printf("\n");
}

void write_json(JsonWriter& w, const char* key, const Series& series) {
  w.key(key).begin_object();
  for (const auto& [name, values] : series) {
    w.key(name).begin_object();
    for (const int p : {10, 50, 90, 99}) w.key(fmt::format("p{}_ms", p)).value(percentile(values, p));
    w.end_object();
  }
  w.end_object();
}

}  // namespace

int bench_startup(const BenchStartupOptions& options) {
  std::vector<Start> cold;
  std::vector<Start> warm;
  for (int32_t i = 0; i < options.repetitions; ++i) {
    std::string cache = (fs::temp_directory_path() / "deepinfer-startup-XXXXXX").string();
    if (mkdtemp(cache.data()) == nullptr) {
      std::fprintf(stderr, "deepinfer bench startup: cannot make a folder like %s\n", cache.c_str());
      return kFailed;
    }
    forget_pages(options.folder);
    for (std::vector<Start>* starts : {&cold, &warm}) {
      Result<Start> start = one_start(options, cache);
      if (!start) {
        std::fprintf(stderr, "deepinfer bench startup: %s\n", start.error().message.c_str());
        return kFailed;
      }
      starts->push_back(std::move(*start));
    }
    std::error_code ignored;
    fs::remove_all(cache, ignored);
  }
  if (options.json) {
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("model").value(options.folder).key("starts").value(options.repetitions);
    write_json(w, "cold", collect(cold));
    write_json(w, "warm", collect(warm));
    w.end_object();
    std::printf("%s\n", out.c_str());
    return kOk;
  }
  std::printf("%s, %d starts each\n\n", options.folder.c_str(), options.repetitions);
  print_table("cold", collect(cold));
  print_table("warm", collect(warm));
  return kOk;
}

}  // namespace di::cli
