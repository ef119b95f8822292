// Drives plan_step() as the engine does, without a model: requests arrive by the clock, steps take a time per row, the
// plan is applied to plain numbers and its contract is checked.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "engine/scheduler.h"

namespace di::engine::test {

struct SimRequest {
  int64_t arrival_ns = 0;
  int32_t tenant = 0;
  int32_t traffic_class = 0;
  int32_t priority = 0;
  int32_t prompt = 1;
  int32_t output = 1;
  // Results; -1: never.
  int64_t first_rows_ns = -1;
  int64_t finished_ns = -1;
  int32_t preemptions = 0;
  // Prompt rows that others got between its arrival and its first rows.
  int64_t rows_before = 0;
};

class ScheduleSim {
 public:
  using Plan = std::function<StepPlan(const SchedulerConfig&, const SchedulerInput&)>;

  ScheduleSim(SchedulerConfig config, int32_t n_blocks, int32_t n_slots, int64_t step_ns, int64_t row_ns)
      : config_(config), n_blocks_(n_blocks), n_slots_(n_slots), step_ns_(step_ns), row_ns_(row_ns) {}

  Plan plan = [](const SchedulerConfig& config, const SchedulerInput& input) { return plan_step(config, input); };
  std::vector<SimRequest> requests;  // id = index + 1

  // Until all have finished or the time is over.
  void run(int64_t until_ns) {
    std::vector<bool> arrived(requests.size(), false);
    size_t finished = 0;
    while (now_ < until_ns && finished < requests.size()) {
      for (size_t i = 0; i < requests.size(); ++i) {
        if (arrived[i] || requests[i].arrival_ns > now_) continue;
        arrived[i] = true;
        waiting_.push_back(first_state(i));
      }
      const StepPlan step = make_plan();
      apply(step);
      now_ += step_ns_ + row_ns_ * step.total_rows;
      finished += finish(step);
      for (const SimRequest& r : requests) {
        if (r.arrival_ns < now_ || now_ >= until_ns) continue;
        if (running_.empty() && waiting_.empty()) now_ = std::max(now_, next_arrival(arrived));
        break;
      }
    }
  }
  int64_t now_ns() const { return now_; }

 private:
  SeqState first_state(size_t i) const {
    const SimRequest& r = requests[i];
    SeqState seq;
    seq.id = i + 1;
    seq.length = r.prompt;
    seq.priority = r.priority;
    seq.traffic_class = r.traffic_class;
    seq.tenant = r.tenant;
    seq.arrival_ns = r.arrival_ns;
    return seq;
  }

  int64_t next_arrival(const std::vector<bool>& arrived) const {
    int64_t next = INT64_MAX;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (!arrived[i]) next = std::min(next, requests[i].arrival_ns);
    }
    return next == INT64_MAX ? now_ : next;
  }

  StepPlan make_plan() {
    int32_t used = 0;
    for (const SeqState& seq : running_) used += seq.blocks;
    const PoolState pool{n_blocks_ - used, n_slots_ - static_cast<int32_t>(running_.size())};
    StepPlan step = plan(config_, {now_, pool, running_, waiting_, policy_});
    policy_ = step.policy;
    EXPECT_LE(step.total_rows, config_.max_num_batched_tokens);
    return step;
  }

  static std::vector<SeqState>::iterator find(std::vector<SeqState>& in, uint64_t id) {
    return std::find_if(in.begin(), in.end(), [&](const SeqState& s) { return s.id == id; });
  }

  void apply(const StepPlan& step) {
    for (const uint64_t id : step.preempted) {
      const auto it = find(running_, id);
      ASSERT_NE(it, running_.end());
      it->computed = it->blocks = 0;
      ++requests[id - 1].preemptions;
      waiting_.insert(waiting_.begin(), *it);
      running_.erase(it);
    }
    ASSERT_TRUE(step.exhausted.empty());
    for (const ScheduledRows& rows : step.rows) {
      SimRequest& request = requests[rows.id - 1];
      if (rows.admit) {
        const auto it = find(waiting_, rows.id);
        ASSERT_NE(it, waiting_.end());
        running_.push_back(*it);
        waiting_.erase(it);
      }
      const auto it = find(running_, rows.id);
      ASSERT_NE(it, running_.end());
      ASSERT_EQ(rows.begin, it->computed);
      ASSERT_GT(rows.count, 0);
      if (request.first_rows_ns < 0) request.first_rows_ns = now_;
      it->blocks += rows.new_blocks;
      it->computed += rows.count;
      ASSERT_LE(it->computed, it->length);
      ASSERT_GE(it->blocks * config_.block_tokens, it->computed);
    }
    for (const ScheduledRows& rows : step.rows) {
      if (rows.decode) continue;
      for (size_t i = 0; i < requests.size(); ++i) {
        SimRequest& r = requests[i];
        if (r.arrival_ns <= now_ && r.first_rows_ns < 0 && rows.id != i + 1) r.rows_before += rows.count;
      }
    }
    int32_t used = 0;
    for (const SeqState& seq : running_) used += seq.blocks;
    ASSERT_LE(used, n_blocks_);
    ASSERT_LE(static_cast<int32_t>(running_.size()), std::min(n_slots_, config_.max_num_seqs));
  }

  size_t finish(const StepPlan& step) {
    size_t finished = 0;
    for (const ScheduledRows& rows : step.rows) {
      const auto it = find(running_, rows.id);
      if (it == running_.end() || !rows.sample) continue;
      ++it->length;
      ++it->output_tokens;
      if (it->output_tokens < requests[rows.id - 1].output) continue;
      requests[rows.id - 1].finished_ns = now_;
      running_.erase(it);
      ++finished;
    }
    return finished;
  }

  SchedulerConfig config_;
  int32_t n_blocks_;
  int32_t n_slots_;
  int64_t step_ns_;
  int64_t row_ns_;
  int64_t now_ = 0;
  PolicyState policy_;
  std::vector<SeqState> running_;
  std::vector<SeqState> waiting_;
};

}  // namespace di::engine::test
