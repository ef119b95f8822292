// Two engines with a hand on each of their parts: steps that wait or fail, an engine that goes away, and memory whose
// every byte in a wrong place is seen.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/engine_pair.h"
#include "support/engine_support.h"

namespace di::engine::test {

inline constexpr int32_t kBlock = 8;
inline constexpr int32_t kBlocks = 64;  // usable

// Lets others run for so long.
inline void pause(int64_t ns) {
  const SystemClock clock;
  clock.sleep_until(clock.now_ns() + ns);
}

// True within a second.
inline bool soon(const std::function<bool()>& done) {
  const SystemClock clock;
  const int64_t limit = clock.now_ns() + kNsPerSecond;
  while (!done()) {
    if (clock.now_ns() > limit) return false;
    pause(kNsPerMs);
  }
  return true;
}

// What makes steps wait or fail, by the side it is on.
struct Gate {
  std::atomic<bool> closed{false};
  std::atomic<int> waiting{0};
  std::atomic<bool> broken{false};

  Result<void> pass() {
    ++waiting;
    while (closed.load()) pause(kNsPerMs);
    --waiting;
    if (broken.load()) return fail(Errc::kUnavailable, "the device is lost");
    return {};
  }
};

// HashRunner, whose blocks and slots can be read and written: the tokens in them.
class MovingRunner final : public HashRunner {
 public:
  MovingRunner(const HashOptions& options, Gate& gate, TransferFault fault)
      : HashRunner(options), gate_(gate), fault_(fault) {
    info_.transfers = true;
  }
  Result<LogitsView> forward(std::span<const model::SequenceChunk> chunks, std::span<const SequenceTag> tags) override {
    DI_TRY(gate_.pass());
    return HashRunner::forward(chunks, tags);
  }
  std::vector<std::byte> read_block(int32_t block) override { return raw(blocks_[static_cast<size_t>(block)]); }
  std::vector<std::byte> read_state(int32_t slot, int32_t position) override {
    EXPECT_GE(static_cast<int32_t>(slots_[slot].size()), position);
    std::vector<int32_t> state = slots_[slot];
    state.resize(static_cast<size_t>(position));
    return raw(state);
  }
  Result<void> write_block(int32_t block, std::span<const std::byte> bytes) override {
    blocks_[static_cast<size_t>(block)] = ints(bytes);
    return {};
  }
  Result<void> write_state(int32_t slot, int32_t, std::span<const std::byte> bytes) override {
    slots_[slot] = ints(bytes);
    return {};
  }
  TransferFault transfer_fault(const SequenceTag&, std::span<const int32_t>) override { return fault_; }

 private:
  static std::vector<std::byte> raw(const std::vector<int32_t>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
  }
  static std::vector<int32_t> ints(std::span<const std::byte> bytes) {
    std::vector<int32_t> out(bytes.size() / 4);
    std::memcpy(out.data(), bytes.data(), out.size() * 4);
    return out;
  }

  Gate& gate_;
  TransferFault fault_;
};

struct PairSetup {
  int32_t prefill_blocks = kBlocks;
  int32_t decode_blocks = kBlocks;
  int32_t max_num_seqs = 8;
  int64_t prefill_max_len = 0;
  TransferFault fault;
  EnginePairOptions pair;
  bool prefix_cache = true;
};

inline std::unique_ptr<Engine> make_engine(const PairSetup& setup, int32_t blocks, int64_t max_len, Gate& gate,
                                           TransferFault fault, const Clock& clock) {
  HashOptions options;
  options.n_blocks = blocks + 1;
  options.block_tokens = kBlock;
  EngineOptions engine;
  engine.max_num_seqs = setup.max_num_seqs;
  engine.max_num_batched_tokens = 24;  // prompts come in chunks
  engine.max_model_len = max_len;
  engine.reuse.prefix_cache = setup.prefix_cache;
  auto made = Engine::create(std::make_unique<MovingRunner>(options, gate, fault), engine, clock);
  EXPECT_TRUE(made) << made.error().message;
  return std::move(*made);
}

// An engine that can be taken away while a pair holds it.
class Removable final : public EngineApi {
 public:
  explicit Removable(std::unique_ptr<Engine> engine) : engine_(std::move(engine)), info_(engine_->info()) {}
  const EngineInfo& info() const override { return info_; }
  std::expected<RequestId, Rejection> submit(GenerateRequest request, OutputSink sink) override {
    const std::lock_guard lock(mutex_);
    if (engine_ != nullptr) return engine_->submit(std::move(request), std::move(sink));
    return std::unexpected(Rejection{RejectReason::kStopped, Error{Errc::kUnavailable, "the engine has stopped"}, 0});
  }
  void cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    if (engine_ != nullptr) engine_->cancel(id);
  }
  void cancel(RequestId id, int32_t choice) override {
    const std::lock_guard lock(mutex_);
    if (engine_ != nullptr) engine_->cancel(id, choice);
  }
  EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    return engine_ == nullptr ? EngineStats{} : engine_->stats();
  }
  void flush_cache() override {}
  void look_up(const GenerateRequest&, std::function<void(CacheLookup)> done) override { done({}); }
  void watch_kv(std::function<void(KvEvents)>) override {}

  void remove() {
    std::unique_ptr<Engine> gone;
    const std::lock_guard lock(mutex_);
    gone = std::move(engine_);
  }

 private:
  mutable std::mutex mutex_;
  std::unique_ptr<Engine> engine_;
  EngineInfo info_;
};

// A pair with a hand on each of its parts.
struct Pair {
  explicit Pair(const PairSetup& setup = {}) {
    auto first = std::make_unique<Removable>(
        make_engine(setup, setup.prefill_blocks, setup.prefill_max_len, prefill_gate, setup.fault, clock));
    auto second = make_engine(setup, setup.decode_blocks, 0, decode_gate, {}, clock);
    prefill = first.get();
    decode = second.get();
    pair = EnginePair::create(std::move(first), std::move(second), setup.pair, clock).value();
  }
  ~Pair() { prefill_gate.closed = decode_gate.closed = false; }
  bool idle() const {
    for (const EngineStats& s : {prefill->stats(), decode->stats()}) {
      if (s.used_blocks + s.used_slots + s.leased_blocks + s.running + s.waiting != 0) return false;
    }
    return true;
  }

  SystemClock clock;
  Gate prefill_gate;
  Gate decode_gate;
  std::unique_ptr<EnginePair> pair;
  Removable* prefill = nullptr;
  Engine* decode = nullptr;
};

inline std::vector<int32_t> prompt_of(int32_t n, int32_t seed) {
  std::vector<int32_t> out;
  for (int32_t i = 0; i < n; ++i) out.push_back(2 + (seed * 31 + i * 7 + i / 5) % 47);
  return out;
}

inline std::vector<int32_t> tokens_of(EngineApi& engine, GenerateRequest request) {
  Collector collector;
  const auto id = engine.submit(std::move(request), collector.sink());
  EXPECT_TRUE(id) << id.error().error.message;
  const auto& choice = collector.wait();
  EXPECT_NE(choice.finish, FinishReason::kError) << choice.error.message;
  return choice.tokens;
}

}  // namespace di::engine::test
