#include "kernels/cuda/ops.h"

namespace di::kernels::cuda {

const Ops& ops() {
  static constexpr Ops kOps = {
      .name = "cuda",
      .embed = embed,
      .hc_pre = hc_pre,
      .hc_post = hc_post,
      .hc_head = hc_head,
      .hc_head_mix = hc_head_mix,
      .linear = linear,
      .grouped_linear = grouped_linear,
      .rms_norm = rms_norm,
      .rope_table = rope_table,
      .q_rope = q_rope,
      .swa_store = swa_store,
      .ring_commit = ring_commit,
      .compress = compress,
      .compress_v4 = compress_v4,
      .page_store = page_store,
      .index_query = index_query,
      .select = select,
      .attention = attention,
      .router = router,
      .moe = moe,
      .exchange = exchange,
      .moe_parts = moe_parts,
      .moe_sum = moe_sum,
      .engram_gather = engram_gather,
      .engram_gate = engram_gate,
      .stream_mean = stream_mean,
      .gather_rows = gather_rows,
      .gather_table = gather_table,
      .confidence = confidence,
      .argmax = argmax,
      .copy_in = copy_in,
      .copy_out = copy_out,
      .capture = capture,
      .replay = replay,
      .drop = drop,
      .scratch_version = scratch_version,
      .failure = failure,
      .refuse = refuse,
      .recover = recover,
  };
  return kOps;
}

}  // namespace di::kernels::cuda
