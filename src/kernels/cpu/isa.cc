#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/prelude.h"

namespace di::kernels::cpu {
namespace {

// CPUID leaf 7: the bits of EDX; XCR0: the states the system saves for us (Intel SDM vol. 1 §13.1, vol. 2 CPUID).
constexpr unsigned kAmxBf16 = 1U << 22;
constexpr unsigned kAmxTile = 1U << 24;
constexpr unsigned kOsxsave = 1U << 27;  // of leaf 1 ECX
constexpr unsigned kTileStates = 3U << 17;

// Linux saves the 8 KiB of tiles only for processes that ask (arch_prctl, kernel documentation x86/xstate).
constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr int kTileData = 18;               // XFEATURE_XTILE_DATA

const char* find_amx_refusal() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxTile) == 0 || (d & kAmxBf16) == 0) {
    return "this processor has no AMX with bf16";
  }
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsxsave) == 0) return "the system does not save extended states";
  unsigned low = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & kTileStates) != kTileStates) return "the system does not save the tiles of AMX (XCR0)";
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    return "the kernel refuses the use of AMX tiles (ARCH_REQ_XCOMP_PERM)";
  }
  return nullptr;
}

Isa find_best_isa() {
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!avx512) return Isa::kAvx2;
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vbmi")) return Isa::kAvx512;
  return amx_refusal() == nullptr ? Isa::kAmx : Isa::kAvx512Bf16;
}

}  // namespace

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

const char* amx_refusal() {
  static const char* const refusal = find_amx_refusal();
  return refusal;
}

Isa best_isa() {
  static const Isa best = find_best_isa();
  return best;
}

const char* name(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

const Ops& ops(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return ops_avx2();
    case Isa::kAvx512:
      return ops_avx512();
    case Isa::kAvx512Bf16:
      return ops_avx512bf16();
    case Isa::kAmx:
      return ops_amx();
  }
  return reference_ops();
}

}  // namespace di::kernels::cpu
