// Reuse of KV: prefix hits, windows, replays, forks and preemption against a runner that checks every byte it is asked
// to read.
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <random>

#include "engine/engine.h"
#include "support/sanitizers.h"

namespace di::engine {
namespace {

constexpr int32_t kBlock = 4;
constexpr int32_t kWindow = 6;
constexpr int32_t kRing = kWindow + 1;
constexpr int32_t kVocab = 48;
constexpr int32_t kEos = 1;

// Memory whose entries are hashes of the text before them: an entry that is not of the sequence that reads it is seen.
// The logits follow from the hash, so that the same text always goes on in the same way.
class CheckedRunner final : public Runner {
 public:
  struct Log {
    std::mutex mutex;
    std::string first_violation;
    int64_t violations = 0;
    int64_t rows = 0;
    int64_t rewritten_rows = 0;  // computed below block_write_begin
  };

  CheckedRunner(int32_t n_blocks, int32_t n_slots, Log& log) : log_(log) {
    info_.vocab_size = kVocab;
    info_.eos_token_id = kEos;
    info_.max_positions = 4096;
    info_.block_tokens = kBlock;
    info_.n_blocks = n_blocks;
    info_.n_slots = n_slots;
    info_.copies = true;
    info_.backtracking = kRing - kWindow;
    info_.window = kWindow;
    info_.window_bytes = kWindow * int64_t{sizeof(Entry)};
    info_.kv_dtype = "none";
    info_.backend = "checked";
    blocks_.resize(static_cast<size_t>(n_blocks * kBlock));
    slots_.resize(static_cast<size_t>(n_slots * kRing));
  }

  const RunnerInfo& info() const override { return info_; }

  Result<LogitsView> forward(std::span<const model::SequenceChunk> chunks, std::span<const SequenceTag>) override {
    const std::lock_guard lock(log_.mutex);
    logits_.clear();
    for (const model::SequenceChunk& chunk : chunks) compute(chunk);
    return LogitsView{logits_.data(), static_cast<int64_t>(logits_.size()) / kVocab, kVocab};
  }

  void copy(std::span<const CopyPair> blocks, std::span<const CopyPair> slots) override {
    for (const CopyPair& p : blocks) copy_rows(blocks_, kBlock, p);
    for (const CopyPair& p : slots) copy_rows(slots_, kRing, p);
  }
  void save_window(int32_t slot, kv::SwaEntry& entry) override {
    for (int32_t i = 0; i < kWindow; ++i) {
      std::memcpy(entry.bytes.data() + i * static_cast<int32_t>(sizeof(Entry)),
                  &ring(slot, entry.position - kWindow + i), sizeof(Entry));
    }
  }
  void load_window(int32_t slot, const kv::SwaEntry& entry) override {
    for (int32_t i = 0; i < kRing; ++i) ring(slot, i) = {};
    for (int32_t i = 0; i < kWindow; ++i) {
      std::memcpy(&ring(slot, entry.position - kWindow + i),
                  entry.bytes.data() + i * static_cast<int32_t>(sizeof(Entry)), sizeof(Entry));
    }
  }

 private:
  struct Entry {
    int64_t position = -1;
    uint64_t hash = 0;
    friend bool operator==(const Entry&, const Entry&) = default;
  };

  static void copy_rows(std::vector<Entry>& memory, int32_t rows, const CopyPair& p) {
    for (int32_t i = 0; i < rows; ++i) {
      memory[static_cast<size_t>(p.to * rows + i)] = memory[static_cast<size_t>(p.from * rows + i)];
    }
  }
  Entry& ring(int32_t slot, int32_t position) { return slots_[static_cast<size_t>(slot * kRing + position % kRing)]; }
  Entry& block(const model::SequenceChunk& c, int32_t p) {
    return blocks_[static_cast<size_t>(c.block_table[static_cast<size_t>(p / kBlock)] * kBlock + p % kBlock)];
  }
  void expect(const Entry& found, const Entry& wanted, const char* what) {
    if (found == wanted) return;
    if (log_.violations++ == 0) {
      log_.first_violation = fmt::format("{} of position {}: found position {}", what, wanted.position, found.position);
    }
  }

  void compute(const model::SequenceChunk& c) {
    uint64_t hash = 7;
    const int32_t end = c.begin + c.count;
    std::vector<Entry> entries;
    for (int32_t p = 0; p < end; ++p) {
      hash = (hash ^ static_cast<uint64_t>(c.tokens[static_cast<size_t>(p)] + 1)) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 29;
      entries.push_back({p, hash});
    }
    for (int32_t p = 0; p < c.begin; ++p) expect(block(c, p), entries[static_cast<size_t>(p)], "block");
    for (int32_t p = std::max({0, c.window_start, c.begin - kWindow + 1}); p < c.begin; ++p) {
      expect(ring(c.state_slot, p), entries[static_cast<size_t>(p)], "window");
    }
    log_.rows += c.count;
    for (int32_t p = c.begin; p < end; ++p) {
      const Entry& entry = entries[static_cast<size_t>(p)];
      if (p >= c.block_write_begin) {
        block(c, p) = entry;
      } else {
        ++log_.rewritten_rows;
        expect(block(c, p), entry, "shared block");
      }
      ring(c.state_slot, p) = entry;
      if (p >= c.logits_begin) add_logits(entry.hash);
    }
  }

  void add_logits(uint64_t hash) {
    for (int32_t v = 0; v < kVocab; ++v) {
      const uint64_t x = (hash + static_cast<uint64_t>(v) * 0xBF58476D1CE4E5B9ULL) * 0x94D049BB133111EBULL;
      logits_.push_back(static_cast<float>(x >> 40) * (v == kEos ? 2.5e-7F : 3e-7F));
    }
  }

  Log& log_;
  RunnerInfo info_;
  std::vector<Entry> blocks_;
  std::vector<Entry> slots_;
  std::vector<float> logits_;
};

class Answer {
 public:
  explicit Answer(int32_t n = 1) : open_(n), last_(static_cast<size_t>(n)), tokens_(static_cast<size_t>(n)) {}
  OutputSink sink() {
    return [this](Output out) {
      const std::lock_guard lock(mutex_);
      const auto c = static_cast<size_t>(out.choice);
      for (const OutputToken& t : out.tokens) tokens_[c].push_back(t.token);
      if (out.finish != FinishReason::kNone) --open_;
      last_[c] = std::move(out);
      changed_.notify_all();
    };
  }
  const Output& wait(size_t choice = 0) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_ == 0; });
    return last_[choice];
  }
  const std::vector<int32_t>& tokens(size_t choice = 0) const { return tokens_[choice]; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t open_;
  std::vector<Output> last_;
  std::vector<std::vector<int32_t>> tokens_;
};

struct Rig {
  CheckedRunner::Log log;
  ManualClock clock;
  std::unique_ptr<Engine> engine;

  explicit Rig(EngineOptions options, int32_t n_blocks = 65) {
    options.max_model_len = options.max_model_len == 0 ? 128 : options.max_model_len;
    engine = Engine::create(std::make_unique<CheckedRunner>(n_blocks, options.max_num_seqs + 1, log), options, clock)
                 .value();
  }
  void expect_clean() {
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.used_blocks, 0);
    EXPECT_EQ(stats.used_slots, 0);
    EXPECT_EQ(stats.waiting, 0);
    const std::lock_guard lock(log.mutex);
    EXPECT_EQ(log.violations, 0) << log.first_violation;
  }
};

EngineOptions options(bool prefix, bool replay, int64_t windows = 1 << 20) {
  EngineOptions out;
  out.max_num_seqs = 6;
  out.max_num_batched_tokens = 24;
  out.reuse.prefix_cache = prefix;
  out.reuse.replay = replay;
  out.reuse.window_memory_bytes = windows;
  return out;
}

GenerateRequest request(std::vector<int32_t> prompt, int64_t max_tokens = 10, double temperature = 0) {
  GenerateRequest r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.temperature = temperature;
  return r;
}

std::vector<int32_t> text(int32_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> out;
  for (int32_t i = 0; i < n; ++i) out.push_back(2 + static_cast<int32_t>(random() % (kVocab - 2)));
  return out;
}

std::vector<int32_t> operator+(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(Reuse, ASecondTurnStartsAtTheLastBoundaryOfTheFirst) {
  Rig s(options(true, false));
  Answer first;
  const auto prompt = text(21, 1);
  ASSERT_TRUE(s.engine->submit(request(prompt, 12), first.sink()));
  EXPECT_EQ(first.wait().cached_tokens, 0);
  EXPECT_EQ(first.wait().cache.miss.reason, kv::MissReason::kDiverged);
  const auto history = prompt + first.tokens();
  ASSERT_GE(history.size(), 30U);
  Answer second;
  ASSERT_TRUE(s.engine->submit(request(history + text(5, 2), 4), second.sink()));
  // The last sampled token was never computed, so the last boundary is that of the tokens before it.
  const auto boundary = static_cast<int64_t>((history.size() - 1) / kBlock * kBlock);
  EXPECT_EQ(second.wait().cached_tokens, boundary);
  EXPECT_EQ(second.wait().cache.window, kv::SwaOutcome::kHit);
  EXPECT_EQ(second.wait().cache.miss.reason, kv::MissReason::kDiverged);
  EXPECT_EQ(second.wait().cache.miss.at, boundary);
  EXPECT_EQ(s.engine->stats().windows.hits, 1U);
  EXPECT_EQ(s.engine->stats().prefix_hits, static_cast<uint64_t>(boundary));
  s.expect_clean();
}

TEST(Reuse, WithoutItsWindowAHitIsReplayedOrComputedCold) {
  for (const bool replay : {true, false}) {
    Rig s(options(true, replay));
    const auto prompt = text(21, 3);
    Answer cold;
    ASSERT_TRUE(s.engine->submit(request(prompt), cold.sink()));
    cold.wait();
    s.clock.advance(181 * kNsPerSecond);
    int64_t rows = 0;
    {
      const std::lock_guard lock(s.log.mutex);
      rows = s.log.rows;
    }
    Answer warm;
    ASSERT_TRUE(s.engine->submit(request(prompt), warm.sink()));
    EXPECT_EQ(warm.wait().cache.window, kv::SwaOutcome::kMiss);
    EXPECT_EQ(warm.tokens(), cold.tokens());
    EXPECT_EQ(warm.wait().cached_tokens, replay ? 20 : 0);
    EXPECT_EQ(warm.wait().cache.replay_rows, replay ? kWindow : 0);
    const EngineStats stats = s.engine->stats();
    EXPECT_EQ(stats.replayed_tokens, replay ? uint64_t{kWindow} : 0U);
    EXPECT_EQ(stats.windows.misses, 1U);
    {
      const std::lock_guard lock(s.log.mutex);
      EXPECT_EQ(s.log.rewritten_rows, replay ? kWindow : 0);
      const auto decoded = static_cast<int64_t>(warm.tokens().size());
      EXPECT_LE(s.log.rows - rows, (replay ? kWindow + 1 : 21) + decoded + 1);
    }
    // The window was saved where the replay ended: the next one is a hit.
    Answer third;
    ASSERT_TRUE(s.engine->submit(request(prompt), third.sink()));
    EXPECT_EQ(third.wait().cache.window, kv::SwaOutcome::kHit);
    EXPECT_EQ(third.tokens(), cold.tokens());
    s.expect_clean();
  }
}

TEST(Reuse, ASharedBeginningIsFoundOnceItWasSeenTwice) {
  Rig s(options(true, false));
  const auto system = text(16, 4);
  std::vector<int64_t> cached;
  for (uint32_t i = 0; i < 4; ++i) {
    Answer a;
    ASSERT_TRUE(s.engine->submit(request(system + text(9, 50 + i)), a.sink()));
    cached.push_back(a.wait().cached_tokens);
  }
  // The second finds blocks without a window, computes cold and leaves one there.
  EXPECT_EQ(cached, (std::vector<int64_t>{0, 0, 16, 16}));
  s.expect_clean();
}

TEST(Reuse, TenantsAndNamespacesDoNotShare) {
  Rig s(options(true, true));
  const auto prompt = text(21, 5);
  const auto run = [&](const std::string& tenant, const std::string& space) {
    Answer a;
    GenerateRequest r = request(prompt);
    r.tenant = tenant;
    r.cache_namespace = space;
    EXPECT_TRUE(s.engine->submit(r, a.sink()));
    return a.wait();
  };
  run("a", "");
  EXPECT_EQ(run("b", "").cached_tokens, 0);
  EXPECT_EQ(run("c", "").cache.miss.reason, kv::MissReason::kOtherNamespace);
  EXPECT_EQ(run("a", "x").cached_tokens, 0);
  EXPECT_GT(run("a", "").cached_tokens, 0);
  EXPECT_GT(run("b", "x").cached_tokens, 0);  // the namespace stands for the tenant
  s.expect_clean();
}

TEST(Reuse, ChoicesForkFromTheFirstAndEqualSeparateRuns) {
  for (const int32_t length : {20, 21}) {  // at a block boundary and behind one
    const auto prompt = text(length, 6);
    std::vector<std::vector<int32_t>> alone;
    Rig one(options(false, false));
    for (uint64_t i = 0; i < 5; ++i) {
      GenerateRequest r = request(prompt, 12, 1.0);
      r.sampling.seed = 100 + i;
      Answer a;
      ASSERT_TRUE(one.engine->submit(r, a.sink()));
      a.wait();
      alone.push_back(a.tokens());
    }
    one.expect_clean();
    for (const bool prefix : {true, false}) {
      Rig s(options(prefix, false));
      GenerateRequest r = request(prompt, 12, 1.0);
      r.sampling.seed = 100;
      r.n = 5;
      Answer a(5);
      ASSERT_TRUE(s.engine->submit(r, a.sink()));
      for (size_t i = 0; i < 5; ++i) {
        a.wait(i);
        EXPECT_EQ(a.tokens(i), alone[i]) << "choice " << i;
      }
      EXPECT_EQ(s.engine->stats().forks, 4U);
      EXPECT_EQ(s.engine->stats().prompt_tokens, static_cast<uint64_t>(length + 4));
      s.expect_clean();
    }
  }
}

TEST(Reuse, APreemptedSequenceFindsItsOwnBlocks) {
  std::map<bool, uint64_t> computed;
  std::map<bool, std::vector<std::vector<int32_t>>> tokens;
  for (const bool prefix : {false, true}) {
    EngineOptions o = options(prefix, false);
    o.max_model_len = 90;
    Rig s(o, 33);  // 32 blocks of 4 tokens: two of the three fit to their end
    std::vector<std::unique_ptr<Answer>> answers;
    for (uint32_t i = 0; i < 3; ++i) {
      answers.push_back(std::make_unique<Answer>());
      GenerateRequest r = request(text(9, 70 + i), 40);
      r.ignore_eos = true;
      ASSERT_TRUE(s.engine->submit(r, answers.back()->sink()));
    }
    for (const auto& a : answers) {
      EXPECT_EQ(a->wait().finish, FinishReason::kLength);
      tokens[prefix].push_back(a->tokens());
    }
    EXPECT_GT(s.engine->stats().preemptions, 0U);
    const std::lock_guard lock(s.log.mutex);
    computed[prefix] = static_cast<uint64_t>(s.log.rows);
    EXPECT_EQ(s.log.violations, 0) << s.log.first_violation;
  }
  EXPECT_EQ(tokens[false], tokens[true]);
  EXPECT_LT(computed[true], computed[false]);
}

// Conversations that grow turn by turn, branch, fork and get cancelled, in a pool that is too small for them: whatever
// is reused, the transcript is the same.
TEST(Reuse, TheSameTokensUnderRandomTrafficWithAndWithoutReuse) {
  const auto play = [](const EngineOptions& o, uint32_t seed, EngineStats& stats) {
    Rig s(o, 41);
    std::mt19937 random(seed);
    std::vector<std::vector<int32_t>> histories = {text(11, seed), text(18, seed + 1)};
    std::vector<std::vector<int32_t>> transcript;
    for (int round = 0; round < 12; ++round) {
      struct Asked {
        std::vector<int32_t> prompt;
        std::unique_ptr<Answer> answer;
        int32_t n = 1;
        bool cancelled = false;
      };
      std::vector<Asked> asked;
      for (int i = 0; i < 7; ++i) {
        std::vector<int32_t> history = histories[random() % histories.size()];
        if (random() % 3 == 0) history.resize(1 + random() % history.size());
        const auto extra = static_cast<int32_t>(1 + random() % 9);
        const uint32_t text_seed = static_cast<uint32_t>(random());
        GenerateRequest r = request(history + text(extra, text_seed), static_cast<int64_t>(1 + random() % 14),
                                    random() % 2 == 0 ? 0.0 : 1.0);
        r.sampling.seed = random();
        r.n = random() % 4 == 0 ? 3 : 1;
        r.tenant = random() % 4 == 0 ? "other" : "";
        Asked a{r.prompt, std::make_unique<Answer>(r.n), r.n, random() % 8 == 0};
        const auto id = s.engine->submit(r, a.answer->sink());
        if (!id) continue;
        if (a.cancelled) s.engine->cancel(*id);
        asked.push_back(std::move(a));
      }
      for (Asked& a : asked) {
        for (int32_t c = 0; c < a.n; ++c) {
          const Output& out = a.answer->wait(static_cast<size_t>(c));
          if (a.cancelled) continue;
          EXPECT_NE(out.finish, FinishReason::kError) << out.error.message;
          transcript.push_back(a.answer->tokens(static_cast<size_t>(c)));
        }
        if (a.cancelled) continue;
        std::vector<int32_t> longer = a.prompt + a.answer->tokens();
        if (longer.size() < 90) histories.push_back(longer);
      }
      while (histories.size() > 8) histories.erase(histories.begin());
      if (random() % 4 == 0) s.clock.advance(100 * kNsPerSecond);
    }
    s.expect_clean();
    stats = s.engine->stats();
    return transcript;
  };
  for (uint32_t seed = 1; seed <= (test::kSanitized ? 2 : 6); ++seed) {
    EngineStats off;
    const auto expected = play(options(false, false), seed, off);
    EXPECT_EQ(off.prefix_hits, 0U);
    for (const bool replay : {false, true}) {
      for (const int64_t windows : {int64_t{1} << 20, int64_t{700}}) {
        for (const bool async : {true, false}) {
          EngineOptions o = options(true, replay, windows);
          o.async_scheduling = async;
          EngineStats on;
          EXPECT_EQ(expected, play(o, seed, on)) << "seed " << seed << " replay " << replay << " windows " << windows;
          EXPECT_GT(on.prefix_hits, 100U);
          EXPECT_GT(on.evicted_blocks, 10U);
          EXPECT_GT(on.forks, 0U);
          if (replay) {
            EXPECT_GT(on.replays, 0U);
          }
        }
      }
    }
  }
}

TEST(Reuse, KeepMustHoldTheWindowAndTheRollBackRows) {
  CheckedRunner::Log log;
  ManualClock clock;
  EngineOptions o = options(true, true);
  o.max_model_len = 64;
  o.reuse.replay_keep = 3;
  // A model without a decoder half is never truncated.
  const auto engine = Engine::create(std::make_unique<CheckedRunner>(65, 7, log), o, clock);
  ASSERT_TRUE(engine);
  EXPECT_EQ((*engine)->info().prefill_truncation, "off");
}

}  // namespace
}  // namespace di::engine
