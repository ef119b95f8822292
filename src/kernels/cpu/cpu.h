// The CPU backend. A CpuStream is a worker team plus per-worker scratch; operators run to completion before they
// return. `ops(Isa)` gives the table for an instruction set; `best_isa()` what this processor has (AVX2 is the minimum,
// cli checks it at start). The reference table is the definition every other backend is compared with.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace di {
class ThreadPool;
}

namespace di::kernels::cpu {

enum class Isa : uint8_t { kAvx2, kAvx512, kAvx512Bf16, kAmx };

bool has_avx2();
// What this processor runs, the best first choice. kAmx includes everything below it, and the right to use the tiles,
// which the first call asks the kernel for.
Isa best_isa();
// Null when the tiles of AMX can be used in this process, else why not, in one line.
const char* amx_refusal();
const char* name(Isa isa);

const Ops& reference_ops();
// The table of an instruction set that is at most best_isa().
const Ops& ops(Isa isa);
// The AMX table with its tile instructions written out, the same bits: for tests. Needs kAvx512Bf16.
const Ops& emulated_amx_ops();

struct StreamDeleter {
  void operator()(Stream* stream) const;
};
using StreamPtr = std::unique_ptr<Stream, StreamDeleter>;

// The pool must outlive the stream. One thread submits operators to a stream.
StreamPtr make_stream(ThreadPool& pool);

}  // namespace di::kernels::cpu
