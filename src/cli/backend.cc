#include "cli/backend.h"

#include <algorithm>
#include <charconv>

#include "kernels/cpu/cpu.h"

#ifdef DI_CUDA
#include "device/cuda/cuda.h"
#include "device/cuda/nccl.h"
#include "kernels/cuda/cuda.h"
#endif

namespace di::cli {
namespace {

Result<Backend> open_cpu(int threads, bool reference) {
  Backend b;
  b.pool = std::make_unique<ThreadPool>(threads);
  b.stream = kernels::cpu::make_stream(*b.pool);
  b.device = device::make_host_device();
  b.ops = reference ? &kernels::cpu::reference_ops() : &kernels::cpu::ops(kernels::cpu::best_isa());
  b.place = fmt::format("{} threads", b.pool->size());
  return b;
}

Result<Backend> open_cuda(int index) {
#ifdef DI_CUDA
  const device::cuda::Info info = DI_TRY(device::cuda::describe(index));
  Backend b;
  b.device = DI_TRY(device::cuda::open(index));
  b.stream = DI_TRY(kernels::cuda::make_stream(index));
  b.ops = &kernels::cuda::ops();
  b.index = index;
  b.place = fmt::format("cuda:{} {}", index, info.name);
  return b;
#else
  return fail(Errc::kUnavailable, "cuda:{}: this program was built without the CUDA backend (preset cuda has it)",
              index);
#endif
}

}  // namespace

Result<Backend> open_backend(std::string_view name, int threads, bool reference) {
  if (name == "cpu") return open_cpu(threads, reference);
  constexpr std::string_view kCuda = "cuda";
  int index = 0;
  bool valid = name == kCuda;
  if (name.starts_with("cuda:")) {
    const char* first = name.data() + kCuda.size() + 1;
    const char* last = name.data() + name.size();
    const auto [end, error] = std::from_chars(first, last, index);
    valid = error == std::errc{} && end == last && index >= 0;
  }
  if (!valid) return fail(Errc::kInvalidRequest, "device: expected cpu, cuda or cuda:N, found '{}'", name);
  if (reference) return fail(Errc::kInvalidRequest, "the reference operators run on the CPU, not on {}", name);
  return open_cuda(index);
}

namespace {

Result<std::vector<std::unique_ptr<device::Group>>> connect(const std::vector<Backend>& backends,
                                                            std::chrono::milliseconds timeout) {
  if (backends.front().index < 0) return device::make_local_group(static_cast<int32_t>(backends.size()), timeout);
#ifdef DI_CUDA
  std::vector<int32_t> devices;
  for (const Backend& b : backends) devices.push_back(b.index);
  return device::cuda::make_nccl_group(devices, timeout);
#else
  return fail(Errc::kUnavailable, "this program was built without the CUDA backend (preset cuda has it)");
#endif
}

}  // namespace

Result<Ranks> open_ranks(std::string_view names, int threads, bool reference, std::chrono::milliseconds timeout) {
  std::vector<std::string> list;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t comma = std::min(names.find(',', begin), names.size());
    list.emplace_back(names.substr(begin, comma - begin));
    begin = comma + 1;
  }
  const int total = threads > 0 ? threads : ThreadPool().size();
  const int share = list.size() == 1 ? threads : std::max(1, total / static_cast<int>(list.size()));
  Ranks out;
  for (const std::string& name : list) {
    Backend backend = DI_TRY(open_backend(name, share, reference));
    const auto same = [&](const Backend& b) { return b.index >= 0 && b.index == backend.index; };
    if (std::any_of(out.backends.begin(), out.backends.end(), same)) {
      return fail(Errc::kInvalidRequest, "device: {} is named twice in '{}'", name, names);
    }
    if (!out.backends.empty() && (out.backends.front().index < 0) != (backend.index < 0)) {
      return fail(Errc::kInvalidRequest, "device: expected ranks of one kind, found '{}'", names);
    }
    out.backends.push_back(std::move(backend));
  }
  if (list.size() > 1) out.groups = DI_TRY(connect(out.backends, timeout));
  return out;
}

}  // namespace di::cli
