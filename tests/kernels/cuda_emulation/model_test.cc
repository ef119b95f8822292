// The forward pass on the CUDA backend's operators with memory that the host cannot touch: whatever the model hands to
// an operator must have been copied, whatever it reads must have been copied back.
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>

#include "device/device.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda_emulation/emulation.h"
#include "model/conformance.h"
#include "model/fixture.h"
#include "support/folders.h"

namespace di::model {
namespace {

class GuardedDevice final : public device::Device {
 public:
  device::Kind kind() const override { return device::Kind::kCuda; }
  Result<std::byte*> allocate(size_t bytes) override {
    if (full) return fail(Errc::kResourceExhausted, "no room for {} bytes", bytes);
    return static_cast<std::byte*>(kernels::cuda::emulation::allocate_guarded(bytes));
  }
  void release(std::byte* data, size_t) override { kernels::cuda::emulation::free_guarded(data); }
  Result<void> load(std::byte* to, const std::byte* from, size_t bytes) override {
    const std::scoped_lock lock(mutex_);
    const kernels::cuda::emulation::Unguarded unguarded;
    return Device::load(to, from, bytes);
  }

  bool full = false;

 private:
  std::mutex mutex_;  // opening and closing is for one thread at a time
};

// The fixtures' Engram tables need none.
Result<std::vector<TokenText>> no_texts(const std::string& folder) {
  return fail(Errc::kInternal, "{}", folder);
}

class EmulatedCudaModel : public testing::TestWithParam<const char*> {};

TEST_P(EmulatedCudaModel, GivesTheExpectedValues) {
  const std::string folder = std::string(di::test::kData) + "/model/" + GetParam();
  kernels::cuda::CudaStream stream;
  GuardedDevice device;
  const ConformanceReport report =
      run_model_folders(folder, {kernels::cuda::ops(), reinterpret_cast<kernels::Stream&>(stream), device}, no_texts);
  std::free(stream.scratch);
  EXPECT_FALSE(report.cases.empty());
  for (const ConformanceCase& c : report.cases) {
    EXPECT_TRUE(c.passed) << c.name << ": error " << c.error << ", bound " << c.bound << "; " << c.detail;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, EmulatedCudaModel, testing::Values("v41_tiny_a"));

// Decode steps of several sequences, replayed as graphs, give the bits of steps that run as they are.
TEST(EmulatedCudaGraphs, GiveTheSameBits) {
  kernels::cuda::CudaStream stream;
  GuardedDevice device;
  const auto loaded = FixtureModel::load(std::string(di::test::kData) + "/model/v41_tiny_a", no_texts, &device);
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  const FixtureModel& m = **loaded;
  constexpr int32_t kSequences = 3;
  constexpr int32_t kSteps = 7;
  constexpr int32_t kBlockTokens = 8;
  const auto run = [&](bool graphs, int64_t* replays) {
    const ConformanceBackend backend{kernels::cuda::ops(), reinterpret_cast<kernels::Stream&>(stream), device};
    CacheOptions options;
    options.block_tokens = kBlockTokens;
    const auto layout = make_cache_layout(m.config, m.schedule, options);
    EXPECT_TRUE(layout.has_value());
    auto cache = KvCache::create(device, *layout, 1 + kSequences * 4, 1 + kSequences);
    EXPECT_TRUE(cache.has_value());
    ForwardOptions forward_options;
    forward_options.graphs = graphs;
    Forward forward(m.config, m.schedule, m.weights, backend.ops, backend.stream, device, forward_options);
    std::vector<std::vector<int32_t>> tokens(kSequences);
    std::vector<std::vector<int32_t>> tables(kSequences);
    for (int32_t s = 0; s < kSequences; ++s) {
      for (int32_t i = 0; i < 9 + s + kSteps; ++i) {
        tokens[static_cast<size_t>(s)].push_back((i * 7 + s * 5 + 3) % m.config.vocab_size);
      }
      for (int32_t b = 0; b < 4; ++b) tables[static_cast<size_t>(s)].push_back(1 + s * 4 + b);
    }
    std::vector<std::vector<float>> logits;
    for (int32_t step = 0; step <= kSteps; ++step) {
      std::vector<SequenceChunk> chunks(kSequences);
      for (int32_t s = 0; s < kSequences; ++s) {
        SequenceChunk& c = chunks[static_cast<size_t>(s)];
        c.tokens = tokens[static_cast<size_t>(s)];
        c.block_table = tables[static_cast<size_t>(s)];
        c.state_slot = 1 + s;
        c.begin = step == 0 ? 0 : 8 + s + step;
        c.count = step == 0 ? 9 + s : 1;
        c.logits_begin = c.begin + c.count - 1;
      }
      Batch batch;
      const EngramTables* engram = m.engram ? &*m.engram : nullptr;
      const auto built = build_batch(m.config, m.schedule, engram, TruncationRule::kVl, kBlockTokens, chunks, batch);
      EXPECT_TRUE(built.has_value()) << built.error().message;
      const ForwardResult result = forward.run(batch, *cache);
      EXPECT_EQ(result.logits.rows, kSequences);
      std::vector<std::byte> buffer;
      logits.push_back(to_floats(forward.on_host(result.logits, buffer)));
    }
    *replays = forward.replays();
    return logits;
  };
  int64_t with = 0;
  int64_t without = 0;
  const auto expected = run(false, &without);
  const auto found = run(true, &with);
  EXPECT_EQ(without, 0);
  EXPECT_EQ(with, kSteps - 1);
  EXPECT_EQ(expected, found);
  std::free(stream.scratch);
}

// What a step cannot have: memory of the forward pass, an operator's scratch, the inputs of a graph.
enum class Lack : uint8_t { kNothing, kWorkspace, kScratch, kGraphInputs };

class EmulatedLack : public testing::TestWithParam<Lack> {};

// A step without the memory it needs ends with an error and touches nothing; computed again once there is room, it and
// those after it give the bits of a run that lacked nothing.
TEST_P(EmulatedLack, EndsOneStepOnly) {
  kernels::cuda::CudaStream stream;
  GuardedDevice device;
  const auto loaded = FixtureModel::load(std::string(di::test::kData) + "/model/v41_tiny_a", no_texts, &device);
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  const FixtureModel& m = **loaded;
  constexpr int32_t kBlockTokens = 8;
  int failures = 0;
  const auto run = [&](Lack lack) {
    CacheOptions options;
    options.block_tokens = kBlockTokens;
    auto cache = KvCache::create(device, make_cache_layout(m.config, m.schedule, options).value(), 4, 2);
    EXPECT_TRUE(cache.has_value());
    Forward forward(m.config, m.schedule, m.weights, kernels::cuda::ops(), reinterpret_cast<kernels::Stream&>(stream),
                    device, {});
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 14; ++i) tokens.push_back((i * 7 + 3) % m.config.vocab_size);
    const std::vector<int32_t> table = {1, 2, 3};
    std::vector<std::vector<float>> logits;
    for (int32_t step = 0; step < 5;) {
      SequenceChunk c;
      c.tokens = tokens;
      c.block_table = table;
      c.state_slot = 1;
      c.begin = step == 0 ? 0 : 8 + step;
      c.count = step == 0 ? 9 : 1;
      c.logits_begin = c.begin + c.count - 1;
      Batch batch;
      const EngramTables* engram = m.engram ? &*m.engram : nullptr;
      EXPECT_TRUE(build_batch(m.config, m.schedule, engram, TruncationRule::kVl, kBlockTokens, {&c, 1}, batch));
      // The second step of a shape becomes a graph, whose inputs get memory of their own.
      const bool now = step == (lack == Lack::kGraphInputs ? 2 : 0);
      device.full = now && (lack == Lack::kWorkspace || lack == Lack::kGraphInputs);
      kernels::cuda::emulation::g_scratch_limit = now && lack == Lack::kScratch ? 0 : INT64_MAX;
      const ForwardResult result = forward.run(batch, *cache);
      std::vector<std::byte> buffer;
      std::vector<float> values;
      if (result.logits.data != nullptr && !device.full) values = to_floats(forward.on_host(result.logits, buffer));
      device.full = false;
      kernels::cuda::emulation::g_scratch_limit = INT64_MAX;
      if (const Result<void> status = forward.status(); !status) {
        EXPECT_EQ(status.error().code, Errc::kResourceExhausted);
        EXPECT_NE(status.error().message.find("no room"), std::string::npos) << status.error().message;
        ++failures;
        lack = Lack::kNothing;
        continue;
      }
      logits.push_back(std::move(values));
      ++step;
    }
    std::free(stream.scratch);
    stream = {};
    return logits;
  };
  static const auto expected = run(Lack::kNothing);
  ASSERT_EQ(failures, 0);
  EXPECT_EQ(run(GetParam()), expected);
  EXPECT_EQ(failures, 1);
}

INSTANTIATE_TEST_SUITE_P(Memory, EmulatedLack, testing::Values(Lack::kWorkspace, Lack::kScratch, Lack::kGraphInputs));

}  // namespace
}  // namespace di::model
