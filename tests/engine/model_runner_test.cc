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

}  // namespace
}  // namespace di::engine
