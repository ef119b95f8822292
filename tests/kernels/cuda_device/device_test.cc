// The CUDA backend on a device: every operator against the reference, batch invariance, repeatability, graphs. Skipped,
// with the reason, where there is no device.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ops.h"
#include "kernels/ops_compare.h"

namespace di::kernels {
namespace {

using test::Scale;

// Exactly as large as asked for: compute-sanitizer sees a read past the end.
class DeviceMemory final : public test::Memory {
 public:
  explicit DeviceMemory(Stream& stream) : stream_(&stream) {}
  ~DeviceMemory() override { DeviceMemory::free_all(); }
  void* allocate(int64_t bytes, int64_t misalign) override {
    void* block = nullptr;
    DI_CHECK(cudaMalloc(&block, static_cast<size_t>(bytes + misalign + 1)) == cudaSuccess, "cudaMalloc of {}", bytes);
    blocks_.push_back(block);
    return static_cast<uint8_t*>(block) + misalign;
  }
  void write(void* to, const void* from, int64_t bytes) override { cuda::ops().copy_in(to, from, bytes, *stream_); }
  void read(void* to, const void* from, int64_t bytes) override { cuda::ops().copy_out(to, from, bytes, *stream_); }
  void free_all() override {
    EXPECT_TRUE(cuda::device_stream(*stream_).wait().has_value());
    for (void* block : blocks_) cudaFree(block);
    blocks_.clear();
  }

 private:
  Stream* stream_;
  std::vector<void*> blocks_;
};

class Cuda : public testing::TestWithParam<test::Case> {
 protected:
  void SetUp() override {
    auto stream = cuda::make_stream(0);
    if (!stream) GTEST_SKIP() << stream.error().message;
    stream_ = std::move(*stream);
    device_memory_ = std::make_unique<DeviceMemory>(*stream_);
  }
  test::Backend reference() { return {&cpu::reference_ops(), cpu_stream_.get(), &memory_}; }
  test::Backend cuda() { return {&cuda::ops(), stream_.get(), device_memory_.get()}; }

 private:
  ThreadPool pool_{1};
  cpu::StreamPtr cpu_stream_ = cpu::make_stream(pool_);
  test::Memory memory_;
  cuda::StreamPtr stream_;
  std::unique_ptr<DeviceMemory> device_memory_;
};

TEST_P(Cuda, EqualsTheReference) {
  for (uint64_t seed = 0; seed < 16; ++seed) {
    test::expect_same(reference(), cuda(), GetParam(), seed, Scale::kSmall);
  }
}

TEST_P(Cuda, EqualsTheReferenceAtTheRealWidths) {
  for (uint64_t seed = 100; seed < 102; ++seed) {
    test::expect_same(reference(), cuda(), GetParam(), seed, Scale::kReal);
  }
}

TEST_P(Cuda, IsBatchInvariant) {
  for (uint64_t seed = 200; seed < 206; ++seed) test::expect_batch_invariant(cuda(), GetParam(), seed, Scale::kSmall);
  test::expect_batch_invariant(cuda(), GetParam(), 210, Scale::kReal);
}

TEST_P(Cuda, GivesTheSameBitsAgain) {
  for (uint64_t seed = 300; seed < 304; ++seed) {
    test::expect_same_bits(cuda(), cuda(), GetParam(), seed, Scale::kReal);
  }
}

class CudaForms : public Cuda {};

// The projection of hyper-connections has one form for few rows and one for many; the sums are the same.
TEST_F(CudaForms, HyperConnectionsDoNotDependOnTheForm) {
  Ops many = cuda::ops();
  many.hc_pre = [](const HcPreArgs& a, Stream& stream) { cuda::hc_pre_from(a, 1, stream); };
  const test::Case hc_pre = test::case_named("trained_hc_pre");
  test::Backend other = cuda();
  other.ops = &many;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    test::expect_same_bits(cuda(), other, hc_pre, seed, Scale::kSmall);
    test::expect_same_bits(cuda(), other, hc_pre, 100 + seed, Scale::kReal);
  }
}

// For compute-sanitizer, which makes kernels tens of times slower.
TEST_P(Cuda, Sanitized) {
  for (uint64_t seed = 0; seed < 2; ++seed) test::expect_same(reference(), cuda(), GetParam(), seed, Scale::kSmall);
  test::expect_same(reference(), cuda(), GetParam(), 100, Scale::kReal);
}

INSTANTIATE_TEST_SUITE_P(Operators, Cuda, testing::ValuesIn(test::all_cases()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST(CudaDevice, TooMuchMemoryIsAnErrorThatNamesIt) {
  auto device = device::cuda::open(0);
  if (!device) GTEST_SKIP() << device.error().message;
  const auto memory = (*device)->allocate(size_t{1} << 50);
  ASSERT_FALSE(memory.has_value());
  EXPECT_EQ(memory.error().code, Errc::kResourceExhausted);
  EXPECT_NE(memory.error().message.find("1125899906842624 bytes"), std::string::npos) << memory.error().message;
  EXPECT_TRUE((*device)->allocate(1024).has_value());
}

TEST(CudaDevice, AGraphReplaysWhatWasCaptured) {
  auto owned = cuda::make_stream(0);
  if (!owned) GTEST_SKIP() << owned.error().message;
  Stream& stream = **owned;
  DeviceMemory memory(stream);
  const std::vector<float> x = {3.F, 4.F, 0.F, 0.F};
  auto* d_x = static_cast<float*>(memory.allocate(16, 0));
  auto* d_w = static_cast<float*>(memory.allocate(16, 0));
  auto* d_y = static_cast<float*>(memory.allocate(16, 0));
  const std::vector<float> w(4, 2.F);
  memory.write(d_x, x.data(), 16);
  memory.write(d_w, w.data(), 16);
  const RmsNormArgs a{
      {d_x, DType::kF32, 1, 4, 4}, {d_w, nullptr, WeightFormat::kF32, 32, 1, 4}, 1e-20F, {d_y, DType::kF32, 1, 4, 4}};
  auto graph = device::cuda::Graph::capture(cuda::device_stream(stream), [&] { cuda::ops().rms_norm(a, stream); });
  ASSERT_TRUE(graph.has_value()) << graph.error().message;
  EXPECT_EQ(graph->nodes(), 1);
  ASSERT_TRUE(graph->replay(cuda::device_stream(stream)).has_value());
  std::vector<float> y(4);
  memory.read(y.data(), d_y, 16);
  EXPECT_FLOAT_EQ(y[0], 2.F * 3.F / 2.5F);
  EXPECT_FLOAT_EQ(y[1], 2.F * 4.F / 2.5F);
}

}  // namespace
}  // namespace di::kernels
