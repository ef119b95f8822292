// Host side of the launches: the stream, its scratch memory and the checks of preconditions.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/common/addressing.h"
#include "kernels/cuda/common/platform.cuh"
#include "kernels/cuda/stream.h"
#include "kernels/ops.h"

// A precondition of an operator (a bug of the caller): prints the operator's own sentence and the values, and aborts.
#define DI_KERNEL_CHECK(condition, ...)                                               \
  do {                                                                                \
    if (!(condition)) {                                                               \
      std::fprintf(stderr, "deepinfer: %s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                              \
      std::fputc('\n', stderr);                                                       \
      std::abort();                                                                   \
    }                                                                                 \
  } while (false)

// Nothing on a stream that has failed.
#define DI_LAUNCH_AS(stream, early, kernel, grid, block, shared, ...)                                              \
  do {                                                                                                             \
    if (cuda_stream(stream).failure.what != nullptr) break;                                                        \
    const StreamFailure problem = launch_on(static_cast<StreamHandle>(cuda_stream(stream).handle), #kernel, early, \
                                            kernel, grid, block, shared __VA_OPT__(, ) __VA_ARGS__);               \
    if (problem.what != nullptr) launch_failed(stream, #kernel, problem);                                          \
  } while (false)
#define DI_LAUNCH(stream, kernel, grid, block, shared, ...) \
  DI_LAUNCH_AS(stream, false, kernel, grid, block, shared __VA_OPT__(, ) __VA_ARGS__)
// For kernels that call wait_for_previous before they touch what the kernel before them reads or writes.
#define DI_LAUNCH_EARLY(stream, kernel, grid, block, shared, ...) \
  DI_LAUNCH_AS(stream, true, kernel, grid, block, shared __VA_OPT__(, ) __VA_ARGS__)

namespace di::kernels::cuda {

inline constexpr int kThreads = 256;  // of the row kernels; part of the order of their sums
inline constexpr int64_t kMaxGridY = 65535;

// The first statement of a kernel of the chain: its successor's blocks may be put down as soon as all of its own are,
// and it waits for its predecessor. Who waits for it has then waited for all before it.
__device__ __forceinline__ void join_chain() {
  let_next_start();
  wait_for_previous();
}

inline int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
inline dim3 grid(int64_t x, int64_t y = 1, int64_t z = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
}

inline bool is_aligned(const void* p, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes) == 0;
}

}  // namespace di::kernels::cuda
