// What one call of the forward pass carries from layer to layer. Private to
// src/model/{forward,attention,draft,forward_v4}.cc.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "model/forward.h"

namespace di::model {

struct Forward::Pass {
  const Batch* batch = nullptr;  // null in a draft pass
  KvCache& cache;
  const Tap* tap = nullptr;
  const Forward* forward = nullptr;

  // The rows that go through the layers now: all rows in the encoder, the kept ones in the decoder.
  kernels::Rows rows{};
  const std::vector<int32_t>* positions = nullptr;
  const int32_t* fresh_row = nullptr;       // [sequences]
  const int32_t* fresh_position = nullptr;  // [sequences]
  bool in_decoder = false;                  // truncation has taken place

  kernels::Tensor streams{};   // X [rows, hc·H]
  kernels::Tensor mix{};       // p [rows, hc] fp32
  kernels::Tensor next_mix{};  // where the current site writes its own
  kernels::Tensor features{};  // [decoder rows, targets·H]: draft target features, empty = not wanted

  // Rope tables of `positions`.
  const float* rope_plain = nullptr;
  const float* rope_compressed = nullptr;
  const float* rope_for(const LayerPlan& plan) const { return plan.ratio > 0 ? rope_compressed : rope_plain; }

  // What the kept rows of a truncated prefill continue with after the boundary layer.
  kernels::Tensor kept_streams{};
  kernels::Tensor kept_mix[2] = {};
  const float* kept_rope_plain = nullptr;
  const float* kept_rope_compressed = nullptr;

  // The latest selection and candidate blocks, written by index sources and read by the layers that reuse them.
  int32_t* selection = nullptr;   // [rows, index_topk]
  int32_t* candidates = nullptr;  // [rows, candidate_topk_blocks]

  void emit(std::string_view name, int32_t layer, const kernels::Tensor& value) const {
    if (tap == nullptr || value.data == nullptr) return;
    std::vector<std::byte> buffer;
    (*tap)(name, layer, forward->on_host(value, buffer));
  }
  // Integers reach a tap as fp32, exact below 2^24.
  void emit_ids(std::string_view name, int32_t layer, const int32_t* ids, int64_t n, int64_t columns) const;
};

}  // namespace di::model
