// The products in matrix tiles: the written-out instructions against the formula of the manual, and where the
// processor has them the instructions against what is written out. (What every table must do is in linear_test.cc and
// fast_vs_ref_test.cc.)
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "base/numeric.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ops_compare.h"

namespace di::kernels::test {
namespace {

float flush(float v) {
  return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.F, v) : v;
}

float as_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// x·w over `cols` columns as tdpbf16ps adds it up, 32 columns an instruction.
float tile_sum(const uint16_t* x, const uint16_t* w, int64_t cols) {
  float sum = 0.F;
  for (int64_t c = 0; c < cols; c += 32) {
    float even = 0.F;
    float odd = 0.F;
    for (int64_t k = c; k < std::min(c + 32, cols); k += 2) {
      even = flush(std::fma(flush(as_float(w[k])), flush(as_float(x[k])), even));
      odd = flush(std::fma(flush(as_float(w[k + 1])), flush(as_float(x[k + 1])), odd));
    }
    sum = flush(sum + flush(even + odd));
  }
  return sum;
}

// bf16 values; every fourth so small that products and sums become subnormal, or subnormal itself.
std::vector<uint16_t> draw(std::mt19937_64& random, int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values;
  for (int64_t i = 0; i < n; ++i) {
    const float scale = i % 4 != 3 ? 1.F : i % 8 == 3 ? 0x1p-63F : 0x1p-130F;
    values.push_back(to_bf16(normal(random) * scale).bits);
  }
  return values;
}

struct Product {
  int64_t rows, outputs, cols;
};

std::vector<float> multiply(const Ops& ops, Stream& stream, const Product& p, std::vector<uint16_t>& x,
                            const std::vector<uint16_t>& w, int64_t rows_a_call) {
  std::vector<float> y(static_cast<size_t>(p.rows * p.outputs), -1.F);
  const Weight weight{w.data(), nullptr, WeightFormat::kBf16, 32, p.outputs, p.cols};
  for (int64_t row = 0; row < p.rows; row += rows_a_call) {
    const int64_t n = std::min(rows_a_call, p.rows - row);
    ops.linear({{x.data() + row * p.cols, DType::kBf16, n, p.cols, p.cols},
                weight,
                {},
                false,
                {y.data() + row * p.outputs, DType::kF32, n, p.outputs, p.outputs}},
               stream);
  }
  return y;
}

constexpr Product kProducts[] = {{1, 16, 64},   {3, 40, 96},   {16, 32, 1024}, {17, 33, 70},
                                 {40, 130, 34}, {600, 48, 64}, {33, 64, 1056}, {530, 17, 40}};

void expect_formula(const Ops& ops) {
  ThreadPool pool(2);
  const cpu::StreamPtr stream = cpu::make_stream(pool);
  std::mt19937_64 random(7);
  for (const Product& p : kProducts) {
    SCOPED_TRACE(testing::Message() << p.rows << " x " << p.outputs << " x " << p.cols);
    std::vector<uint16_t> x = draw(random, p.rows * p.cols);
    const std::vector<uint16_t> w = draw(random, p.outputs * p.cols);
    for (const int64_t rows_a_call : {p.rows, int64_t{1}, int64_t{18}}) {
      const std::vector<float> y = multiply(ops, *stream, p, x, w, rows_a_call);
      int64_t different = 0;
      for (int64_t row = 0; row < p.rows; ++row) {
        for (int64_t n = 0; n < p.outputs; ++n) {
          const float expected = tile_sum(x.data() + row * p.cols, w.data() + n * p.cols, p.cols);
          const float found = y[static_cast<size_t>(row * p.outputs + n)];
          if (std::bit_cast<uint32_t>(expected) == std::bit_cast<uint32_t>(found)) continue;
          if (++different < 4) ADD_FAILURE() << "row " << row << ", output " << n << ": " << expected << ", " << found;
        }
      }
      EXPECT_EQ(different, 0) << rows_a_call << " rows a call";
    }
  }
}

TEST(Amx, TheEmulatedTilesFollowTheManual) {
  if (cpu::best_isa() < cpu::Isa::kAvx512Bf16) GTEST_SKIP() << "this processor has no AVX512-BF16";
  expect_formula(cpu::emulated_amx_ops());
}

TEST(Amx, TheTilesFollowTheManual) {
  if (cpu::amx_refusal() != nullptr) GTEST_SKIP() << cpu::amx_refusal();
  expect_formula(cpu::ops(cpu::Isa::kAmx));
}

TEST(Amx, TilesAndEmulationGiveTheSameBits) {
  if (cpu::amx_refusal() != nullptr) GTEST_SKIP() << cpu::amx_refusal();
  ThreadPool pool(3);
  const cpu::StreamPtr stream = cpu::make_stream(pool);
  Memory memory;
  Memory emulated_memory;
  const Backend tiles{&cpu::ops(cpu::Isa::kAmx), stream.get(), &memory};
  const Backend emulated{&cpu::emulated_amx_ops(), stream.get(), &emulated_memory};
  for (const Case& c : all_cases()) {
    const std::string_view name = c.name;
    if (name.find("linear") == std::string_view::npos && name.find("moe") == std::string_view::npos) continue;
    for (uint64_t seed = 500; seed < 530; ++seed) expect_same_bits(emulated, tiles, c, seed, Scale::kSmall);
    expect_same_bits(emulated, tiles, c, 530, Scale::kReal);
  }
}

}  // namespace
}  // namespace di::kernels::test
