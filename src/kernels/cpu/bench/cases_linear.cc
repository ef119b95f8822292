#include <fmt/format.h>

#include <cmath>

#include "kernels/cpu/bench/harness.h"
#include "kernels/cpu/bench/peers.h"

namespace di::kernels::cpu::bench {

// One token through many matrices, together larger than the caches; read = the same bytes read plainly.
void bench_gemv(Session& s) {
  constexpr int64_t kRows = 4096;
  constexpr int64_t kCols = 4096;
  const int64_t bytes = s.options.megabytes << 20;
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8Block, WeightFormat::kFp4Row}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      if (format == WeightFormat::kF32 && dtype == DType::kBf16) continue;
      const int64_t one = weight_bytes(format, kRows, kCols);
      std::vector<RandomWeight> weights;
      for (int64_t i = 0; i < bytes / one; ++i) weights.push_back(random_weight(s.pool, format, kRows, kCols));
      Buffer memory(one * static_cast<int64_t>(weights.size()));
      memory.fill(s.pool, WeightFormat::kFp4Row);
      for (const int64_t rows : {int64_t{1}, int64_t{4}, int64_t{8}, int64_t{16}}) {
        Buffer x(rows * kCols * size_of(dtype));
        x.fill(s.pool, dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16);
        Buffer y(rows * kRows * 4);
        const Numerics numerics{dtype == DType::kBf16, dtype == DType::kBf16, 32};
        const auto run = [&](const Ops& table) {
          for (const RandomWeight& w : weights) {
            table.linear({{x.data(), dtype, rows, kCols, kCols},
                          w.weight,
                          numerics,
                          false,
                          {y.data(), DType::kF32, rows, kRows, kRows}},
                         *s.stream);
          }
        };
        const double moved = static_cast<double>(memory.bytes());
        const double flops = 2.0 * static_cast<double>(rows * kRows * kCols) * static_cast<double>(weights.size());
        std::vector<Contestant> contestants{{"ours", [&] { run(s.ops); }, moved, flops}, read_contestant(s, memory)};
        if (s.options.isa == Isa::kAmx && dtype == DType::kBf16) {
          contestants.push_back({"avx512bf16", [&] { run(ops(Isa::kAvx512Bf16)); }, moved, flops});
        }
        report(fmt::format("gemv {} x {} M={}", name(format), dtype == DType::kF32 ? "fp32" : "bf16", rows),
               race(contestants, s.options.repetitions));
      }
    }
  }
}

namespace {

void gemm_fp32(Session& s, int64_t m, int64_t n, int64_t k, const std::vector<SgemmPeer>& peers) {
  Buffer x(m * k * 4);
  x.fill(s.pool, WeightFormat::kF32);
  const RandomWeight w = random_weight(s.pool, WeightFormat::kF32, n, k);
  Buffer y(m * n * 4);
  Buffer other(m * n * 4);
  const double flops = 2.0 * static_cast<double>(m * n * k);
  std::vector<Contestant> contestants{
      {"ours",
       [&] {
         s.ops.linear({{x.data(), DType::kF32, m, k, k}, w.weight, {}, false, {y.data(), DType::kF32, m, n, n}},
                      *s.stream);
       },
       0.0, flops}};
  for (const SgemmPeer& peer : peers) {
    contestants.push_back({peer.name,
                           [&] {
                             peer.run(m, n, k, static_cast<const float*>(x.data()),
                                      static_cast<const float*>(w.data.data()), static_cast<float*>(other.data()));
                           },
                           0.0, flops});
  }
  contestants.push_back(peak_contestant(s, flops, Peak::kWide));
  report(fmt::format("gemm fp32 {}x{}x{}", m, n, k), race(contestants, s.options.repetitions));
  double worst = 0.0;
  const float* a = static_cast<const float*>(y.data());
  const float* b = static_cast<const float*>(other.data());
  for (int64_t i = 0; !peers.empty() && i < m * n; ++i)
    worst = std::fmax(worst, std::fabs(static_cast<double>(a[i] - b[i])));
  if (worst > 1e-3 * std::sqrt(static_cast<double>(k)))
    fmt::print("  differs from {} by {}\n", peers.back().name, worst);
}

void gemm_low(Session& s, WeightFormat format, int64_t m, int64_t n, int64_t k) {
  Buffer x(m * k * 2);
  x.fill(s.pool, WeightFormat::kBf16);
  const RandomWeight w = random_weight(s.pool, format, n, k);
  const RandomWeight plain = random_weight(s.pool, WeightFormat::kBf16, n, k);
  Buffer y(m * n * 4);
  Buffer other(m * n * 4);
  const double flops = 2.0 * static_cast<double>(m * n * k);
  const Numerics numerics{true, true, 32};
  const auto run = [&](const Ops& table) {
    table.linear({{x.data(), DType::kBf16, m, k, k}, w.weight, numerics, false, {y.data(), DType::kF32, m, n, n}},
                 *s.stream);
  };
  std::vector<Contestant> contestants{{"ours", [&] { run(s.ops); }, 0.0, flops}};
  if (s.options.isa == Isa::kAmx)
    contestants.push_back({"avx512bf16", [&] { run(ops(Isa::kAvx512Bf16)); }, 0.0, flops});
  if (auto product = dnnl_bf16_product(m, n, k, x.data(), plain.data.data(), other.data())) {
    contestants.push_back({"oneDNN bf16", product, 0.0, flops});
  }
  contestants.push_back(peak_contestant(s, flops, Peak::kWide));
  if (s.options.isa >= Isa::kAvx512Bf16) contestants.push_back(peak_contestant(s, flops, Peak::kPairs));
  if (s.options.isa == Isa::kAmx) contestants.push_back(peak_contestant(s, flops, Peak::kTiles));
  report(fmt::format("gemm {} x bf16 {}x{}x{}", name(format), m, n, k), race(contestants, s.options.repetitions));
}

}  // namespace

void bench_gemm(Session& s) {
  const std::vector<SgemmPeer> peers = sgemm_peers(s.pool.size(), s.options.isa >= Isa::kAvx512);
  gemm_fp32(s, 512, 4096, 1024, peers);
  gemm_fp32(s, 512, 1024, 4096, peers);
  gemm_fp32(s, 1536, 1536, 1536, peers);
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kFp8Block, WeightFormat::kFp4Row}) {
    gemm_low(s, format, 512, 4096, 1024);
    gemm_low(s, format, 512, 1024, 4096);
  }
}

}  // namespace di::kernels::cpu::bench
