#include "base/clock.h"

#include <gtest/gtest.h>

#include <thread>

namespace di {
namespace {

TEST(ManualClock, WakesSleepersOnlyWhenTheirTimeHasCome) {
  ManualClock clock(1000);
  std::atomic<int> awake{0};
  std::jthread early([&] { awake += clock.sleep_until(5) ? 1 : 100; });
  std::jthread late([&] { awake += clock.sleep_until(2 * kNsPerSecond) ? 10 : 100; });
  clock.wait_for_sleepers(2);
  clock.advance(5);
  early.join();
  EXPECT_EQ(awake, 1);
  clock.advance(2 * kNsPerSecond);
  late.join();
  EXPECT_EQ(awake, 11);
  EXPECT_EQ(clock.unix_seconds(), 1002);
  EXPECT_TRUE(clock.sleep_until(clock.now_ns())) << "a time that has come does not wait";
}

TEST(Clocks, AStopEndsASleep) {
  const ManualClock manual;
  const SystemClock system;
  for (const Clock* clock : {static_cast<const Clock*>(&manual), static_cast<const Clock*>(&system)}) {
    std::stop_source stop;
    bool reached = true;
    std::jthread sleeper(
        [&] { reached = clock->sleep_until(clock->now_ns() + 3600 * kNsPerSecond, stop.get_token()); });
    stop.request_stop();
    sleeper.join();
    EXPECT_FALSE(reached);
  }
}

TEST(SystemClock, SleepsAtLeastAsLongAsAsked) {
  const SystemClock clock;
  const int64_t until = clock.now_ns() + kNsPerMs;
  EXPECT_TRUE(clock.sleep_until(until));
  EXPECT_GE(clock.now_ns(), until);
}

}  // namespace
}  // namespace di
