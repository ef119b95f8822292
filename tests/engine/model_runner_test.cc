#include "engine/model_runner.h"

#include <gtest/gtest.h>

namespace di::engine {
namespace {

model::CacheLayout layout() {
  model::CacheLayout out;
  out.block_bytes = 1000;
  out.slot_bytes = 5000;
  out.options.block_tokens = 128;
  return out;
}

ModelRunnerOptions options(int32_t sequences, int64_t memory, int64_t cap) {
  ModelRunnerOptions out;
  out.max_num_seqs = sequences;
  out.kv_memory_bytes = memory;
  out.kv_memory_cap_bytes = cap;
  return out;
}

TEST(PlanKv, HoldsAllSequencesAtFullLengthByDefault) {
  const KvPlan plan = plan_kv(layout(), 1000, options(4, 0, 0)).value();
  EXPECT_EQ(plan.n_blocks, 4 * 8 + 1);
  EXPECT_EQ(plan.n_slots, 5);
  EXPECT_EQ(plan.total_bytes(), 33 * 1000 + 5 * 5000);
}

TEST(PlanKv, KeepsToTheSizeThatIsNamed) {
  const KvPlan plan = plan_kv(layout(), 1000, options(4, 40'000, 0)).value();
  EXPECT_EQ(plan.n_blocks, 15);
  EXPECT_LE(plan.total_bytes(), 40'000);
  const Result<KvPlan> too_small = plan_kv(layout(), 1000, options(4, 26'000, 0));
  ASSERT_FALSE(too_small);
  EXPECT_EQ(too_small.error().code, Errc::kResourceExhausted);
  EXPECT_NE(too_small.error().message.find("26000 bytes"), std::string::npos);
}

TEST(PlanKv, TheDefaultIsBoundedButHoldsOneWholeSequence) {
  EXPECT_EQ(plan_kv(layout(), 1000, options(4, 0, 45'000)).value().n_blocks, 20);
  EXPECT_EQ(plan_kv(layout(), 1000, options(4, 0, 10)).value().n_blocks, 8 + 1);
  EXPECT_EQ(plan_kv(layout(), 1000, options(4, 0, 1'000'000)).value().n_blocks, 33);
}

TEST(PlanDevice, PutsKvBesideTheWeights) {
  // A tenth of the memory stays free where nobody named a size: 900'000 - 600'000 are left, of which 25'000 are slots.
  const DevicePlan plan = plan_device(1'000'000, 600'000, layout(), 100'000, options(4, 0, 0)).value_or(DevicePlan{});
  EXPECT_EQ(plan.kv.n_blocks, 0) << "one sequence of 100'000 tokens takes 782 blocks";
  const DevicePlan fits = plan_device(1'000'000, 600'000, layout(), 10'000, options(4, 0, 0)).value();
  EXPECT_EQ(fits.kv.n_blocks, 275);
  EXPECT_LE(fits.kv.total_bytes() + fits.weights, 900'000);
  EXPECT_EQ(plan_device(1'000'000, 600'000, layout(), 1000, options(4, 0, 0)).value().kv.n_blocks, 33);
  EXPECT_EQ(plan_device(1'000'000, 600'000, layout(), 10'000, options(4, 400'000, 0)).value().kv.n_blocks, 375);
}

TEST(PlanDevice, SaysWhatDoesNotFitAndWhatToLower) {
  for (const ModelRunnerOptions& wanted : {options(4, 0, 0), options(4, 401'000, 0)}) {
    const Result<DevicePlan> plan = plan_device(1'000'000, 600'000, layout(), 100'000, wanted);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, Errc::kResourceExhausted);
    for (const char* part : {"1000000 bytes free", "weights take 600000", "--max-model-len (now 100000)"}) {
      EXPECT_NE(plan.error().message.find(part), std::string::npos) << plan.error().message;
    }
  }
  EXPECT_FALSE(plan_device(1'000'000, 1'600'000, layout(), 100, options(4, 0, 0)));
}

}  // namespace
}  // namespace di::engine
