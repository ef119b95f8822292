// The CUDA kernels against the reference, run thread by thread on the CPU. Both orders of the warps must give the same
// bits: where a barrier is missing, one of them reads what is not written yet.
#include <gtest/gtest.h>

#include <numeric>
#include <string_view>
#include <vector>

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

// The experts dealt to three ranks that take turns; the sum of rank 0, which gets the parts of the others back.
void moe_by_ranks(const MoeArgs& a, Stream& stream) {
  constexpr int32_t kRanks = 3;
  const int64_t pairs = a.y.rows * a.k;
  const int64_t h = a.y.cols;
  std::vector<int32_t> owner;
  for (int32_t e = 0; e < a.n_experts; ++e) owner.push_back((e + 1) % kRanks);
  std::vector<float> parts(static_cast<size_t>(kRanks * pairs * h), 1e30F);
  std::vector<int32_t> local(static_cast<size_t>(pairs));
  std::vector<int64_t> received(owner.size(), 0);
  for (int32_t r = 0; r < kRanks; ++r) {
    cuda::moe_parts({a.y, a.ids, a.weights, a.k, a.experts, a.n_experts, owner.data(), r, a.form, a.swiglu_limit,
                     a.numerics, local.data(), received.data(), parts.data() + r * pairs * h},
                    stream);
  }
  EXPECT_EQ(std::accumulate(received.begin(), received.end(), int64_t{0}), pairs);
  std::vector<float> sums(static_cast<size_t>(a.y.rows * h));
  Tensor shared;
  if (a.shared.w1.data != nullptr) {
    shared = {sums.data(), DType::kF32, a.y.rows, h, h};
    MoeArgs one = a;
    one.k = 0;
    one.out = shared;
    cuda::moe(one, stream);
  }
  cuda::moe_sum({a.ids, owner.data(), 0, a.k, parts.data(), parts.data(), pairs * h, shared, a.out}, stream);
}

TEST_F(EmulatedCudaForms, ExpertsOfSeveralRanksGiveTheBitsOfOne) {
  Ops ranks = cuda::ops();
  ranks.moe = moe_by_ranks;
  test::Backend other = cuda();
  other.ops = &ranks;
  for (const char* name : {"moe", "placed_moe"}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      cuda::emulation::set_reverse_warps(seed % 2 != 0);
      test::expect_same_bits(cuda(), other, test::case_named(name), seed, Scale::kSmall);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, EmulatedCuda, testing::ValuesIn(test::all_cases()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace di::kernels
