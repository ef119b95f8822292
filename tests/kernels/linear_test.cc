// The matrix products of every instruction set this processor has, on shapes around their tiles, panels and chunks:
// each weight format with fp32 and bf16 rows, with and without quantised activations.
#include <gtest/gtest.h>

#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/plan.h"
#include "kernels/cpu_tables.h"
#include "kernels/ops_compare.h"

namespace di::kernels::test {
namespace {

template <WeightFormat kFormat>
void linear_case(Run& run) {
  // fp32 sums of up to 700 products in another order: 2^-24·sqrt(700) of the largest, with a margin; bf16 pair sums
  // round once more each. Quantised activations are equal on both sides.
  constexpr Bound kBound{3e-5F};
  const int64_t rows = run.rows();
  const int64_t cols = run.pick<int64_t>({32, 64, 96, 128, 160, 256, 288, 672});
  const int64_t outputs = run.pick<int64_t>({1, 3, 4, 7, 8, 16, 31, 32, 33, 48, 64, 130});
  const bool quantise = run.coin();
  const bool accumulate = run.coin();
  const Tensor x = run.input(rows, cols, run.dtype());
  const Weight w =
      run.weight(kFormat, outputs, cols, Fill::kNormal, kFormat == WeightFormat::kFp8Block ? run.pick({32, 128}) : 32);
  const Tensor old = run.input(rows, outputs, run.dtype());
  const Tensor y = run.output(rows, outputs, old.dtype);
  for (int64_t t = 0; t < rows; ++t) {
    run.memory().write(slice(y, t, t + 1).data, slice(old, t, t + 1).data, outputs * size_of(old.dtype));
  }
  for (const auto& [first, last] : run.chunks(rows)) {
    run.ops().linear({slice(x, first, last), w, {false, quantise, 32}, accumulate, slice(y, first, last)},
                     run.stream());
  }
  run.result("y", y, kBound);
}

void grouped_case(Run& run) {
  const int64_t rows = run.rows();
  const int64_t groups = run.integer(1, 4);
  const int64_t cols = run.pick<int64_t>({32, 128, 192});
  const int64_t outputs = run.pick<int64_t>({32, 64, 96});
  const Tensor x = run.input(rows, groups * cols, run.dtype());
  const Weight w = run.weight(WeightFormat::kFp8Block, groups * outputs, cols);
  const Tensor y = run.output(rows, groups * outputs, run.dtype());
  const bool quantise = run.coin();
  for (const auto& [first, last] : run.chunks(rows)) {
    run.ops().grouped_linear(
        {slice(x, first, last), w, static_cast<int32_t>(groups), {false, quantise, 32}, slice(y, first, last)},
        run.stream());
  }
  run.result("y", y, Bound{3e-5F});
}

const Case kCases[] = {{"linear_f32", linear_case<WeightFormat::kF32>},
                       {"linear_bf16", linear_case<WeightFormat::kBf16>},
                       {"linear_fp8_block", linear_case<WeightFormat::kFp8Block>},
                       {"linear_fp8_row", linear_case<WeightFormat::kFp8Row>},
                       {"linear_fp4_row", linear_case<WeightFormat::kFp4Row>},
                       {"grouped_linear", grouped_case}};

TEST(Linear, AgreesWithTheReference) {
  ThreadPool pool(3);
  const cpu::StreamPtr stream = cpu::make_stream(pool);
  Memory reference_memory;
  Memory memory;
  for (const Ops* ops : cpu_tables()) {
    SCOPED_TRACE(ops->name);
    const Backend reference{&cpu::reference_ops(), stream.get(), &reference_memory};
    const Backend fast{ops, stream.get(), &memory};
    for (const Case& c : kCases) {
      for (uint64_t seed = 1; seed <= 40; ++seed) expect_same(reference, fast, c, seed, Scale::kSmall);
    }
  }
}

TEST(Linear, BitsDependNeitherOnRowsNorOnThreads) {
  ThreadPool one(1);
  ThreadPool three(3);
  const cpu::StreamPtr stream_one = cpu::make_stream(one);
  const cpu::StreamPtr stream_three = cpu::make_stream(three);
  Memory memory_one;
  Memory memory_three;
  for (const Ops* ops : cpu_tables()) {
    SCOPED_TRACE(ops->name);
    const Backend a{ops, stream_one.get(), &memory_one};
    const Backend b{ops, stream_three.get(), &memory_three};
    for (const Case& c : kCases) {
      for (uint64_t seed = 1; seed <= 15; ++seed) {
        expect_batch_invariant(b, c, seed, Scale::kSmall);
        expect_same_bits(a, b, c, seed, Scale::kSmall);
      }
    }
  }
}

TEST(LinearPlan, CoversEveryOutputWithPanelsThatFitTheCache) {
  for (const int64_t rows : {1, 4, 5, 64, 4096}) {
    for (const int64_t outputs : {1, 31, 32, 1000, 32768}) {
      for (const int64_t cols : {32, 1024, 20480}) {
        for (const int64_t workers : {1, 2, 16}) {
          const cpu::LinearPlan p = cpu::pick_linear({rows, outputs, cols, 1, workers, 6});
          EXPECT_EQ(p.panel_rows % 32, 0);
          EXPECT_GE(p.panels * p.panel_rows, outputs);
          EXPECT_LT((p.panels - 1) * p.panel_rows, outputs);
          EXPECT_GE(p.row_blocks * p.block_rows, rows);
          EXPECT_LT((p.row_blocks - 1) * p.block_rows, rows);
          EXPECT_LE(p.panel_rows, 128);
          EXPECT_EQ(p.parallel, workers > 1 && rows * outputs * cols >= cpu::kSerialProducts);
        }
      }
    }
  }
}

}  // namespace
}  // namespace di::kernels::test
