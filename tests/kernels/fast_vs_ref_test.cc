// Every fast table that this processor can run, against the reference and against itself.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu_tables.h"
#include "kernels/ops_compare.h"

namespace di::kernels {
namespace {

using test::Scale;

using Parameter = std::tuple<const Ops*, test::Case>;

// Every operator of every table, but of the AMX tables only what they do not take from another one.
std::vector<Parameter> parameters() {
  std::vector<Parameter> all;
  for (const Ops* ops : test::cpu_tables()) {
    const bool tiles = std::string_view(ops->name).starts_with("cpu-amx");
    for (const test::Case& c : test::all_cases()) {
      const std::string_view name = c.name;
      const bool product = name.find("linear") != name.npos || name.find("moe") != name.npos;
      if (product || !tiles) all.emplace_back(ops, c);
    }
  }
  return all;
}

class Fast : public testing::TestWithParam<Parameter> {
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

INSTANTIATE_TEST_SUITE_P(Operators, Fast, testing::ValuesIn(parameters()), [](const auto& parameter) {
  return test::test_name(*std::get<0>(parameter.param)) + "_" + std::get<1>(parameter.param).name;
});

}  // namespace
}  // namespace di::kernels
