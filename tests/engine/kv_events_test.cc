// An index that is kept with the events of an engine (EngineApi::watch_kv) says what the engine itself knows.
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <set>

#include "engine/engine.h"
#include "engine/scripted.h"
#include "support/engine_support.h"

namespace di::engine {
namespace {

using kv::BlockEvent;

constexpr int32_t kBlock = 8;

// What a router keeps of an engine.
class Index {
 public:
  explicit Index(EngineApi& engine) {
    engine.watch_kv([this](KvEvents events) { take(events); });
  }

  // Leading blocks of a prompt that are known, by the events alone.
  int32_t known(const std::vector<kv::BlockKey>& chain) {
    const std::lock_guard lock(mutex_);
    int32_t n = 0;
    while (n < static_cast<int32_t>(chain.size()) && keys_.contains(chain[static_cast<size_t>(n)])) ++n;
    return n;
  }
  size_t size() {
    const std::lock_guard lock(mutex_);
    return keys_.size();
  }
  std::set<kv::BlockKey> keys() {
    const std::lock_guard lock(mutex_);
    return keys_;
  }
  int removed = 0;

 private:
  void take(const KvEvents& events) {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(last_ == 0 || events.number == last_ + 1) << events.number << " after " << last_;
    last_ = events.number;
    EXPECT_FALSE(events.events.empty());
    for (const BlockEvent& event : events.events) {
      switch (event.kind) {
        case BlockEvent::Kind::kStored:
          EXPECT_TRUE(keys_.insert(event.key).second) << "stored twice";
          break;
        case BlockEvent::Kind::kRemoved:
          EXPECT_EQ(keys_.erase(event.key), 1U) << "removed, and not there";
          ++removed;
          break;
        case BlockEvent::Kind::kCleared:
          keys_.clear();
      }
    }
  }

  std::mutex mutex_;  // guards what follows, and removed
  std::set<kv::BlockKey> keys_;
  uint64_t last_ = 0;
};

std::unique_ptr<Engine> make_engine(const Clock& clock) {
  ScriptedOptions script;
  script.block_tokens = script.window = kBlock;
  script.n_blocks = 25;
  script.scripts.push_back({{}, {7, 8, 9}});
  EngineOptions options;
  options.reuse.replay = true;
  return Engine::create(make_scripted_runner(std::move(script), clock), options, clock).value();
}

std::vector<int32_t> prompt_of(int32_t n, int32_t seed) {
  std::vector<int32_t> out;
  for (int32_t i = 0; i < n; ++i) out.push_back(20 + (i < 16 ? seed % 3 : seed));
  return out;
}

// The last word about what the engine has done so far.
int64_t look_up(EngineApi& engine, const std::vector<int32_t>& prompt) {
  std::promise<int64_t> found;
  engine.look_up(test::request(prompt), [&](const CacheLookup& out) { found.set_value(out.block_tokens); });
  const int64_t tokens = found.get_future().get();
  // Events of a turn are told at its end: one more turn, and all are.
  std::promise<void> told;
  engine.look_up(test::request(prompt), [&](const CacheLookup&) { told.set_value(); });
  told.get_future().wait();
  return tokens;
}

std::vector<kv::BlockKey> chain_of(const std::vector<int32_t>& prompt) {
  kv::RootFields fields;
  fields.block_tokens = kBlock;
  kv::BlockChain chain(kv::root_key(fields), kBlock);
  chain.extend(prompt);
  return {chain.keys().begin(), chain.keys().end()};
}

void ask(EngineApi& engine, const std::vector<int32_t>& prompt) {
  test::Collector collector;
  ASSERT_TRUE(engine.submit(test::request(prompt, 3), collector.sink()));
  collector.wait();
}

TEST(KvEvents, AnIndexKeptWithThemKnowsWhatTheEngineKnows) {
  const SystemClock clock;
  const auto engine = make_engine(clock);
  Index index(*engine);
  for (int32_t i = 0; i < 40; ++i) {
    ask(*engine, prompt_of(17 + i * 5 % 60, i % 11));
    for (int32_t seed = 0; seed < 11; ++seed) {
      const std::vector<int32_t> prompt = prompt_of(80, seed);
      const int64_t expected = look_up(*engine, prompt);
      EXPECT_EQ(int64_t{index.known(chain_of(prompt))} * kBlock, expected) << "prompt " << seed << " after " << i;
    }
  }
  EXPECT_GT(engine->stats().evicted_blocks, 0U);
  EXPECT_EQ(static_cast<uint64_t>(index.removed), engine->stats().evicted_blocks);
  EXPECT_GT(index.size(), 0U);
  engine->flush_cache();
  EXPECT_EQ(look_up(*engine, prompt_of(80, 1)), 0);
  EXPECT_EQ(index.size(), 0U);
}

TEST(KvEvents, WhoComesLateGetsAllThatIsKnown) {
  const SystemClock clock;
  const auto engine = make_engine(clock);
  Index first(*engine);
  for (int32_t i = 0; i < 6; ++i) ask(*engine, prompt_of(40, i));
  look_up(*engine, {20});
  const std::set<kv::BlockKey> expected = first.keys();
  EXPECT_GT(expected.size(), 6U);
  Index second(*engine);  // takes the place of the first
  look_up(*engine, {20});
  EXPECT_EQ(second.keys(), expected);
  ask(*engine, prompt_of(40, 77));
  look_up(*engine, {20});
  EXPECT_NE(second.keys(), expected);
  EXPECT_EQ(first.keys(), expected);
  engine->watch_kv(nullptr);
  ask(*engine, prompt_of(40, 78));
  EXPECT_EQ(look_up(*engine, prompt_of(40, 78)), 40);
}

}  // namespace
}  // namespace di::engine
