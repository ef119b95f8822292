// deepinfer bench loading: how fast weights come into a device (device/load.h) beside the ceilings of the same run:
// what threads that only read get from the page cache, and what the bus carries from buffers that nobody fills.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "cli/backend.h"
#include "cli/options.h"
#include "cli/page_cache.h"
#include "cli/random_folder.h"
#include "model/place.h"
#include "model/safetensors.h"

namespace di::cli {
namespace {

namespace fs = std::filesystem;

// Plain memory in the place of a device's.
class MemoryDevice final : public device::Device {
 public:
  device::Kind kind() const override { return device::Kind::kCuda; }
  Result<std::byte*> allocate(size_t bytes) override {
    auto* data = static_cast<std::byte*>(std::calloc(bytes, 1));
    if (data == nullptr) return fail(Errc::kResourceExhausted, "no room for {} bytes", bytes);
    return data;
  }
  void release(std::byte* data, size_t) override { std::free(data); }
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Loaded {
  const BenchLoadingOptions& options;
  std::string folder;
  model::ModelConfig config;
  model::Schedule schedule;
  model::Safetensors checkpoint;
  device::Device& device;
  bool cold = false;  // from the disk
};

// V4.1's widths (performance.md §1) over the layers of the model that is named, with as many experts as the size asks
// for.
Result<Json> real_widths(const std::string& base, uint64_t size) {
  Json widths;
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, int64_t>>{{"hidden_size", 5120},
                                                              {"num_attention_heads", 64},
                                                              {"head_dim", 512},
                                                              {"qk_rope_head_dim", 64},
                                                              {"q_lora_rank", 1280},
                                                              {"o_lora_rank", 1024},
                                                              {"o_groups", 8},
                                                              {"index_n_heads", 32},
                                                              {"index_head_dim", 128},
                                                              {"moe_intermediate_size", 2304},
                                                              {"num_experts_per_tok", 6}}) {
    widths.set(key, value);
  }
  const model::ModelConfig config = DI_TRY(model::load_config(base));
  constexpr double kExpertBytes = 3.0 * 2304 * 5120 * 17 / 32;
  constexpr double kDenseBytes = 0.22e9;  // of a layer
  const double of_layer = static_cast<double>(size) / config.num_hidden_layers - kDenseBytes;
  widths.set("n_routed_experts", std::clamp<int64_t>(static_cast<int64_t>(of_layer / kExpertBytes), 6, 384));
  return widths;
}

// Reads all shards with `threads` threads, nothing else; bytes a second.
Result<double> read_rate(const Loaded& l, int32_t threads) {
  struct Shard {
    int fd;
    uint64_t first;  // piece
    uint64_t bytes;
  };
  std::vector<Shard> shards;
  uint64_t pieces = 0;
  uint64_t total = 0;
  for (const std::string& name : l.checkpoint.files()) {
    const std::string path = (fs::path(l.folder) / name).string();
    const uint64_t bytes = fs::file_size(path);
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(Errc::kUnavailable, "{}: {}", path, std::strerror(errno));
    shards.push_back({fd, pieces, bytes});
    pieces += (bytes + l.options.piece - 1) / l.options.piece;
    total += bytes;
  }
  std::atomic<uint64_t> next{0};
  std::atomic<uint64_t> got{0};
  const auto begin = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> readers;
    for (int32_t t = 0; t < threads; ++t) {
      readers.emplace_back([&] {
        std::vector<std::byte> buffer(l.options.piece);
        for (uint64_t piece = next++; piece < pieces; piece = next++) {
          const auto after = std::upper_bound(shards.begin(), shards.end(), piece,
                                              [](uint64_t p, const Shard& s) { return p < s.first; });
          const Shard& shard = *(after - 1);
          const uint64_t at = (piece - shard.first) * l.options.piece;
          const uint64_t n = std::min<uint64_t>(l.options.piece, shard.bytes - at);
          if (l.cold) ::posix_fadvise(shard.fd, static_cast<off_t>(at), static_cast<off_t>(n), POSIX_FADV_WILLNEED);
          const ssize_t read = ::pread(shard.fd, buffer.data(), n, static_cast<off_t>(at));
          if (read > 0) got += static_cast<uint64_t>(read);
        }
      });
    }
  }
  const double seconds = seconds_since(begin);
  for (const Shard& shard : shards) ::close(shard.fd);
  if (got != total) return fail(Errc::kUnavailable, "{}: {} of {} bytes were read", l.folder, got.load(), total);
  return static_cast<double>(total) / seconds;
}

device::LoadOptions load_options(const Loaded& l, int32_t threads) {
  device::LoadOptions options;
  options.threads = threads;
  options.piece_bytes = l.options.piece;
  return options;
}

// The bus alone: the same threads and copies, from buffers that stay as they are.
Result<double> bus_rate(const Loaded& l, int32_t threads) {
  const size_t bytes = size_t{4} << 30;
  const size_t held = size_t{256} << 20;
  const device::Buffer buffer = DI_TRY(device::Buffer::allocate(l.device, held));
  std::vector<device::LoadRange> ranges;
  for (size_t at = 0; at < bytes; at += held) ranges.push_back({buffer.data(), nullptr, held});
  device::LoadOptions options = load_options(l, threads);
  options.read = [](std::byte*, const std::byte*, size_t) { return Result<void>{}; };
  const auto begin = std::chrono::steady_clock::now();
  DI_TRY(device::load_ranges(l.device, ranges, options));
  return static_cast<double>(bytes) / seconds_since(begin);
}

// As load_model_runner does it: memory, weights, tables.
Result<double> load_rate(const Loaded& l, int32_t threads) {
  model::ModelWeights weights = DI_TRY(model::bind_weights(l.config, l.schedule, l.checkpoint));
  device::LoadOptions options = load_options(l, threads);
  options.read = [&](std::byte* to, const std::byte* from, size_t bytes) { return l.checkpoint.read(to, from, bytes); };
  const auto begin = std::chrono::steady_clock::now();
  const device::Buffer placed = DI_TRY(model::place_weights(l.config, l.schedule, weights, l.device, options));
  return static_cast<double>(placed.size()) / seconds_since(begin);
}

using Rate = Result<double> (*)(const Loaded&, int32_t);

Result<double> best_of(const Loaded& l, Rate rate, int32_t threads) {
  double best = 0;
  for (int32_t i = 0; i < (l.cold ? 1 : l.options.repetitions); ++i) {
    if (l.cold && rate != bus_rate) forget_pages(l.folder);
    best = std::max(best, DI_TRY(rate(l, threads)));
  }
  return best;
}

// One line for each number of threads (from the disk only the last), and one of the best of all.
Result<void> compare(const Loaded& l) {
  std::printf(
      "| %s, threads | read, GB/s | bus | loading | of the read rate | of the slower of both "
      "|\n|---|---|---|---|---|---|\n",
      l.cold ? "disk" : "page cache");
  double best[3] = {};
  const auto print = [](const std::string& threads, const double(&rates)[3]) {
    std::printf("| %s | %.2f | %.2f | %.2f | %.2f | %.2f |\n", threads.c_str(), rates[0] * 1e-9, rates[1] * 1e-9,
                rates[2] * 1e-9, rates[2] / rates[0], rates[2] / std::min(rates[0], rates[1]));
    std::fflush(stdout);
  };
  for (const int32_t threads : l.options.threads) {
    if (l.cold && threads != l.options.threads.back()) continue;
    double rates[3];
    const Rate all[3] = {read_rate, bus_rate, load_rate};
    for (int i = 0; i < 3; ++i) {
      rates[i] = DI_TRY(best_of(l, all[i], threads));
      best[i] = std::max(best[i], rates[i]);
    }
    print(fmt::format("{}", threads), rates);
  }
  print("best", best);
  std::printf("\n");
  return {};
}

Result<void> run(const BenchLoadingOptions& options) {
  std::optional<TemporaryFolder> temporary;
  std::string folder = options.folder;
  if (options.size > 0) {
    temporary.emplace(DI_TRY(TemporaryFolder::create()));
    folder = temporary->path().string();
    const auto begin = std::chrono::steady_clock::now();
    const Json widths = DI_TRY(real_widths(options.folder, options.size));
    DI_TRY(write_random_folder(options.folder, widths, folder));
    std::printf("random weights written in %.1f s\n", seconds_since(begin));
  }
  MemoryDevice memory;
  std::optional<Backend> backend;
  if (options.device != "cpu") backend.emplace(DI_TRY(open_backend(options.device, 1, false)));
  model::ModelConfig config = DI_TRY(model::load_config(folder));
  model::Schedule schedule = DI_TRY(model::make_schedule(config));
  Loaded l{options,
           folder,
           std::move(config),
           std::move(schedule),
           DI_TRY(model::Safetensors::open(folder)),
           backend ? *backend->device : memory};
  std::printf("%s: %zu tensors, %.2f GB in %zu files, pieces of %.1f MiB, %u cores\n\n",
              backend ? backend->place.c_str() : "plain memory", l.checkpoint.tensors().size(),
              static_cast<double>(l.checkpoint.file_bytes()) * 1e-9, l.checkpoint.files().size(),
              static_cast<double>(options.piece) / (1 << 20), std::thread::hardware_concurrency());
  l.cold = options.cold;
  if (l.cold) DI_TRY(compare(l));
  l.cold = false;
  static_cast<void>(DI_TRY(read_rate(l, options.threads.back())));  // into the page cache
  return compare(l);
}

}  // namespace

int bench_loading(const BenchLoadingOptions& options) {
  const Result<void> status = run(options);
  if (status) return kOk;
  std::fprintf(stderr, "deepinfer bench loading: %s\n", status.error().message.c_str());
  return status.error().code == Errc::kUnavailable || status.error().code == Errc::kResourceExhausted ? kNoMemory
                                                                                                      : kFailed;
}

}  // namespace di::cli
