// What a kernels::Stream is on CUDA: a stream of the driver, a second one for what an operator runs beside, and scratch
// memory for the operator that runs. Operators of a stream follow one another, so that each may use all of the scratch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace di::kernels::cuda {

struct CudaStream {
  void* handle = nullptr;  // cudaStream_t that launches go to
  int device = 0;
  std::byte* scratch = nullptr;
  int64_t scratch_bytes = 0;
  int64_t scratch_used = 0;
  int64_t scratch_version = 0;  // times that it was allocated
  StreamFailure failure;
};

inline CudaStream& cuda_stream(Stream& stream) {
  return reinterpret_cast<CudaStream&>(stream);
}

// Gives the whole scratch back and makes it at least `bytes` large. Growing waits for the stream and allocates; it
// happens while the largest step is seen for the first time, never while a graph is captured (then it aborts). Where
// there is no room the stream has failed, and nothing is launched that could touch what is missing.
void reserve_scratch(Stream& stream, int64_t bytes);

// A kernel could not be put on the stream.
void launch_failed(Stream& stream, const char* kernel, StreamFailure problem);

// Work that may run beside other work of the same operator: launches between start and stop follow what the stream had
// been given before, those after stop do not wait for them, and those after join do. Once within an operator, which
// must join; both kinds of work need scratch of their own.
void start_beside(Stream& stream);
void stop_beside(Stream& stream);
void join_beside(Stream& stream);

inline int64_t scratch_size(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// n objects of the scratch that reserve_scratch has set aside, aligned to 256 bytes.
template <class T>
T* take_scratch(Stream& stream, int64_t n) {
  CudaStream& s = cuda_stream(stream);
  auto* at = reinterpret_cast<T*>(s.scratch + s.scratch_used);
  s.scratch_used += scratch_size(n * static_cast<int64_t>(sizeof(T)));
  return at;
}

}  // namespace di::kernels::cuda
