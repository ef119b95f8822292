#include "kernels/cpu/expert_parallel.h"

#include <algorithm>
#include <cstring>

#include "base/numeric.h"
#include "base/result.h"
#include "device/group.h"

namespace di::kernels::cpu {

ExpandedRows expand_rows(const int32_t* ids, int64_t pairs, const int32_t* owner, int32_t n_experts, int32_t rank,
                         int64_t alignment) {
  std::vector<int64_t> count(static_cast<size_t>(n_experts), 0);
  for (int64_t i = 0; i < pairs; ++i) {
    DI_CHECK(ids[i] >= 0 && ids[i] < n_experts, "expert {} of {}", ids[i], n_experts);
    if (owner[ids[i]] == rank) ++count[static_cast<size_t>(ids[i])];
  }
  ExpandedRows out;
  std::vector<int64_t> next(static_cast<size_t>(n_experts), 0);
  int64_t at = 0;
  for (int32_t e = 0; e < n_experts; ++e) {
    const int64_t n = count[static_cast<size_t>(e)];
    if (n == 0) continue;
    next[static_cast<size_t>(e)] = at;
    out.experts.push_back(e);
    out.begin.push_back(at);
    out.psum.push_back(at + n);
    at += (n + alignment - 1) / alignment * alignment;
  }
  out.begin.push_back(at);
  out.pair.assign(static_cast<size_t>(at), -1);
  for (int64_t i = 0; i < pairs; ++i) {
    if (owner[ids[i]] == rank) out.pair[static_cast<size_t>(next[static_cast<size_t>(ids[i])]++)] = i;
  }
  return out;
}

void exchange(const ExchangeArgs& a, Stream&) {
  // What fails stays with the group, which whoever runs the step asks at its end.
  static_cast<void>(a.group->exchange({a.pieces, static_cast<size_t>(a.n_pieces)}, nullptr));
}

// Each expanded row as a row of its own with one expert: the products of a row do not depend on its neighbours, and
// 0 + part is the part.
void run_moe_parts(const MoePartsArgs& a, void (*moe)(const MoeArgs&, Stream&), Stream& stream) {
  const ExpandedRows rows = expand_rows(a.ids, a.y.rows * a.k, a.owner, a.n_experts, a.rank, 1);
  const int64_t h = a.y.cols;
  const int64_t row_bytes = h * size_of(a.y.dtype);
  if (a.received != nullptr) {
    for (size_t i = 0; i < rows.experts.size(); ++i) a.received[rows.experts[i]] += rows.psum[i] - rows.begin[i];
  }
  constexpr int64_t kRows = 1024;  // of a call: bounds the copies
  std::vector<std::byte> x;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<float> out;
  const auto n_rows = static_cast<int64_t>(rows.pair.size());
  for (int64_t first = 0; first < n_rows; first += kRows) {
    const int64_t n = std::min(kRows, n_rows - first);
    x.resize(static_cast<size_t>(n * row_bytes));
    out.resize(static_cast<size_t>(n * h));
    ids.clear();
    weights.clear();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t pair = rows.pair[static_cast<size_t>(first + i)];
      std::memcpy(x.data() + i * row_bytes,
                  static_cast<const std::byte*>(a.y.data) + pair / a.k * a.y.stride * size_of(a.y.dtype),
                  static_cast<size_t>(row_bytes));
      ids.push_back(a.ids[pair]);
      weights.push_back(a.weights[pair]);
    }
    moe({.y = {x.data(), a.y.dtype, n, h, h},
         .ids = ids.data(),
         .weights = weights.data(),
         .k = 1,
         .experts = a.experts,
         .n_experts = a.n_experts,
         .form = a.form,
         .shared = {},
         .swiglu_limit = a.swiglu_limit,
         .numerics = a.numerics,
         .out = {out.data(), DType::kF32, n, h, h}},
        stream);
    for (int64_t i = 0; i < n; ++i) {
      std::memcpy(a.parts + rows.pair[static_cast<size_t>(first + i)] * h, out.data() + i * h,
                  static_cast<size_t>(h) * sizeof(float));
    }
  }
}

void moe_sum(const MoeSumArgs& a, Stream&) {
  const int64_t h = a.out.cols;
  std::vector<float> sum(static_cast<size_t>(h));
  for (int64_t t = 0; t < a.out.rows; ++t) {
    std::fill(sum.begin(), sum.end(), 0.F);
    const auto add = [&](const float* part) {
      for (int64_t c = 0; c < h; ++c) sum[static_cast<size_t>(c)] += part[c];
    };
    for (int64_t pair = t * a.k; pair < (t + 1) * a.k; ++pair) {
      const int32_t owner = a.owner[a.ids[pair]];
      add((owner == a.rank ? a.mine : a.back + owner * a.back_stride) + pair * h);
    }
    if (a.shared.data != nullptr) add(static_cast<const float*>(a.shared.data) + t * a.shared.stride);
    if (a.out.dtype == DType::kF32) {
      std::memcpy(static_cast<float*>(a.out.data) + t * a.out.stride, sum.data(), static_cast<size_t>(h) * 4);
    } else {
      auto* out = static_cast<Bf16*>(a.out.data) + t * a.out.stride;
      for (int64_t c = 0; c < h; ++c) out[c] = to_bf16(sum[static_cast<size_t>(c)]);
    }
  }
}

}  // namespace di::kernels::cpu
