// The operators of this backend (kernels/ops.h says what each computes); one .cu file per family.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace di::kernels::cuda {

const Ops& ops();

// stream.cc
void copy_in(void* to, const void* from, int64_t bytes, Stream& stream);
void copy_out(void* to, const void* from, int64_t bytes, Stream& stream);
void exchange(const ExchangeArgs& a, Stream& stream);
Graph* capture(void (*submit)(void*), void* argument, Stream& stream);
void replay(const Graph& graph, Stream& stream);
void drop(Graph* graph);
int64_t scratch_version(Stream& stream);
StreamFailure failure(Stream& stream);
void refuse(const char* what, Stream& stream);
void recover(Stream& stream);
// rows.cu
void embed(const EmbedArgs& a, Stream& stream);
void rms_norm(const RmsNormArgs& a, Stream& stream);
void gather_rows(const GatherRowsArgs& a, Stream& stream);
void gather_table(const GatherTableArgs& a, Stream& stream);
void rope_table(const RopeTableArgs& a, Stream& stream);
void q_rope(const QRopeArgs& a, Stream& stream);
void stream_mean(const StreamMeanArgs& a, Stream& stream);
void confidence(const ConfidenceArgs& a, Stream& stream);
void argmax(const ArgmaxArgs& a, Stream& stream);
// hyper_connection.cu
void hc_pre(const HcPreArgs& a, Stream& stream);
// The same, with the form for many rows from `many_rows` on: the bits must not depend on it.
void hc_pre_from(const HcPreArgs& a, int64_t many_rows, Stream& stream);
void hc_post(const HcPostArgs& a, Stream& stream);
void hc_head(const HcHeadArgs& a, Stream& stream);
void hc_head_mix(const HcHeadMixArgs& a, Stream& stream);
// linear.cu
void linear(const LinearArgs& a, Stream& stream);
void grouped_linear(const GroupedLinearArgs& a, Stream& stream);
// cache.cu
void swa_store(const SwaStoreArgs& a, Stream& stream);
void ring_commit(const RingCommitArgs& a, Stream& stream);
void page_store(const PageStoreArgs& a, Stream& stream);
void index_query(const IndexQueryArgs& a, Stream& stream);
// compressor.cu
void compress(const CompressArgs& a, Stream& stream);
void compress_v4(const CompressV4Args& a, Stream& stream);
// select.cu
void select(const SelectArgs& a, Stream& stream);
// attention.cu
void attention(const AttentionArgs& a, Stream& stream);
// router.cu
void router(const RouterArgs& a, Stream& stream);
// moe.cu
void moe(const MoeArgs& a, Stream& stream);
// expert_parallel.cu
void moe_parts(const MoePartsArgs& a, Stream& stream);
void moe_sum(const MoeSumArgs& a, Stream& stream);
// engram.cu
void engram_gather(const EngramGatherArgs& a, Stream& stream);
void engram_gate(const EngramGateArgs& a, Stream& stream);

}  // namespace di::kernels::cuda
