#include "kernels/cpu/cpu.h"
#include "kernels/cpu/expert_parallel.h"
#include "kernels/cpu/ref/ref.h"

namespace di::kernels::cpu {

const Ops& reference_ops() {
  static constexpr Ops kOps = {
      .name = "cpu-ref",
      .embed = ref::embed,
      .hc_pre = ref::hc_pre,
      .hc_post = ref::hc_post,
      .hc_head = ref::hc_head,
      .hc_head_mix = ref::hc_head_mix,
      .linear = ref::linear,
      .grouped_linear = ref::grouped_linear,
      .rms_norm = ref::rms_norm,
      .rope_table = ref::rope_table,
      .q_rope = ref::q_rope,
      .swa_store = ref::swa_store,
      .ring_commit = ref::ring_commit,
      .compress = ref::compress,
      .compress_v4 = ref::compress_v4,
      .page_store = ref::page_store,
      .index_query = ref::index_query,
      .select = ref::select,
      .attention = ref::attention,
      .router = ref::router,
      .moe = ref::moe,
      .exchange = exchange,
      .moe_parts = ref::moe_parts,
      .moe_sum = moe_sum,
      .engram_gather = ref::engram_gather,
      .engram_gate = ref::engram_gate,
      .stream_mean = ref::stream_mean,
      .gather_rows = ref::gather_rows,
      .gather_table = ref::gather_table,
      .confidence = ref::confidence,
      .argmax = ref::argmax,
  };
  return kOps;
}

}  // namespace di::kernels::cpu
