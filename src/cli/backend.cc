#include "cli/backend.h"

#include <charconv>

#include "kernels/cpu/cpu.h"

#ifdef DI_CUDA
#include "device/cuda/cuda.h"
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
  b.place = fmt::format("cuda:{} {}", index, info.name);
  b.memory_for_kv = info.free_bytes / 2;
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

}  // namespace di::cli
