#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "kernels/cpu/bench/harness.h"

namespace di::kernels::cpu::bench {
namespace {

// Selection of 512 of n entries with the real model's index heads, one decoded token; read = the stored keys.
void select_case(Session& s, int32_t n) {
  constexpr int32_t kHeads = 32;
  constexpr int32_t kWidth = 128;
  constexpr int32_t kPage = 128;
  const int64_t page_bytes = kPage * record_bytes(KvFormat::kE2m1Ue8m0, kWidth);
  Buffer pages(n / kPage * page_bytes);
  pages.fill(s.pool, WeightFormat::kFp4Row);
  for (int64_t b = 0; b < n / kPage; ++b) {
    uint8_t* scales = static_cast<uint8_t*>(pages.data()) + b * page_bytes + kPage * kWidth / 2;
    std::fill(scales, scales + kPage * kWidth / 32, uint8_t{125});
  }
  std::vector<int32_t> table(static_cast<size_t>(n / kPage));
  std::iota(table.begin(), table.end(), 0);
  Buffer q(kHeads * kWidth * 2);
  q.fill(s.pool, WeightFormat::kBf16);
  Buffer w(kHeads * 2);
  w.fill(s.pool, WeightFormat::kBf16);
  const int32_t position = n - 1;
  const int32_t zero = 0;
  std::vector<int32_t> selection(512);
  std::vector<int32_t> candidates(2048);
  SelectArgs a{};
  a.q = {q.data(), DType::kBf16, 1, kHeads * kWidth, kHeads * kWidth};
  a.w = {w.data(), DType::kBf16, 1, kHeads, kHeads};
  a.scale = 1.F / 64;
  a.heads = kHeads;
  a.ratio = 1;
  a.topk = 512;
  a.rows = {1, &position, &zero, &zero, &zero, nullptr, &zero, table.data(), static_cast<int32_t>(table.size())};
  a.keys = {static_cast<uint8_t*>(pages.data()), page_bytes, kPage, kWidth, KvFormat::kE2m1Ue8m0, true};
  a.candidate_block = 8;
  a.candidate_topk = 2048;
  a.candidate_out = candidates.data();
  a.selection = selection.data();
  const double flops = 2.0 * n * kHeads * kWidth;
  std::vector<Contestant> contestants{
      {"ours", [&] { s.ops.select(a, *s.stream); }, static_cast<double>(pages.bytes()), flops},
      read_contestant(s, pages),
      peak_contestant(s, flops, Peak::kWide)};
  report(fmt::format("select 512 of {}", n), race(contestants, s.options.repetitions));
}

// Attention of the real model: 64 heads of 512 channels, 128 window entries and 512 selected ones.
void attention_case(Session& s, int32_t rows) {
  constexpr int32_t kHeads = 64;
  constexpr int32_t kWidth = 512;
  constexpr int32_t kEntries = 4096;
  constexpr int32_t kPage = 128;
  const int64_t ring_bytes = record_bytes(KvFormat::kE4m3Ue8m0, kWidth);
  const int64_t entry_bytes = record_bytes(KvFormat::kE2m1E4m3, kWidth);
  Buffer ring(134 * ring_bytes);
  ring.fill(s.pool, WeightFormat::kFp8Row);
  for (int64_t i = 0; i < 134; ++i) {
    uint8_t* scales = static_cast<uint8_t*>(ring.data()) + i * ring_bytes + kWidth;
    std::fill(scales, scales + kWidth / 32, uint8_t{120});
  }
  Buffer pages(kEntries * entry_bytes);
  pages.fill(s.pool, WeightFormat::kFp4Row);
  for (int64_t i = 0; i < kEntries; ++i) {
    uint8_t* scales = static_cast<uint8_t*>(pages.data()) + i * entry_bytes + kWidth / 2;
    std::fill(scales, scales + kWidth / 16, uint8_t{0x30});
  }
  std::vector<int32_t> table(kEntries / kPage);
  std::iota(table.begin(), table.end(), 0);
  const size_t n = static_cast<size_t>(rows);
  std::vector<int32_t> positions(n, 4095);
  std::vector<int32_t> zeros(n, 0);
  std::vector<int32_t> begin(n, 4096 - 128);
  std::vector<int32_t> end(n, 4096);
  std::vector<int32_t> selection(n * 512);
  for (size_t i = 0; i < selection.size(); ++i) selection[i] = static_cast<int32_t>(i % 512 * 7);
  std::vector<float> rope(n * 64, 1.F);
  std::vector<float> sink(kHeads, 0.F);
  Buffer q(rows * kHeads * kWidth * 2);
  q.fill(s.pool, WeightFormat::kBf16);
  Buffer o(rows * kHeads * kWidth * 2);
  AttentionArgs a{};
  a.q = {q.data(), DType::kBf16, rows, kHeads * kWidth, kHeads * kWidth};
  a.heads = kHeads;
  a.scale = 1.F / 512;
  a.sink = sink.data();
  a.table = rope.data();
  a.rope_dim = 64;
  a.rows = {rows,         positions.data(), zeros.data(),
            begin.data(), end.data(),       nullptr,
            zeros.data(), table.data(),     static_cast<int32_t>(table.size())};
  a.ring = {static_cast<uint8_t*>(ring.data()), 0, 134, kWidth, KvFormat::kE4m3Ue8m0};
  a.ratio = 1;
  a.pages = {static_cast<uint8_t*>(pages.data()), kPage * entry_bytes, kPage, kWidth, KvFormat::kE2m1E4m3, false};
  a.selection = selection.data();
  a.topk = 512;
  a.round_bf16 = true;
  a.o = {o.data(), DType::kBf16, rows, kHeads * kWidth, kHeads * kWidth};
  const double flops = 4.0 * rows * kHeads * 640.0 * kWidth;
  report(fmt::format("attention 64x(128+512)x512 M={}", rows),
         race({{"ours", [&] { s.ops.attention(a, *s.stream); }, 0.0, flops}, peak_contestant(s, flops, Peak::kWide)},
              s.options.repetitions));
}

// Routed experts of the real model in MXFP4 (16 of the 384, six a token) with the shared one in FP8.
void moe_case(Session& s, int64_t rows) {
  constexpr int64_t kWidth = 5120;
  constexpr int64_t kInner = 2304;
  constexpr int64_t kExperts = 16;
  std::vector<RandomWeight> memory;
  const auto expert = [&](WeightFormat format) {
    ExpertWeights e{};
    memory.push_back(random_weight(s.pool, format, kInner, kWidth));
    e.w1 = memory.back().weight;
    memory.push_back(random_weight(s.pool, format, kInner, kWidth));
    e.w3 = memory.back().weight;
    memory.push_back(random_weight(s.pool, format, kWidth, kInner));
    e.w2 = memory.back().weight;
    return e;
  };
  std::vector<ExpertWeights> experts;
  for (int64_t i = 0; i < kExperts; ++i) experts.push_back(expert(WeightFormat::kFp4Row));
  const ExpertWeights shared = expert(WeightFormat::kFp8Block);
  std::vector<int32_t> ids(static_cast<size_t>(rows * 6));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 5 + i / 6) % kExperts);
  std::vector<float> weights(ids.size(), .25F);
  Buffer y(rows * kWidth * 2);
  y.fill(s.pool, WeightFormat::kBf16);
  Buffer out(rows * kWidth * 2);
  const MoeArgs a{{y.data(), DType::kBf16, rows, kWidth, kWidth},
                  ids.data(),
                  weights.data(),
                  6,
                  experts.data(),
                  kExperts,
                  form_of(experts.data(), kExperts),
                  shared,
                  10.F,
                  {true, true, 32},
                  {out.data(), DType::kBf16, rows, kWidth, kWidth}};
  const int64_t active = std::min<int64_t>(kExperts, rows * 6);
  const int64_t bytes = active * 3 * weight_bytes(WeightFormat::kFp4Row, kInner, kWidth) +
                        3 * weight_bytes(WeightFormat::kFp8Block, kInner, kWidth);
  Buffer plain(bytes);
  plain.fill(s.pool, WeightFormat::kFp4Row);
  const double flops = 2.0 * static_cast<double>(rows * 7 * 3 * kInner * kWidth);
  report(fmt::format("moe 6+1 of 16, 5120x2304, M={}", rows),
         race({{"ours", [&] { s.ops.moe(a, *s.stream); }, static_cast<double>(bytes), flops},
               read_contestant(s, plain),
               peak_contestant(s, flops, Peak::kWide)},
              std::max(3, s.options.repetitions / (rows > 16 ? 3 : 1))));
}

}  // namespace

void bench_operators(Session& s) {
  select_case(s, 16384);
  select_case(s, 131072);
  attention_case(s, 1);
  attention_case(s, 16);
  moe_case(s, 1);
  moe_case(s, 128);
}

}  // namespace di::kernels::cpu::bench
