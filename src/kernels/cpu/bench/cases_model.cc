#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <numeric>

#include "kernels/cpu/bench/harness.h"

namespace di::kernels::cpu::bench {
namespace {

// A decoder of the size that performance.md §4 measures llama.cpp with: width 1024, 12 layers, feed-forward 4096,
// vocabulary 32000, 267 million random weights. Attention is our operator: 16 heads of 64 channels over one shared
// key/value row a token (the same multiply-adds as separate keys and values; its share is small), wk and wv are
// multiplied all the same.
struct LlamaShape {
  static constexpr int64_t kWidth = 1024;
  static constexpr int64_t kLayers = 12;
  static constexpr int64_t kInner = 4096;
  static constexpr int64_t kVocabulary = 32000;
  static constexpr int32_t kHeads = 16;
  static constexpr int64_t kHead = 64;
  static constexpr int64_t kContext = 512;

  struct Layer {
    RandomWeight q, k, v, o, w1, w3, w2;
  };

  LlamaShape(Session& session, WeightFormat format)
      : s(session),
        head(random_weight(s.pool, format, kVocabulary, kWidth)),
        norm(random_weight(s.pool, WeightFormat::kBf16, 1, kWidth)),
        ring(kContext * kHead * 4) {
    const auto square = [&] { return random_weight(s.pool, format, kWidth, kWidth); };
    for (int64_t l = 0; l < kLayers; ++l) {
      layers.push_back({square(), square(), square(), square(), random_weight(s.pool, format, kInner, kWidth),
                        random_weight(s.pool, format, kInner, kWidth), random_weight(s.pool, format, kWidth, kInner)});
    }
    ring.fill(s.pool, WeightFormat::kF32);
    bytes = kLayers * (4 * weight_bytes(format, kWidth, kWidth) + 3 * weight_bytes(format, kInner, kWidth)) +
            weight_bytes(format, kVocabulary, kWidth);
    numerics = {true, format != WeightFormat::kBf16, 32};
  }

  Tensor rows(const std::unique_ptr<Buffer>& b, int64_t n, int64_t width) const {
    return {b->data(), DType::kBf16, n, width, width};
  }

  void allocate(int64_t n) {
    for (auto* b : {&x, &y, &q, &k, &v, &o}) {
      *b = std::make_unique<Buffer>(n * kWidth * 2);
      (*b)->fill(s.pool, WeightFormat::kBf16);
    }
    logits = std::make_unique<Buffer>(kVocabulary * 4);
    table.assign(static_cast<size_t>(n * kHead), 1.F);
    sink.assign(kHeads, 0.F);
    zeros.assign(static_cast<size_t>(n), 0);
  }

  // n tokens at positions [first, first + n); logits of the last one.
  void forward(int64_t first, int64_t n) {
    positions.resize(static_cast<size_t>(n));
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first));
    ends.resize(static_cast<size_t>(n));
    std::iota(ends.begin(), ends.end(), static_cast<int32_t>(first + 1));
    const Rows r{static_cast<int32_t>(n),
                 positions.data(),
                 zeros.data(),
                 zeros.data(),
                 ends.data(),
                 nullptr,
                 zeros.data(),
                 nullptr,
                 0};
    const RingView view{static_cast<uint8_t*>(ring.data()), 0, kContext, kHead, KvFormat::kF32};
    Stream& stream = *s.stream;
    const Tensor tx = rows(x, n, kWidth);
    const Tensor ty = rows(y, n, kWidth);
    const Tensor tq = rows(q, n, kWidth);
    const Tensor to = rows(o, n, kWidth);
    for (const Layer& l : layers) {
      s.ops.rms_norm({tx, norm.weight, 1e-6F, ty}, stream);
      s.ops.linear({ty, l.q.weight, numerics, false, tq}, stream);
      s.ops.linear({ty, l.k.weight, numerics, false, rows(k, n, kWidth)}, stream);
      s.ops.linear({ty, l.v.weight, numerics, false, rows(v, n, kWidth)}, stream);
      s.ops.q_rope({tq, kHeads, table.data(), kHead, 0.F}, stream);
      s.ops.q_rope({rows(k, n, kWidth), kHeads, table.data(), kHead, 0.F}, stream);
      AttentionArgs a{};
      a.q = tq;
      a.heads = kHeads;
      a.scale = .125F;
      a.sink = sink.data();
      a.table = table.data();
      a.rope_dim = kHead;
      a.rows = r;
      a.ring = view;
      a.o = to;
      s.ops.attention(a, stream);
      s.ops.linear({to, l.o.weight, numerics, true, tx}, stream);
      s.ops.rms_norm({tx, norm.weight, 1e-6F, ty}, stream);
      MoeArgs m{};
      m.y = ty;
      m.shared = {l.w1.weight, l.w3.weight, l.w2.weight};
      m.swiglu_limit = 10.F;
      m.numerics = numerics;
      m.out = to;
      s.ops.moe(m, stream);
    }
    Tensor last = tx;
    last.rows = 1;
    s.ops.rms_norm({last, norm.weight, 1e-6F, {y->data(), DType::kBf16, 1, kWidth, kWidth}}, stream);
    s.ops.linear({{y->data(), DType::kBf16, 1, kWidth, kWidth},
                  head.weight,
                  numerics,
                  false,
                  {logits->data(), DType::kF32, 1, kVocabulary, kVocabulary}},
                 stream);
    int32_t id = 0;
    s.ops.argmax({{logits->data(), DType::kF32, 1, kVocabulary, kVocabulary}, &id}, stream);
  }

  Session& s;
  std::vector<Layer> layers;
  RandomWeight head;
  RandomWeight norm;
  Buffer ring;
  int64_t bytes = 0;
  Numerics numerics;
  std::unique_ptr<Buffer> x, y, q, k, v, o, logits;
  std::vector<float> table, sink;
  std::vector<int32_t> zeros, positions, ends;
};

}  // namespace

void bench_llama_shape(Session& s) {
  constexpr int64_t kTokens = 8;
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kFp8Block, WeightFormat::kFp4Row}) {
    LlamaShape model(s, format);
    Buffer memory(model.bytes);
    memory.fill(s.pool, WeightFormat::kFp4Row);
    model.allocate(1);
    const std::vector<Timing> decode = race({{"ours",
                                              [&] {
                                                for (int64_t t = 0; t < kTokens; ++t) model.forward(64 + t, 1);
                                              },
                                              static_cast<double>(model.bytes * kTokens), 0.0},
                                             {"read",
                                              [&] {
                                                for (int64_t t = 0; t < kTokens; ++t) read_contestant(s, memory).run();
                                              },
                                              static_cast<double>(model.bytes * kTokens), 0.0}},
                                            s.options.repetitions);
    report(fmt::format("llama shape {} decode", name(format)), decode);
    fmt::print("  {:.1f} tokens/s (best {:.1f})\n", kTokens / decode[0].median(), kTokens / decode[0].best());
    model.allocate(512);
    const double flops = 2.0 * 512 * static_cast<double>(LlamaShape::kLayers * (4 * 1024 * 1024 + 3 * 4096 * 1024));
    const std::vector<Timing> prefill =
        race({{"ours", [&] { model.forward(0, 512); }, 0.0, flops}, peak_contestant(s, flops, Peak::kWide)},
             std::max(3, s.options.repetitions / 3));
    report(fmt::format("llama shape {} pp512", name(format)), prefill);
    fmt::print("  {:.1f} tokens/s (best {:.1f})\n", 512 / prefill[0].median(), 512 / prefill[0].best());
  }
}

}  // namespace di::kernels::cpu::bench
