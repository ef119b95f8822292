// The CUDA kernels against the reference, run thread by thread on the CPU. Both orders of the warps must give the same
// bits: where a barrier is missing, one of them reads what is not written yet.
#include <gtest/gtest.h>

#include <string_view>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda_emulation/emulation.h"
#include "kernels/ops_compare.h"

namespace di::kernels {
namespace {

using test::Scale;

class EmulatedCuda : public testing::TestWithParam<test::Case> {
 protected:
  ~EmulatedCuda() override {
    cuda::emulation::set_reverse_warps(false);
    std::free(stream_.scratch);
  }
  test::Backend reference() { return {&cpu::reference_ops(), cpu_stream_.get(), &memory_}; }
  test::Backend cuda() { return {&cuda::ops(), reinterpret_cast<Stream*>(&stream_), &memory_}; }

 private:
  ThreadPool pool_{1};
  cpu::StreamPtr cpu_stream_ = cpu::make_stream(pool_);
  cuda::CudaStream stream_;
  test::Memory memory_;
};

TEST_P(EmulatedCuda, EqualsTheReference) {
  // Cases of the fast forms are large and hit them with every seed.
  const std::string_view name = GetParam().name;
  const bool fast = name.starts_with("placed") || name.ends_with("stored");
  for (uint64_t seed = 0; seed < (fast ? 6U : 10U); ++seed) {
    cuda::emulation::set_reverse_warps(seed % 2 != 0);
    test::expect_same(reference(), cuda(), GetParam(), seed, Scale::kSmall);
  }
}

TEST_P(EmulatedCuda, EqualsTheReferenceAtTheRealWidths) {
  // The selection has several forms.
  const uint64_t seeds = std::string_view(GetParam().name).starts_with("select") ? 3 : 1;
  for (uint64_t seed = 100; seed < 100 + seeds; ++seed) {
    test::expect_same(reference(), cuda(), GetParam(), seed, Scale::kReal);
  }
}

TEST_P(EmulatedCuda, IsBatchInvariant) {
  for (uint64_t seed = 200; seed < 203; ++seed) test::expect_batch_invariant(cuda(), GetParam(), seed, Scale::kSmall);
}

class EmulatedCudaForms : public EmulatedCuda {};

// The projection of hyper-connections has one form for few rows and one for many; the sums are the same.
TEST_F(EmulatedCudaForms, HyperConnectionsDoNotDependOnTheForm) {
  Ops many = cuda::ops();
  many.hc_pre = [](const HcPreArgs& a, Stream& stream) { cuda::hc_pre_from(a, 1, stream); };
  const test::Case hc_pre = test::case_named("trained_hc_pre");
  test::Backend other = cuda();
  other.ops = &many;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    cuda::emulation::set_reverse_warps(seed % 2 != 0);
    test::expect_same_bits(cuda(), other, hc_pre, seed, Scale::kSmall);
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, EmulatedCuda, testing::ValuesIn(test::all_cases()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace di::kernels
