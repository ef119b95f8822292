// A sequential twin of the part of CUDA that src/kernels/cuda uses (kernels/cuda/common/platform.cuh), so that the very
// sources of the kernels run on a CPU against the reference operators.
//   * Every thread of a block is a fiber; blocks run one after the other. A warp runs alone until all of its lanes wait
//     for a barrier, and warps take turns in ascending or (set_reverse_warps) descending order: a missing
//     barrier makes one of the two orders read what is not written yet.
//   * Dynamic shared memory is exactly as large as asked for and filled with a pattern before each block; `__shared__`
//     variables are statics. Warp operations need all 32 lanes, as the kernels use them.
//   * A block whose threads wait for each other in vain aborts the program.
// One launch at a time in the whole program.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "kernels/ops.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  constexpr explicit dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace di::kernels::cuda::emulation {

struct Thread {
  dim3 thread_index;
  dim3 block_index;
  dim3 block_size;
  dim3 grid_size;
};
extern Thread g_thread;  // of the fiber that runs

void run(const char* name, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);
void block_barrier();
void warp_barrier();
// Barriers of a part of the block (common/warpgroup.cuh).
void meet(int barrier, int threads);
void arrive(int barrier, int threads);
// What lane `lane` of this warp posted: all lanes post before one reads, all have read before one posts again.
constexpr size_t kPostBytes = 32;
void post(const void* value, size_t bytes);
const void* posted(unsigned lane);
void* shared_memory();
// Asynchronous copies of the thread that runs: they happen when it waits for their group, the latest moment allowed.
void queue_copy(void* to, const void* from, int bytes, bool there);
void commit_copies();
void wait_copies(int groups);
void set_reverse_warps(bool reverse);
// Launches go here while a graph is captured.
extern std::vector<std::function<void()>>* g_captured;
// Most bytes of scratch that there are.
extern int64_t g_scratch_limit;

// Memory that only kernels and the copies of the backend may touch: the host's access faults, as it would on a GPU.
void* allocate_guarded(size_t bytes);
void free_guarded(void* data);
class Unguarded {  // while one of these lives, everything is accessible
 public:
  Unguarded();
  ~Unguarded();
  Unguarded(const Unguarded&) = delete;
  Unguarded& operator=(const Unguarded&) = delete;
};

template <class T>
T exchange(T v, unsigned lane) {
  static_assert(sizeof(T) <= kPostBytes);
  post(&v, sizeof(T));
  warp_barrier();
  const T result = *static_cast<const T*>(posted(lane));
  warp_barrier();
  return result;
}

}  // namespace di::kernels::cuda::emulation

#define threadIdx (::di::kernels::cuda::emulation::g_thread.thread_index)
#define blockIdx (::di::kernels::cuda::emulation::g_thread.block_index)
#define blockDim (::di::kernels::cuda::emulation::g_thread.block_size)
#define gridDim (::di::kernels::cuda::emulation::g_thread.grid_size)

inline void __syncthreads() {
  di::kernels::cuda::emulation::block_barrier();
}
inline void __syncwarp() {
  di::kernels::cuda::emulation::warp_barrier();
}
inline int atomicAdd(int* at, int v) {
  const int old = *at;
  *at += v;
  return old;
}

namespace di::kernels::cuda {

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(emulation::shared_memory());
}

inline unsigned lane_id() {
  return threadIdx.x % 32;
}
template <class T>
T shuffle_xor(T v, int mask) {
  return emulation::exchange(v, lane_id() ^ static_cast<unsigned>(mask));
}
template <class T>
T shuffle(T v, int lane) {
  return emulation::exchange(v, static_cast<unsigned>(lane) % 32);
}
uint32_t ballot(bool v);
inline int count_bits(uint32_t v) {
  return __builtin_popcount(v);
}
void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void load_transposed(uint32_t& r0, uint32_t& r1, const uint16_t* row);
void load_matrices(uint32_t (&r)[4], const uint16_t* row);
uint32_t multiply_bf16x2(uint32_t a, uint32_t b);

template <int kBytes>
void copy_async(void* to, const void* from, bool there) {
  emulation::queue_copy(to, from, kBytes, there);
}
inline void copy_weights_async(void* to, const void* from) {
  emulation::queue_copy(to, from, 16, true);
}
inline void commit_copies() {
  emulation::commit_copies();
}
template <int kGroups>
void wait_copies() {
  emulation::wait_copies(kGroups);
}

inline uint4 load_ahead(const void* from) {
  return *static_cast<const uint4*>(from);
}
inline void store_sixteen(void* to, uint4 v) {
  *static_cast<uint4*>(to) = v;
}
uint32_t round_pair(float low, float high);
inline float reciprocal(float x) {
  return 1.F / x;
}
inline void wait_for_previous() {}
inline void let_next_start() {}
inline void meet(int barrier, int threads) {
  emulation::meet(barrier, threads);
}
inline void arrive(int barrier, int threads) {
  emulation::arrive(barrier, threads);
}
inline void publish_operands() {}
template <int kRegisters>
void take_registers() {}
template <int kRegisters>
void give_registers() {}
inline float fast_exp2(float x) {
  return exp2f(x);
}
uint32_t warp_max_key(uint32_t v);

using StreamHandle = void*;

template <class... P, class... A>
StreamFailure launch_on(StreamHandle, const char* name, bool, void (*kernel)(P...), dim3 grid, dim3 block,
                        size_t shared, A&&... args) {
  const auto launch = [=] { emulation::run(name, grid, block, shared, [&] { kernel(static_cast<P>(args)...); }); };
  if (emulation::g_captured != nullptr) {
    emulation::g_captured->push_back(launch);
  } else {
    launch();
  }
  return {};
}

}  // namespace di::kernels::cuda
