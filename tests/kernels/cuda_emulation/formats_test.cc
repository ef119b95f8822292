// The number formats of the CUDA backend against those of base and of the CPU's quantisers, for all inputs where that
// is possible: every code, and for the roundings every fp32 value that could decide.
#include "kernels/cuda/common/formats.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/numeric.h"
#include "kernels/cpu/quant.h"
#include "kernels/cuda/common/addressing.h"

namespace di::kernels {
namespace {

uint32_t bits(float v) {
  return std::bit_cast<uint32_t>(v);
}

// Values of both signs: every exponent, every pattern of the upper mantissa bits, and around each the neighbours on
// both sides, which decide ties.
std::vector<float> probes() {
  std::vector<float> out;
  for (uint32_t upper = 0; upper < (1U << 16); ++upper) {
    for (const uint32_t low : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      out.push_back(std::bit_cast<float>(upper << 16 | low));
    }
  }
  return out;
}

TEST(CudaFormats, ReadEveryCode) {
  for (uint32_t b = 0; b < 256; ++b) {
    const auto byte = static_cast<uint8_t>(b);
    EXPECT_EQ(bits(cuda::e4m3_to_float(byte)), bits(to_float(E4m3{byte}))) << b;
    EXPECT_EQ(bits(cuda::e8m0_to_float(byte)), bits(to_float(E8m0{byte}))) << b;
    EXPECT_EQ(bits(cuda::e2m1_to_float(b & 15U)), bits(e2m1_to_float(b & 15U))) << b;
  }
  for (uint32_t h = 0; h < (1U << 16); ++h) {
    const auto half = static_cast<uint16_t>(h);
    ASSERT_EQ(bits(cuda::bf16_to_float(half)), bits(to_float(Bf16{half}))) << h;
  }
}

TEST(CudaFormats, RoundAsTheReference) {
  for (const float v : probes()) {
    ASSERT_EQ(cuda::float_to_bf16(v), to_bf16(v).bits) << bits(v);
    ASSERT_EQ(cuda::float_to_e4m3(v), to_e4m3(v).bits) << bits(v);
    ASSERT_EQ(cuda::float_to_e2m1(v), to_e2m1(v)) << bits(v);
  }
}

TEST(CudaFormats, ScalesOfGroups) {
  for (const float v : probes()) {
    const float amax = std::fabs(v);
    if (!(amax < 1e38F)) continue;
    ASSERT_EQ(cuda::e4m3_group_exponent(amax), cpu::e4m3_scale_exponent(amax)) << bits(v);
    float x[32] = {};
    uint8_t data[32];
    x[7] = v;
    ASSERT_EQ(cuda::e2m1_group_e4m3_scale(amax), cpu::quantise_e2m1_e4m3_group16(x, data)) << bits(v);
    ASSERT_EQ(static_cast<uint8_t>(cuda::e2m1_group_exponent(amax) + 127), cpu::quantise_e2m1_ue8m0_group32(x, data))
        << bits(v);
  }
  for (int e = -149; e <= 127; ++e) ASSERT_EQ(bits(cuda::exp2_int(e)), bits(exp2_int(e))) << e;
}

// e4m3·2^k and e2m1·2^k, and e2m1·e4m3 of the main entries, are bf16 values: what the matrix units multiply is exact.
TEST(CudaFormats, ScaledValuesAreExactInBf16) {
  for (uint32_t b = 0; b < 256; ++b) {
    if ((b & 0x7fU) == 0x7fU) continue;
    for (uint32_t s = 10; s < 240; ++s) {
      const float v = cuda::e4m3_to_float(static_cast<uint8_t>(b)) * cuda::e8m0_to_float(static_cast<uint8_t>(s));
      ASSERT_EQ(bits(cuda::round_bf16(v)), bits(v));
      ASSERT_EQ(cuda::pack_exact_bf16(v, -v), cuda::pack_bf16(v, -v));
    }
    for (uint32_t n = 0; n < 16; ++n) {
      const float v = cuda::e2m1_to_float(n) * cuda::e4m3_to_float(static_cast<uint8_t>(b));
      ASSERT_EQ(bits(cuda::round_bf16(v)), bits(v));
    }
  }
}

TEST(CudaFormats, ScoreKeysOrderAsScores) {
  const float values[] = {-INFINITY, -3e38F, -1.F, -1e-45F, 0.F, 1e-45F, 1.F, 1.0000001F, 3e38F, INFINITY};
  for (const float a : values) {
    EXPECT_GT(cuda::score_key(a), cuda::score_key(NAN));
    for (const float b : values) EXPECT_EQ(a < b, cuda::score_key(a) < cuda::score_key(b)) << a << " " << b;
  }
  EXPECT_EQ(cuda::score_key(-0.F), cuda::score_key(0.F));
  EXPECT_GT(cuda::score_key(-NAN), 0U);
}

TEST(CudaFormats, RecordsLieWhereTheReferenceHasThem) {
  uint8_t* base = nullptr;
  const std::vector<int32_t> table = {5, 2'000'000, 7, 11, 3, 9};
  Rows rows;
  rows.block_table = table.data();
  rows.block_table_stride = 3;
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kE4m3Ue8m0, KvFormat::kE2m1E4m3, KvFormat::kE2m1Ue8m0}) {
    for (const bool split : {false, true}) {
      const PageView pages{base, 113'920, 128, format == KvFormat::kE2m1Ue8m0 ? 128 : 512, format, split};
      for (const int64_t sequence : {0, 1}) {
        for (int64_t g = 0; g < 3 * 128; g += 31) {
          const auto found = cuda::page_entry(pages, rows, sequence, g);
          const auto expected = cpu::page_entry(pages, rows, sequence, g);
          ASSERT_EQ(found.data, expected.data);
          ASSERT_EQ(found.scale, expected.scale);
        }
      }
    }
    const RingView ring{base, 3'000'000'000, 134, 512, format};
    for (const int64_t position : {0, 1, 133, 134, 262'143, 1'048'575}) {
      const auto found = cuda::ring_record(ring, 300, position);
      const auto expected = cpu::ring_record(ring, 300, position);
      ASSERT_EQ(found.data, expected.data);
      ASSERT_EQ(found.scale, expected.scale);
    }
  }
}

TEST(CudaFormats, WeightsReadAsTheReference) {
  const int64_t cols = 288;
  const int64_t n = 70;
  std::vector<uint8_t> data(static_cast<size_t>(n * cols * 4));
  std::vector<uint8_t> scale(static_cast<size_t>(n * cols));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 37 % 121);
  for (size_t i = 0; i < scale.size(); ++i) scale[i] = static_cast<uint8_t>(110 + i * 7 % 30);
  std::vector<float> expected(static_cast<size_t>(cols));
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8Block,
                                    WeightFormat::kFp8Row, WeightFormat::kFp4Row}) {
    for (const int32_t block : {32, 128}) {
      const Weight w{data.data(), scale.data(), format, block, n, cols};
      for (int64_t r = 0; r < n; r += 13) {
        cpu::dequantise_row(w, r, expected.data());
        for (int64_t c = 0; c < cols; ++c) {
          ASSERT_EQ(bits(cuda::weight_value(w, r, c)), bits(expected[static_cast<size_t>(c)])) << r << " " << c;
        }
      }
    }
  }
}

}  // namespace
}  // namespace di::kernels
