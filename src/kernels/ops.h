// The operators of DeepSeek V4.1: the only border between the model and a backend (design.md §5). Each operator is as
// large as a fused kernel; its formula stands beside its arguments, in the names of model.md. A backend is a table
// `Ops` of functions; cpu/ref holds the plain twins that define the results, cpu/ the fast ones, cuda/ and ascend/ the
// others.
//
// Common rules
//   * Arguments are views (tensor.h); outputs come last; no operator allocates what the caller can see. Everything an
//     argument points to lies in the backend's memory; only the fields themselves are the host's.
//   * Activations are fp32 (`exact`) or bf16 (`trained`); accumulation is fp32; norms, softmax, router,
//   hyper-connection
//     coefficients and gates are fp32 always.
//   * Batch invariance: the result of a row depends on that row's inputs only, never on how many or which other rows
//   share
//     the call, bit for bit. Reductions run in an order fixed by the operator's widths.
//   * Operators are ordered on a Stream and may run asynchronously to the caller; one thread submits to a stream.
//   * Preconditions (shapes, alignment) are checked in the launch function and abort: they are bugs of the caller.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/tensor.h"

namespace di::device {
class Group;
struct Piece;
}  // namespace di::device

namespace di::kernels {

struct Stream;  // owned by the backend: a worker team with scratch on the CPU, a CUDA or Ascend stream elsewhere

// X[t,i,:] = embedding row of ids[t] for every stream i; mix[t,:] = one-hot on stream 0 (model.md §5.1).
// Rows with override_row[t] >= 0 take overrides[override_row[t], :] instead (image features).
struct EmbedArgs {
  const int32_t* ids;  // [T]
  int32_t n_tokens;
  Weight table;                 // kBf16 or kF32 [vocab, H]
  const int32_t* override_row;  // [T] or null
  Tensor overrides;             // [n, H]
  int32_t hc;
  Tensor streams;  // out [T, hc·H]
  float* mix;      // out [T, hc]
};

// One hyper-connection site (model.md §5.2): coefficients of this site, and the input of its sub-layer.
//   f = X[t] flattened; m = (f·fnᵀ)·rsqrt(mean f² + eps)
//   pre = sigmoid(m[0:hc]·scale[0] + base) + hc_eps;  post = 2·sigmoid(m[hc:2hc]·scale[1] + base)
//   comb = Sinkhorn(m[2hc:]·scale[2] + base): softmax over rows + hc_eps, then alternating column / row normalisation
//   y = RMSNorm(Σ_i mix_in[i]·X_i, norm)        V4.1: mix_in comes from the previous site
//   V4 (use_own_pre): y = RMSNorm(Σ_i pre[i]·X_i, norm)
struct HcPreArgs {
  Tensor streams;       // [T, hc·H]
  const float* mix_in;  // [T, hc]; ignored when use_own_pre
  bool use_own_pre;
  int32_t hc;
  int32_t sinkhorn_iters;
  float hc_eps;
  float norm_eps;
  const float* fn;     // [(2+hc)·hc, hc·H]
  const float* base;   // [(2+hc)·hc]
  const float* scale;  // [3]
  Weight norm;         // [1, H] kBf16 or kF32
  bool round_bf16;     // the collapse is rounded to bf16 before the norm
  Tensor y;            // out [T, H]
  float* pre;          // out [T, hc]
  float* post;         // out [T, hc]
  float* comb;         // out [T, hc, hc], row = input stream, column = output stream
};

// X'_j = post_j·y + Σ_i comb[i,j]·X_i, in place (model.md §5.2, "Expand").
struct HcPostArgs {
  Tensor streams;  // in/out [T, hc·H]
  Tensor y;        // [T, H]
  const float* post;
  const float* comb;
  int32_t hc;
};

// Final collapse: h = Σ_i mix[i]·X_i (→bf16 when the streams are bf16); y = RMSNorm(h, norm). `h` may be empty (data ==
// null).
struct HcHeadArgs {
  Tensor streams;    // [T, hc·H]
  const float* mix;  // [T, hc]
  int32_t hc;
  float norm_eps;
  Weight norm;
  Tensor h;  // out [T, H] or empty: before the norm (the draft's confidence head reads it)
  Tensor y;  // out [T, H]
};

// V4's head mixer: mix = sigmoid((f·fnᵀ)·rsqrt(mean f² + eps)·scale + base) + hc_eps (model.md §10.1).
struct HcHeadMixArgs {
  Tensor streams;
  int32_t hc;
  float hc_eps;
  float norm_eps;
  const float* fn;     // [hc, hc·H]
  const float* base;   // [hc]
  const float* scale;  // [1]
  float* mix;          // out [T, hc]
};

// y = x·Wᵀ (+ y when accumulate). Numerics::quantise_activations applies before FP8/FP4 weights only (model.md §4.2).
struct LinearArgs {
  Tensor x;  // [T, cols]
  Weight w;  // [rows, cols]
  Numerics numerics;
  bool accumulate;
  Tensor y;  // out [T, rows]
};

// y[:, g·R:(g+1)·R] = x[:, g·C:(g+1)·C] · W_gᵀ, W = groups × [R, C] stacked by rows (wo_a, model.md §5.4).
struct GroupedLinearArgs {
  Tensor x;  // [T, groups·C]
  Weight w;  // [groups·R, C]
  int32_t groups;
  Numerics numerics;
  Tensor y;  // out [T, groups·R]
};

// y = w·x·rsqrt(mean(x²) + eps) (model.md §5.3). May run in place.
struct RmsNormArgs {
  Tensor x;
  Weight w;  // [1, cols]
  float eps;
  Tensor y;
};

// table[t, i] = (cos, sin)(fp32(position·inv_freq[i])), i < rope_dim/2 (model.md §5.5).
struct RopeTableArgs {
  const int32_t* positions;  // [n]
  int32_t n;
  const float* inv_freq;  // [rope_dim/2]
  int32_t rope_dim;
  float* table;  // out [n, rope_dim/2, 2]
};

// Rotates the last rope_dim channels of every head, adjacent pairs, in place. head_norm_eps > 0: an un-weighted RMSNorm
// per head first (V4, model.md §10.2).
struct QRopeArgs {
  Tensor q;  // in/out [T, heads·D]
  int32_t heads;
  const float* table;  // [T, rope_dim/2, 2]
  int32_t rope_dim;
  float head_norm_eps;
};

// Sliding-window entry: RMSNorm(kv, norm), rope, then (kE4m3Ue8m0) bf16 rounding and quantisation (model.md §5.4,
// §4.3), written as records in row order. entry (if not empty) receives the value as read back, for tests.
struct SwaStoreArgs {
  Tensor kv;    // [T, D] = y·wkvᵀ
  Weight norm;  // [1, D]
  float norm_eps;
  const float* table;  // [T, rope_dim/2, 2]
  int32_t rope_dim;
  bool round_bf16;
  KvFormat format;
  uint8_t* fresh;  // out [T, record_bytes(format, D)]
  Tensor entry;    // out [T, D] or empty
};

// Copies fresh records into the rings of their sequences, at position mod ring_rows; of a sequence with more rows than
// the ring only the last ring_rows. Runs after the attention that read the ring's old entries.
struct RingCommitArgs {
  const uint8_t* fresh;  // [T, record_bytes]
  Rows rows;
  RingView ring;
};

// Compressor of a KV source layer (model.md §5.6). `closing` lists the rows whose token completes a group that is to be
// written, ascending: all rows for ratio 1, rows at odd positions for ratio 2 (minus rows of a bounded replay).
//   ratio 1: c = RMSNorm(v, norm)
//   ratio 2: per channel softmax over the two tokens' scores, c = RMSNorm(Σ softmax·v →bf16, norm)
// The partner of a closing row is the row before it if that belongs to the same sequence, else it is read from `state`;
// then every row's (v, s) is written to `state` (ratio 2; of more rows than state.ring_rows only the last), so that a
// group may close in a later call.
struct CompressArgs {
  int32_t ratio;
  Tensor v;  // [T, D]; fp32 for ratio 2
  Tensor s;  // [T, D] fp32; empty for ratio 1
  Weight norm;
  float norm_eps;
  bool round_bf16;
  Rows rows;
  const int32_t* closing;  // [G]; -1: none (captured steps have room for more), its row of `latent` is not written
  int32_t n_closing;
  CompressorStateView state;
  Tensor latent;  // out [G, D], before rope
};

// V4's compressors (model.md §10.3): ratio 128 (HCA: softmax over 128 tokens with ape) and ratio 4 (CSA: overlapping
// groups, v and s are [Ca | Cb], ape added before the split; entry w mixes Ca of group w-1 and Cb of group w).
// state.width = width of v. Output as CompressArgs.
struct CompressV4Args {
  int32_t ratio;
  bool overlap;
  Tensor v;          // [T, c·D] fp32
  Tensor s;          // [T, c·D] fp32
  const float* ape;  // [ratio, c·D]
  Weight norm;       // [1, D]
  float norm_eps;
  bool round_bf16;
  Rows rows;
  const int32_t* closing;
  int32_t n_closing;
  CompressorStateView state;
  Tensor latent;  // out [G, D]
};

// Writes entries into pages: optional RMSNorm, rope at the group's first position, quantise, store. Serves main entries
// (norm empty: the latent is already normed) and index keys (norm = k_norm). Entry index g = position / ratio of the
// closing row; rope position = ratio·g.
struct PageStoreArgs {
  Tensor x;     // [G, width]
  Weight norm;  // [1, width] or data == null
  float norm_eps;
  const float* table;  // [G, rope_dim/2, 2], at positions ratio·g
  int32_t rope_dim;
  int32_t ratio;
  Rows rows;
  const int32_t* closing;  // [G] rows; -1: nothing is written
  int32_t n_closing;
  bool round_bf16;
  PageView pages;
};

// Index query: rope of the last rope_dim channels of every head, then (quantise) E2M1/ue8m0 per 32 from bf16,
// dequantised in place (model.md §5.7).
struct IndexQueryArgs {
  Tensor q;  // in/out [T, heads·width]
  int32_t heads;
  const float* table;
  int32_t rope_dim;
  bool quantise;
};

// Selection of compressed entries (model.md §5.7, §5.8).
//   visible(t) = (position+1)/ratio;  score[t,g] = Σ_h w[t,h]·scale·relu(q[t,h]·k_g), fp32
//   selection[t] = the min(topk, visible) best entries, ascending, -1 beyond; ties: lower index first.
// If visible <= topk everything is selected without scoring.
// candidate_in (Reindex layers): only entries inside the row's candidate blocks compete.
// candidate_out (candidate source): the best `candidate_topk` blocks by their maximum score, the newest block always
// first kept; ascending, -1 beyond. If all blocks fit, the row is written as the single value -2 = "every block".
struct SelectArgs {
  Tensor q;     // [T, heads·width]
  Tensor w;     // [T, heads] = y·weights_projᵀ
  float scale;  // width^-0.5 · heads^-0.5
  int32_t heads;
  int32_t ratio;
  int32_t topk;
  Rows rows;
  PageView keys;
  int32_t candidate_block;      // entries per block
  int32_t candidate_topk;       // row length of the candidate arrays
  const int32_t* candidate_in;  // [T, candidate_topk] or null
  int32_t* candidate_out;       // [T, candidate_topk] or null
  int32_t* selection;           // out [T, topk]
  float* scores;                // out [T, scores_stride] or null; -inf where not visible or no candidate (tests)
  int64_t scores_stride;
};

// Attention over the ring window and the selected page entries in one softmax with a sink (model.md §5.4):
//   S = window entries at positions [window_begin, window_end), fresh or from the ring ++ page entries of selection[t]
//   o_h = Σ a·k,  a = softmax(q_h·k·scale) with exp(sink_h) added to the denominator; then the inverse rope at the
//   query's position on the last rope_dim channels. An empty S yields 0. Key = value.
// selection null and ratio > 0: every complete entry is visible (V4 ratio 128).
struct AttentionArgs {
  Tensor q;  // [T, heads·D]
  int32_t heads;
  float scale;         // D^-0.5
  const float* sink;   // [heads]
  const float* table;  // [T, rope_dim/2, 2]
  int32_t rope_dim;
  Rows rows;
  FreshView fresh;  // may hold more rows than are queried here
  RingView ring;
  int32_t ratio;  // 0: window only
  PageView pages;
  const int32_t* selection;  // [T, topk] or null
  int32_t topk;
  bool round_bf16;  // probabilities are rounded to bf16 before the value product
  Tensor o;         // out [T, heads·D]
};

// Router (model.md §5.9): s = sqrt(softplus(y·gateᵀ)); ids = top-k of s + bias (bias_vl for image rows; ties: lower
// id), or forced_ids (V4 hash layers); weights = s[ids]/(Σ + 1e-20)·scale. ids ascend by rank of score, not by id.
struct RouterArgs {
  Tensor y;
  Weight gate;                // [experts, H]
  const float* bias;          // [experts] or null
  const float* bias_vl;       // [experts] or null
  const int32_t* forced_ids;  // [T, k] or null
  Rows rows;
  int32_t k;
  float scale;
  int32_t* ids;    // out [T, k]
  float* weights;  // out [T, k]
};

struct ExpertWeights {
  Weight w1;  // gate [I, H]
  Weight w3;  // up   [I, H]
  Weight w2;  // down [H, I]
};

// What a backend must know of the routed experts before it reads their table, the same for all of them.
struct ExpertForm {
  int64_t inner = 0;  // I
  WeightFormat format = WeightFormat::kBf16;
  int32_t block = 32;    // of FP8 tiles
  bool aligned = false;  // every tensor starts at a multiple of 16 bytes, its scales at one of 4
};

inline ExpertForm form_of(const ExpertWeights* experts, int64_t n) {
  ExpertForm form;
  if (n == 0) return form;
  form.inner = experts->w1.rows;
  form.format = experts->w1.format;
  form.block = experts->w1.block;
  form.aligned = true;
  for (int64_t e = 0; e < n; ++e) {
    for (const Weight* w : {&experts[e].w1, &experts[e].w3, &experts[e].w2}) {
      form.aligned = form.aligned && reinterpret_cast<uintptr_t>(w->data) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(w->scale) % 4 == 0;
    }
  }
  return form;
}

// out = Σ_k weight_k·expert_{id_k}(y) + shared(y), fp32 accumulation in the order of k, then the shared expert.
//   expert(y): g = min(y·w1ᵀ, limit), u = clamp(y·w3ᵀ, ±limit), a = silu(g)·u, out = a·w2ᵀ
// exact: the routing weight multiplies after w2; trained: before the quantisation of a (model.md §5.9, §12).
struct MoeArgs {
  Tensor y;              // [T, H]
  const int32_t* ids;    // [T, k]
  const float* weights;  // [T, k]
  int32_t k;
  const ExpertWeights* experts;  // [n_experts]
  int32_t n_experts;
  ExpertForm form;
  ExpertWeights shared;
  float swiglu_limit;
  Numerics numerics;
  Tensor out;  // out [T, H]
};

// Expert parallelism (distributed.md §3): the three operators between router and shared expert when a rank has a part
// of the experts. exchange brings the rows of all ranks here, moe_parts computes the products of the experts that are
// here, exchange takes them back to the ranks of their rows, moe_sum adds them up as `moe` does, bit for bit.
//
// The pieces of device/group.h, whose memory is the backend's. An error stays with the group.
struct ExchangeArgs {
  device::Group* group;
  const device::Piece* pieces;
  int32_t n_pieces;
};

// parts[t, j] = weight·expert_{ids[t,j]}(y[t]) in fp32, for the pairs whose expert has owner `rank`; the others are not
// written. The pairs are computed in the order of their experts, then of their rows.
struct MoePartsArgs {
  Tensor y;              // [T, H], rows of all ranks
  const int32_t* ids;    // [T, k]
  const float* weights;  // [T, k]
  int32_t k;
  const ExpertWeights* experts;  // [n_experts]; those of other ranks have no data
  int32_t n_experts;
  const int32_t* owner;  // [n_experts] rank that has the expert
  int32_t rank;
  ExpertForm form;
  float swiglu_limit;
  Numerics numerics;
  int32_t* local_ids;  // [T, k] scratch
  int64_t* received;   // [n_experts] += pairs of each expert that is here, or null: the load that balancing goes by
  float* parts;        // out [T, k, H]
};

// out[t] = Σ_j part of ids[t,j] from its owner's array, in fp32 in the order of j, then shared[t].
struct MoeSumArgs {
  const int32_t* ids;    // [T, k]
  const int32_t* owner;  // [n_experts]
  int32_t rank;
  int32_t k;
  const float* mine;  // [T, k, H]: of the experts that are here
  const float* back;  // rank r's for r != rank, at back + r·back_stride
  int64_t back_stride;
  Tensor shared;  // [T, H] fp32, or data == null
  Tensor out;     // out [T, H]
};

// e[t] = concatenation of the dequantised table rows (model.md §5.10).
struct EngramGatherArgs {
  Weight table;         // kFp8Row [rows, width]
  const int64_t* rows;  // [T, columns]
  int32_t n_tokens;
  int32_t columns;
  Tensor e;  // out [T, columns·width]
};

// d_i = Σ_c X_i·qw_i·kw_i·key_i · rsqrt(mean X_i²+eps) · rsqrt(mean key_i²+eps)/sqrt(H); g_i =
// sigmoid(copysign(sqrt(max(|d_i|, 1e-6)), d_i)); X_i += g_i·value. kvp = [hc keys | value], [T, (hc+1)·H]. Image rows
// keep X. sign_at_zero: what stands for sign(0) is open in model.md §12; copysign is this project's choice (false =
// sign() = 0).
struct EngramGateArgs {
  Tensor streams;  // in/out [T, hc·H]
  Tensor kvp;
  Weight q_weight;  // [hc, H]
  Weight k_weight;  // [hc, H]
  int32_t hc;
  float norm_eps;
  bool copysign_at_zero;
  Rows rows;
  float* gate;  // out [T, hc] or null (tests)
};

// y[t] = mean over streams of X[t] (fp32 mean), written into columns [column, column + H) of y (DSpark target features,
// §8).
struct StreamMeanArgs {
  Tensor streams;
  int32_t hc;
  Tensor y;
  int64_t column;
};

// y[i] = x[index[i]], any dtype; rows of a weight table are dequantised.
struct GatherRowsArgs {
  Tensor x;
  const int32_t* index;
  int32_t n;
  Tensor y;
};
struct GatherTableArgs {
  Weight table;          // kBf16 or kF32
  const int32_t* index;  // [n]
  int32_t n;
  Tensor y;  // [n, cols]
};

// c = sigmoid(clamp(([h ; e]·w)/temperature, ±60)) (speculative.md §1.4).
struct ConfidenceArgs {
  Tensor h;  // [n, H]
  Tensor e;  // [n, r]
  Weight w;  // [1, H + r]
  float temperature;
  float* confidence;  // out [n]
};

// ids[t] = index of the largest logit, the lowest on a tie.
struct ArgmaxArgs {
  Tensor logits;
  int32_t* ids;
};

struct StreamFailure {
  const char* what = nullptr;  // null: none; lives until the stream is told to recover
  bool memory = false;         // nothing to grow into; else the device has failed, and this process's use of it
};

struct Graph;  // work of a stream that a backend has captured

struct Ops {
  const char* name;  // "cpu-ref", "cpu-avx2", "cpu-avx512bf16", "cuda-sm90", …
  void (*embed)(const EmbedArgs&, Stream&);
  void (*hc_pre)(const HcPreArgs&, Stream&);
  void (*hc_post)(const HcPostArgs&, Stream&);
  void (*hc_head)(const HcHeadArgs&, Stream&);
  void (*hc_head_mix)(const HcHeadMixArgs&, Stream&);
  void (*linear)(const LinearArgs&, Stream&);
  void (*grouped_linear)(const GroupedLinearArgs&, Stream&);
  void (*rms_norm)(const RmsNormArgs&, Stream&);
  void (*rope_table)(const RopeTableArgs&, Stream&);
  void (*q_rope)(const QRopeArgs&, Stream&);
  void (*swa_store)(const SwaStoreArgs&, Stream&);
  void (*ring_commit)(const RingCommitArgs&, Stream&);
  void (*compress)(const CompressArgs&, Stream&);
  void (*compress_v4)(const CompressV4Args&, Stream&);
  void (*page_store)(const PageStoreArgs&, Stream&);
  void (*index_query)(const IndexQueryArgs&, Stream&);
  void (*select)(const SelectArgs&, Stream&);
  void (*attention)(const AttentionArgs&, Stream&);
  void (*router)(const RouterArgs&, Stream&);
  void (*moe)(const MoeArgs&, Stream&);
  void (*exchange)(const ExchangeArgs&, Stream&);
  void (*moe_parts)(const MoePartsArgs&, Stream&);
  void (*moe_sum)(const MoeSumArgs&, Stream&);
  void (*engram_gather)(const EngramGatherArgs&, Stream&);
  void (*engram_gate)(const EngramGateArgs&, Stream&);
  void (*stream_mean)(const StreamMeanArgs&, Stream&);
  void (*gather_rows)(const GatherRowsArgs&, Stream&);
  void (*gather_table)(const GatherTableArgs&, Stream&);
  void (*confidence)(const ConfidenceArgs&, Stream&);
  void (*argmax)(const ArgmaxArgs&, Stream&);
  // Where the backend's memory is not the host's (null where it is): copies in the order of the stream. copy_in has
  // read its source when it returns; copy_out waits until the bytes are there.
  void (*copy_in)(void* to, const void* from, int64_t bytes, Stream&) = nullptr;
  void (*copy_out)(void* to, const void* from, int64_t bytes, Stream&) = nullptr;
  // Work that is captured once and replayed with one call (null where the backend has no such thing). What `submit`
  // puts on the stream is kept instead of run: operators only, after the same ones have run once (memory of the backend
  // may grow then). Every address in it must stay. A graph is void when scratch_version has changed since. Null where
  // there is no room for the graph, or the stream has failed.
  Graph* (*capture)(void (*submit)(void*), void* argument, Stream&) = nullptr;
  void (*replay)(const Graph&, Stream&) = nullptr;
  void (*drop)(Graph*) = nullptr;
  int64_t (*scratch_version)(Stream&) = nullptr;
  // What went wrong on the stream, from when on all that it is given is dropped and copy_out gives zeros (null where
  // nothing can go wrong). `refuse` reports a lack of memory of the caller's own; `recover` ends a lack of memory: what
  // was dropped stays dropped, what comes next runs.
  StreamFailure (*failure)(Stream&) = nullptr;
  void (*refuse)(const char* what, Stream&) = nullptr;
  void (*recover)(Stream&) = nullptr;
};

}  // namespace di::kernels
