// The forward pass on the CUDA backend's operators with memory that the host cannot touch: whatever the model hands to
// an operator must have been copied, whatever it reads must have been copied back.
#include <gtest/gtest.h>

#include <filesystem>

#include "device/device.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda_emulation/emulation.h"
#include "model/conformance.h"

namespace di::model {
namespace {

class GuardedDevice final : public device::Device {
 public:
  device::Kind kind() const override { return device::Kind::kCuda; }
  Result<std::byte*> allocate(size_t bytes) override {
    return static_cast<std::byte*>(kernels::cuda::emulation::allocate_guarded(bytes));
  }
  void release(std::byte* data, size_t) override { kernels::cuda::emulation::free_guarded(data); }
  Result<void> load(std::byte* to, const std::byte* from, size_t bytes) override {
    const kernels::cuda::emulation::Unguarded unguarded;
    return Device::load(to, from, bytes);
  }
};

class EmulatedCudaModel : public testing::TestWithParam<const char*> {};

TEST_P(EmulatedCudaModel, GivesTheExpectedValues) {
  const std::string folder = std::string(DI_TEST_DATA) + "/model/" + GetParam();
  kernels::cuda::CudaStream stream;
  GuardedDevice device;
  const ConformanceReport report = run_model_folders(
      folder, {kernels::cuda::ops(), reinterpret_cast<kernels::Stream&>(stream), device},
      [](const std::string& dir) -> Result<std::vector<TokenText>> { return fail(Errc::kInternal, "{}", dir); });
  std::free(stream.scratch);
  EXPECT_FALSE(report.cases.empty());
  for (const ConformanceCase& c : report.cases) {
    EXPECT_TRUE(c.passed) << c.name << ": error " << c.error << ", bound " << c.bound << "; " << c.detail;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, EmulatedCudaModel, testing::Values("v41_tiny_a"));

}  // namespace
}  // namespace di::model
