// The quantisers of model.md §4.2 and §4.3 at their borders, and the layout of records and weights.
#include "kernels/cpu/quant.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace di::kernels::cpu {
namespace {

template <size_t N>
std::array<float, N> group(std::initializer_list<float> first) {
  std::array<float, N> x{};
  std::copy(first.begin(), first.end(), x.begin());
  return x;
}

TEST(Quantise, E4m3ScaleIsTheCeilingOfLog2) {
  EXPECT_EQ(e4m3_scale_exponent(448.F), 0);
  EXPECT_EQ(e4m3_scale_exponent(std::nextafter(448.F, 1e3F)), 1);
  EXPECT_EQ(e4m3_scale_exponent(224.F), -1);
  for (int k = -10; k < 40; ++k) EXPECT_EQ(e4m3_scale_exponent(448.F * exp2_int(k)), k);
  // amax is floored at 1e-4: log2(1e-4/448) = -22.09
  EXPECT_EQ(e4m3_scale_exponent(0.F), -22);
  EXPECT_EQ(e4m3_scale_exponent(1e-30F), -22);
}

TEST(Quantise, E4m3Group) {
  std::array<uint8_t, 32> data{};
  EXPECT_EQ(quantise_e4m3_group32(group<32>({}).data(), data.data()), 127 - 22);
  EXPECT_EQ(data, (std::array<uint8_t, 32>{}));
  const auto x = group<32>({448.F, -448.F, 1.F, -0.F, 0.0009765625F});
  EXPECT_EQ(quantise_e4m3_group32(x.data(), data.data()), 127);
  EXPECT_EQ(data[0], 0x7e);
  EXPECT_EQ(data[1], 0xfe);
  EXPECT_EQ(data[2], 0x38);
  EXPECT_EQ(data[3], 0x80);  // the sign of zero stays
  EXPECT_EQ(data[4], 0x00);  // 2^-10 is half of the smallest step: to the even code
}

TEST(Quantise, E2m1TiesGoToTheEvenCode) {
  std::array<uint8_t, 8> data{};
  // amax 6 with an E4M3 scale of exactly 1
  const auto x = group<16>({.25F, .75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.F, 6.F, -.25F, -.75F, -5.F, -0.F, .26F, 5.01F});
  EXPECT_EQ(quantise_e2m1_e4m3_group16(x.data(), data.data()), 0x38);
  const std::array<uint8_t, 16> codes = {0, 2, 2, 4, 4, 6, 6, 7, 8, 10, 14, 8, 1, 7, 0, 0};
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ((data[i / 2] >> (i % 2 == 0 ? 0 : 4)) & 15, codes[i]) << x[i];
}

TEST(Quantise, E2m1ScalesHaveFloorsAndSaturate) {
  std::array<uint8_t, 16> data{};
  EXPECT_EQ(quantise_e2m1_e4m3_group16(group<16>({}).data(), data.data()), 1);                // 2^-9, the smallest E4M3
  EXPECT_EQ(quantise_e2m1_e4m3_group16(group<16>({1e6F, -1e6F}).data(), data.data()), 0x7e);  // 448
  EXPECT_EQ(data[0], 0xf7);                                                                   // ±6
  EXPECT_EQ(quantise_e2m1_ue8m0_group32(group<32>({}).data(), data.data()), 1);               // 2^-126
  EXPECT_EQ(quantise_e2m1_ue8m0_group32(group<32>({6.F}).data(), data.data()), 127);
  EXPECT_EQ(quantise_e2m1_ue8m0_group32(group<32>({6.01F}).data(), data.data()), 128);
}

TEST(Records, QuantisedFormatsReadTheirInputRoundedToBf16) {
  std::vector<float> x(32, 0.F);
  x[1] = 448.9F;  // rounds to 448: the scale stays 1
  std::vector<uint8_t> record(33);
  store_record(KvFormat::kE4m3Ue8m0, 32, x.data(), record.data(), record.data() + 32);
  EXPECT_EQ(record[32], 127);
  std::vector<float> back(32);
  std::vector<uint8_t> plain(128);
  store_record(KvFormat::kF32, 32, x.data(), plain.data(), nullptr);
  load_record(KvFormat::kF32, 32, plain.data(), nullptr, back.data());
  EXPECT_EQ(back, x);  // nothing is rounded without quantisation
}

TEST(Records, ReadBackIsWithinHalfAStep) {
  for (const KvFormat format : {KvFormat::kE4m3Ue8m0, KvFormat::kE2m1E4m3, KvFormat::kE2m1Ue8m0}) {
    std::vector<float> x(512);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = std::sin(static_cast<float>(i) * 1.7F) * std::exp2(static_cast<float>(i % 7));
    std::vector<uint8_t> record(static_cast<size_t>(record_bytes(format, 512)));
    uint8_t* scale = record.data() + data_bytes(format, 512);
    store_record(format, 512, x.data(), record.data(), scale);
    std::vector<float> back(512);
    load_record(format, 512, record.data(), scale, back.data());
    const size_t n = format == KvFormat::kE2m1E4m3 ? 16 : 32;
    for (size_t i = 0; i < x.size(); ++i) {
      const float amax = max_abs(x.data() + i / n * n, static_cast<int64_t>(n));
      const float relative = format == KvFormat::kE4m3Ue8m0 ? .07F : .36F;  // half a step of the topmost binade
      EXPECT_LE(std::fabs(back[i] - x[i]), relative * amax) << i;
    }
  }
}

TEST(Records, SizesAreThoseOfTheModel) {
  EXPECT_EQ(record_bytes(KvFormat::kE4m3Ue8m0, 512), 528);
  EXPECT_EQ(record_bytes(KvFormat::kE2m1E4m3, 512), 288);
  EXPECT_EQ(record_bytes(KvFormat::kE2m1Ue8m0, 128), 68);
}

TEST(Records, PagesInterleaveOrSplit) {
  std::vector<uint8_t> memory(4096);
  PageView pages;
  pages.base = memory.data();
  pages.block_stride = 1024;
  pages.entries_per_block = 4;
  pages.width = 128;
  pages.format = KvFormat::kE2m1Ue8m0;
  const RecordAt inner = page_record(pages, 2, 3);
  EXPECT_EQ(inner.data - memory.data(), 2 * 1024 + 3 * 68);
  EXPECT_EQ(inner.scale - inner.data, 64);
  pages.split_scales = true;
  const RecordAt split = page_record(pages, 2, 3);
  EXPECT_EQ(split.data - memory.data(), 2 * 1024 + 3 * 64);
  EXPECT_EQ(split.scale - memory.data(), 2 * 1024 + 4 * 64 + 3 * 4);
}

TEST(Weights, Fp4HasTheEvenColumnInTheLowNibble) {
  const std::array<uint8_t, 2> data = {0x21, 0xf7};
  const uint8_t scale = 128;
  Weight w;
  w.data = data.data();
  w.scale = &scale;
  w.format = WeightFormat::kFp4Row;
  w.rows = 1;
  w.cols = 4;
  std::array<float, 4> row{};
  dequantise_row(w, 0, row.data());
  EXPECT_EQ(row, (std::array<float, 4>{1.F, 2.F, 12.F, -12.F}));
}

TEST(Weights, Fp8BlocksMayBeCutOffAtTheEdges) {
  std::vector<uint8_t> data(5 * 5, 0x38);                                            // 1.0 everywhere
  const std::vector<uint8_t> scale = {127, 128, 129, 130, 131, 132, 133, 134, 135};  // 3×3 blocks of 2
  Weight w;
  w.data = data.data();
  w.scale = scale.data();
  w.format = WeightFormat::kFp8Block;
  w.block = 2;
  w.rows = 5;
  w.cols = 5;
  std::vector<float> row(5);
  dequantise_row(w, 4, row.data());
  EXPECT_EQ(row, (std::vector<float>{64.F, 64.F, 128.F, 128.F, 256.F}));
}

}  // namespace
}  // namespace di::kernels::cpu
