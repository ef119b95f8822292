#include "device/cuda/cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace di::device::cuda {
namespace {

// An error that names the call. After some errors (a kernel's fault) every later call of the process fails too.
Result<void> check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return {};
  const Errc code = status == cudaErrorMemoryAllocation ? Errc::kResourceExhausted : Errc::kInternal;
  return fail(code, "CUDA: {}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

// Compute capabilities that kernels are built for (src/kernels/room.cmake).
bool has_code_for(int major, int minor) {
  return (major == 9 || major == 10) && minor == 0;
}

// Two pinned buffers in turn, on a stream of its own.
class CudaLane final : public LoadLane {
 public:
  static Result<std::unique_ptr<CudaLane>> open(int32_t index, size_t bytes) {
    DI_TRY(check(cudaSetDevice(index), "choosing the device"));
    auto lane = std::make_unique<CudaLane>();
    lane->stream_ = DI_TRY(Stream::create(index));
    for (Turn& turn : lane->turns_) {
      turn.buffer = DI_TRY(PinnedBuffer::allocate(bytes));
      turn.sent = DI_TRY(Event::create(false));
    }
    return lane;
  }

  Result<std::byte*> buffer() override {
    if (started_) DI_TRY(turns_[now_].sent.record(stream_));
    now_ = 1 - now_;
    started_ = true;
    DI_TRY(turns_[now_].sent.wait());
    return turns_[now_].buffer.data();
  }
  Result<void> send(std::byte* to, const std::byte* from, size_t bytes) override {
    return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream_.handle())),
                 "loading weights");
  }
  Result<void> finish() override { return stream_.wait(); }

 private:
  struct Turn {
    PinnedBuffer buffer;
    Event sent;  // everything up to the buffer's last use
  };
  Turn turns_[2];
  size_t now_ = 1;
  bool started_ = false;
  Stream stream_;  // gone before the buffers
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int32_t index) : index_(index) {}
  ~CudaDevice() override {
    for (void* range : shared_) cudaHostUnregister(range);
  }
  Kind kind() const override { return Kind::kCuda; }

  Result<std::byte*> allocate(size_t bytes) override {
    DI_TRY(check(cudaSetDevice(index_), "choosing the device"));
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not sticky
      size_t free = 0;
      size_t total = 0;
      cudaMemGetInfo(&free, &total);
      return fail(Errc::kResourceExhausted, "cuda:{} has no room for {} bytes: {} of {} are free", index_, bytes, free,
                  total);
    }
    DI_TRY(check(status, "allocating"));
    // On the legacy stream, which no other stream here waits for: what is submitted next must not be cleared.
    DI_TRY(check(cudaMemset(data, 0, bytes), "clearing new memory"));
    DI_TRY(check(cudaStreamSynchronize(nullptr), "clearing new memory"));
    return static_cast<std::byte*>(data);
  }

  void release(std::byte* data, size_t) override {
    cudaSetDevice(index_);
    cudaFree(data);
  }

  Result<void> load(std::byte* to, const std::byte* from, size_t bytes) override {
    const std::scoped_lock lock(mutex_);
    DI_TRY(check(cudaSetDevice(index_), "choosing the device"));
    if (lane_ == nullptr) lane_ = DI_TRY(CudaLane::open(index_, kLaneBytes));
    for (size_t done = 0; done < bytes; done += kLaneBytes) {
      const size_t n = std::min(kLaneBytes, bytes - done);
      std::byte* buffer = DI_TRY(lane_->buffer());
      std::memcpy(buffer, from + done, n);
      DI_TRY(lane_->send(to + done, buffer, n));
    }
    return lane_->finish();
  }

  Result<std::unique_ptr<LoadLane>> open_lane(size_t buffer_bytes) override {
    return CudaLane::open(index_, buffer_bytes);
  }

  Result<int64_t> free_bytes() const override {
    DI_TRY(check(cudaSetDevice(index_), "choosing the device"));
    size_t free = 0;
    size_t total = 0;
    DI_TRY(check(cudaMemGetInfo(&free, &total), "asking for memory"));
    return static_cast<int64_t>(free);
  }

  Result<void> copy(std::byte* to, const std::byte* from, size_t bytes) override {
    DI_TRY(check(cudaSetDevice(index_), "choosing the device"));
    DI_TRY(check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice), "copying on the device"));
    return check(cudaStreamSynchronize(nullptr), "copying on the device");
  }

  Result<const std::byte*> share(const std::byte* data, size_t bytes) override {
    const std::scoped_lock lock(mutex_);
    DI_TRY(check(cudaSetDevice(index_), "choosing the device"));
    constexpr uintptr_t kPage = 4096;
    const auto begin = reinterpret_cast<uintptr_t>(data) / kPage * kPage;
    const auto end = (reinterpret_cast<uintptr_t>(data) + bytes + kPage - 1) / kPage * kPage;
    auto* range = reinterpret_cast<void*>(begin);  // the driver only reads it
    DI_TRY(check(cudaHostRegister(range, end - begin, cudaHostRegisterMapped | cudaHostRegisterReadOnly),
                 fmt::format("mapping a table of {} bytes of host memory", bytes)));
    shared_.push_back(range);
    void* mapped = nullptr;
    DI_TRY(check(cudaHostGetDevicePointer(&mapped, range, 0), "mapping host memory"));
    return static_cast<const std::byte*>(mapped) + (reinterpret_cast<uintptr_t>(data) - begin);
  }

 private:
  static constexpr size_t kLaneBytes = size_t{4} << 20;  // of `load`

  int32_t index_;
  std::mutex mutex_;                // of what follows
  std::unique_ptr<CudaLane> lane_;  // of `load`
  std::vector<void*> shared_;
};

}  // namespace

Result<Info> describe(int32_t index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    return fail(Errc::kUnavailable, "cuda:{}: no NVIDIA device can be used here: {}", index,
                status == cudaSuccess ? "the driver lists none" : cudaGetErrorString(status));
  }
  if (index < 0 || index >= count) {
    return fail(Errc::kUnavailable, "cuda:{}: expected an index below {}, the number of devices", index, count);
  }
  cudaDeviceProp properties{};
  DI_TRY(check(cudaGetDeviceProperties(&properties, index), "describing the device"));
  Info info;
  info.index = index;
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  if (!has_code_for(info.major, info.minor)) {
    return fail(Errc::kUnavailable,
                "cuda:{}: {} has compute capability {}.{}; this program has code for 9.0 (Hopper) and 10.0 (Blackwell)",
                index, info.name, info.major, info.minor);
  }
  DI_TRY(check(cudaSetDevice(index), "choosing the device"));
  size_t free = 0;
  size_t total = 0;
  DI_TRY(check(cudaMemGetInfo(&free, &total), "asking for memory"));
  info.free_bytes = static_cast<int64_t>(free);
  info.memory_bytes = static_cast<int64_t>(total);
  return info;
}

Result<std::unique_ptr<Device>> open(int32_t index) {
  DI_TRY(describe(index));
  return std::make_unique<CudaDevice>(index);
}

Result<PinnedBuffer> PinnedBuffer::allocate(size_t bytes) {
  void* data = nullptr;
  DI_TRY(check(cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
               fmt::format("allocating {} bytes of pinned host memory", bytes)));
  PinnedBuffer buffer;
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = bytes;
  return buffer;
}
PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) cudaFreeHost(data_);
}
PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Result<Stream> Stream::create(int32_t device) {
  DI_TRY(check(cudaSetDevice(device), "choosing the device"));
  cudaStream_t handle = nullptr;
  DI_TRY(check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "creating a stream"));
  Stream stream;
  stream.handle_ = handle;
  return stream;
}
Stream::~Stream() {
  if (handle_ != nullptr) cudaStreamDestroy(static_cast<cudaStream_t>(handle_));
}
Stream::Stream(Stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}
Result<void> Stream::wait() {
  return check(cudaStreamSynchronize(static_cast<cudaStream_t>(handle_)), "waiting for a stream");
}

Result<Event> Event::create(bool timed) {
  cudaEvent_t handle = nullptr;
  DI_TRY(
      check(cudaEventCreateWithFlags(&handle, timed ? cudaEventDefault : cudaEventDisableTiming), "creating an event"));
  Event event;
  event.handle_ = handle;
  return event;
}
Event::~Event() {
  if (handle_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(handle_));
}
Event::Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}
Result<void> Event::record(Stream& stream) {
  return check(cudaEventRecord(static_cast<cudaEvent_t>(handle_), static_cast<cudaStream_t>(stream.handle())),
               "recording an event");
}
Result<void> Event::wait_on(Stream& stream) {
  return check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.handle()), static_cast<cudaEvent_t>(handle_)),
               "ordering a stream behind an event");
}
Result<bool> Event::done() const {
  const cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
  if (status == cudaErrorNotReady) return false;
  DI_TRY(check(status, "asking for an event"));
  return true;
}
Result<void> Event::wait() {
  return check(cudaEventSynchronize(static_cast<cudaEvent_t>(handle_)), "waiting for an event");
}
Result<float> Event::milliseconds_since(const Event& earlier) const {
  float ms = 0.F;
  DI_TRY(check(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(earlier.handle_), static_cast<cudaEvent_t>(handle_)),
               "reading a time"));
  return ms;
}

Result<Graph> Graph::capture(Stream& stream, const std::function<void()>& submit) {
  const auto handle = static_cast<cudaStream_t>(stream.handle());
  DI_TRY(check(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal), "beginning a graph"));
  submit();
  cudaGraph_t graph = nullptr;
  DI_TRY(check(cudaStreamEndCapture(handle, &graph), "capturing a graph"));
  Graph out;
  size_t nodes = 0;
  cudaGraphExec_t executable = nullptr;
  cudaError_t status = cudaGraphGetNodes(graph, nullptr, &nodes);
  if (status == cudaSuccess) status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  DI_TRY(check(status, "making a graph executable"));
  out.handle_ = executable;
  out.nodes_ = static_cast<int64_t>(nodes);
  return out;
}
Graph::~Graph() {
  if (handle_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle_));
}
Graph::Graph(Graph&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), nodes_(other.nodes_) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(nodes_, other.nodes_);
  return *this;
}
Result<void> Graph::replay(Stream& stream) const {
  return check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_), static_cast<cudaStream_t>(stream.handle())),
               "replaying a graph");
}

}  // namespace di::device::cuda
