// What a kernels::Stream is on the CPU: a worker team and scratch memory. Operators run to completion before they
// return; one thread submits to a stream. Scratch lives until the next operator of the stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace di::kernels::cpu {

// Bump allocator for the temporaries of one operator. reset() makes everything taken before invalid and keeps the
// memory, so that a steady state allocates nothing.
class Arena {
 public:
  // n objects of a trivial type, uninitialised, aligned to 64 bytes, with 64 readable bytes behind the last.
  template <class T>
  T* take(int64_t n) {
    return static_cast<T*>(take_bytes(n * static_cast<int64_t>(sizeof(T))));
  }
  void reset();

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  struct Chunk {
    std::unique_ptr<std::byte, Free> memory;
    int64_t bytes = 0;
  };
  void* take_bytes(int64_t bytes);
  void add_chunk(int64_t bytes);

  std::vector<Chunk> chunks_;  // the last one is being filled
  int64_t used_ = 0;           // bytes of the last chunk
};

struct CpuStream {
  explicit CpuStream(ThreadPool& team) : pool(team), worker(static_cast<size_t>(team.size())) {}
  ThreadPool& pool;
  Arena shared;               // taken by the submitting thread, outside parallel regions
  std::vector<Arena> worker;  // worker[i] belongs to worker i inside a parallel region

  void reset_scratch() {
    shared.reset();
    for (Arena& arena : worker) arena.reset();
  }
};

// kernels::Stream is a handle without a definition; each backend knows what stands behind its own.
inline CpuStream& cpu_stream(Stream& stream) {
  return reinterpret_cast<CpuStream&>(stream);
}

}  // namespace di::kernels::cpu
