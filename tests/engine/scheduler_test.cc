#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <random>
#include <unordered_map>

namespace di::engine {
namespace {

SeqState prompt(uint64_t id, int32_t length, int32_t computed = 0, int32_t blocks = 0) {
  SeqState seq;
  seq.id = id;
  seq.length = length;
  seq.computed = computed;
  seq.blocks = blocks;
  return seq;
}
SeqState decoding(uint64_t id, int32_t length, int32_t output, int32_t blocks) {
  SeqState seq = prompt(id, length, length - 1, blocks);
  seq.output_tokens = output;
  return seq;
}

StepPlan plan(const SchedulerConfig& config, PoolState pool, std::vector<SeqState> running,
              std::vector<SeqState> waiting) {
  return plan_step(config, {0, pool, std::move(running), std::move(waiting), {}});
}

TEST(PlanStep, PutsDecodeRowsFirstAndFillsTheRestWithChunks) {
  const SchedulerConfig config{.max_num_seqs = 8, .max_num_batched_tokens = 64, .block_tokens = 16};
  const std::vector<SeqState> running = {prompt(1, 100, 32, 7), decoding(2, 40, 3, 3)};
  const std::vector<SeqState> waiting = {prompt(3, 20)};
  const StepPlan step = plan(config, {.free_blocks = 100, .free_slots = 6}, running, waiting);
  ASSERT_EQ(step.rows.size(), 2U);
  EXPECT_EQ(step.rows[0].id, 2U);
  EXPECT_EQ(step.rows[0].count, 1);
  EXPECT_TRUE(step.rows[0].sample);
  EXPECT_EQ(step.rows[1].id, 1U);
  EXPECT_EQ(step.rows[1].begin, 32);
  EXPECT_EQ(step.rows[1].count, 63);
  EXPECT_FALSE(step.rows[1].sample);
  EXPECT_EQ(step.total_rows, 64);
}

TEST(PlanStep, AdmitsInOrderWithTheBlocksOfTheWholePrompt) {
  const SchedulerConfig config{.max_num_seqs = 8, .max_num_batched_tokens = 100, .block_tokens = 16};
  const std::vector<SeqState> waiting = {prompt(1, 30), prompt(2, 90), prompt(3, 5)};
  const StepPlan step = plan(config, {.free_blocks = 100, .free_slots = 8}, {}, waiting);
  ASSERT_EQ(step.rows.size(), 2U);
  EXPECT_TRUE(step.rows[0].admit);
  EXPECT_EQ(step.rows[0].new_blocks, 2);
  EXPECT_TRUE(step.rows[0].sample);
  EXPECT_EQ(step.rows[1].count, 70);
  EXPECT_EQ(step.rows[1].new_blocks, 6);
  EXPECT_FALSE(step.rows[1].sample);
}

TEST(PlanStep, WaitsForBlocksAndSlotsWithoutOvertaking) {
  const SchedulerConfig config{.max_num_seqs = 2, .max_num_batched_tokens = 100, .block_tokens = 16};
  const std::vector<SeqState> running = {decoding(1, 20, 2, 2)};
  // Needs 4 blocks and leaves one in hand for the running one: 4 free are too few, and the small one behind does not
  // overtake.
  const std::vector<SeqState> waiting = {prompt(2, 64), prompt(3, 1)};
  EXPECT_EQ(plan(config, {.free_blocks = 4, .free_slots = 1}, running, waiting).rows.size(), 1U);
  EXPECT_EQ(plan(config, {.free_blocks = 5, .free_slots = 1}, running, waiting).rows.size(), 2U);
  EXPECT_EQ(plan(config, {.free_blocks = 50, .free_slots = 0}, running, waiting).rows.size(), 1U);
}

TEST(PlanStep, PreemptsTheLongestOutputOfTheLeastImportant) {
  const SchedulerConfig config{.max_num_seqs = 8, .max_num_batched_tokens = 100, .block_tokens = 16};
  // 1 needs its third block; none is free.
  std::vector<SeqState> running = {decoding(1, 33, 2, 2), decoding(2, 40, 9, 3), decoding(3, 40, 5, 3)};
  StepPlan step = plan(config, {.free_blocks = 0, .free_slots = 0}, running, {});
  EXPECT_EQ(step.preempted, std::vector<uint64_t>{2});
  EXPECT_EQ(step.rows.size(), 2U);

  running[2].priority = 5;
  step = plan(config, {.free_blocks = 0, .free_slots = 0}, running, {});
  EXPECT_EQ(step.preempted, std::vector<uint64_t>{3});

  // The one in need is itself the longest: it goes.
  running = {decoding(1, 33, 20, 2), decoding(2, 40, 9, 3)};
  step = plan(config, {.free_blocks = 0, .free_slots = 0}, running, {});
  EXPECT_EQ(step.preempted, std::vector<uint64_t>{1});
  ASSERT_EQ(step.rows.size(), 1U);
  EXPECT_EQ(step.rows[0].id, 2U);
}

TEST(PlanStep, EndsASequenceThatTheWholePoolCannotHold) {
  const SchedulerConfig config{.max_num_seqs = 8, .max_num_batched_tokens = 100, .block_tokens = 16};
  const std::vector<SeqState> running = {decoding(1, 33, 2, 2)};
  const StepPlan step = plan(config, {.free_blocks = 0, .free_slots = 0}, running, {});
  EXPECT_EQ(step.exhausted, std::vector<uint64_t>{1});
  EXPECT_TRUE(step.rows.empty());
}

// Random traffic against the plan's contract: no block is given out that is not free, the budget holds, nothing
// starves.
TEST(PlanStep, ConservesMemoryUnderRandomTraffic) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const SchedulerConfig config{.max_num_seqs = static_cast<int32_t>(1 + random() % 6),
                                 .max_num_batched_tokens = static_cast<int32_t>(6 + random() % 40),
                                 .block_tokens = 4};
    const int32_t pool_blocks = static_cast<int32_t>(12 + random() % 20);
    const int32_t most_tokens = pool_blocks * config.block_tokens;
    std::vector<SeqState> running;
    std::vector<SeqState> waiting;
    std::unordered_map<uint64_t, int32_t> final_length;
    for (uint64_t id = 1; id <= 12; ++id) {
      const auto length = static_cast<int32_t>(1 + random() % 30);
      final_length[id] = std::min<int32_t>(most_tokens, length + static_cast<int32_t>(1 + random() % 20));
      SeqState seq = prompt(id, std::min(length, final_length[id]));
      seq.priority = static_cast<int32_t>(random() % 2);
      waiting.push_back(seq);
    }
    std::stable_sort(waiting.begin(), waiting.end(),
                     [](const SeqState& a, const SeqState& b) { return a.priority < b.priority; });
    int steps = 0;
    while (!running.empty() || !waiting.empty()) {
      ASSERT_LT(++steps, 5000) << "round " << round << ": no progress";
      int32_t used = 0;
      for (const SeqState& seq : running) used += seq.blocks;
      const PoolState pool{pool_blocks - used, config.max_num_seqs - static_cast<int32_t>(running.size())};
      const StepPlan step = plan(config, pool, running, waiting);
      ASSERT_TRUE(step.exhausted.empty());
      ASSERT_FALSE(step.rows.empty());
      ASSERT_LE(step.total_rows, config.max_num_batched_tokens);
      for (const uint64_t id : step.preempted) {
        const auto it = std::find_if(running.begin(), running.end(), [&](const SeqState& s) { return s.id == id; });
        ASSERT_NE(it, running.end());
        it->computed = it->blocks = 0;
        waiting.insert(waiting.begin(), *it);
        running.erase(it);
      }
      for (const ScheduledRows& rows : step.rows) {
        if (rows.admit) {
          const auto it =
              std::find_if(waiting.begin(), waiting.end(), [&](const SeqState& s) { return s.id == rows.id; });
          ASSERT_NE(it, waiting.end());
          running.push_back(*it);
          waiting.erase(it);
        }
        const auto it =
            std::find_if(running.begin(), running.end(), [&](const SeqState& s) { return s.id == rows.id; });
        ASSERT_NE(it, running.end());
        ASSERT_EQ(rows.begin, it->computed);
        it->blocks += rows.new_blocks;
        it->computed += rows.count;
        ASSERT_LE(it->computed, it->length);
        ASSERT_GE(it->blocks * config.block_tokens, it->computed);
        ASSERT_EQ(rows.sample, it->computed == it->length);
        if (rows.sample) {
          ++it->length;
          ++it->output_tokens;
        }
      }
      used = 0;
      for (const SeqState& seq : running) used += seq.blocks;
      ASSERT_LE(used, pool_blocks);
      ASSERT_LE(static_cast<int32_t>(running.size()), config.max_num_seqs);
      std::erase_if(running, [&](const SeqState& s) { return s.length > final_length[s.id]; });
    }
  }
}

}  // namespace
}  // namespace di::engine
