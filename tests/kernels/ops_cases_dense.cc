// Cases of the operators that read no cache. Bounds: results differ by the order of fp32 sums and by exp, nothing else;
// where an inner rounding to bf16 or a quantiser follows a sum, single values may land on the other side of a step.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/ops_compare.h"

namespace di::kernels::test {
namespace {

constexpr Bound kExact{0.F};
constexpr Bound kSum{2e-5F};
constexpr Bound kRounded{1e-2F};
constexpr Bound kRequantised{4e-2F};

int64_t width_h(Run& r) {
  return r.real() ? 5120 : r.pick<int64_t>({8, 24, 32, 64, 100, 128, 256, 320});
}

WeightFormat plain_format(Run& r) {
  return r.pick({WeightFormat::kF32, WeightFormat::kBf16});
}

void case_embed(Run& r) {
  const int64_t t = r.rows();
  const int64_t h = width_h(r);
  const int64_t vocab = 37;
  const int32_t hc = r.pick<int32_t>({1, 2, 4});
  const Weight table = r.weight(plain_format(r), vocab, h);
  const Tensor overrides = r.input(5, h, r.dtype());
  std::vector<int32_t> ids(static_cast<size_t>(t));
  std::vector<int32_t> rows(static_cast<size_t>(t));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(r.integer(0, vocab - 1));
    rows[i] = r.integer(0, 3) == 0 ? static_cast<int32_t>(r.integer(0, 4)) : -1;
  }
  const int32_t* d_ids = r.array(ids);
  const int32_t* d_rows = r.coin() ? r.array(rows) : nullptr;
  const Tensor streams = r.output(t, hc * h, r.dtype());
  float* mix = r.out_array<float>(t * hc);
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().embed({d_ids + a, static_cast<int32_t>(b - a), table, offset(d_rows, a), overrides, hc,
                   slice(streams, a, b), mix + a * hc},
                  r.stream());
  }
  r.result("streams", streams, kExact);
  r.result("mix", mix, t, hc, kExact);
}

// `trained`: four bf16 streams, of widths that backends have fast forms for.
void hc_pre_of(Run& r, bool trained) {
  const int64_t t = r.rows();
  const int64_t h = !trained || r.real() ? width_h(r) : r.pick<int64_t>({32, 96, 128, 160, 320, 1056});
  const int32_t hc = trained ? 4 : r.pick<int32_t>({4, 4, 2});
  const int64_t m = (2 + hc) * hc;
  const bool round = trained || r.coin();
  const DType dtype = trained ? DType::kBf16 : r.dtype();
  const Tensor streams = r.input(t, hc * h, dtype, r.integer(0, 7) == 0 ? Fill::kZero : Fill::kNormal);
  const float* mix = r.array(r.values(t * hc, Fill::kNormal, .5F));
  const float* fn = r.array(r.values(m * hc * h, Fill::kNormal, .05F));
  const float* base = r.array(r.values(m));
  const float* scale = r.array(r.values(3));
  const Weight norm = r.weight(plain_format(r), 1, h);
  const bool own = r.coin();
  const int32_t iters = r.pick<int32_t>({1, 2, 20});
  const Tensor y = r.output(t, h, trained ? DType::kBf16 : r.dtype());
  float* pre = r.out_array<float>(t * hc);
  float* post = r.out_array<float>(t * hc);
  float* comb = r.out_array<float>(t * hc * hc);
  const float eps = r.pick({1e-20F, 1e-6F});
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().hc_pre({slice(streams, a, b), mix + a * hc, own, hc, iters, 1e-6F, eps, fn, base, scale, norm, round,
                    slice(y, a, b), pre + a * hc, post + a * hc, comb + a * hc * hc},
                   r.stream());
  }
  r.result("pre", pre, t, hc, kSum);
  r.result("post", post, t, hc, kSum);
  r.result("comb", comb, t, hc * hc, kSum);
  r.result("y", y, round ? kRounded : kSum);
}

void case_hc_pre(Run& r) {
  hc_pre_of(r, false);
}

void case_trained_hc_pre(Run& r) {
  hc_pre_of(r, true);
}

void case_hc_post(Run& r) {
  const int64_t t = r.rows();
  const int64_t h = width_h(r);
  const int32_t hc = r.pick<int32_t>({4, 4, 2});
  const Tensor streams = r.input(t, hc * h, r.dtype());
  const Tensor y = r.input(t, h, r.dtype());
  const float* post = r.array(r.values(t * hc));
  const float* comb = r.array(r.values(t * hc * hc));
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().hc_post({slice(streams, a, b), slice(y, a, b), post + a * hc, comb + a * hc * hc, hc}, r.stream());
  }
  r.result("streams", streams, kSum);
}

void case_hc_head(Run& r) {
  const int64_t t = r.rows();
  const int64_t h = width_h(r);
  const int32_t hc = r.pick<int32_t>({4, 4, 2});
  const Tensor streams = r.input(t, hc * h, r.dtype());
  const float* mix = r.array(r.values(t * hc));
  const Weight norm = r.weight(plain_format(r), 1, h);
  const Tensor hidden = r.coin() ? r.output(t, h, r.dtype()) : Tensor{};
  const Tensor y = r.output(t, h, r.dtype());
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().hc_head({slice(streams, a, b), mix + a * hc, hc, 1e-20F, norm, slice(hidden, a, b), slice(y, a, b)},
                    r.stream());
  }
  const Bound bound = streams.dtype == DType::kBf16 ? kRounded : kSum;
  if (hidden.data != nullptr) r.result("h", hidden, bound);
  r.result("y", y, bound);
}

void case_hc_head_mix(Run& r) {
  const int64_t t = r.rows();
  const int64_t h = width_h(r);
  const int32_t hc = 4;
  const Tensor streams = r.input(t, hc * h, r.dtype());
  const float* fn = r.array(r.values(hc * hc * h, Fill::kNormal, .05F));
  const float* base = r.array(r.values(hc));
  const float* scale = r.array(r.values(1));
  float* mix = r.out_array<float>(t * hc);
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().hc_head_mix({slice(streams, a, b), hc, 1e-6F, 1e-6F, fn, base, scale, mix + a * hc}, r.stream());
  }
  r.result("mix", mix, t, hc, kSum);
}

struct Shape {
  int64_t rows;
  int64_t cols;
};

Weight any_weight(Run& r, Shape real, int64_t row_multiple = 1) {
  const WeightFormat format =
      r.pick({WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8Block, WeightFormat::kFp4Row});
  Shape s = real;
  if (!r.real()) {
    const bool plain = format == WeightFormat::kF32 || format == WeightFormat::kBf16;
    s.rows = r.pick<int64_t>({1, 3, 8, 15, 16, 17, 31, 32, 33, 64, 100, 130}) * row_multiple;
    s.cols = plain ? r.pick<int64_t>({1, 7, 24, 32, 48, 64, 100, 256, 513})
                   : r.pick<int64_t>({32, 40, 64, 96, 160, 256, 512});
  }
  return r.weight(format, s.rows, s.cols, Fill::kNormal, r.pick<int32_t>({32, 32, 128}));
}

Numerics any_numerics(Run& r) {
  Numerics n;
  n.quantise_activations = r.coin();
  n.round_bf16 = n.quantise_activations;
  n.activation_group = r.pick<int32_t>({32, 32, 128});
  return n;
}

void case_linear(Run& r) {
  const int64_t t = r.rows();
  const Weight w = any_weight(r, r.pick<Shape>({{1280, 5120}, {512, 5120}, {1000, 8192}, {384, 5120}}));
  const Tensor x = r.input(t, w.cols, r.dtype());
  const Numerics numerics = any_numerics(r);
  const bool accumulate = r.integer(0, 3) == 0;
  const DType out = r.dtype();
  const Tensor y = accumulate ? r.input(t, w.rows, out) : r.output(t, w.rows, out);
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().linear({slice(x, a, b), w, numerics, accumulate, slice(y, a, b)}, r.stream());
  }
  r.result("y", y, kSum);
}

// Weights as they are placed on a device, whose rows the fast forms read in pieces of 16 bytes; scales within a tile up
// to 20 binades apart.
WeightFormat placed_format(Run& r) {
  return r.pick({WeightFormat::kBf16, WeightFormat::kFp8Block, WeightFormat::kFp4Row});
}

void case_placed_linear(Run& r) {
  const int64_t t = r.real() ? r.pick<int64_t>({1, 3, 9}) : r.pick<int64_t>({1, 7, 8, 9, 16, 17, 65, 193});
  const WeightFormat format = placed_format(r);
  const int32_t groups = r.pick<int32_t>({1, 1, 2});
  const int64_t outputs = r.real() ? 1312 : r.pick<int64_t>({8, 33, 64, 96, 200}) * groups;
  const int64_t cols = r.real() ? 2560 : r.pick<int64_t>({128, 256, 640, 1152});
  const Weight w = r.placed_weight(format, outputs, cols, r.pick<int32_t>({4, 20}));
  const Tensor x = r.input(t, cols * groups, DType::kBf16);
  const Numerics numerics = any_numerics(r);
  const Tensor y = r.output(t, outputs, r.dtype());
  for (const auto& [a, b] : r.chunks(t)) {
    if (groups == 1) {
      r.ops().linear({slice(x, a, b), w, numerics, false, slice(y, a, b)}, r.stream());
    } else {
      r.ops().grouped_linear({slice(x, a, b), w, groups, numerics, slice(y, a, b)}, r.stream());
    }
  }
  r.result("y", y, kSum);
}

void case_grouped_linear(Run& r) {
  const int64_t t = r.rows();
  const int32_t groups = r.real() ? 8 : r.pick<int32_t>({1, 2, 3, 8});
  const Weight w = any_weight(r, {groups * 64, 4096}, groups);
  const Tensor x = r.input(t, groups * w.cols, r.dtype());
  const Numerics numerics = any_numerics(r);
  const Tensor y = r.output(t, w.rows, r.dtype());
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().grouped_linear({slice(x, a, b), w, groups, numerics, slice(y, a, b)}, r.stream());
  }
  r.result("y", y, kSum);
}

void case_rms_norm(Run& r) {
  const int64_t t = r.rows();
  const int64_t h = width_h(r);
  const Weight w = r.weight(plain_format(r), 1, h);
  const DType dtype = r.dtype();
  const float scale = r.pick({1.F, 1e-9F, 1e4F});
  const Tensor x = r.input(t, h, dtype, r.integer(0, 7) == 0 ? Fill::kZero : Fill::kNormal, scale);
  const Tensor y = r.coin() ? x : r.output(t, h, r.dtype());
  const float eps = r.pick({1e-20F, 1e-6F});
  for (const auto& [a, b] : r.chunks(t)) r.ops().rms_norm({slice(x, a, b), w, eps, slice(y, a, b)}, r.stream());
  r.result("y", y, kSum);
}

void case_rope_table(Run& r) {
  const int64_t t = r.rows();
  const int32_t rope_dim = r.pick<int32_t>({2, 8, 16, 64});
  std::vector<int32_t> positions(static_cast<size_t>(t));
  for (int32_t& p : positions) p = static_cast<int32_t>(r.coin() ? r.integer(0, 200) : r.integer(0, 1048575));
  std::vector<float> freq(static_cast<size_t>(rope_dim / 2));
  for (size_t i = 0; i < freq.size(); ++i) {
    freq[i] = static_cast<float>(std::pow(10000., -2. * static_cast<double>(i) / rope_dim));
  }
  const int32_t* d_positions = r.array(positions);
  const float* d_freq = r.array(freq);
  float* table = r.out_array<float>(t * rope_dim);
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().rope_table({d_positions + a, static_cast<int32_t>(b - a), d_freq, rope_dim, table + a * rope_dim},
                       r.stream());
  }
  r.result("table", table, t, rope_dim, {1e-6F});
}

void case_q_rope(Run& r) {
  const int64_t t = r.rows();
  const int64_t d = r.real() ? 512 : r.pick<int64_t>({16, 24, 64, 128});
  const int32_t rope_dim = static_cast<int32_t>(r.real() ? 64 : r.pick<int64_t>({2, 8, 16}));
  const int32_t heads = static_cast<int32_t>(r.real() ? 64 : r.pick<int64_t>({1, 3, 4, 8}));
  const Tensor q = r.input(t, heads * d, r.dtype());
  const float* table = r.rope_rows(t, rope_dim);
  const float eps = r.pick({0.F, 0.F, 1e-6F});
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().q_rope({slice(q, a, b), heads, table + a * rope_dim, rope_dim, eps}, r.stream());
  }
  r.result("q", q, kSum);
}

void case_router(Run& r) {
  const int64_t t = r.rows();
  const int64_t h = r.real() ? 5120 : r.pick<int64_t>({8, 32, 64, 100});
  const int64_t experts = r.real() ? 384 : r.pick<int64_t>({2, 4, 8, 16, 33});
  const int32_t k = static_cast<int32_t>(r.real() ? 6 : r.integer(1, std::min<int64_t>(6, experts)));
  // Steps: exact logits, so that equal rows of the gate tie; zero: every expert ties.
  const Fill fill = r.pick({Fill::kNormal, Fill::kSteps, Fill::kZero});
  const Tensor y = r.input(t, h, r.dtype(), fill);
  const Weight gate = r.weight(plain_format(r), experts, h, fill);
  const bool tied = fill != Fill::kNormal;
  const float* bias = r.coin() ? r.array(r.values(experts, tied ? Fill::kZero : Fill::kNormal, .3F)) : nullptr;
  const float* bias_vl = r.coin() ? r.array(r.values(experts, tied ? Fill::kZero : Fill::kNormal, .3F)) : nullptr;
  std::vector<uint8_t> image(static_cast<size_t>(t));
  for (uint8_t& i : image) i = static_cast<uint8_t>(r.integer(0, 1));
  std::vector<int32_t> forced(static_cast<size_t>(t * k));
  for (size_t i = 0; i < forced.size(); ++i) {
    forced[i] = static_cast<int32_t>((static_cast<int64_t>(i) * 5 + static_cast<int64_t>(i) / k) % experts);
  }
  Rows rows;
  rows.is_image = r.coin() ? r.array(image) : nullptr;
  const int32_t* d_forced = r.integer(0, 3) == 0 ? r.array(forced) : nullptr;
  int32_t* ids = r.out_array<int32_t>(t * k);
  float* weights = r.out_array<float>(t * k);
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().router({slice(y, a, b), gate, bias, bias_vl, offset(d_forced, a * k), slice(rows, a, b), k, 1.5F,
                    ids + a * k, weights + a * k},
                   r.stream());
  }
  r.result("ids", ids, t, k);
  r.result("weights", weights, t, k, kSum);
}

// `placed`: bf16 rows and weights as they are placed on a device.
void moe_case(Run& r, bool placed) {
  const int64_t t = r.rows();
  const bool plain = !placed && !r.real() && r.integer(0, 2) == 0;
  const int64_t h = r.real() ? 5120
                    : placed ? 128 * r.integer(1, 2)
                    : plain  ? r.pick<int64_t>({8, 40, 64})
                             : r.pick<int64_t>({32, 64, 96, 160});
  const int64_t inner = r.real() ? 2304
                        : placed ? 128 * r.integer(1, 2)
                        : plain  ? r.pick<int64_t>({8, 24, 64})
                                 : r.pick<int64_t>({32, 64, 96});
  const int32_t n = static_cast<int32_t>(r.real() ? 3 : r.pick<int64_t>({1, 4, 8, 16}));
  const int32_t k = static_cast<int32_t>(r.integer(1, std::min(n, 3)));
  const WeightFormat routed = plain ? plain_format(r) : WeightFormat::kFp4Row;
  const WeightFormat dense = plain ? routed : r.pick({WeightFormat::kFp8Block, WeightFormat::kBf16});
  const auto expert = [&](WeightFormat f) {
    ExpertWeights e;
    if (placed)
      return ExpertWeights{r.placed_weight(f, inner, h, 5), r.placed_weight(f, inner, h, 5),
                           r.placed_weight(f, h, inner, 5)};
    e.w1 = r.weight(f, inner, h);
    e.w3 = r.weight(f, inner, h);
    e.w2 = r.weight(f, h, inner);
    return e;
  };
  std::vector<ExpertWeights> experts;
  for (int32_t e = 0; e < n; ++e) experts.push_back(expert(routed));
  const ExpertWeights shared = r.integer(0, 3) == 0 ? ExpertWeights{} : expert(dense);
  const ExpertWeights* d_experts = r.array(experts);
  const ExpertForm form = form_of(experts.data(), n);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < t; ++i) {
    std::vector<int32_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    // Half of the cases send everything to few experts: long shares and empty ones.
    const int64_t from = r.coin() ? n : k;
    for (int32_t j = 0; j < k; ++j)
      std::swap(order[static_cast<size_t>(j)],
                order[static_cast<size_t>(r.integer(j, std::max<int64_t>(j, from - 1)))]);
    ids.insert(ids.end(), order.begin(), order.begin() + k);
  }
  const int32_t* d_ids = r.array(ids);
  const float* weights = r.array(r.values(t * k, Fill::kNormal, .5F));
  const Tensor y = r.input(t, h, placed ? DType::kBf16 : r.dtype());
  Numerics numerics = any_numerics(r);
  if (placed) numerics = {true, r.coin(), 32};
  const Tensor out = r.output(t, h, r.dtype());
  const float limit = r.pick({10.F, 1.F});
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().moe({slice(y, a, b), d_ids + a * k, weights + a * k, k, d_experts, n, form, shared, limit, numerics,
                 slice(out, a, b)},
                r.stream());
  }
  // Hidden values may fall on the other side of a rounding: of a quantiser, or of bf16.
  r.result("out", out, numerics.round_bf16 ? kRequantised : kSum);
}

void case_moe(Run& r) {
  moe_case(r, false);
}
void case_placed_moe(Run& r) {
  moe_case(r, true);
}

void case_engram_gather(Run& r) {
  const int64_t t = r.rows();
  const int64_t width = r.real() ? 256 : r.pick<int64_t>({8, 32, 64, 40});
  const int32_t columns = static_cast<int32_t>(r.real() ? 24 : r.pick<int64_t>({1, 6, 24}));
  const int64_t n = 301;
  const Weight table = r.weight(WeightFormat::kFp8Row, n, width);
  std::vector<int64_t> rows(static_cast<size_t>(t * columns));
  for (int64_t& row : rows) row = r.integer(0, n - 1);
  const int64_t* d_rows = r.array(rows);
  const Tensor e = r.output(t, columns * width, r.dtype());
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().engram_gather({table, d_rows + a * columns, static_cast<int32_t>(b - a), columns, slice(e, a, b)},
                          r.stream());
  }
  r.result("e", e, kExact);
}

void case_engram_gate(Run& r) {
  const int64_t t = r.rows();
  const int64_t h = width_h(r);
  const int32_t hc = r.pick<int32_t>({4, 4, 2});
  const bool zero = r.integer(0, 3) == 0;
  const Tensor streams = r.input(t, hc * h, r.dtype(), zero ? Fill::kZero : Fill::kNormal);
  const Tensor kvp = r.input(t, (hc + 1) * h, r.dtype());
  const Weight qw = r.weight(plain_format(r), hc, h);
  const Weight kw = r.weight(plain_format(r), hc, h);
  std::vector<uint8_t> image(static_cast<size_t>(t));
  for (uint8_t& i : image) i = static_cast<uint8_t>(r.integer(0, 1));
  Rows rows;
  rows.n = static_cast<int32_t>(t);
  rows.is_image = r.coin() ? r.array(image) : nullptr;
  float* gate = r.coin() ? r.out_array<float>(t * hc) : nullptr;
  const bool copysign = r.coin();
  const float eps = r.pick({1e-20F, 1e-6F});
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().engram_gate(
        {slice(streams, a, b), slice(kvp, a, b), qw, kw, hc, eps, copysign, slice(rows, a, b), offset(gate, a * hc)},
        r.stream());
  }
  // The root of a small dot enlarges its error: gates agree to 1e-4, streams accordingly.
  if (gate != nullptr) r.result("gate", gate, t, hc, {2e-4F});
  r.result("streams", streams, {2e-4F});
}

void case_stream_mean(Run& r) {
  const int64_t t = r.rows();
  const int64_t h = width_h(r);
  const int32_t hc = r.pick<int32_t>({4, 4, 2});
  const Tensor streams = r.input(t, hc * h, r.dtype());
  const Tensor y = r.input(t, 3 * h, r.dtype());
  const int64_t column = r.integer(0, 2) * h;
  for (const auto& [a, b] : r.chunks(t))
    r.ops().stream_mean({slice(streams, a, b), hc, slice(y, a, b), column}, r.stream());
  r.result("y", y, {1e-6F});
}

std::vector<int32_t> indices(Run& r, int64_t n, int64_t count) {
  std::vector<int32_t> v(static_cast<size_t>(n));
  for (int32_t& i : v) i = static_cast<int32_t>(r.integer(0, count - 1));
  return v;
}

void case_gather_rows(Run& r) {
  const int64_t t = r.rows();
  const Tensor x = r.input(19, width_h(r), r.dtype());
  const int32_t* index = r.array(indices(r, t, 19));
  const Tensor y = r.output(t, x.cols, r.dtype());
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().gather_rows({x, index + a, static_cast<int32_t>(b - a), slice(y, a, b)}, r.stream());
  }
  r.result("y", y, kExact);
}

void case_gather_table(Run& r) {
  const int64_t t = r.rows();
  const Weight table = r.weight(plain_format(r), 23, width_h(r));
  const int32_t* index = r.array(indices(r, t, 23));
  const Tensor y = r.output(t, table.cols, r.dtype());
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().gather_table({table, index + a, static_cast<int32_t>(b - a), slice(y, a, b)}, r.stream());
  }
  r.result("y", y, kExact);
}

void case_confidence(Run& r) {
  const int64_t t = r.rows();
  const int64_t h = width_h(r);
  const int64_t rank = r.real() ? 256 : r.pick<int64_t>({1, 16, 32});
  const Tensor hidden = r.input(t, h, r.dtype());
  const Tensor e = r.input(t, rank, r.dtype());
  const Weight w = r.weight(plain_format(r), 1, h + rank);
  float* c = r.out_array<float>(t);
  const float temperature = r.pick({1.F, .85F, 1e-5F});
  for (const auto& [a, b] : r.chunks(t)) {
    r.ops().confidence({slice(hidden, a, b), slice(e, a, b), w, temperature, c + a}, r.stream());
  }
  // At temperature 1e-5 the argument is clamped: only a dot within rounding of zero could differ.
  r.result("confidence", c, t, 1, {2e-4F});
}

void case_argmax(Run& r) {
  const int64_t t = r.rows();
  const int64_t vocab = r.real() ? 129280 : r.pick<int64_t>({1, 7, 16, 33, 256, 1000});
  const Tensor logits = r.input(t, vocab, r.dtype(), r.pick({Fill::kNormal, Fill::kSteps, Fill::kZero}));
  int32_t* ids = r.out_array<int32_t>(t);
  for (const auto& [a, b] : r.chunks(t)) r.ops().argmax({slice(logits, a, b), ids + a}, r.stream());
  r.result("ids", ids, t, 1);
}

}  // namespace

std::vector<Case> dense_cases() {
  return {{"embed", case_embed},
          {"hc_pre", case_hc_pre},
          {"trained_hc_pre", case_trained_hc_pre},
          {"hc_post", case_hc_post},
          {"hc_head", case_hc_head},
          {"hc_head_mix", case_hc_head_mix},
          {"linear", case_linear},
          {"placed_linear", case_placed_linear},
          {"grouped_linear", case_grouped_linear},
          {"rms_norm", case_rms_norm},
          {"rope_table", case_rope_table},
          {"q_rope", case_q_rope},
          {"router", case_router},
          {"moe", case_moe},
          {"placed_moe", case_placed_moe},
          {"engram_gather", case_engram_gather},
          {"engram_gate", case_engram_gate},
          {"stream_mean", case_stream_mean},
          {"gather_rows", case_gather_rows},
          {"gather_table", case_gather_table},
          {"confidence", case_confidence},
          {"argmax", case_argmax}};
}

}  // namespace di::kernels::test
