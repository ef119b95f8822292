// Sections of single modules that read no cache. Where a file gives a module's inner value, an operand that changes
// nothing (identity weights, a norm of powers of two) leads it out of the operator unchanged.
#include <fmt/format.h>

#include <cmath>

#include "kernels/conformance_module.h"

namespace di::kernels::conformance {
namespace {

constexpr float kHcEps = 1e-6F;
constexpr float kRmsEps = 1e-20F;
constexpr int32_t kSinkhornIters = 20;

struct Coefficients {
  std::vector<float> pre;
  std::vector<float> post;
  std::vector<float> comb;
};

Coefficients hc_coefficients(const Module& m, std::vector<Bf16>& streams, int64_t t, int64_t hc, int64_t h,
                             const std::vector<float>& fn, const std::vector<float>& base,
                             const std::vector<float>& scale) {
  Coefficients c{zeros(t * hc), zeros(t * hc), zeros(t * hc * hc)};
  const std::vector<float> norm = pass_norm(h);
  std::vector<float> y = zeros(t * h);
  const std::vector<float> mix = zeros(t * hc);
  m.ops.hc_pre({view(streams, t, hc * h), mix.data(), false, static_cast<int32_t>(hc), kSinkhornIters, kHcEps, kRmsEps,
                fn.data(), base.data(), scale.data(), weight(norm, 1, h), false, view(y, t, h), c.pre.data(),
                c.post.data(), c.comb.data()},
               m.stream);
  return c;
}

void hyper_connection(const Module& m) {
  if (!m.has({"streams", "fn", "base", "scale", "pre", "post", "comb"})) return;
  if (!m.shaped({{"streams", 3}, {"fn", 2}, {"base", 1}, {"scale", 1}})) return;
  const std::vector<int64_t>& shape = m.shape("streams");
  const int64_t t = shape[0];
  const int64_t hc = shape[1];
  const int64_t h = shape[2];
  const int64_t n = (2 + hc) * hc;
  std::vector<Bf16> streams = to_bf16(m.floats("streams"));
  const std::vector<float> fn = m.floats("fn");
  const std::vector<float> base = m.floats("base");
  const std::vector<float> scale = m.floats("scale");
  if (static_cast<int64_t>(fn.size()) != n * hc * h || static_cast<int64_t>(base.size()) != n || scale.size() != 3) {
    return m.refuse("fn", fmt::format("expected fn [{0}, {1}], base [{0}], scale [3]", n, hc * h));
  }
  const Coefficients c = hc_coefficients(m, streams, t, hc, h, fn, base, scale);
  m.near("pre", m.floats("pre"), c.pre);
  m.near("post", m.floats("post"), c.post);
  m.near("comb", m.floats("comb"), c.comb);
  if (m.has({"mix"})) {  // (f·fnᵀ)·rsqrt(mean f²) is the linear map of the un-weighted norm of f
    const std::vector<float> one(static_cast<size_t>(hc * h), 1.F);
    std::vector<float> f = zeros(t * hc * h);
    std::vector<float> mix = zeros(t * n);
    m.ops.rms_norm({view(streams, t, hc * h), weight(one, 1, hc * h), kRmsEps, view(f, t, hc * h)}, m.stream);
    m.ops.linear({view(f, t, hc * h), weight(fn, n, hc * h), {}, false, view(mix, t, n)}, m.stream);
    m.near("mix", m.floats("mix"), mix);
  }
  if (m.has({"comb_logits"})) {  // Sinkhorn alone: the logits are the base of a projection that is zero
    const std::vector<float> logits = m.floats("comb_logits");
    const std::vector<float> no_fn = zeros(n * hc * h);
    std::vector<float> comb;
    for (int64_t i = 0; i < t; ++i) {
      std::vector<float> own_base = zeros(n);
      std::copy(logits.begin() + i * hc * hc, logits.begin() + (i + 1) * hc * hc, own_base.begin() + 2 * hc);
      const Coefficients one = hc_coefficients(m, streams, 1, hc, h, no_fn, own_base, scale);
      comb.insert(comb.end(), one.comb.begin(), one.comb.end());
    }
    m.near("comb of comb_logits", m.floats("comb"), comb);
  }
  if (m.has({"collapse_pre"})) {
    const std::vector<float> pre = m.floats("pre");
    const std::vector<float> norm = pass_norm(h);
    std::vector<Bf16> collapsed(static_cast<size_t>(t * h));
    std::vector<float> y = zeros(t * h);
    m.ops.hc_head({view(streams, t, hc * h), pre.data(), static_cast<int32_t>(hc), kPassEps, weight(norm, 1, h),
                   view(collapsed, t, h), view(y, t, h)},
                  m.stream);
    m.bf16_steps("collapse_pre", m.floats("collapse_pre"), to_floats(collapsed), 1);
  }
  if (m.has({"sublayer_out", "expanded"})) {
    std::vector<Bf16> x = streams;
    std::vector<Bf16> y = to_bf16(m.floats("sublayer_out"));
    const std::vector<float> post = m.floats("post");
    const std::vector<float> comb = m.floats("comb");
    m.ops.hc_post({view(x, t, hc * h), view(y, t, h), post.data(), comb.data(), static_cast<int32_t>(hc)}, m.stream);
    m.bf16_steps("expanded", m.floats("expanded"), to_floats(x), 1);
  }
  if (m.has({"v4_head_base", "v4_head_scale", "v4_head_mix"})) {  // over the first hc rows of fn
    const std::vector<float> head_base = m.floats("v4_head_base");
    const std::vector<float> head_scale = m.floats("v4_head_scale");
    std::vector<float> mix = zeros(t * hc);
    m.ops.hc_head_mix({view(streams, t, hc * h), static_cast<int32_t>(hc), kHcEps, kRmsEps, fn.data(), head_base.data(),
                       head_scale.data(), mix.data()},
                      m.stream);
    m.near("v4_head_mix", m.floats("v4_head_mix"), mix);
  }
}

void router(const Module& m) {
  if (!m.has({"logits", "idx", "w"})) return;
  if (!m.shaped({{"logits", 2}, {"idx", 2}, {"w", 2}})) return;
  const int64_t t = m.shape("logits")[0];
  const int64_t experts = m.shape("logits")[1];
  const int64_t k = m.shape("idx")[1];
  std::vector<float> logits = m.floats("logits");
  const std::vector<float> gate = shifted_identity(experts, experts, 0);
  const std::vector<float> bias = m.has({"bias"}) ? m.floats("bias") : zeros(experts);
  const std::vector<float> bias_vl = m.has({"bias_vl"}) ? m.floats("bias_vl") : bias;
  const std::vector<uint8_t> image =
      m.has({"image_mask"}) ? m.bytes("image_mask") : std::vector<uint8_t>(static_cast<size_t>(t));
  for (const std::string suffix : {"", "_nobias", "_vl"}) {
    if (!m.has({"idx" + suffix, "w" + suffix})) continue;
    const std::vector<float> w = m.floats("w" + suffix);
    // Weights add up to the model's scale.
    float scale = 0.F;
    for (int64_t i = 0; i < k && i < static_cast<int64_t>(w.size()); ++i) scale += w[static_cast<size_t>(i)];
    Rows rows;
    rows.n = static_cast<int32_t>(t);
    rows.is_image = suffix == "_vl" ? image.data() : nullptr;
    std::vector<int32_t> ids(static_cast<size_t>(t * k));
    std::vector<float> weights = zeros(t * k);
    m.ops.router({view(logits, t, experts), weight(gate, experts, experts), suffix == "_nobias" ? nullptr : bias.data(),
                  bias_vl.data(), nullptr, rows, static_cast<int32_t>(k), scale, ids.data(), weights.data()},
                 m.stream);
    m.same("idx" + suffix, m.ints("idx" + suffix), ids);
    m.near("w" + suffix, w, weights);
  }
}

// One expert whose w1 picks the gate half, w3 the up half, w2 nothing else.
void swiglu(const Module& m) {
  if (!m.has({"gate_up", "out"}) || m.has({"kv"})) return;
  if (!m.shaped({{"gate_up", 2}})) return;
  const int64_t t = m.shape("gate_up")[0];
  const int64_t width = m.shape("gate_up")[1];
  const int64_t inner = width / 2;
  std::vector<Bf16> y = to_bf16(m.floats("gate_up"));
  const std::vector<float> w1 = shifted_identity(inner, width, 0);
  const std::vector<float> w3 = shifted_identity(inner, width, inner);
  const std::vector<float> w2 = shifted_identity(width, inner, 0);
  const ExpertWeights expert{weight(w1, inner, width), weight(w3, inner, width), weight(w2, width, inner)};
  const std::vector<int32_t> ids(static_cast<size_t>(t), 0);
  const std::vector<float> weights(static_cast<size_t>(t), 1.F);
  std::vector<float> out = zeros(t * width);
  m.ops.moe({view(y, t, width),
             ids.data(),
             weights.data(),
             1,
             &expert,
             1,
             form_of(&expert, 1),
             {},
             10.F,
             {},
             view(out, t, width)},
            m.stream);
  std::vector<float> found;
  for (int64_t i = 0; i < t; ++i) {
    found.insert(found.end(), out.begin() + i * width, out.begin() + i * width + inner);
  }
  m.near("out", m.floats("out"), found);
}

void engram_gate(const Module& m) {
  if (!m.has({"hidden", "kv", "q_weight", "k_weight", "gate"})) return;
  if (!m.shaped({{"hidden", 3}, {"kv", 3}, {"q_weight", 2}, {"k_weight", 2}})) return;
  const std::vector<int64_t>& shape = m.shape("hidden");
  const int64_t t = shape[0];
  const int64_t hc = shape[1];
  const int64_t h = shape[2];
  std::vector<Bf16> streams = to_bf16(m.floats("hidden"));
  std::vector<Bf16> kvp = to_bf16(m.floats("kv"));
  const std::vector<float> q = m.floats("q_weight");
  const std::vector<float> k = m.floats("k_weight");
  if (static_cast<int64_t>(kvp.size()) != t * (hc + 1) * h || static_cast<int64_t>(q.size()) != hc * h ||
      k.size() != q.size()) {
    return m.refuse("kv", fmt::format("expected kv [{}, {}, {}] and weights [{}, {}]", t, hc + 1, h, hc, h));
  }
  std::vector<float> gate = zeros(t * hc);
  Rows rows;
  rows.n = static_cast<int32_t>(t);
  m.ops.engram_gate({view(streams, t, hc * h), view(kvp, t, (hc + 1) * h), weight(q, hc, h), weight(k, hc, h),
                     static_cast<int32_t>(hc), kRmsEps, true, rows, gate.data()},
                    m.stream);
  m.near("gate", m.floats("gate"), gate);
  if (m.has({"out"})) m.bf16_steps("out", m.floats("out"), to_floats(streams), 1);
}

// y = 1·Wᵀ brings the dequantised weight out, transposed.
void dequant(const Module& m) {
  for (const std::string format : {"fp8b", "fp8r", "fp4r"}) {
    if (!m.has({format + ".weight", format + ".scale", format + ".dequant"})) continue;
    if (!m.shaped({{format + ".dequant", 2}, {format + ".weight", 2}, {format + ".scale", 2}})) continue;
    const std::vector<int64_t>& shape = m.shape(format + ".dequant");
    const std::vector<uint8_t> data = m.bytes(format + ".weight");
    const std::vector<uint8_t> scale = m.bytes(format + ".scale");
    Weight w;
    w.data = data.data();
    w.scale = scale.data();
    w.rows = shape[0];
    w.cols = shape[1];
    w.format = format == "fp8b"   ? WeightFormat::kFp8Block
               : format == "fp8r" ? WeightFormat::kFp8Row
                                  : WeightFormat::kFp4Row;
    if (format == "fp8b") {  // blocks of 128 (V4) unless 32 explains the scales
      const std::vector<int64_t>& scales = m.shape("fp8b.scale");
      w.block = (w.rows + 31) / 32 == scales[0] && (w.cols + 31) / 32 == scales[1] ? 32 : 128;
    }
    std::vector<float> x = shifted_identity(w.cols, w.cols, 0);
    std::vector<float> y = zeros(w.cols * w.rows);
    m.ops.linear({view(x, w.cols, w.cols), w, {}, false, view(y, w.cols, w.rows)}, m.stream);
    std::vector<float> found = zeros(w.rows * w.cols);
    for (int64_t r = 0; r < w.rows; ++r) {
      for (int64_t c = 0; c < w.cols; ++c)
        found[static_cast<size_t>(r * w.cols + c)] = y[static_cast<size_t>(c * w.rows + r)];
    }
    m.same(format + ".dequant", m.floats(format + ".dequant"), found);
  }
}

// conf_t085: temperature .85
float temperature_of(const std::string& name, const std::string& prefix) {
  float value = 0.F;
  float digit = 1.F;
  for (size_t i = prefix.size(); i < name.size(); ++i, digit /= 10.F)
    value += static_cast<float>(name[i] - '0') * digit;
  return value;
}

void draft(const Module& m) {
  if (m.has({"streams", "target_feature"}) && m.shaped({{"streams", 3}})) {
    const std::vector<int64_t>& shape = m.shape("streams");
    std::vector<Bf16> streams = to_bf16(m.floats("streams"));
    std::vector<Bf16> y(static_cast<size_t>(shape[0] * shape[2]));
    m.ops.stream_mean(
        {view(streams, shape[0], shape[1] * shape[2]), static_cast<int32_t>(shape[1]), view(y, shape[0], shape[2]), 0},
        m.stream);
    m.bf16_steps("target_feature", m.floats("target_feature"), to_floats(y), 1);
  }
  if (!m.has({"hidden", "markov_emb", "weight"})) return;
  if (!m.shaped({{"hidden", 2}, {"markov_emb", 2}, {"weight", 2}})) return;
  const int64_t n = m.shape("hidden")[0];
  const int64_t h = m.shape("hidden")[1];
  const int64_t r = m.shape("markov_emb")[1];
  std::vector<Bf16> hidden = to_bf16(m.floats("hidden"));
  std::vector<Bf16> e = to_bf16(m.floats("markov_emb"));
  const std::vector<float> w = m.floats("weight");
  if (static_cast<int64_t>(w.size()) != h + r) return m.refuse("weight", fmt::format("expected {} values", h + r));
  for (const NamedTensor& t : m.tensors) {
    if (!t.name.starts_with("conf_t")) continue;
    std::vector<float> c = zeros(n);
    m.ops.confidence(
        {view(hidden, n, h), view(e, n, r), weight(w, 1, h + r), temperature_of(t.name, "conf_t"), c.data()}, m.stream);
    m.near(t.name, m.floats(t.name), c);
  }
}

}  // namespace

void run_dense_sections(const Module& m) {
  hyper_connection(m);
  router(m);
  swiglu(m);
  engram_gate(m);
  dequant(m);
  draft(m);
}

}  // namespace di::kernels::conformance
