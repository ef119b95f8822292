#include "kernels/cuda_emulation/emulation.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/common/formats.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the callee-saved registers and the stack pointer in *from and continues at `to`.
extern "C" void di_switch_stack(void** from, void* to);
asm(R"(
.text
.globl di_switch_stack
.type di_switch_stack, @function
di_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size di_switch_stack, .-di_switch_stack
)");

namespace di::kernels::cuda::emulation {

Thread g_thread;
std::vector<std::function<void()>>* g_captured = nullptr;
int64_t g_scratch_limit = INT64_MAX;

namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr unsigned kMaxThreads = 1024;

enum class State : uint8_t { kReady, kWarp, kBlock, kPart, kDone };

struct Copy {
  void* to;
  const void* from;
  int bytes;
  bool there;
};

struct Part {  // a barrier of a part of the block
  int arrived = 0;
  int threads = 0;
};

struct Fiber {
  std::byte* stack = nullptr;
  void* at = nullptr;
  void* fake_stack = nullptr;  // of the address sanitizer
  State state = State::kDone;
  int part = 0;  // the barrier it waits at in State::kPart
  Thread thread;
  std::vector<Copy> copies;              // not committed yet
  std::deque<std::vector<Copy>> groups;  // committed, not waited for
};

struct Warp {
  unsigned waiting = 0;
  alignas(16) std::byte posts[32][kPostBytes];
};

Fiber g_fibers[kMaxThreads];
Warp g_warps[kMaxThreads / 32];
Part g_parts[16];
Fiber* g_running = nullptr;
void* g_scheduler = nullptr;
const std::function<void()>* g_body = nullptr;
std::unique_ptr<void, void (*)(void*)> g_shared(nullptr, &std::free);
bool g_reverse = false;
std::map<void*, size_t> g_guarded;
int g_unguarded = 0;

#if defined(__SANITIZE_ADDRESS__)
const void* g_main_bottom = nullptr;
size_t g_main_size = 0;
void* g_main_fake = nullptr;
#endif

void enter(Fiber& f) {
  g_running = &f;
  g_thread = f.thread;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&g_main_fake, f.stack, kStackBytes);
#endif
  di_switch_stack(&g_scheduler, f.at);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(g_main_fake, nullptr, nullptr);
#endif
}

void leave(State state) {
  Fiber& f = *g_running;
  f.state = state;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(state == State::kDone ? nullptr : &f.fake_stack, g_main_bottom, g_main_size);
#endif
  di_switch_stack(&f.at, g_scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(f.fake_stack, &g_main_bottom, &g_main_size);
#endif
}

void start() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &g_main_bottom, &g_main_size);
#endif
  (*g_body)();
  leave(State::kDone);
  std::abort();
}

void prepare(Fiber& f) {
  if (f.stack == nullptr) {
    void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    f.stack = static_cast<std::byte*>(memory);
  }
  // The frame that di_switch_stack pops: six registers, the entry, and a return address that keeps calls aligned.
  auto** top = reinterpret_cast<void**>(static_cast<void*>(f.stack + kStackBytes)) - 8;
  std::fill(top, top + 8, nullptr);
  void (*entry)() = start;
  std::memcpy(top + 6, &entry, sizeof entry);
  f.at = top;
  f.state = State::kReady;
  f.copies.clear();
  f.groups.clear();
}

[[noreturn]] void deadlock(const char* name, unsigned threads) {
  unsigned warp = 0;
  unsigned block = 0;
  unsigned part = 0;
  unsigned done = 0;
  for (unsigned i = 0; i < threads; ++i) {
    part += g_fibers[i].state == State::kPart ? 1 : 0;
    warp += g_fibers[i].state == State::kWarp ? 1 : 0;
    block += g_fibers[i].state == State::kBlock ? 1 : 0;
    done += g_fibers[i].state == State::kDone ? 1 : 0;
  }
  std::fprintf(stderr, "%s: %u threads wait for their warp, %u for a part of the block, %u for all, %u have returned\n",
               name, warp, part, block, done);
  std::abort();
}

void run_block(const char* name, unsigned threads) {
  const unsigned warps = threads / 32;
  unsigned done = 0;
  while (done < threads) {
    unsigned waiting = 0;
    for (unsigned turn = 0; turn < warps; ++turn) {
      const unsigned w = g_reverse ? warps - 1 - turn : turn;
      for (bool progress = true; progress;) {
        progress = false;
        for (unsigned lane = 0; lane < 32; ++lane) {
          Fiber& f = g_fibers[w * 32 + lane];
          if (f.state != State::kReady) continue;
          enter(f);
          if (f.state == State::kDone) ++done;
          progress = true;
        }
      }
      for (unsigned lane = 0; lane < 32; ++lane) waiting += g_fibers[w * 32 + lane].state == State::kBlock ? 1 : 0;
    }
    if (done == threads) return;
    bool ready = false;  // let go by a warp that came later
    for (unsigned i = 0; i < threads; ++i) ready = ready || g_fibers[i].state == State::kReady;
    if (ready) continue;
    // A barrier counts every thread of the block; one that has returned will never come.
    if (waiting != threads) deadlock(name, threads);
    for (unsigned i = 0; i < threads; ++i) g_fibers[i].state = State::kReady;
  }
}

}  // namespace

void* allocate_guarded(size_t bytes) {
  bytes = (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096;
  void* data =
      mmap(nullptr, bytes, g_unguarded > 0 ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) std::abort();
  g_guarded[data] = bytes;
  return data;
}

void free_guarded(void* data) {
  munmap(data, g_guarded.at(data));
  g_guarded.erase(data);
}

Unguarded::Unguarded() {
  if (g_unguarded++ > 0) return;
  for (const auto& [data, bytes] : g_guarded) mprotect(data, bytes, PROT_READ | PROT_WRITE);
}
Unguarded::~Unguarded() {
  if (--g_unguarded > 0) return;
  for (const auto& [data, bytes] : g_guarded) mprotect(data, bytes, PROT_NONE);
}

void set_reverse_warps(bool reverse) {
  g_reverse = reverse;
}

void run(const char* name, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body) {
  const unsigned threads = block.x;
  if (threads == 0 || threads > kMaxThreads || threads % 32 != 0 || block.y != 1 || block.z != 1 || grid.x == 0 ||
      grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffU || grid.y > 65535 || grid.z > 65535 ||
      shared_bytes > 227 * 1024) {
    std::fprintf(stderr, "%s: grid (%u, %u, %u), block %u, %zu bytes of shared memory\n", name, grid.x, grid.y, grid.z,
                 threads, shared_bytes);
    std::abort();
  }
  g_body = &body;
  const Unguarded unguarded;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        // Ends where the allocation ends, so that the address sanitizer sees what lies beyond.
        void* shared = nullptr;
        if (posix_memalign(&shared, 1024, std::max<size_t>(shared_bytes, 1)) != 0) std::abort();
        g_shared.reset(shared);
        std::memset(shared, 0xa7, shared_bytes);
        std::fill(std::begin(g_parts), std::end(g_parts), Part{});
        for (unsigned i = 0; i < threads; ++i) {
          prepare(g_fibers[i]);
          g_fibers[i].thread = {dim3(i), dim3(x, y, z), block, grid};
        }
        for (unsigned w = 0; w < threads / 32; ++w) g_warps[w].waiting = 0;
        run_block(name, threads);
      }
    }
  }
}

void block_barrier() {
  leave(State::kBlock);
}

void warp_barrier() {
  const auto index = static_cast<unsigned>(g_running - g_fibers);
  Warp& warp = g_warps[index / 32];
  if (++warp.waiting == 32) {
    warp.waiting = 0;
    for (unsigned lane = 0; lane < 32; ++lane) g_fibers[index / 32 * 32 + lane].state = State::kReady;
    return;
  }
  leave(State::kWarp);
}

void arrive(int barrier, int threads) {
  Part& part = g_parts[barrier];
  if (part.arrived == 0) part.threads = threads;
  if (barrier < 1 || barrier > 15 || threads % 32 != 0 || part.threads != threads) {
    std::fprintf(stderr, "barrier %d of %d threads, expected %d\n", barrier, threads, part.threads);
    std::abort();
  }
  if (++part.arrived < threads) return;
  part.arrived = 0;
  for (Fiber& f : g_fibers) {
    if (f.state == State::kPart && f.part == barrier) f.state = State::kReady;
  }
}

void meet(int barrier, int threads) {
  arrive(barrier, threads);
  if (g_parts[barrier].arrived == 0) return;  // the last one
  g_running->part = barrier;
  leave(State::kPart);
}

void post(const void* value, size_t bytes) {
  const auto index = static_cast<unsigned>(g_running - g_fibers);
  std::memcpy(g_warps[index / 32].posts[index % 32], value, bytes);
}

const void* posted(unsigned lane) {
  const auto index = static_cast<unsigned>(g_running - g_fibers);
  return g_warps[index / 32].posts[lane];
}

void* shared_memory() {
  return g_shared.get();
}

void queue_copy(void* to, const void* from, int bytes, bool there) {
  const auto n = static_cast<uintptr_t>(bytes);
  if (reinterpret_cast<uintptr_t>(to) % n != 0 || reinterpret_cast<uintptr_t>(from) % n != 0) {
    std::fprintf(stderr, "an asynchronous copy of %d bytes from %p to %p\n", bytes, from, to);
    std::abort();
  }
  g_running->copies.push_back({to, from, bytes, there});
}
void commit_copies() {
  g_running->groups.push_back(std::move(g_running->copies));
  g_running->copies.clear();
}
void wait_copies(int groups) {
  auto& waiting = g_running->groups;
  for (; waiting.size() > static_cast<size_t>(groups); waiting.pop_front()) {
    for (const Copy& c : waiting.front()) {
      if (c.there) {
        std::memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
      } else {
        std::memset(c.to, 0, static_cast<size_t>(c.bytes));
      }
    }
  }
}

}  // namespace di::kernels::cuda::emulation

namespace di::kernels::cuda {

uint32_t ballot(bool v) {
  emulation::post(&v, sizeof v);
  emulation::warp_barrier();
  uint32_t bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    bits |= static_cast<uint32_t>(*static_cast<const bool*>(emulation::posted(lane))) << lane;
  }
  emulation::warp_barrier();
  return bits;
}

namespace {

float half_of(uint32_t pair, unsigned high) {
  const uint32_t bits = high != 0 ? pair & 0xffff0000U : pair << 16;
  float v = 0.F;
  std::memcpy(&v, &bits, 4);
  return v;
}

}  // namespace

// Fragments (PTX ISA, mma.m16n8k16): lane = 4·group + quad.
//   a[0] row group,   columns 2·quad, +1;  a[1] row group+8;  a[2], a[3] the same rows, columns +8
//   b0   k = 2·quad, +1 of column group;   b1   k + 8
//   d    (group, 2·quad), (group, 2·quad+1), (group+8, 2·quad), (group+8, 2·quad+1)
void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  emulation::post(mine, sizeof mine);
  emulation::warp_barrier();
  const unsigned group = lane_id() / 4;
  const unsigned quad = lane_id() % 4;
  const auto* lanes = static_cast<const std::byte*>(emulation::posted(0));
  const auto registers_of = [&](unsigned lane) {
    return reinterpret_cast<const uint32_t*>(lanes + lane * emulation::kPostBytes);
  };
  float sum[4] = {0.F, 0.F, 0.F, 0.F};
  for (unsigned pair = 0; pair < 8; ++pair) {
    const uint32_t* row = registers_of(group * 4 + pair % 4) + pair / 4 * 2;
    const uint32_t b[2] = {registers_of(2 * quad * 4 + pair % 4)[4 + pair / 4],
                           registers_of((2 * quad + 1) * 4 + pair % 4)[4 + pair / 4]};
    for (unsigned high = 0; high < 2; ++high) {
      for (unsigned i = 0; i < 4; ++i) sum[i] += half_of(row[i / 2], high) * half_of(b[i % 2], high);
    }
  }
  float out[4];
  for (unsigned i = 0; i < 4; ++i) out[i] = d[i] + sum[i];
  emulation::warp_barrier();
  for (unsigned i = 0; i < 4; ++i) d[i] = out[i];
}

void load_transposed(uint32_t& r0, uint32_t& r1, const uint16_t* row) {
  if (lane_id() < 16 && reinterpret_cast<uintptr_t>(row) % 16 != 0) std::abort();
  emulation::post(&row, sizeof row);
  emulation::warp_barrier();
  const unsigned column = lane_id() / 4;
  const unsigned k = lane_id() % 4 * 2;
  uint32_t out[2];
  for (unsigned m = 0; m < 2; ++m) {
    const uint16_t low = (*static_cast<const uint16_t* const*>(emulation::posted(8 * m + k)))[column];
    const uint16_t high = (*static_cast<const uint16_t* const*>(emulation::posted(8 * m + k + 1)))[column];
    out[m] = static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16;
  }
  emulation::warp_barrier();
  r0 = out[0];
  r1 = out[1];
}

void load_matrices(uint32_t (&r)[4], const uint16_t* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) std::abort();
  emulation::post(&row, sizeof row);
  emulation::warp_barrier();
  uint32_t out[4];
  for (unsigned m = 0; m < 4; ++m) {
    const uint16_t* from = *static_cast<const uint16_t* const*>(emulation::posted(8 * m + lane_id() / 4));
    std::memcpy(&out[m], from + lane_id() % 4 * 2, 4);
  }
  emulation::warp_barrier();
  for (unsigned m = 0; m < 4; ++m) r[m] = out[m];
}

uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  return pack_bf16(half_of(a, 0) * half_of(b, 0), half_of(a, 1) * half_of(b, 1));
}

uint32_t round_pair(float low, float high) {
  return pack_bf16(low, high);
}
uint32_t warp_max_key(uint32_t v) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const uint32_t other = shuffle_xor(v, mask);
    v = other > v ? other : v;
  }
  return v;
}

void copy_in(void* to, const void* from, int64_t bytes, Stream& stream) {
  if (failure(stream).what != nullptr) return;
  if (emulation::g_captured != nullptr) std::abort();
  const emulation::Unguarded unguarded;
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
void copy_out(void* to, const void* from, int64_t bytes, Stream& stream) {
  if (emulation::g_captured != nullptr) std::abort();
  if (failure(stream).what != nullptr) {
    std::memset(to, 0, static_cast<size_t>(bytes));
    return;
  }
  const emulation::Unguarded unguarded;
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Between ranks that take turns there is nothing to exchange (emulated_test.cc moves their memory itself).
void exchange(const ExchangeArgs&, Stream&) {
  std::abort();
}

Graph* capture(void (*submit)(void*), void* argument, Stream&) {
  auto* launches = new std::vector<std::function<void()>>();
  emulation::g_captured = launches;
  submit(argument);
  emulation::g_captured = nullptr;
  return reinterpret_cast<Graph*>(launches);
}
void replay(const Graph& graph, Stream& stream) {
  if (failure(stream).what != nullptr) return;
  for (const auto& launch : reinterpret_cast<const std::vector<std::function<void()>>&>(graph)) launch();
}
void drop(Graph* graph) {
  delete reinterpret_cast<std::vector<std::function<void()>>*>(graph);
}
int64_t scratch_version(Stream& stream) {
  return cuda_stream(stream).scratch_version;
}

void launch_failed(Stream&, const char*, StreamFailure) {
  std::abort();
}
StreamFailure failure(Stream& stream) {
  return cuda_stream(stream).failure;
}
void refuse(const char* what, Stream& stream) {
  CudaStream& s = cuda_stream(stream);
  if (s.failure.what != nullptr) return;
  static std::string text;
  text = what;
  s.failure = {text.c_str(), true};
}
void recover(Stream& stream) {
  cuda_stream(stream).failure = {};
}

// Kernels run one after the other here.
void start_beside(Stream&) {}
void stop_beside(Stream&) {}
void join_beside(Stream&) {}

void reserve_scratch(Stream& stream, int64_t bytes) {
  CudaStream& s = cuda_stream(stream);
  s.scratch_used = 0;
  if (s.failure.what != nullptr) return;
  if (s.scratch_bytes < bytes) {
    if (emulation::g_captured != nullptr) std::abort();
    ++s.scratch_version;
    std::free(s.scratch);
    s.scratch = nullptr;
    s.scratch_bytes = 0;
    if (bytes > emulation::g_scratch_limit) {
      refuse("no room for an operator's scratch", stream);
      return;
    }
    s.scratch = static_cast<std::byte*>(std::aligned_alloc(256, static_cast<size_t>(scratch_size(bytes))));
    s.scratch_bytes = bytes;
  }
  std::memset(s.scratch, 0xa7, static_cast<size_t>(bytes));
}

}  // namespace di::kernels::cuda
