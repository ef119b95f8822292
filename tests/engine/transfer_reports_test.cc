// Faults around hand-overs that users of other serving systems reported, each as a test of the right behaviour; the
// number is that of the report. Over the wire: tests/e2e/test_handover.py.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "engine/transfer_support.h"

namespace di::engine {
namespace {

using namespace test;
using std::chrono::steady_clock;
using std::chrono_literals::operator""s;

TEST(TransferFieldReports, B057_APromptTooLongForThePrefillSideIsRefusedOnce) {
  PairSetup setup;
  setup.prefill_max_len = 50;
  Pair p(setup);
  Collector collector;
  const auto refused = p.pair->submit(request(prompt_of(51, 1), 5), collector.sink());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, RejectReason::kContextLength);
  EXPECT_TRUE(p.idle());
  EXPECT_EQ(p.decode->stats().steps, 0U);
  EXPECT_EQ(p.decode->stats().generated_tokens, 0U);
  EXPECT_EQ(tokens_of(*p.pair, request(prompt_of(50, 1), 5)).size(), 5U);
}

// The orderly half: an engine that ends. A process that is gone is for what carries transfers between processes.
TEST(TransferFieldReports, B058_APrefillSideThatEndsLeavesNobodyWaiting) {
  Pair p;
  std::vector<std::unique_ptr<Collector>> collectors;
  p.prefill_gate.closed = true;
  for (int32_t i = 0; i < 100; ++i) {
    collectors.push_back(std::make_unique<Collector>());
    ASSERT_TRUE(p.pair->submit(request(prompt_of(20, i), 5), collectors.back()->sink()));
  }
  ASSERT_TRUE(soon([&] { return p.prefill_gate.waiting > 0 && p.decode->stats().running == 8; }));
  const auto begin = steady_clock::now();
  std::thread remover([&] { p.prefill->remove(); });
  pause(10 * kNsPerMs);
  p.prefill_gate.closed = false;  // the step under way ends
  for (const auto& collector : collectors) {
    const auto& choice = collector->wait();
    if (choice.finish == FinishReason::kError) {
      EXPECT_EQ(choice.error.code, Errc::kUnavailable) << choice.error.message;
      EXPECT_TRUE(choice.tokens.empty());
    }
  }
  EXPECT_LT(steady_clock::now() - begin, 1s);
  remover.join();
  EXPECT_TRUE(soon([&] { return p.idle(); }));
  EXPECT_GT(p.decode->stats().transfers_failed, 0U);
}

TEST(TransferFieldReports, B058_AStepThatFailsIsTriedOnceMore) {
  Pair p;
  p.prefill_gate.closed = true;
  p.prefill_gate.broken = true;
  Collector collector;
  ASSERT_TRUE(p.pair->submit(request(prompt_of(20, 1), 5), collector.sink()));
  ASSERT_TRUE(soon([&] { return p.prefill_gate.waiting > 0; }));
  p.prefill_gate.closed = false;
  ASSERT_TRUE(soon([&] { return p.prefill->stats().transfers_failed >= 1; }));
  p.prefill_gate.broken = false;
  const auto& choice = collector.wait();
  // The second attempt meets a device that works, or one that is still broken: one of both, never a third.
  EXPECT_TRUE(choice.finish == FinishReason::kLength || choice.error.code == Errc::kUnavailable);
  EXPECT_LE(p.prefill->stats().transfers_failed, 2U);
  p.prefill_gate.broken = true;
  Collector lost;
  ASSERT_TRUE(p.pair->submit(request(prompt_of(20, 2), 5), lost.sink()));
  EXPECT_EQ(lost.wait().error.code, Errc::kUnavailable);
  EXPECT_TRUE(lost.wait().tokens.empty());
  EXPECT_TRUE(soon([&] { return p.idle(); }));
}

// Half of the requests are given up while their prompts are on the way; those that get their blocks read nothing of
// them (the runner compares every position of every row).
TEST(TransferFieldReports, B059_BlocksOfAnAbortedRequestAreNotWrittenAnyMore) {
  PairSetup setup;
  setup.fault.late_ns = 10 * kNsPerMs;
  setup.decode_blocks = 20;
  Pair p(setup);
  Gate open;
  const auto alone = make_engine({}, kBlocks, 0, open, {}, p.clock);
  for (int32_t round = 0; round < 30; ++round) {
    std::vector<RequestId> ids;
    std::vector<std::unique_ptr<Collector>> collectors;
    for (int32_t i = 0; i < 8; ++i) {
      collectors.push_back(std::make_unique<Collector>());
      ids.push_back(p.pair->submit(request(prompt_of(30, round * 8 + i), 6), collectors.back()->sink()).value());
    }
    ASSERT_TRUE(soon([&] { return p.decode->stats().leased_blocks > 0 || p.idle(); }));
    for (size_t i = 0; i < ids.size(); i += 2) p.pair->cancel(ids[i]);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto& choice = collectors[i]->wait();
      if (choice.finish == FinishReason::kAborted) continue;
      EXPECT_EQ(choice.tokens, tokens_of(*alone, request(prompt_of(30, round * 8 + static_cast<int32_t>(i)), 6)));
    }
  }
  EXPECT_GT(p.decode->stats().aborted, 0U);
  EXPECT_TRUE(soon([&] { return p.idle(); }));
}

TEST(TransferFieldReports, B060_AbortedLoadsWhoseEndNeverComesLeaveNothing) {
  PairSetup setup;
  setup.fault.late_ns = 3600 * kNsPerSecond;  // the sender has sent all, and its end is lost
  setup.pair.retries = 0;
  Pair p(setup);
  for (int32_t i = 0; i < 1000; ++i) {
    Collector collector;
    const RequestId id = p.pair->submit(request(prompt_of(16, i), 5), collector.sink()).value();
    ASSERT_TRUE(i % 3 == 0 || soon([&] { return p.decode->stats().leased_blocks > 0; }));
    p.pair->cancel(id);
    EXPECT_EQ(collector.wait().finish, FinishReason::kAborted);
  }
  EXPECT_TRUE(soon([&] { return p.idle(); }));
  EXPECT_EQ(p.decode->stats().generated_tokens, 0U);
}

TEST(TransferFieldReports, B060_AnEndThatIsTooLateFreesBothSides) {
  PairSetup setup;
  setup.fault.late_ns = 3600 * kNsPerSecond;
  setup.pair.transfer_timeout_ns = 50 * kNsPerMs;
  Pair p(setup);
  Collector collector;
  ASSERT_TRUE(p.pair->submit(request(prompt_of(40, 1), 5), collector.sink()));
  const auto& choice = collector.wait();
  EXPECT_EQ(choice.error.code, Errc::kUnavailable);
  EXPECT_TRUE(choice.tokens.empty());
  EXPECT_EQ(p.decode->stats().transfers_failed, 2U) << "one retry";
  EXPECT_TRUE(soon([&] { return p.idle(); }));
}

// A client that leaves: everything it holds on both sides is free within a second, and nothing is computed for it.
TEST(TransferFieldReports, B061_ADisconnectInTransferFreesBothSides) {
  PairSetup setup;
  setup.fault.late_ns = 3600 * kNsPerSecond;
  Pair p(setup);
  Collector collector;
  const RequestId id = p.pair->submit(request(prompt_of(40, 1), 50), collector.sink()).value();
  // Both hold the prompt: the one has sent everything, the other waits for the end.
  ASSERT_TRUE(soon([&] { return p.prefill->stats().leased_blocks == 5 && p.decode->stats().leased_blocks >= 5; }));
  EXPECT_EQ(p.pair->stats().leased_blocks, p.prefill->stats().leased_blocks + p.decode->stats().leased_blocks);
  const auto begin = steady_clock::now();
  p.pair->cancel(id);
  EXPECT_EQ(collector.wait().finish, FinishReason::kAborted);
  EXPECT_TRUE(soon([&] { return p.idle(); }));
  EXPECT_LT(steady_clock::now() - begin, 1s);
  EXPECT_TRUE(collector.wait().tokens.empty());
  const uint64_t steps = p.pair->stats().steps;
  pause(30 * kNsPerMs);
  EXPECT_EQ(p.pair->stats().steps, steps);
  EXPECT_EQ(p.decode->stats().generated_tokens, 0U);
}

TEST(TransferFieldReports, B061_ADisconnectWhileThePromptIsComputedOrWaits) {
  PairSetup setup;
  setup.max_num_seqs = 1;
  Pair p(setup);
  p.prefill_gate.closed = true;
  Collector computing;
  Collector waiting;
  const RequestId first = p.pair->submit(request(prompt_of(40, 1), 50), computing.sink()).value();
  ASSERT_TRUE(soon([&] { return p.prefill_gate.waiting > 0; }));
  const RequestId second = p.pair->submit(request(prompt_of(40, 2), 50), waiting.sink()).value();
  ASSERT_TRUE(soon([&] { return p.prefill->stats().waiting + p.decode->stats().waiting >= 1; }));
  p.pair->cancel(second);
  EXPECT_EQ(waiting.wait().finish, FinishReason::kAborted);
  p.pair->cancel(first);
  EXPECT_EQ(computing.wait().finish, FinishReason::kAborted);
  EXPECT_TRUE(soon([&] { return p.decode->stats().used_blocks == 0; }));
  p.prefill_gate.closed = false;
  EXPECT_TRUE(soon([&] { return p.idle(); }));
  EXPECT_EQ(p.decode->stats().generated_tokens, 0U);
}

}  // namespace
}  // namespace di::engine
