// Plans as they were made, one JSON line each, with everything that they were made from (`--record-schedule FILE`): a
// recorded run can be planned again without a model, step by step, and policies be checked on it.
//
// File: the first line is the configuration, each further one a step. Sequences are arrays in the order of kSeqFields.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/scheduler.h"

namespace di::engine {

inline constexpr std::string_view kSeqFields =
    "id length computed output_tokens blocks priority decode_rows traffic_class tenant arrival_ns ending checkpoint";

struct RecordedStep {
  uint64_t step = 0;
  SchedulerInput input;
  std::vector<std::pair<uint64_t, Start>> starts;          // answers of Lookups::start
  std::vector<std::pair<uint64_t, int32_t>> freed_blocks;  // answers of Lookups::freed_blocks
  StepPlan plan;

  // Answers what was answered; what was not asked then begins at 0 and frees all its blocks.
  Lookups lookups() const;
};

struct RecordedSchedule {
  SchedulerConfig config;
  std::vector<RecordedStep> steps;
};

// One thread.
class ScheduleRecorder {
 public:
  // Errors: the file cannot be written.
  static Result<std::unique_ptr<ScheduleRecorder>> create(const std::string& file);

  // plan_step(), written down.
  StepPlan plan(uint64_t step, const SchedulerConfig& config, const SchedulerInput& input, const Lookups& lookups);

 private:
  explicit ScheduleRecorder(std::ofstream out) : out_(std::move(out)) {}
  std::ofstream out_;
  bool begun_ = false;
};

// Errors name the file, the line and what is wrong with it.
Result<RecordedSchedule> read_schedule(const std::string& file);

// Rows, preemptions, ends and the policy's state are the same.
bool same_plan(const StepPlan& a, const StepPlan& b);

}  // namespace di::engine
