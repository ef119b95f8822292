// The plain twins of every operator: loops over the formulas of model.md in fp32, one thread, no vector instructions.
// They define what the other backends compute. Arguments and results: kernels/ops.h.
#pragma once

#include "kernels/ops.h"

namespace di::kernels::cpu::ref {

// embed_norm.cc
void embed(const EmbedArgs& a, Stream& stream);
void rms_norm(const RmsNormArgs& a, Stream& stream);
void gather_rows(const GatherRowsArgs& a, Stream& stream);
void gather_table(const GatherTableArgs& a, Stream& stream);
// hyper_connection.cc
void hc_pre(const HcPreArgs& a, Stream& stream);
void hc_post(const HcPostArgs& a, Stream& stream);
void hc_head(const HcHeadArgs& a, Stream& stream);
void hc_head_mix(const HcHeadMixArgs& a, Stream& stream);
// linear.cc
void linear(const LinearArgs& a, Stream& stream);
void grouped_linear(const GroupedLinearArgs& a, Stream& stream);
// rope.cc
void rope_table(const RopeTableArgs& a, Stream& stream);
void q_rope(const QRopeArgs& a, Stream& stream);
// cache.cc
void swa_store(const SwaStoreArgs& a, Stream& stream);
void ring_commit(const RingCommitArgs& a, Stream& stream);
void page_store(const PageStoreArgs& a, Stream& stream);
// compressor.cc
void compress(const CompressArgs& a, Stream& stream);
void compress_v4(const CompressV4Args& a, Stream& stream);
// indexer.cc
void index_query(const IndexQueryArgs& a, Stream& stream);
void select(const SelectArgs& a, Stream& stream);
// attention.cc
void attention(const AttentionArgs& a, Stream& stream);
// router.cc
void router(const RouterArgs& a, Stream& stream);
// moe.cc
void moe(const MoeArgs& a, Stream& stream);
void moe_parts(const MoePartsArgs& a, Stream& stream);
// engram.cc
void engram_gather(const EngramGatherArgs& a, Stream& stream);
void engram_gate(const EngramGateArgs& a, Stream& stream);
// draft.cc
void stream_mean(const StreamMeanArgs& a, Stream& stream);
void confidence(const ConfidenceArgs& a, Stream& stream);
void argmax(const ArgmaxArgs& a, Stream& stream);

}  // namespace di::kernels::cpu::ref
