// The reference against itself: rows do not depend on the call they share; and the harness against wrong operators.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ops_compare.h"

namespace di::kernels {
namespace {

class Reference : public testing::TestWithParam<test::Case> {
 protected:
  ThreadPool pool_{1};
  cpu::StreamPtr stream_ = cpu::make_stream(pool_);
  test::Memory memory_;
  test::Backend backend_{&cpu::reference_ops(), stream_.get(), &memory_};
};

TEST_P(Reference, IsBatchInvariant) {
  for (uint64_t seed = 0; seed < 16; ++seed) {
    test::expect_batch_invariant(backend_, GetParam(), seed, test::Scale::kSmall);
  }
}

template <class Args>
void nothing(const Args&, Stream&) {}

// A table of operators that return at once: every case must notice, else it compares nothing.
TEST_P(Reference, CaseNoticesAnOperatorThatDoesNothing) {
  const Ops idle = {
      .name = "idle",
      .embed = nothing,
      .hc_pre = nothing,
      .hc_post = nothing,
      .hc_head = nothing,
      .hc_head_mix = nothing,
      .linear = nothing,
      .grouped_linear = nothing,
      .rms_norm = nothing,
      .rope_table = nothing,
      .q_rope = nothing,
      .swa_store = nothing,
      .ring_commit = nothing,
      .compress = nothing,
      .compress_v4 = nothing,
      .page_store = nothing,
      .index_query = nothing,
      .select = nothing,
      .attention = nothing,
      .router = nothing,
      .moe = nothing,
      .exchange = nothing,
      .moe_parts = nothing,
      .moe_sum = nothing,
      .engram_gather = nothing,
      .engram_gate = nothing,
      .stream_mean = nothing,
      .gather_rows = nothing,
      .gather_table = nothing,
      .confidence = nothing,
      .argmax = nothing,
  };
  const test::Backend other{&idle, stream_.get(), &memory_};
  testing::TestPartResultArray failures;
  {
    testing::ScopedFakeTestPartResultReporter capture(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    for (uint64_t seed = 0; seed < 16; ++seed) {
      test::expect_same(backend_, other, GetParam(), seed, test::Scale::kSmall);
    }
  }
  EXPECT_GE(failures.size(), 8);  // some draws have no rows
}

INSTANTIATE_TEST_SUITE_P(Operators, Reference, testing::ValuesIn(test::all_cases()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace di::kernels
