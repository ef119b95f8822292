// What tests of the forward pass share: a small model of random weights with every feature, on the fast operators, in
// the numerics of training with quantised KV.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "model/fixture.h"
#include "support/folders.h"
#include "support/token_texts.h"

namespace di::model::tests {

class SmallModel : public testing::Test {
 protected:
  static constexpr int32_t kBlock = 16;  // tokens

  void SetUp() override {
    auto model = FixtureModel::load(std::string(di::test::kData) + "/model/v41_tiny_a", test::token_texts);
    ASSERT_TRUE(model) << model.error().message;
    model_ = std::move(*model);
    stream_ = kernels::cpu::make_stream(pool_);
    device_ = device::make_host_device();
  }

  ConformanceBackend backend() { return {kernels::cpu::ops(kernels::cpu::best_isa()), *stream_, *device_}; }

  std::unique_ptr<FixtureRun> new_run(TruncationRule rule = TruncationRule::kVl) {
    FixtureOptions options;
    options.kv_quant = true;
    options.numerics = NumericMode::kTrained;
    options.block_tokens = kBlock;
    options.rule = rule;
    options.max_tokens = 256;
    auto run = FixtureRun::create(*model_, backend(), options);
    EXPECT_TRUE(run) << run.error().message;
    return std::move(*run);
  }

  // Deterministic tokens, none of them the image placeholder.
  static std::vector<int32_t> tokens(int32_t n, uint32_t seed) {
    std::vector<int32_t> out;
    uint32_t x = seed * 2654435761U + 1;
    for (int32_t i = 0; i < n; ++i) {
      x = x * 1664525U + 1013904223U;
      out.push_back(static_cast<int32_t>((x >> 8) % 250));
    }
    return out;
  }

  std::unique_ptr<FixtureModel> model_;
  ThreadPool pool_{2};
  kernels::cpu::StreamPtr stream_;
  std::unique_ptr<device::Device> device_;
};

}  // namespace di::model::tests
