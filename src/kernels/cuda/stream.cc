#include "kernels/cuda/stream.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "device/group.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ops.h"

namespace di::kernels::cuda {
namespace {

// Enough for the host arrays of many steps: the ring turns over long after the copies have run.
constexpr int64_t kPinnedBytes = int64_t{32} << 20;

// A CudaStream and what it refers to.
struct OwnedStream : CudaStream {
  device::cuda::Stream stream;
  device::cuda::Stream beside;
  device::cuda::Event begun;  // what `beside` waits for
  device::cuda::Event done;   // what is waited for in turn
  device::cuda::PinnedBuffer pinned;
  int64_t pinned_used = 0;
  std::string what;  // of the failure

  ~OwnedStream() { cudaFree(scratch); }
};

OwnedStream& owned(Stream& stream) {
  return static_cast<OwnedStream&>(cuda_stream(stream));
}

// The first failure stays: what follows it is its consequence.
void fail(OwnedStream& s, std::string what, bool memory) {
  if (s.failure.what != nullptr) return;
  s.what = std::move(what);
  s.failure = {s.what.c_str(), memory};
}

// Whether the call went well. A lack of memory passes. After any other failure the step's work is in an unknown state,
// and most such errors stay with the process: whoever runs the step ends it, and a supervisor starts the process again.
bool good(OwnedStream& s, cudaError_t status, const char* what) {
  if (status == cudaSuccess) return true;
  const bool memory = status == cudaErrorMemoryAllocation;
  if (memory) cudaGetLastError();  // not sticky
  fail(s, fmt::format("CUDA: {}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status)), memory);
  return false;
}
bool good(OwnedStream& s, const Result<void>& status) {
  if (!status) fail(s, status.error().message, status.error().code == Errc::kResourceExhausted);
  return status.has_value();
}

bool wait(OwnedStream& s) {
  s.pinned_used = 0;
  return good(s, cudaStreamSynchronize(static_cast<cudaStream_t>(s.handle)), "the work of a step");
}

bool is_failed(const OwnedStream& s) {
  return s.failure.what != nullptr;
}

}  // namespace

void StreamDeleter::operator()(Stream* stream) const {
  delete &owned(*stream);
}

Result<StreamPtr> make_stream(int32_t index) {
  DI_TRY(device::cuda::describe(index));
  auto s = std::make_unique<OwnedStream>();
  s->device = index;
  s->stream = DI_TRY(device::cuda::Stream::create(index));
  s->beside = DI_TRY(device::cuda::Stream::create(index));
  s->begun = DI_TRY(device::cuda::Event::create(false));
  s->done = DI_TRY(device::cuda::Event::create(false));
  s->pinned = DI_TRY(device::cuda::PinnedBuffer::allocate(static_cast<size_t>(kPinnedBytes)));
  s->handle = s->stream.handle();
  CudaStream* plain = s.release();
  return StreamPtr(reinterpret_cast<Stream*>(plain));
}

device::cuda::Stream& device_stream(Stream& stream) {
  return owned(stream).stream;
}

void reserve_scratch(Stream& stream, int64_t bytes) {
  OwnedStream& s = owned(stream);
  s.scratch_used = 0;
  if (bytes <= s.scratch_bytes || is_failed(s)) return;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (!good(s, cudaStreamIsCapturing(static_cast<cudaStream_t>(s.handle), &capture), "asking for the capture")) return;
  DI_CHECK(capture == cudaStreamCaptureStatusNone,
           "{} bytes of scratch wanted while a graph is captured, {} are there: run the step once before", bytes,
           s.scratch_bytes);
  if (!good(s, cudaSetDevice(s.device), "choosing the device") || !wait(s)) return;
  if (!good(s, cudaFree(s.scratch), "freeing scratch")) return;
  s.scratch = nullptr;
  ++s.scratch_version;
  void* memory = nullptr;
  // Twice as much as before, or what is needed now.
  cudaError_t status = cudaErrorMemoryAllocation;
  for (const int64_t wanted : {std::max(bytes, 2 * s.scratch_bytes), bytes}) {
    s.scratch_bytes = wanted;
    status = cudaMalloc(&memory, static_cast<size_t>(wanted));
    if (status != cudaErrorMemoryAllocation) break;
    cudaGetLastError();  // not sticky
  }
  if (status == cudaErrorMemoryAllocation) {
    s.scratch_bytes = 0;
    fail(s, fmt::format("cuda:{} has no room for {} bytes that an operator of this step needs", s.device, bytes), true);
  } else if (good(s, status, "allocating scratch")) {
    s.scratch = static_cast<std::byte*>(memory);
  }
}

void launch_failed(Stream& stream, const char* kernel, StreamFailure problem) {
  fail(owned(stream), fmt::format("CUDA: kernel {}: {}", kernel, problem.what), problem.memory);
}

StreamFailure failure(Stream& stream) {
  return cuda_stream(stream).failure;
}
void refuse(const char* what, Stream& stream) {
  fail(owned(stream), what, true);
}
void recover(Stream& stream) {
  OwnedStream& s = owned(stream);
  if (!s.failure.memory) return;
  s.failure = {};
  wait(s);  // nothing of the step runs any more
}

void start_beside(Stream& stream) {
  OwnedStream& s = owned(stream);
  if (!is_failed(s) && good(s, s.begun.record(s.stream)) && good(s, s.begun.wait_on(s.beside))) {
    s.handle = s.beside.handle();
  }
}

void stop_beside(Stream& stream) {
  OwnedStream& s = owned(stream);
  if (s.handle == s.beside.handle()) good(s, s.done.record(s.beside));
  s.handle = s.stream.handle();
}

void join_beside(Stream& stream) {
  OwnedStream& s = owned(stream);
  if (!is_failed(s)) good(s, s.done.wait_on(s.stream));
}

Graph* capture(void (*submit)(void*), void* argument, Stream& stream) {
  OwnedStream& s = owned(stream);
  auto graph = device::cuda::Graph::capture(s.stream, [&] { submit(argument); });
  if (is_failed(s)) return nullptr;
  if (!graph) {
    if (graph.error().code != Errc::kResourceExhausted) fail(s, graph.error().message, false);
    return nullptr;
  }
  return reinterpret_cast<Graph*>(new device::cuda::Graph(std::move(*graph)));
}

void replay(const Graph& graph, Stream& stream) {
  OwnedStream& s = owned(stream);
  if (!is_failed(s)) good(s, reinterpret_cast<const device::cuda::Graph&>(graph).replay(s.stream));
}

void drop(Graph* graph) {
  delete reinterpret_cast<device::cuda::Graph*>(graph);
}

int64_t scratch_version(Stream& stream) {
  return cuda_stream(stream).scratch_version;
}

void copy_in(void* to, const void* from, int64_t bytes, Stream& stream) {
  OwnedStream& s = owned(stream);
  if (bytes == 0 || is_failed(s)) return;
  if (!good(s, cudaSetDevice(s.device), "choosing the device")) return;  // of the calling thread
  const auto handle = static_cast<cudaStream_t>(s.handle);
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  for (int64_t done = 0; done < bytes;) {
    const int64_t n = std::min(bytes - done, kPinnedBytes);
    if (s.pinned_used + n > kPinnedBytes && !wait(s)) return;
    std::byte* staged = s.pinned.data() + s.pinned_used;
    std::memcpy(staged, source + done, static_cast<size_t>(n));
    if (!good(s, cudaMemcpyAsync(target + done, staged, static_cast<size_t>(n), cudaMemcpyHostToDevice, handle),
              "copying in")) {
      return;
    }
    s.pinned_used += (n + 63) / 64 * 64;
    done += n;
  }
}

void copy_out(void* to, const void* from, int64_t bytes, Stream& stream) {
  OwnedStream& s = owned(stream);
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  bool going = !is_failed(s) && good(s, cudaSetDevice(s.device), "choosing the device");
  for (int64_t done = 0; done < bytes;) {
    const int64_t n = std::min(bytes - done, kPinnedBytes);
    if (going && s.pinned_used + n > kPinnedBytes) going = wait(s);
    std::byte* staged = s.pinned.data() + s.pinned_used;  // behind what is still being copied in
    going = going &&
            good(s,
                 cudaMemcpyAsync(staged, source + done, static_cast<size_t>(n), cudaMemcpyDeviceToHost,
                                 static_cast<cudaStream_t>(s.handle)),
                 "copying out") &&
            wait(s);
    if (going) {
      std::memcpy(target + done, staged, static_cast<size_t>(n));
    } else {
      std::memset(target + done, 0, static_cast<size_t>(n));
    }
    done += n;
  }
}

void exchange(const ExchangeArgs& a, Stream& stream) {
  // What fails stays with the group, which whoever runs the step asks at its end.
  if (is_failed(owned(stream))) return;
  static_cast<void>(a.group->exchange({a.pieces, static_cast<size_t>(a.n_pieces)}, owned(stream).stream.handle()));
}

}  // namespace di::kernels::cuda
