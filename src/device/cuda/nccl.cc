#include "device/cuda/nccl.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <mutex>
#include <utility>

#include "device/meeting.h"

namespace di::device::cuda {
namespace {

// The part of NCCL's interface that is used, as its documentation declares it; enums are ints there.
using Comm = struct ncclComm*;
using Status = int;
constexpr Status kSuccess = 0;
constexpr int kBytes = 0;  // ncclInt8

struct Api {
  Status (*get_version)(int*) = nullptr;
  const char* (*error_string)(Status) = nullptr;
  Status (*init_all)(Comm*, int, const int*) = nullptr;
  Status (*destroy)(Comm) = nullptr;
  Status (*abort)(Comm) = nullptr;
  Status (*async_error)(Comm, Status*) = nullptr;
  Status (*group_start)() = nullptr;
  Status (*group_end)() = nullptr;
  Status (*send)(const void*, size_t, int, int, Comm, cudaStream_t) = nullptr;
  Status (*receive)(void*, size_t, int, int, Comm, cudaStream_t) = nullptr;
};

Result<Api> load_api() {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);  // stays for the life of the process
  if (library == nullptr) return fail(Errc::kUnavailable, "NCCL cannot be used here: {}", dlerror());
  Api api;
  const char* missing = nullptr;
  const auto bind = [&]<class F>(F*& function, const char* name) {
    function = reinterpret_cast<F*>(dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  bind(api.get_version, "ncclGetVersion");
  bind(api.error_string, "ncclGetErrorString");
  bind(api.init_all, "ncclCommInitAll");
  bind(api.destroy, "ncclCommDestroy");
  bind(api.abort, "ncclCommAbort");
  bind(api.async_error, "ncclCommGetAsyncError");
  bind(api.group_start, "ncclGroupStart");
  bind(api.group_end, "ncclGroupEnd");
  bind(api.send, "ncclSend");
  bind(api.receive, "ncclRecv");
  if (missing != nullptr) return fail(Errc::kUnavailable, "NCCL: libnccl.so.2 has no function {}", missing);
  return api;
}

// What the ranks share: the communicators, which the first failure takes down.
class Team {
 public:
  Team(const Api& api, std::vector<Comm> comms, std::chrono::milliseconds timeout)
      : api_(api), comms_(std::move(comms)), meeting_(static_cast<int32_t>(comms_.size()), timeout) {
    meeting_.on_failure([this] { abort(); });
  }
  ~Team() {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    for (const Comm comm : comms_) api_.destroy(comm);
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  Meeting& meeting() { return meeting_; }
  const Api& api() const { return api_; }
  Comm comm(int32_t rank) const { return comms_[static_cast<size_t>(rank)]; }

 private:
  void abort() {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    for (const Comm comm : comms_) api_.abort(comm);
  }

  const Api api_;
  const std::vector<Comm> comms_;
  std::mutex mutex_;  // guards aborted_
  bool aborted_ = false;
  Meeting meeting_;
};

class NcclGroup final : public Group {
 public:
  NcclGroup(std::shared_ptr<Team> team, int32_t rank, int32_t device)
      : team_(std::move(team)), rank_(rank), device_(device) {}

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return team_->meeting().ranks(); }
  void fail(Error error) override { team_->meeting().fail(std::move(error)); }
  std::optional<Error> error() const override { return team_->meeting().error(); }

  Result<void> exchange(std::span<const Piece> pieces, void* stream) override {
    if (auto failed = error()) return std::unexpected(*failed);
    const auto handle = static_cast<cudaStream_t>(stream);
    if (const cudaError_t status = cudaSetDevice(device_); status != cudaSuccess) {
      return report("choosing the device", cudaGetErrorString(status));
    }
    for (const Piece& p : pieces) {
      if (p.peer != rank_ || p.send_bytes == 0) continue;
      const cudaError_t status =
          cudaMemcpyAsync(p.receive, p.send, static_cast<size_t>(p.send_bytes), cudaMemcpyDeviceToDevice, handle);
      if (status != cudaSuccess) return report("copying the rank's own rows", cudaGetErrorString(status));
    }
    const Api& api = team_->api();
    const Comm comm = team_->comm(rank_);
    Status status = api.group_start();
    for (const Piece& p : pieces) {
      if (p.peer == rank_) continue;
      if (status == kSuccess && p.send_bytes > 0) {
        status = api.send(p.send, static_cast<size_t>(p.send_bytes), kBytes, p.peer, comm, handle);
      }
      if (status == kSuccess && p.receive_bytes > 0) {
        status = api.receive(p.receive, static_cast<size_t>(p.receive_bytes), kBytes, p.peer, comm, handle);
      }
    }
    const Status ended = api.group_end();
    if (status == kSuccess) status = ended;
    if (status == kSuccess) {
      Status asynchronous = kSuccess;
      status = api.async_error(comm, &asynchronous);
      if (status == kSuccess) status = asynchronous;
    }
    if (status != kSuccess) return report("an exchange", api.error_string(status));
    return {};
  }

  Result<std::vector<int64_t>> gather(std::span<const int64_t> values) override {
    // What begins a step also tells the calling thread which device is meant.
    if (const cudaError_t status = cudaSetDevice(device_); status != cudaSuccess) {
      DI_TRY(report("choosing the device", cudaGetErrorString(status)));
    }
    return team_->meeting().gather(rank_, values);
  }

 private:
  // Always an error.
  Result<void> report(std::string_view what, std::string_view why) {
    fail({Errc::kInternal, fmt::format("rank {} on cuda:{}: NCCL: {}: {}", rank_, device_, what, why)});
    return std::unexpected(*error());
  }

  std::shared_ptr<Team> team_;
  int32_t rank_;
  int32_t device_;
};

}  // namespace

Result<std::vector<std::unique_ptr<Group>>> make_nccl_group(std::span<const int32_t> devices,
                                                            std::chrono::milliseconds timeout) {
  const Api api = DI_TRY(load_api());
  std::vector<Comm> comms(devices.size());
  const Status status = api.init_all(comms.data(), static_cast<int>(devices.size()), devices.data());
  if (status != kSuccess) {
    return fail(Errc::kUnavailable, "NCCL: connecting {} devices: {}", devices.size(), api.error_string(status));
  }
  const auto team = std::make_shared<Team>(api, std::move(comms), timeout);
  std::vector<std::unique_ptr<Group>> out;
  for (size_t r = 0; r < devices.size(); ++r) {
    out.push_back(std::make_unique<NcclGroup>(team, static_cast<int32_t>(r), devices[r]));
  }
  return out;
}

Result<std::string> nccl_version() {
  const Api api = DI_TRY(load_api());
  int version = 0;
  if (const Status status = api.get_version(&version); status != kSuccess) {
    return fail(Errc::kUnavailable, "NCCL: asking for the version: {}", api.error_string(status));
  }
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace di::device::cuda
