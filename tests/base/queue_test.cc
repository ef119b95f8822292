#include "base/queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace di {
namespace {

TEST(Queue, KeepsOrderAndGivesWhatIsThereAfterClosing) {
  Queue<int> queue;
  EXPECT_TRUE(queue.push(1));
  EXPECT_TRUE(queue.push(2));
  EXPECT_TRUE(queue.push(3));
  EXPECT_EQ(queue.pop(), 1);
  queue.close();
  EXPECT_FALSE(queue.push(4));
  EXPECT_TRUE(queue.wait());
  EXPECT_EQ(queue.take_all(), (std::vector<int>{2, 3}));
  EXPECT_FALSE(queue.wait());
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(Queue, HandsEachItemToOneConsumer) {
  Queue<int> queue;
  std::atomic<int64_t> sum{0};
  constexpr int kItems = 4000;
  {
    std::vector<std::jthread> consumers;
    for (int c = 0; c < 4; ++c) {
      consumers.emplace_back([&] {
        while (const std::optional<int> item = queue.pop()) sum += *item;
      });
    }
    std::vector<std::jthread> producers;
    for (int p = 0; p < 4; ++p) {
      producers.emplace_back([&, p] {
        for (int i = p; i < kItems; i += 4) queue.push(i);
      });
    }
    producers.clear();
    queue.close();
  }
  EXPECT_EQ(sum, int64_t{kItems} * (kItems - 1) / 2);
}

}  // namespace
}  // namespace di
