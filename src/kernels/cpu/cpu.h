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
Isa best_isa();
const char* name(Isa isa);

const Ops& reference_ops();
const Ops& ops(Isa isa);

struct StreamDeleter {
  void operator()(Stream* stream) const;
};
using StreamPtr = std::unique_ptr<Stream, StreamDeleter>;

// The pool must outlive the stream. One thread submits operators to a stream.
StreamPtr make_stream(ThreadPool& pool);

}  // namespace di::kernels::cpu
