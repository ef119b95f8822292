#include "kernels/cpu/ref/moe.h"

#include "kernels/cpu/expert_parallel.h"
#include "kernels/cpu/ref/common.h"
#include "kernels/cpu/ref/ref.h"
#include "kernels/cpu/ref/rows.h"

namespace di::kernels::cpu::ref {

float swiglu(float gate, float up, float limit) {
  const float g = std::fmin(gate, limit);
  const float u = std::fmin(std::fmax(up, -limit), limit);
  return g * sigmoid(g) * u;
}

namespace {

// The rows of a block that go to one expert.
struct Share {
  std::vector<int64_t> row;    // in the block
  std::vector<float> weight;   // routing weight
  std::vector<int64_t> place;  // row of `parts` that takes the result
};

struct Buffers {
  std::vector<float> x;       // [n, H] inputs of the share
  std::vector<float> hidden;  // [n, I]
  std::vector<float> w1;
  std::vector<float> w3;
  std::vector<float> w2;
};

void prepare(std::vector<float>& x, int64_t n, int64_t width, int64_t group) {
  if (group == 0) return;
  for (int64_t i = 0; i < n; ++i) requantise_activations(x.data() + i * width, width, group);
}

// parts[place] = expert(y) (·weight). g = y·w1ᵀ →bf16, u = y·w3ᵀ →bf16, a = swiglu(g, u), out = a·w2ᵀ.
void run_expert(const ExpertWeights& e, const MoeArgs& a, const std::vector<float>& y, const Share& share, Buffers& b,
                std::vector<float>& parts) {
  const int64_t n = static_cast<int64_t>(share.row.size());
  const int64_t h = a.y.cols;
  const int64_t inner = e.w1.rows;
  const bool weight_before = a.numerics.quantise_activations;  // trained numerics (model.md §5.9, §12)
  b.x.resize(static_cast<size_t>(n * h));
  for (int64_t i = 0; i < n; ++i) {
    const float* row = y.data() + share.row[static_cast<size_t>(i)] * h;
    std::copy(row, row + h, b.x.begin() + i * h);
  }
  prepare(b.x, n, h, activation_group(e.w1, a.numerics));
  b.hidden.resize(static_cast<size_t>(n * inner));
  b.w1.resize(static_cast<size_t>(h));
  b.w3.resize(static_cast<size_t>(h));
  for (int64_t o = 0; o < inner; ++o) {
    dequantise_row(e.w1, o, b.w1.data());
    dequantise_row(e.w3, o, b.w3.data());
    for (int64_t i = 0; i < n; ++i) {
      float g = dot(b.x.data() + i * h, b.w1.data(), h);
      float u = dot(b.x.data() + i * h, b.w3.data(), h);
      if (a.numerics.round_bf16) {
        g = di::round_bf16(g);
        u = di::round_bf16(u);
      }
      const float value = swiglu(g, u, a.swiglu_limit);
      b.hidden[static_cast<size_t>(i * inner + o)] =
          weight_before ? value * share.weight[static_cast<size_t>(i)] : value;
    }
  }
  const int64_t group = activation_group(e.w2, a.numerics);
  if (group == 0 && a.numerics.round_bf16) round_row(b.hidden.data(), n * inner);  // a bf16 GEMM's operand
  prepare(b.hidden, n, inner, group);
  b.w2.resize(static_cast<size_t>(inner));
  for (int64_t o = 0; o < h; ++o) {
    dequantise_row(e.w2, o, b.w2.data());
    for (int64_t i = 0; i < n; ++i) {
      const float out = dot(b.hidden.data() + i * inner, b.w2.data(), inner);
      parts[static_cast<size_t>(share.place[static_cast<size_t>(i)] * h + o)] =
          weight_before ? out : out * share.weight[static_cast<size_t>(i)];
    }
  }
}

void check(const ExpertWeights& e, int64_t h) {
  DI_CHECK(e.w1.cols == h && e.w3.cols == h && e.w3.rows == e.w1.rows && e.w2.rows == h && e.w2.cols == e.w1.rows,
           "expert w1 [{}, {}], w3 [{}, {}], w2 [{}, {}], width {}", e.w1.rows, e.w1.cols, e.w3.rows, e.w3.cols,
           e.w2.rows, e.w2.cols, h);
}

}  // namespace

// out = Σ_k weight_k·expert_{id_k}(y) + shared(y). Rows are sorted by expert, so that a weight row is dequantised once
// per block; the parts of a row are added afterwards in the order of k.
void moe(const MoeArgs& a, Stream&) {
  const int64_t h = a.y.cols;
  const bool shared = a.shared.w1.data != nullptr;
  DI_CHECK(a.out.cols == h && a.out.rows == a.y.rows, "y [{}, {}], out [{}, {}]", a.y.rows, h, a.out.rows, a.out.cols);
  const int64_t places = a.k + (shared ? 1 : 0);
  std::vector<Share> shares(static_cast<size_t>(a.n_experts) + 1);  // the last one is the shared expert
  std::vector<float> y;
  std::vector<float> parts;
  std::vector<float> out(static_cast<size_t>(h));
  Buffers buffers;
  for (int64_t first = 0; first < a.y.rows; first += kRowBlock) {
    const int64_t n = std::min(kRowBlock, a.y.rows - first);
    read_rows(a.y, first, n, 0, h, y);
    for (Share& share : shares) share = {};
    for (int64_t t = 0; t < n; ++t) {
      const auto add = [&](size_t e, float weight, int64_t k) {
        shares[e].row.push_back(t);
        shares[e].weight.push_back(weight);
        shares[e].place.push_back(t * places + k);
      };
      for (int64_t k = 0; k < a.k; ++k) {
        const int64_t at = (first + t) * a.k + k;
        DI_CHECK(a.ids[at] >= 0 && a.ids[at] < a.n_experts, "expert {} of {}", a.ids[at], a.n_experts);
        add(static_cast<size_t>(a.ids[at]), a.weights[at], k);
      }
      if (shared) add(shares.size() - 1, 1.F, a.k);
    }
    parts.resize(static_cast<size_t>(n * places * h));
    for (size_t e = 0; e < shares.size(); ++e) {
      if (shares[e].row.empty()) continue;
      const ExpertWeights& weights = e + 1 == shares.size() ? a.shared : a.experts[e];
      check(weights, h);
      run_expert(weights, a, y, shares[e], buffers, parts);
    }
    for (int64_t t = 0; t < n; ++t) {
      std::fill(out.begin(), out.end(), 0.F);
      for (int64_t k = 0; k < places; ++k) {
        const float* part = parts.data() + (t * places + k) * h;
        for (int64_t c = 0; c < h; ++c) out[static_cast<size_t>(c)] += part[c];
      }
      write_row(a.out, first + t, out.data());
    }
  }
}

void moe_parts(const MoePartsArgs& a, Stream& stream) {
  run_moe_parts(a, moe, stream);
}

}  // namespace di::kernels::cpu::ref
