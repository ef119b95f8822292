#include "kernels/cpu/stream.h"

#include <algorithm>
#include <new>

#include "kernels/cpu/cpu.h"

namespace di::kernels::cpu {
namespace {
constexpr int64_t kAlignment = 64;
constexpr int64_t kSmallestChunk = int64_t{1} << 16;
}  // namespace

void Arena::Free::operator()(std::byte* memory) const {
  ::operator delete(memory, std::align_val_t{kAlignment});
}

void Arena::add_chunk(int64_t bytes) {
  Chunk chunk;
  chunk.memory.reset(
      static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes + kAlignment), std::align_val_t{kAlignment})));
  chunk.bytes = bytes;
  chunks_.push_back(std::move(chunk));
  used_ = 0;
}

void* Arena::take_bytes(int64_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (chunks_.empty() || used_ + bytes > chunks_.back().bytes) {
    const int64_t previous = chunks_.empty() ? 0 : chunks_.back().bytes;
    add_chunk(std::max({bytes, 2 * previous, kSmallestChunk}));
  }
  std::byte* memory = chunks_.back().memory.get() + used_;
  used_ += bytes;
  return memory;
}

void Arena::reset() {
  // The last chunk is at least as large as all before it together: keep that one only.
  if (chunks_.size() > 1) chunks_.erase(chunks_.begin(), chunks_.end() - 1);
  used_ = 0;
}

void StreamDeleter::operator()(Stream* stream) const {
  delete reinterpret_cast<CpuStream*>(stream);
}

StreamPtr make_stream(ThreadPool& pool) {
  return StreamPtr(reinterpret_cast<Stream*>(new CpuStream(pool)));
}

}  // namespace di::kernels::cpu
