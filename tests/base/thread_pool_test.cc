#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace di {
namespace {

TEST(ThreadPool, EveryItemRunsOnce) {
  ThreadPool pool(4);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::atomic<int>> seen(static_cast<size_t>(1 + round % 37));
    pool.for_each(0, static_cast<int64_t>(seen.size()), 1,
                  [&](int64_t i) { seen[static_cast<size_t>(i)].fetch_add(1); });
    for (const auto& s : seen) ASSERT_EQ(s.load(), 1);
  }
}

TEST(ThreadPool, NestedRegionsRunInline) {
  ThreadPool pool(3);
  std::atomic<int> count{0};
  pool.parallel([&](int) { pool.for_each(0, 10, 1, [&](int64_t) { count.fetch_add(1); }); });
  EXPECT_EQ(count.load(), 30);
}

TEST(ThreadPool, OneThreadNeedsNoWorkers) {
  ThreadPool pool(1);
  int sum = 0;
  pool.for_each(0, 100, 1, [&](int64_t i) { sum += static_cast<int>(i); });
  EXPECT_EQ(sum, 4950);
}

}  // namespace
}  // namespace di
