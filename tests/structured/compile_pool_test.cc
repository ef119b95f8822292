#include "structured/compile_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "structured/fixture.h"

namespace di::structured {
namespace {

using testing::byte_vocabulary;

ConstraintSpec regex(std::string pattern) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kRegex;
  spec.payload = std::move(pattern);
  return spec;
}

// Verdicts as they come in.
class Verdicts {
 public:
  CompilePool::Done sink() {
    return [this](const Expected<CompiledRef>& verdict) {
      const std::lock_guard lock(mutex_);
      all_.push_back(verdict);
      changed_.notify_all();
    };
  }
  Expected<CompiledRef> wait(size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return all_.size() > n; });
    return all_[n];
  }
  size_t count() {
    const std::lock_guard lock(mutex_);
    return all_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Expected<CompiledRef>> all_;
};

CompilePoolOptions one_thread() {
  CompilePoolOptions options;
  options.threads = 1;
  return options;
}

TEST(CompilePool, EqualSpecificationsAreCompiledOnce) {
  const ManualClock clock;
  CompilePool pool(byte_vocabulary(), one_thread(), clock);
  Verdicts v;
  for (int i = 0; i < 4; ++i) pool.compile(regex("a{3}"), v.sink());
  const CompiledRef first = v.wait(0).value();
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(v.wait(i).value(), first);
  pool.compile(regex("a{3}"), v.sink());  // known: answered at once
  EXPECT_EQ(v.count(), 5U);
  EXPECT_EQ(pool.stats().misses, 1U);
  EXPECT_EQ(pool.stats().hits, 4U);
  EXPECT_TRUE(testing::takes(first, "aaa"));
}

TEST(CompilePool, OptionsAndKindsTellSpecificationsApart) {
  ConstraintSpec spec = regex("a");
  std::vector<std::string> keys = {constraint_key(spec)};
  const auto changed = [&](auto&& change) {
    ConstraintSpec other = spec;
    change(other);
    keys.push_back(constraint_key(other));
  };
  changed([](ConstraintSpec& s) { s.kind = ConstraintKind::kEbnf; });
  changed([](ConstraintSpec& s) { s.payload = "b"; });
  changed([](ConstraintSpec& s) { s.or_tools = "a"; });
  changed([](ConstraintSpec& s) { s.reasoning = true; });
  changed([](ConstraintSpec& s) { s.options.lenient = true; });
  changed([](ConstraintSpec& s) { s.options.close_objects = true; });
  changed([](ConstraintSpec& s) { s.options.numeric_formats = true; });
  changed([](ConstraintSpec& s) { s.options.refuse_unknown_formats = true; });
  changed([](ConstraintSpec& s) { s.options.whitespace = Whitespace::kCompact; });
  changed([](ConstraintSpec& s) { s.options.whitespace_pattern = " "; });
  changed([](ConstraintSpec& s) { s.options.property_order = PropertyOrder::kAny; });
  changed([](ConstraintSpec& s) { s.options.tool_choice = ToolChoice::kRequired; });
  changed([](ConstraintSpec& s) { s.options.tool_name = "f"; });
  changed([](ConstraintSpec& s) { s.options.parallel_tool_calls = false; });
  std::ranges::sort(keys);
  EXPECT_TRUE(std::ranges::adjacent_find(keys) == keys.end());
  EXPECT_EQ(constraint_key(spec), constraint_key(regex("a")));
}

// Its observer may use the pool: it is others' code and called outside the lock.
TEST(CompilePool, TheObserverMayAskForFigures) {
  const ManualClock clock;
  CompilePool pool(byte_vocabulary(), one_thread(), clock);
  std::atomic<uint64_t> seen{0};
  pool.on_compiled([&](double) { seen = pool.stats().misses; });
  Verdicts v;
  pool.compile(regex("ab"), v.sink());
  EXPECT_TRUE(v.wait(0));
  EXPECT_EQ(seen, 1U);
}

TEST(CompilePool, RefusalsAreKeptForAWhile) {
  ManualClock clock;
  CompilePool pool(byte_vocabulary(), one_thread(), clock);
  Verdicts v;
  pool.compile(regex("(a"), v.sink());
  EXPECT_EQ(v.wait(0).error().code, "invalid_regex");
  pool.compile(regex("(a"), v.sink());
  EXPECT_EQ(v.wait(1).error().code, "invalid_regex");
  EXPECT_EQ(pool.stats().misses, 1U);
  clock.advance(61 * kNsPerSecond);
  pool.compile(regex("(a"), v.sink());
  EXPECT_EQ(v.wait(2).error().code, "invalid_regex");
  EXPECT_EQ(pool.stats().misses, 2U);
}

TEST(CompilePool, TheLeastRecentlyUsedGoFirst) {
  const ManualClock clock;
  CompilePoolOptions options = one_thread();
  options.max_cached = 2;
  CompilePool pool(byte_vocabulary(), options, clock);
  Verdicts v;
  size_t n = 0;
  const auto ask = [&](const char* pattern) {
    pool.compile(regex(pattern), v.sink());
    EXPECT_TRUE(v.wait(n++).has_value());
  };
  ask("a");
  ask("b");
  ask("a");
  ask("c");  // b is dropped
  EXPECT_EQ(pool.stats().misses, 3U);
  ask("a");
  EXPECT_EQ(pool.stats().misses, 3U);
  ask("b");
  EXPECT_EQ(pool.stats().misses, 4U);
  EXPECT_LE(pool.stats().cached, 2);
}

TEST(CompilePool, BytesBoundTheCacheAndUsersKeepWhatTheyHave) {
  const ManualClock clock;
  CompilePoolOptions options = one_thread();
  options.cache_bytes = 1;
  CompilePool pool(byte_vocabulary(), options, clock);
  Verdicts v;
  pool.compile(regex("ab*"), v.sink());
  const CompiledRef kept = v.wait(0).value();
  pool.compile(regex("cd*"), v.sink());
  EXPECT_TRUE(v.wait(1).has_value());
  EXPECT_EQ(pool.stats().cached, 1);
  EXPECT_TRUE(testing::takes(kept, "abbb"));
}

TEST(CompilePool, TooManyWaitingAreRefused) {
  const ManualClock clock;
  CompilePoolOptions options = one_thread();
  options.max_waiting = 0;
  CompilePool pool(byte_vocabulary(), options, clock);
  Verdicts v;
  pool.compile(regex("a"), v.sink());
  EXPECT_EQ(v.wait(0).error().code, "overloaded");
}

// What is asked for while a costly one is compiled by another thread does not wait for it.
TEST(CompilePool, ASlowCompilationHoldsUpNobodyElse) {
  const ManualClock clock;
  CompilePoolOptions options;
  options.threads = 2;
  options.limits.compile_cpu_ms = 1000;
  CompilePool pool(byte_vocabulary(), options, clock);
  Verdicts slow;
  Verdicts fast;
  ConstraintSpec costly;
  costly.kind = ConstraintKind::kRegex;
  costly.payload = "(?=.*a.{14}b)(?=.*c.{14}d)(?=.*e.{14}f)(?!.*g.{14}h).*";
  pool.compile(costly, slow.sink());
  for (int i = 0; i < 20; ++i) pool.compile(regex("a{" + std::to_string(i + 1) + "}"), fast.sink());
  EXPECT_TRUE(fast.wait(19).has_value());
  EXPECT_EQ(slow.count(), 0U);
  const std::string code = slow.wait(0).error().code;
  EXPECT_TRUE(code == "constraint_compile_timeout" || code == "constraint_too_complex") << code;
}

}  // namespace
}  // namespace di::structured
