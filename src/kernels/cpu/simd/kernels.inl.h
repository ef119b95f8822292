// The kernels of one instruction set, in a namespace of its own. An isa_*.cc defines DI_CPU_ISA (namespace),
// DI_CPU_AVX512, DI_CPU_BF16_DOT and DI_CPU_TILES (0 or 1), opens the target region and includes this file once. A
// table with DI_CPU_TILES is that of avx512bf16 but for the products of bf16 pairs (tiles.inl.h).

namespace di::kernels::cpu::DI_CPU_ISA {

#include "kernels/cpu/simd/tasks.inl.h"
#if DI_CPU_AVX512
#include "kernels/cpu/simd/simd_avx512.inl.h"
#else
#include "kernels/cpu/simd/simd_avx2.inl.h"
#endif
// Each builds on those before it.
// clang-format off
#include "kernels/cpu/simd/math.inl.h"
#include "kernels/cpu/simd/gemm.inl.h"
#if DI_CPU_TILES
#include "kernels/cpu/simd/tile_unit.inl.h"
#include "kernels/cpu/simd/tiles.inl.h"
#endif
#include "kernels/cpu/simd/linear.inl.h"
#include "kernels/cpu/simd/moe.inl.h"
#if !DI_CPU_TILES
#include "kernels/cpu/simd/attention.inl.h"
#include "kernels/cpu/simd/rows.inl.h"
#include "kernels/cpu/simd/select.inl.h"
#endif
#include "kernels/cpu/simd/probe.inl.h"
// clang-format on

inline Ops make_ops(const char* name) {
#if DI_CPU_TILES
  Ops ops = ops_avx512bf16();
#else
  Ops ops = reference_ops();
#endif
  ops.name = name;
  ops.linear = linear;
  ops.grouped_linear = grouped_linear;
  ops.moe = moe;
  ops.moe_parts = moe_parts;
#if !DI_CPU_TILES
  ops.attention = attention;
  ops.select = select;
  ops.rms_norm = rms_norm;
  ops.rope_table = rope_table;
  ops.q_rope = q_rope;
  ops.index_query = index_query;
  ops.swa_store = swa_store;
  ops.page_store = page_store;
  ops.hc_pre = hc_pre;
  ops.hc_post = hc_post;
  ops.hc_head = hc_head;
  ops.stream_mean = stream_mean;
  ops.compress = compress;
  ops.router = router;
  ops.engram_gather = engram_gather;
  ops.engram_gate = engram_gate;
  ops.argmax = argmax;
#endif
  return ops;
}

}  // namespace di::kernels::cpu::DI_CPU_ISA
