#include "kv/swa_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace di::kv {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::vector<BlockKey> chain(int n, const std::string& name = "a") {
  std::vector<BlockKey> out;
  for (int i = 0; i < n; ++i) out.push_back(sha256(name + std::to_string(i)));
  return out;
}

SwaEntryRef entry(int32_t position, SwaLayers layers, int64_t bytes) {
  auto out = std::make_shared<SwaEntry>();
  out->position = position;
  out->layers = layers;
  out->bytes.resize(static_cast<size_t>(bytes));
  return out;
}

TEST(SwaCache, AnEntryLivesUntilItWasNotUsedForTheRetentionTime) {
  SwaCache cache({.limit_bytes = 1000});
  const auto keys = chain(1);
  ASSERT_TRUE(cache.put(keys[0], entry(128, SwaLayers::kAll, 100), 0));
  EXPECT_EQ(cache.find(keys, 1, 128, 0, SwaLayers::kAll, 180 * kSecond, true).outcome, SwaOutcome::kHit);
  // Used at 180 s: 180 more from there.
  EXPECT_EQ(cache.find(keys, 1, 128, 0, SwaLayers::kAll, 360 * kSecond, true).outcome, SwaOutcome::kHit);
  EXPECT_EQ(cache.find(keys, 1, 128, 0, SwaLayers::kAll, 541 * kSecond, true).outcome, SwaOutcome::kMiss);
  cache.expire(541 * kSecond);
  EXPECT_EQ(cache.stats().entries, 0);
  EXPECT_EQ(cache.stats().bytes, 0);
  EXPECT_EQ(cache.stats().evicted_ttl, 1U);
  EXPECT_EQ(cache.stats().hits, 2U);
  EXPECT_EQ(cache.stats().misses, 1U);
  EXPECT_DOUBLE_EQ(cache.stats().age_at_hit.sum, 360.0);
  cache.check();
}

TEST(SwaCache, TheLeastRecentlyUsedGoesWhenTheBytesRunOut) {
  SwaCache cache({.limit_bytes = 300});
  const auto keys = chain(4);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(cache.put(keys[i], entry(128, SwaLayers::kAll, 100), static_cast<int64_t>(i)));
  }
  EXPECT_EQ(cache.find(keys, 1, 128, 0, SwaLayers::kAll, 5, true).outcome, SwaOutcome::kHit);
  ASSERT_TRUE(cache.put(keys[3], entry(128, SwaLayers::kAll, 100), 6));
  EXPECT_TRUE(cache.has(keys[0], SwaLayers::kAll, 6));
  EXPECT_FALSE(cache.has(keys[1], SwaLayers::kAll, 6));
  EXPECT_EQ(cache.stats().evicted_lru, 1U);
  EXPECT_EQ(cache.stats().bytes, 300);
  EXPECT_FALSE(cache.put(sha256("big"), entry(128, SwaLayers::kAll, 301), 6));
  EXPECT_EQ(cache.stats().entries, 3);
  cache.check();
}

TEST(SwaCache, ABufferInUseIsNotEvicted) {
  SwaCache cache({.limit_bytes = 200});
  const auto keys = chain(3);
  const SwaEntryRef held = entry(128, SwaLayers::kAll, 100);
  ASSERT_TRUE(cache.put(keys[0], held, 0));
  ASSERT_TRUE(cache.put(keys[1], entry(128, SwaLayers::kAll, 100), 1));
  ASSERT_TRUE(cache.put(keys[2], entry(128, SwaLayers::kAll, 100), 2));
  EXPECT_TRUE(cache.has(keys[0], SwaLayers::kAll, 2));
  EXPECT_FALSE(cache.has(keys[1], SwaLayers::kAll, 2));
  EXPECT_FALSE(cache.put(sha256("x"), entry(128, SwaLayers::kAll, 200), 3));
}

TEST(SwaCache, AnEarlierBoundaryWithinReachIsALowerHit) {
  SwaCache cache({.limit_bytes = 1000});
  const auto keys = chain(8);
  ASSERT_TRUE(cache.put(keys[2], entry(3 * 128, SwaLayers::kAll, 10), 0));
  EXPECT_EQ(cache.find(keys, 8, 128, 512, SwaLayers::kAll, 1, true).outcome, SwaOutcome::kMiss);  // 640 tokens away
  const SwaFound found = cache.find(keys, 7, 128, 512, SwaLayers::kAll, 1, true);
  EXPECT_EQ(found.outcome, SwaOutcome::kHitLower);
  EXPECT_EQ(found.entry->position, 384);
  EXPECT_EQ(cache.stats().hits_lower, 1U);
  // Only looking counts nothing.
  EXPECT_EQ(cache.find(keys, 3, 128, 0, SwaLayers::kAll, 1, false).outcome, SwaOutcome::kHit);
  EXPECT_EQ(cache.stats().hits, 0U);
}

TEST(SwaCache, EncoderEntriesAreReplacedByWholeOnesOnly) {
  SwaCache cache({.limit_bytes = 1000});
  const auto keys = chain(1);
  ASSERT_TRUE(cache.put(keys[0], entry(128, SwaLayers::kEncoder, 50), 0));
  EXPECT_FALSE(cache.has(keys[0], SwaLayers::kAll, 0));
  EXPECT_EQ(cache.find(keys, 1, 128, 0, SwaLayers::kAll, 0, true).outcome, SwaOutcome::kMiss);
  EXPECT_EQ(cache.find(keys, 1, 128, 0, SwaLayers::kEncoder, 0, true).outcome, SwaOutcome::kHit);
  EXPECT_FALSE(cache.put(keys[0], entry(128, SwaLayers::kEncoder, 50), 1));
  ASSERT_TRUE(cache.put(keys[0], entry(128, SwaLayers::kAll, 100), 1));
  EXPECT_FALSE(cache.put(keys[0], entry(128, SwaLayers::kEncoder, 50), 1));
  EXPECT_TRUE(cache.has(keys[0], SwaLayers::kAll, 1));
  EXPECT_EQ(cache.stats().bytes, 100);
  cache.check();
}

TEST(SwaCache, AnEntryThatItsChainHasPassedGoesUnlessSomeoneUsedIt) {
  SwaCache cache({.limit_bytes = 1000});
  const auto keys = chain(2);
  for (const BlockKey& key : keys) ASSERT_TRUE(cache.put(key, entry(128, SwaLayers::kAll, 10), 0));
  cache.find(keys, 1, 128, 0, SwaLayers::kAll, 0, true);
  cache.drop_unused(keys[0]);
  cache.drop_unused(keys[1]);
  EXPECT_TRUE(cache.has(keys[0], SwaLayers::kAll, 0));
  EXPECT_FALSE(cache.has(keys[1], SwaLayers::kAll, 0));
}

TEST(SwaCache, AgreesWithAPlainModel) {
  std::mt19937 random(7);
  SwaCache cache({.limit_bytes = 500, .retention_ns = 50});
  std::map<BlockKey, std::pair<int64_t, int64_t>> model;  // key -> last use, bytes
  const auto keys = chain(40);
  int64_t now = 0;
  for (int i = 0; i < 20000; ++i) {
    now += static_cast<int64_t>(random() % 8);
    const BlockKey& key = keys[random() % keys.size()];
    std::erase_if(model, [&](const auto& e) { return now - e.second.first > 50; });
    if (random() % 2 == 0) {
      const auto bytes = static_cast<int64_t>(1 + random() % 80);
      const bool known = model.contains(key);
      ASSERT_EQ(cache.put(key, entry(128, SwaLayers::kAll, bytes), now), !known);
      if (known) {
        model[key].first = now;
      } else {
        model[key] = {now, bytes};
      }
    } else {
      const SwaFound found = cache.find({&key, 1}, 1, 128, 0, SwaLayers::kAll, now, true);
      // The model evicts nothing by size; what the cache has must be in the model, and what it lost went by size.
      if (found.entry != nullptr) {
        ASSERT_TRUE(model.contains(key));
        model[key].first = now;
      } else {
        model.erase(key);
      }
    }
    std::erase_if(model, [&](const auto& e) { return !cache.has(e.first, SwaLayers::kAll, now); });
    cache.check();
  }
  EXPECT_GT(cache.stats().evicted_lru, 100U);
  EXPECT_GT(cache.stats().evicted_ttl, 100U);
}

}  // namespace
}  // namespace di::kv
