#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace di::kv {
namespace {

TEST(BlockPool, HandsOutIdsInTheOrderTheyCameBack) {
  BlockPool pool(4);
  EXPECT_EQ(pool.capacity(), 3);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.allocate(), 3);
  EXPECT_EQ(pool.free_count(), 0);
  const int32_t table[] = {1, 3, 2};
  pool.release_all(table);  // the last one first
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.allocate(), 3);
  EXPECT_EQ(pool.allocate(), 1);
  pool.check();
}

TEST(BlockPool, FreesWithTheLastOwner) {
  BlockPool pool(3);
  const int32_t id = pool.allocate();
  pool.share(id);
  pool.release(id);
  EXPECT_EQ(pool.used_count(), 1);
  pool.release(id);
  EXPECT_EQ(pool.used_count(), 0);
  pool.check();
}

TEST(BlockPool, AgreesWithACountingModel) {
  std::mt19937 random(3);
  BlockPool pool(20);
  std::map<int32_t, int> owners;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0 && pool.free_count() > 0) {
      const int32_t id = pool.allocate();
      ASSERT_TRUE(owners.emplace(id, 1).second) << "id " << id << " was in use";
    } else if (!owners.empty()) {
      auto it = std::next(owners.begin(), static_cast<long>(random() % owners.size()));
      if (random() % 3 == 0) {
        pool.share(it->first);
        ++it->second;
      } else {
        pool.release(it->first);
        if (--it->second == 0) owners.erase(it);
      }
    }
    ASSERT_EQ(pool.used_count(), static_cast<int32_t>(owners.size()));
  }
  pool.check();
}

TEST(BlockPoolDeathTest, RefusesWhatIsNotInUse) {
  BlockPool pool(3);
  EXPECT_DEATH(pool.release(1), "not in use");
  EXPECT_DEATH(pool.release(0), "not in use");
  pool.allocate();
  pool.allocate();
  EXPECT_DEATH(pool.allocate(), "used up");
}

}  // namespace
}  // namespace di::kv
