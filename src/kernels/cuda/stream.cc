#include "kernels/cuda/stream.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
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

  ~OwnedStream() { cudaFree(scratch); }
};

OwnedStream& owned(Stream& stream) {
  return static_cast<OwnedStream&>(cuda_stream(stream));
}

// A failed call of the runtime is the end: with the step's work in an unknown state no result of it can be trusted, and
// most such errors stay with the process (a supervisor starts it again).
void must(cudaError_t status, const char* what) {
  DI_CHECK(status == cudaSuccess, "CUDA: {}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

void must(const Result<void>& status) {
  DI_CHECK(status.has_value(), "{}", status.error().message);
}

void wait(OwnedStream& s) {
  must(cudaStreamSynchronize(static_cast<cudaStream_t>(s.handle)), "the work of a step");
  s.pinned_used = 0;
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
  if (bytes <= s.scratch_bytes) return;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  must(cudaStreamIsCapturing(static_cast<cudaStream_t>(s.handle), &capture), "asking for the capture");
  DI_CHECK(capture == cudaStreamCaptureStatusNone,
           "{} bytes of scratch wanted while a graph is captured, {} are there: run the step once before", bytes,
           s.scratch_bytes);
  must(cudaSetDevice(s.device), "choosing the device");
  wait(s);
  must(cudaFree(s.scratch), "freeing scratch");
  s.scratch = nullptr;
  s.scratch_bytes = std::max(bytes, 2 * s.scratch_bytes);
  void* memory = nullptr;
  must(cudaMalloc(&memory, static_cast<size_t>(s.scratch_bytes)), "allocating scratch");
  s.scratch = static_cast<std::byte*>(memory);
  ++s.scratch_version;
}

void start_beside(Stream& stream) {
  OwnedStream& s = owned(stream);
  must(s.begun.record(s.stream));
  must(s.begun.wait_on(s.beside));
  s.handle = s.beside.handle();
}

void stop_beside(Stream& stream) {
  OwnedStream& s = owned(stream);
  must(s.done.record(s.beside));
  s.handle = s.stream.handle();
}

void join_beside(Stream& stream) {
  OwnedStream& s = owned(stream);
  must(s.done.wait_on(s.stream));
}

Graph* capture(void (*submit)(void*), void* argument, Stream& stream) {
  auto graph = device::cuda::Graph::capture(owned(stream).stream, [&] { submit(argument); });
  DI_CHECK(graph.has_value(), "{}", graph.error().message);
  return reinterpret_cast<Graph*>(new device::cuda::Graph(std::move(*graph)));
}

void replay(const Graph& graph, Stream& stream) {
  const Result<void> status = reinterpret_cast<const device::cuda::Graph&>(graph).replay(owned(stream).stream);
  DI_CHECK(status.has_value(), "{}", status.error().message);
}

void drop(Graph* graph) {
  delete reinterpret_cast<device::cuda::Graph*>(graph);
}

int64_t scratch_version(Stream& stream) {
  return cuda_stream(stream).scratch_version;
}

void copy_in(void* to, const void* from, int64_t bytes, Stream& stream) {
  if (bytes == 0) return;
  OwnedStream& s = owned(stream);
  must(cudaSetDevice(s.device), "choosing the device");  // of the calling thread
  const auto handle = static_cast<cudaStream_t>(s.handle);
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  for (int64_t done = 0; done < bytes;) {
    const int64_t n = std::min(bytes - done, kPinnedBytes);
    if (s.pinned_used + n > kPinnedBytes) wait(s);
    std::byte* staged = s.pinned.data() + s.pinned_used;
    std::memcpy(staged, source + done, static_cast<size_t>(n));
    must(cudaMemcpyAsync(target + done, staged, static_cast<size_t>(n), cudaMemcpyHostToDevice, handle), "copying in");
    s.pinned_used += (n + 63) / 64 * 64;
    done += n;
  }
}

void copy_out(void* to, const void* from, int64_t bytes, Stream& stream) {
  OwnedStream& s = owned(stream);
  must(cudaSetDevice(s.device), "choosing the device");
  const auto handle = static_cast<cudaStream_t>(s.handle);
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  for (int64_t done = 0; done < bytes;) {
    const int64_t n = std::min(bytes - done, kPinnedBytes);
    if (s.pinned_used + n > kPinnedBytes) wait(s);
    std::byte* staged = s.pinned.data() + s.pinned_used;  // behind what is still being copied in
    must(cudaMemcpyAsync(staged, source + done, static_cast<size_t>(n), cudaMemcpyDeviceToHost, handle), "copying out");
    wait(s);
    std::memcpy(target + done, staged, static_cast<size_t>(n));
    done += n;
  }
}

void exchange(const ExchangeArgs& a, Stream& stream) {
  // What fails stays with the group, which whoever runs the step asks at its end.
  static_cast<void>(a.group->exchange({a.pieces, static_cast<size_t>(a.n_pieces)}, owned(stream).stream.handle()));
}

}  // namespace di::kernels::cuda
