// Every fast table that this processor can run, against the reference and against itself.
#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu_tables.h"
#include "kernels/ops_compare.h"

namespace di::kernels {
namespace {

using test::Scale;

class Fast : public testing::TestWithParam<std::tuple<const Ops*, test::Case>> {
 protected:
  ThreadPool one_{1};
  ThreadPool three_{3};
  cpu::StreamPtr single_ = cpu::make_stream(one_);
  cpu::StreamPtr team_ = cpu::make_stream(three_);
  test::Memory memory_;
  const test::Case& operator_case() const { return std::get<1>(GetParam()); }
  test::Backend backend(const cpu::StreamPtr& stream) { return {std::get<0>(GetParam()), stream.get(), &memory_}; }
};

TEST_P(Fast, EqualsTheReference) {
  const test::Backend reference{&cpu::reference_ops(), single_.get(), &memory_};
  for (uint64_t seed = 0; seed < 40; ++seed) {
    test::expect_same(reference, backend(team_), operator_case(), seed, Scale::kSmall);
  }
}

TEST_P(Fast, EqualsTheReferenceAtTheRealWidths) {
  const test::Backend reference{&cpu::reference_ops(), single_.get(), &memory_};
  for (uint64_t seed = 100; seed < 103; ++seed) {
    test::expect_same(reference, backend(team_), operator_case(), seed, Scale::kReal);
  }
}

TEST_P(Fast, IsBatchInvariant) {
  for (uint64_t seed = 200; seed < 220; ++seed) {
    test::expect_batch_invariant(backend(team_), operator_case(), seed, Scale::kSmall);
  }
  test::expect_batch_invariant(backend(team_), operator_case(), 220, Scale::kReal);
}

TEST_P(Fast, DoesNotDependOnTheNumberOfThreads) {
  for (uint64_t seed = 300; seed < 315; ++seed) {
    test::expect_same_bits(backend(single_), backend(team_), operator_case(), seed, Scale::kSmall);
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, Fast,
                         testing::Combine(testing::ValuesIn(test::cpu_tables()), testing::ValuesIn(test::all_cases())),
                         [](const auto& parameter) {
                           return test::test_name(*std::get<0>(parameter.param)) + "_" +
                                  std::get<1>(parameter.param).name;
                         });

}  // namespace
}  // namespace di::kernels
