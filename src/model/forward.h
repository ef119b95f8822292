// The forward pass of V4.1 (model.md §5, §6, §8), written once against kernels/ops.h. Read forward.cc first: the layer
// loop; attention.cc and draft.cc hold the rest. V4's differences (model.md §10) are in forward_v4.cc.
//
// A Forward is used by one thread. Weights and schedule are shared and read-only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "device/group.h"
#include "kernels/ops.h"
#include "model/batch.h"
#include "model/cache.h"
#include "model/config.h"
#include "model/rope.h"
#include "model/schedule.h"
#include "model/step_graphs.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace di::model {

// The arithmetic of the activations (model.md §4.2). KV quantisation is a matter of the cache (CacheOptions::kv_quant).
enum class NumericMode : uint8_t {
  kExact,    // fp32 activations, no activation quantisation
  kTrained,  // bf16 rounding points and E4M3 activation quantisation of the reference
};

// Sees intermediate values while a forward runs: tests and inspection. `layer` is the backbone layer, or n_layers +
// draft layer, or -1. Names are those of vectors/model/README.md (streams, pre_mix, attn_in, attn_out, swa_kv, latent,
// …).
using Tap = std::function<void(std::string_view name, int32_t layer, const kernels::Tensor& value)>;

// What may be switched off to see what it is worth (model card, inspection); all on in service.
struct Ablation {
  bool engram = true;            // false: the gate writes nothing
  bool selection = true;         // false: the newest index_topk entries instead of the scored ones
  bool candidates = true;        // false: Reindex layers score every visible entry
  bool candidate_scores = true;  // false: the newest candidate blocks instead of the scored ones
};

struct ForwardOptions {
  NumericMode numerics = NumericMode::kTrained;
  bool engram_copysign = true;  // model.md §12, sign of an exactly zero dot
  bool draft_context = false;   // store the draft layers' context KV (target features of §8)
  bool graphs = true;           // decode steps are captured and replayed where the backend can (step_graphs.h)
  Ablation ablation;
  // Expert parallelism: the weights are those of this rank (keep_experts), and run() and draft() are collective, each
  // rank with rows of its own or none. Their bits are those of one rank that has all experts. Null: one rank. A rank
  // that fails ends the step of all: ask group->error() before a result is used. Must outlive the Forward.
  device::Group* group = nullptr;
};

struct ForwardResult {
  kernels::Tensor logits;  // [batch.logit_rows, vocab] fp32; lives until the next run
  kernels::Tensor hidden;  // [batch.logit_rows, H]: normed, what the head was fed with
};

// One sequence's draft round: the golden token at position a+1, drafts for positions a+2 … a+1+γ.
struct DraftChunk {
  int32_t golden = 0;
  int32_t context_position = 0;  // a: the last position the target has processed and accepted
  int32_t state_slot = 0;
  int32_t window_start = 0;  // context below was not computed (truncation, replay)
};

struct DraftResult {
  int32_t block = 0;            // γ
  kernels::Tensor head_hidden;  // [sequences·γ, H] before the norm
  kernels::Tensor base_logits;  // [sequences·γ, vocab] fp32: U_k; draft_step adds the Markov term in place
};

class Forward {
 public:
  Forward(const ModelConfig& config, const Schedule& schedule, const ModelWeights& weights, const kernels::Ops& ops,
          kernels::Stream& stream, device::Device& device, ForwardOptions options);
  ~Forward();
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;

  // Computes the rows of the batch, writes the caches, returns logits of batch.logit_rows.
  ForwardResult run(const Batch& batch, KvCache& cache, const Tap* tap = nullptr);

  // The parallel stage of a draft round; needs options.draft_context on the runs that processed the context.
  DraftResult draft(std::span<const DraftChunk> chunks, KvCache& cache, const Tap* tap = nullptr);
  // The sequential stage, step k = 0..γ-1: adds the Markov term of `previous` [sequences] to the logits of step k and
  // writes the confidences [sequences]. The corrected logits are rows k, γ+k, 2γ+k … of base_logits.
  kernels::Tensor draft_step(const DraftResult& draft, int32_t k, const int32_t* previous, float temperature,
                             float* confidence);

  // How the calls since the last one of status() went, as far as the stream has come: after read() or on_host() all of
  // it. kResourceExhausted: there was no memory for one of them, their results are void, and the next may be smaller;
  // kUnavailable: the device has failed, for good.
  Result<void> status() const;

  // Bytes of the operators' memory, once the stream has computed them; zeros after a failure.
  void read(void* to, const void* from, int64_t bytes) const;
  // Puts bytes of the host there, before what the stream is given next.
  void write(void* to, const void* from, int64_t bytes) const;
  // The tensor as the host reads and may write it: itself, or a copy in `buffer` once the stream has computed it.
  kernels::Tensor on_host(const kernels::Tensor& t, std::vector<std::byte>& buffer) const;

  const ModelConfig& config() const { return config_; }
  const ForwardOptions& options() const { return options_; }
  size_t workspace_bytes() const { return workspace_.bytes_held(); }
  int64_t replays() const { return replays_; }  // steps that were replayed

 private:
  struct Pass;  // one call's context (forward_pass.h)
  // A hyper-connection site: the sub-layer's input and the coefficients that put its output back.
  struct Site {
    kernels::Tensor y;     // [rows, H]
    kernels::Tensor pre;   // [rows, hc] fp32, the next site's mix
    kernels::Tensor post;  // [rows, hc] fp32
    kernels::Tensor comb;  // [rows, hc·hc] fp32
  };

  // A captured step.
  struct Captured {
    StepShape shape;
    StagedInputs inputs;
    kernels::Graph* graph = nullptr;  // null: the shape has been seen once
    int64_t scratch_version = 0;
    ForwardResult result;
  };

  // expert_parallel.cc
  static constexpr int64_t kRunCall = 1;
  static constexpr int64_t kDraftCall = 2;
  struct Agreed {
    std::vector<int32_t> rows;          // of each rank, before the decoder
    std::vector<int32_t> decoder_rows;  // and in it
    int32_t stride = 0;                 // blocks of the longest table
    bool captured = false;
    StepShape shape;
  };
  // Calls whose memory is there: kind, rows of all ranks, most rows of one, in the decoder, blocks of a table.
  using CallSize = std::array<int64_t, 5>;
  struct GroupRows {
    std::vector<int64_t> count;  // of each rank
    std::vector<int64_t> begin;  // and the first of them
    int64_t total = 0;
    kernels::Tensor y{};           // [total, H]
    const int32_t* ids = nullptr;  // [total, k]
    kernels::Tensor weights{};     // [total, k] fp32
  };
  bool agree(int64_t call, const Batch* batch, int32_t rows, const Tap* tap);
  bool agree_on_graph(int64_t* state);
  bool grow(int64_t call, const std::function<void()>& body);
  kernels::Tensor moe_of_group(const Pass& pass, const LayerPlan& plan, const FfnWeights& w, const kernels::Tensor& y,
                               const int32_t* ids, const float* weights);
  GroupRows collect(const std::vector<int32_t>& rows, int32_t first, int64_t k, const kernels::Tensor& y,
                    const int32_t* ids, const float* weights);
  kernels::Tensor parts_of_group(const GroupRows& rows, int64_t k, const FfnWeights& w, const kernels::Tensor& parts);
  void serve(Pass& pass, std::span<const LayerPlan> layers);
  const FfnWeights& ffn(const LayerPlan& plan) const;

  // forward.cc
  ForwardResult run_rows(const Batch& batch, KvCache& cache, const Tap* tap);
  ForwardResult run_captured(const Batch& batch, KvCache& cache, const StepShape& shape);
  ForwardResult run_staged(const Batch& batch, KvCache& cache, StagedInputs& inputs, const kernels::Ops& ops);
  bool may_capture(const Tap* tap) const;
  bool has_failed() const;
  void block(Pass& pass, const LayerPlan& plan, const LayerWeights& w);
  Site hc_in(Pass& pass, const float* fn, const float* base, const float* scale, const kernels::Weight& norm);
  void hc_out(Pass& pass, const Site& site, const kernels::Tensor& out);
  void engram(Pass& pass, const LayerPlan& plan, const EngramWeights& w);
  kernels::Tensor moe(Pass& pass, const LayerPlan& plan, const FfnWeights& w, const kernels::Tensor& y);
  ForwardResult head(Pass& pass);
  // attention.cc
  kernels::Tensor attention(Pass& pass, const LayerPlan& plan, const AttentionWeights& w, Site& site);
  void compress(Pass& pass, const LayerPlan& plan, const AttentionWeights& w, const kernels::Tensor& y);
  void select(Pass& pass, const LayerPlan& plan, const IndexerWeights& w, const kernels::Tensor& y,
              const kernels::Tensor& qa);
  void select_newest(Pass& pass, const LayerPlan& plan);
  void newest_candidates(Pass& pass, const LayerPlan& plan);
  void enter_decoder(Pass& pass, Site& site);
  // draft.cc
  void capture_feature(Pass& pass, const LayerPlan& plan);
  void draft_context(Pass& pass);
  DraftResult draft_pass(int64_t sequences, KvCache& cache, const Tap* tap);
  // forward_v4.cc
  void compress_v4(Pass& pass, const LayerPlan& plan, const AttentionWeights& w, const kernels::Tensor& y);
  kernels::Tensor head_mix_v4(const kernels::Tensor& streams);

  // Host data where the operators read it: itself, or a copy in the workspace where memory is not shared.
  template <class T>
  const T* on_device(const T* data, int64_t n) {
    if (ops_.copy_in == nullptr || data == nullptr) return data;
    if (staged_ != nullptr) {
      return static_cast<const T*>(staged_->place(data, n * static_cast<int64_t>(sizeof(T))));
    }
    T* copy = workspace_.array<T>(n);
    ops_.copy_in(copy, data, n * static_cast<int64_t>(sizeof(T)), stream_);
    return copy;
  }
  template <class T>
  const T* on_device(const std::vector<T>& data) {
    return on_device(data.data(), static_cast<int64_t>(data.size()));
  }
  kernels::Rows on_device(const kernels::Rows& rows, int64_t sequences);
  // Lets the host change n ids of the workspace.
  void edit_ids(int32_t* ids, int64_t n, const std::function<void(int32_t*)>& edit);

  kernels::Tensor activation(int64_t rows, int64_t cols);
  kernels::Tensor fp32(int64_t rows, int64_t cols);
  kernels::Tensor linear(const kernels::Tensor& x, const kernels::Weight& w);
  kernels::Tensor linear_fp32(const kernels::Tensor& x, const kernels::Weight& w);
  kernels::Tensor rms_norm(const kernels::Tensor& x, const kernels::Weight& w);
  kernels::Tensor take_rows(const kernels::Tensor& x, const std::vector<int32_t>& index);
  const float* rope_table(const std::vector<int32_t>& positions, bool compressed);
  float eps() const { return static_cast<float>(config_.rms_norm_eps); }

  const ModelConfig& config_;
  const Schedule& schedule_;
  const ModelWeights& weights_;
  const kernels::Ops& backend_;
  kernels::Ops ops_;  // the backend's, or idle ones while a step's inputs are collected
  kernels::Stream& stream_;
  device::Device& device_;
  ForwardOptions options_;
  kernels::DType dtype_;
  kernels::Numerics numerics_;
  Workspace workspace_;
  RopeFrequencies rope_;
  StagedInputs* staged_ = nullptr;  // not null: host arrays are collected there
  std::vector<std::unique_ptr<Captured>> captured_;
  int64_t replays_ = 0;
  Agreed agreed_;  // of the current call, in a group
  std::vector<CallSize> grown_;
  // Row arrays of the latest draft round.
  RowSet draft_rows_;
  std::vector<int32_t> draft_ids_;
  std::vector<int32_t> draft_slots_;
  std::vector<int32_t> draft_fresh_row_;
  std::vector<int32_t> draft_fresh_position_;
};

}  // namespace di::model
