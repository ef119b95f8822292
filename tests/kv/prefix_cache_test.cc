#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace di::kv {
namespace {

constexpr int32_t kBlock = 4;

// A sequence as the engine handles it: looks up, adopts, allocates, publishes what is full.
struct Text {
  std::vector<int32_t> tokens;
  BlockChain chain;
  std::vector<int32_t> table;
  int32_t published = 0;

  Text(std::vector<int32_t> t, const BlockKey& root) : tokens(std::move(t)), chain(root, kBlock) {
    chain.extend(tokens);
  }
  std::span<const int32_t> block(int32_t i) const {
    return std::span(tokens).subspan(static_cast<size_t>(i * kBlock), kBlock);
  }
};

class PrefixCacheTest : public testing::Test {
 protected:
  static BlockKey root(const std::string& salt = "") {
    RootFields fields;
    fields.domain_salt = salt;
    fields.block_tokens = kBlock;
    return root_key(fields);
  }

  // Blocks [published, n) of the text are full now.
  static void publish(PrefixCache& cache, Text& text, int32_t n) {
    for (; text.published < n; ++text.published) {
      const auto i = static_cast<size_t>(text.published);
      const int32_t parent = i == 0 ? 0 : text.table[i - 1];
      text.table[i] = cache.publish(text.chain.keys().first(i + 1), text.chain.root(), text.block(text.published),
                                    parent, text.table[i]);
    }
  }
  static void fill(PrefixCache& cache, Text& text) {
    const PrefixMatch match = cache.match(text.chain.keys());
    cache.adopt(text.chain.keys().first(static_cast<size_t>(match.blocks)), text.table);
    text.published = match.blocks;
    while (static_cast<int32_t>(text.table.size()) < text.chain.blocks()) text.table.push_back(cache.allocate());
    publish(cache, text, text.chain.blocks());
  }
};

TEST_F(PrefixCacheTest, FindsTheLongestRunOfFullBlocks) {
  PrefixCache cache(10, kBlock);
  Text a({1, 2, 3, 4, 5, 6, 7, 8, 9}, root());
  fill(cache, a);
  EXPECT_EQ(a.table.size(), 2U);
  const Text longer({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, root());
  EXPECT_EQ(cache.match(longer.chain.keys()).blocks, 2);
  EXPECT_EQ(cache.match(longer.chain.keys()).kept, 0);
  const Text branch({1, 2, 3, 4, 5, 6, 7, 0}, root());
  EXPECT_EQ(cache.match(branch.chain.keys()).blocks, 1);
  const Text salted({1, 2, 3, 4, 5, 6, 7, 8}, root("tenant"));
  EXPECT_EQ(cache.match(salted.chain.keys()).blocks, 0);
  cache.release_all(a.table);
  EXPECT_EQ(cache.used_count(), 0);
  EXPECT_EQ(cache.free_count(), 9);
  EXPECT_EQ(cache.kept_count(), 2);
  EXPECT_EQ(cache.match(longer.chain.keys()).kept, 2);
  cache.check();
}

TEST_F(PrefixCacheTest, FreeBlocksComeFirstThenTheOldestLeaves) {
  PrefixCache cache(6, kBlock);  // 5 blocks
  Text a({1, 2, 3, 4, 5, 6, 7, 8}, root());
  fill(cache, a);
  Text b({9, 9, 9, 9}, root());
  fill(cache, b);
  cache.release_all(a.table);
  cache.release_all(b.table);
  std::vector<int32_t> taken;
  for (int i = 0; i < 3; ++i) taken.push_back(cache.allocate());
  // The two free blocks, then the last block of the older text; its first block and the newer text are still known.
  EXPECT_EQ(taken, (std::vector<int32_t>{4, 5, a.table[1]}));
  EXPECT_EQ(cache.match(a.chain.keys()).blocks, 1);
  EXPECT_EQ(cache.match(b.chain.keys()).blocks, 1);
  EXPECT_EQ(cache.evictions(), 1U);
  taken.push_back(cache.allocate());
  EXPECT_EQ(cache.match(a.chain.keys()).blocks, 0);
  cache.release_all(taken);
  cache.check();
}

TEST_F(PrefixCacheTest, TwoThatComputeTheSameTextEndUpWithTheSameBlocks) {
  PrefixCache cache(10, kBlock);
  Text a({1, 2, 3, 4, 5, 6, 7, 8}, root());
  Text b = a;
  for (Text* t : {&a, &b}) {
    for (int i = 0; i < 2; ++i) t->table.push_back(cache.allocate());
  }
  publish(cache, a, 1);
  publish(cache, b, 2);
  publish(cache, a, 2);
  EXPECT_EQ(a.table, b.table);
  EXPECT_EQ(cache.used_count(), 2);
  cache.check();
  cache.release_all(a.table);
  cache.release_all(b.table);
  EXPECT_EQ(cache.free_count(), 9);
}

TEST_F(PrefixCacheTest, KnowsHowLongBlocksLive) {
  constexpr int64_t kSecond = 1'000'000'000;
  PrefixCache cache(3, kBlock);  // 2 blocks
  Text first({1, 2, 3, 4}, root());
  cache.set_time(10 * kSecond);
  fill(cache, first);
  cache.set_time(11 * kSecond);
  cache.release_all(first.table);
  cache.set_time(14 * kSecond);
  Text again({1, 2, 3, 4}, root());
  fill(cache, again);
  EXPECT_EQ(cache.lives().reuse_gap.sum, 3);
  cache.set_time(20 * kSecond);
  cache.release_all(again.table);
  cache.set_time(27 * kSecond);
  static_cast<void>(cache.allocate());
  static_cast<void>(cache.allocate());  // the known one
  EXPECT_EQ(cache.lives().lifetime.sum, 17);
  EXPECT_EQ(cache.lives().idle.sum, 7);
  const auto bucket = std::lower_bound(kAgeBounds.begin(), kAgeBounds.end(), 7.0) - kAgeBounds.begin();
  EXPECT_EQ(cache.lives().idle.counts[static_cast<size_t>(bucket)], 1);
}

TEST_F(PrefixCacheTest, SaysWhyAPromptWasNotFound) {
  PrefixCache cache(4, kBlock);  // 3 blocks
  Text a({1, 2, 3, 4, 5, 6, 7, 8}, root());
  fill(cache, a);
  const auto explain = [&](const Text& t) {
    return cache.explain(t.chain.keys(), t.chain.root(), t.tokens, cache.match(t.chain.keys()).blocks);
  };
  const Miss at6 = explain(Text({1, 2, 3, 4, 5, 6, 0, 8}, root()));
  EXPECT_EQ(at6.reason, MissReason::kDiverged);
  EXPECT_EQ(at6.at, 6);
  const Miss longer = explain(Text({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, root()));
  EXPECT_EQ(longer.reason, MissReason::kDiverged);
  EXPECT_EQ(longer.at, 8);
  EXPECT_EQ(explain(Text({1, 2, 3}, root())).reason, MissReason::kTooShort);
  EXPECT_EQ(explain(a).reason, MissReason::kNone);
  EXPECT_EQ(explain(Text({1, 2, 3, 4}, root("other"))).reason, MissReason::kOtherNamespace);
  cache.release_all(a.table);
  Text b({9, 9, 9, 9, 8, 8, 8, 8}, root());
  fill(cache, b);  // takes the free block and a's last one
  EXPECT_EQ(explain(a).reason, MissReason::kEvicted);
  EXPECT_EQ(explain(a).at, 4);
}

TEST_F(PrefixCacheTest, ClearForgetsButLeavesWhatIsInUse) {
  PrefixCache cache(10, kBlock);
  Text a({1, 2, 3, 4, 5, 6, 7, 8}, root());
  fill(cache, a);
  Text b({9, 9, 9, 9}, root());
  fill(cache, b);
  cache.release_all(b.table);
  cache.clear();
  EXPECT_EQ(cache.known_count(), 0);
  EXPECT_EQ(cache.used_count(), 2);
  EXPECT_EQ(cache.match(a.chain.keys()).blocks, 0);
  cache.check();
  // A block whose parent is unknown stays unknown.
  const int32_t third = cache.allocate();
  Text more({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, root());
  EXPECT_EQ(cache.publish(more.chain.keys(), root(), more.block(2), a.table[1], third), third);
  EXPECT_EQ(cache.known_count(), 0);
  cache.release(third);
  cache.release_all(a.table);
  EXPECT_EQ(cache.free_count(), 9);
  cache.check();
}

// Random traffic against a plain model: what each block holds is written down beside it, and a block that a sequence
// was given must hold exactly the sequence's text for as long as the sequence owns it.
TEST_F(PrefixCacheTest, EvictionNeverTakesWhatIsInUse) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    PrefixCache cache(24, kBlock);
    std::vector<std::vector<int32_t>> memory(24);  // text up to and with the block
    std::vector<Text> live;
    std::vector<std::vector<int32_t>> texts;  // to branch off from
    uint64_t hits = 0;
    const auto verify = [&](const Text& t) {
      for (size_t i = 0; i < t.table.size(); ++i) {
        const auto n = static_cast<std::ptrdiff_t>((i + 1) * kBlock);
        if (n > static_cast<std::ptrdiff_t>(t.tokens.size())) break;
        ASSERT_EQ(memory[static_cast<size_t>(t.table[i])], std::vector<int32_t>(t.tokens.begin(), t.tokens.begin() + n))
            << "seed " << seed << " block " << i;
      }
    };
    for (int step = 0; step < 1500; ++step) {
      if (random() % 3 != 0 || live.empty()) {
        std::vector<int32_t> tokens;
        if (!texts.empty() && random() % 4 != 0) {
          tokens = texts[random() % texts.size()];
          tokens.resize(random() % (tokens.size() + 1));
        }
        const size_t extra = 1 + random() % 14;
        for (size_t i = 0; i < extra; ++i) tokens.push_back(static_cast<int32_t>(random() % 5));
        Text t(tokens, root(random() % 5 == 0 ? "b" : "a"));
        const PrefixMatch match = cache.match(t.chain.keys());
        const auto needed = static_cast<int32_t>((tokens.size() + kBlock - 1) / kBlock);
        if (needed - match.blocks + match.kept > cache.free_count()) continue;
        hits += static_cast<uint64_t>(match.blocks);
        cache.adopt(t.chain.keys().first(static_cast<size_t>(match.blocks)), t.table);
        t.published = match.blocks;
        while (static_cast<int32_t>(t.table.size()) < needed) {
          const int32_t id = cache.allocate();
          for (const Text& other : live) ASSERT_EQ(std::count(other.table.begin(), other.table.end(), id), 0);
          const auto end = std::min(tokens.size(), (t.table.size() + 1) * kBlock);
          memory[static_cast<size_t>(id)].assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end));
          t.table.push_back(id);
        }
        publish(cache, t, t.chain.blocks());
        verify(t);
        live.push_back(std::move(t));
        texts.push_back(std::move(tokens));
        if (texts.size() > 12) texts.erase(texts.begin());
      } else {
        const size_t i = random() % live.size();
        verify(live[i]);
        cache.release_all(live[i].table);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
      }
      std::set<int32_t> in_use;
      for (const Text& t : live) in_use.insert(t.table.begin(), t.table.end());
      ASSERT_EQ(cache.used_count(), static_cast<int32_t>(in_use.size()));
      if (step % 16 == 0) cache.check();
    }
    for (const Text& t : live) {
      verify(t);
      cache.release_all(t.table);
    }
    cache.check();
    EXPECT_EQ(cache.used_count(), 0);
    EXPECT_GT(hits, 100U);
    EXPECT_GT(cache.evictions(), 100U);
  }
}

}  // namespace
}  // namespace di::kv
