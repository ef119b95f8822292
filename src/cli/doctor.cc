// deepinfer doctor: what could be in the way of serving, each as one line with a remedy (server.md §12).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <future>

#include "base/json.h"
#include "cli/local_model.h"
#include "kernels/cpu/cpu.h"
#include "model/config.h"

namespace di::cli {
namespace {

enum class Level : uint8_t { kOk, kWarn, kFail };

struct Finding {
  Level level;
  std::string name;
  std::string text;
  std::string remedy;  // of warnings and failures
};

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

Finding processor() {
  const kernels::Ops& ops = kernels::cpu::ops(kernels::cpu::best_isa());
  return {Level::kOk, "processor", fmt::format("{} cores, operators {}", sysconf(_SC_NPROCESSORS_ONLN), ops.name), {}};
}

Finding open_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::string text = fmt::format("{} files may be open", limit.rlim_cur);
  if (limit.rlim_cur >= 8192) return {Level::kOk, "nofile", text, {}};
  return {Level::kWarn, "nofile", text, "raise it for many connections: ulimit -n 65536 (LimitNOFILE= of a service)"};
}

Finding locked_memory() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return {Level::kOk, "memlock", "no limit", {}};
  return {Level::kOk, "memlock", fmt::format("{} KiB (matters with RDMA only)", limit.rlim_cur / 1024), {}};
}

Finding memory(int64_t needed) {
  struct sysinfo info{};
  sysinfo(&info);
  const double available = static_cast<double>(info.freeram + info.bufferram) * info.mem_unit;
  const std::string text =
      fmt::format("{:.1f} GiB free of {:.1f}, the model's files take {:.2f} GiB", available / kGiB,
                  static_cast<double>(info.totalram) * info.mem_unit / kGiB, static_cast<double>(needed) / kGiB);
  if (static_cast<double>(info.totalram) * info.mem_unit > 1.2 * static_cast<double>(needed))
    return {Level::kOk, "memory", text, {}};
  return {Level::kFail, "memory", text, "a machine with more memory, or a smaller model"};
}

Finding huge_pages() {
  std::FILE* file = std::fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
  char text[128] = "";
  if (file != nullptr) {
    if (std::fgets(text, sizeof text, file) == nullptr) text[0] = '\0';
    std::fclose(file);
  }
  const bool never = std::string_view(text).find("[never]") != std::string_view::npos;
  if (!never) return {Level::kOk, "hugepages", "transparent huge pages may be used", {}};
  return {Level::kWarn, "hugepages", "transparent huge pages are off",
          "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"};
}

Finding disk(const std::string& folder) {
  struct statvfs info{};
  if (statvfs(folder.c_str(), &info) != 0) return {Level::kWarn, "disk", "cannot be read: " + folder, "check the path"};
  const double free = static_cast<double>(info.f_bavail) * static_cast<double>(info.f_frsize);
  return {Level::kOk, "disk", fmt::format("{:.1f} GiB free at {}", free / kGiB, folder), {}};
}

Finding wall_clock() {
  constexpr std::time_t kTooOld = 1'735'689'600;  // 2025-01-01
  if (std::time(nullptr) > kTooOld) return {Level::kOk, "clock", "plausible", {}};
  return {Level::kWarn, "clock", "shows a time before 2025", "set it: answers carry it, TLS needs it"};
}

Finding port(uint16_t number) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(number);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;  // NOLINT: the socket API
  close(fd);
  if (free) return {Level::kOk, "port", fmt::format("{} is free", number), {}};
  return {Level::kFail, "port", fmt::format("{} is in use", number), "another --port, or end what listens there"};
}

Finding model_files(const std::string& folder, int64_t& bytes) {
  std::error_code ec;
  int shards = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ec)) {
    if (entry.path().extension() != ".safetensors") continue;
    ++shards;
    bytes += static_cast<int64_t>(entry.file_size(ec));
  }
  const Result<model::ModelConfig> config = model::load_config(folder);
  if (!config)
    return {Level::kFail, "model", config.error().message, "name a folder with config.json and *.safetensors"};
  if (shards == 0) return {Level::kFail, "model", folder + " has no *.safetensors", "download the weights"};
  return {Level::kOk,
          "model",
          fmt::format("{}: {} shards, {:.2f} GiB", folder, shards, static_cast<double>(bytes) / kGiB),
          {}};
}

// Loads the model and waits for the first token of a short prompt.
Finding first_token(const ModelOptions& options) {
  const SystemClock clock;
  const int64_t begun = clock.now_ns();
  auto model = load_model(options, codec::ApiPolicy::kExtended, clock);
  if (!model) return {Level::kFail, "dry run", model.error().message, "deepinfer model inspect says more"};
  const int64_t loaded = clock.now_ns();
  engine::GenerateRequest request;
  request.prompt = {0};
  request.max_tokens = 1;
  std::promise<engine::Output> done;
  const auto id = (*model)->engine->submit(std::move(request), [&done](engine::Output output) {
    if (output.finish != engine::FinishReason::kNone) done.set_value(std::move(output));
  });
  if (!id) return {Level::kFail, "dry run", id.error().error.message, "report this"};
  const engine::Output output = done.get_future().get();
  if (output.finish == engine::FinishReason::kError)
    return {Level::kFail, "dry run", output.error.message, "deepinfer model inspect says more"};
  return {Level::kOk,
          "dry run",
          fmt::format("loaded in {:.2f} s, first token after {:.1f} ms", static_cast<double>(loaded - begun) * 1e-9,
                      static_cast<double>(clock.now_ns() - loaded) * 1e-6),
          {}};
}

constexpr std::string_view kLevels[] = {"ok", "warn", "fail"};

}  // namespace

int doctor(const DoctorOptions& options) {
  const std::string& folder = options.model.folder;
  int64_t bytes = 0;
  std::vector<Finding> findings = {processor(), open_files(), locked_memory(), huge_pages(), wall_clock()};
  findings.push_back(disk(std::filesystem::temp_directory_path().string()));
  findings.push_back(port(options.port));
  findings.push_back(model_files(folder, bytes));
  const bool readable = findings.back().level == Level::kOk;
  findings.push_back(memory(bytes));
  if (readable) findings.push_back(first_token(options.model));
  bool failed = false;
  std::string json;
  JsonWriter w(json);
  w.begin_object().key("findings").begin_array();
  for (const Finding& finding : findings) {
    failed = failed || finding.level == Level::kFail;
    const std::string_view level = kLevels[static_cast<size_t>(finding.level)];
    w.begin_object().key("level").value(level).key("name").value(finding.name).key("text").value(finding.text);
    w.key("remedy").value(finding.remedy).end_object();
    if (options.json) continue;
    std::printf("%-4s  %-10s %s\n", std::string(level).c_str(), finding.name.c_str(), finding.text.c_str());
    if (!finding.remedy.empty()) std::printf("      %-10s -> %s\n", "", finding.remedy.c_str());
  }
  w.end_array().key("ok").value(!failed).end_object();
  if (options.json) std::printf("%s\n", json.c_str());
  return failed ? kFailed : kOk;
}

}  // namespace di::cli
