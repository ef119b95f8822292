#include "kv/replay_plan.h"

#include <gtest/gtest.h>

namespace di::kv {
namespace {

constexpr ReplayRules kOn{.window = 128, .block_tokens = 128, .replay = true};
constexpr ReplayRules kOff{.window = 128, .block_tokens = 128, .replay = false};

TEST(ReplayPlan, OneTokenIsLeftToCompute) {
  EXPECT_EQ(usable_tokens(0, 128), 0);
  EXPECT_EQ(usable_tokens(128, 128), 0);
  EXPECT_EQ(usable_tokens(129, 128), 128);
  EXPECT_EQ(usable_tokens(1000, 128), 896);
}

TEST(ReplayPlan, AMissReplaysExactlyTheWindowAndRewritesNoBlock) {
  const StartPlan p = plan_start(kOn, 1024, {});
  EXPECT_EQ(p.start, 896);
  EXPECT_EQ(p.window_start, 896);
  EXPECT_EQ(p.block_write_begin, 1024);
  EXPECT_EQ(p.replay_rows, 128);
  EXPECT_EQ(p.cached_tokens, 1024);
  EXPECT_EQ(p.hit_tokens, 1024);
  EXPECT_EQ(p.outcome, SwaOutcome::kMiss);
}

TEST(ReplayPlan, AWindowAtTheEndNeedsNoReplay) {
  const StartPlan p = plan_start(kOn, 1024, 1024);
  EXPECT_EQ(p.start, 1024);
  EXPECT_EQ(p.window_start, 0);
  EXPECT_EQ(p.replay_rows, 0);
  EXPECT_EQ(p.cached_tokens, 1024);
  EXPECT_EQ(p.outcome, SwaOutcome::kHit);
}

TEST(ReplayPlan, ALowerWindowComputesFromThereOverTheBlocksOfTheHit) {
  const StartPlan p = plan_start(kOff, 1024, 640);
  EXPECT_EQ(p.start, 640);
  EXPECT_EQ(p.window_start, 0);
  EXPECT_EQ(p.block_write_begin, 1024);
  EXPECT_EQ(p.cached_tokens, 640);
  EXPECT_EQ(p.outcome, SwaOutcome::kHitLower);
}

TEST(ReplayPlan, WithoutReplayAMissIsACold) {
  const StartPlan p = plan_start(kOff, 1024, {});
  EXPECT_EQ(p.start, 0);
  EXPECT_EQ(p.hit_tokens, 0);
  EXPECT_EQ(p.cached_tokens, 0);
  EXPECT_EQ(p.outcome, SwaOutcome::kMiss);
}

TEST(ReplayPlan, HitsNotLongerThanTheWindowAreNotAdopted) {
  EXPECT_EQ(plan_start(kOn, 128, {}).hit_tokens, 0);
  EXPECT_EQ(plan_start(kOn, 128, {}).outcome, SwaOutcome::kNone);
  EXPECT_EQ(plan_start(kOn, 256, {}).start, 128);
  // A small window leaves more to gain.
  EXPECT_EQ(plan_start({.window = 64, .block_tokens = 128, .replay = true}, 128, {}).start, 64);
}

TEST(ReplayPlan, TheKeptRangeIsTakenFromTheEndOfThePrompt) {
  EXPECT_EQ(keep_begin(1000, 140, 0, false), 860);
  EXPECT_EQ(keep_begin(100, 140, 0, false), 0);
  EXPECT_EQ(keep_begin(1000, 140, 896, false), 896);  // nothing of the decoder half below the hit
  EXPECT_EQ(keep_begin(1000, 140, 896, true), 860);
}

}  // namespace
}  // namespace di::kv
