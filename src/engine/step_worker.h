// The device's thread: runs the forward pass and the sampling of each step in the order they were launched, so that the
// host schedules step n+1 and hands out the tokens of step n-1 meanwhile (engine.md §4.1). A backend with streams of
// its own is driven from this thread in the same way.
//
// All members are called by the engine's thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "engine/device_step.h"
#include "engine/trace.h"

namespace di::engine {

class StepWorker {
 public:
  // trace may be null; runner, clock and trace must outlive the worker. mask_patience_ns: as in EngineOptions.
  StepWorker(Runner& runner, int32_t max_drafts, int64_t mask_patience_ns, const Clock& clock, Trace* trace);
  // Runs what was launched to its end; interrupt the runner first to make that soon.
  ~StepWorker();
  StepWorker(const StepWorker&) = delete;
  StepWorker& operator=(const StepWorker&) = delete;

  // The two halves of a launch. Nothing may be waited for between them: wait() aborts there.
  void launch_forward(StepInput input);
  void launch_sample(SampleInput sample);

  // Launched and not yet waited for.
  int32_t in_flight() const { return in_flight_; }
  // Blocks until the oldest of these is done.
  StepOutput wait();

 private:
  struct Job {
    StepInput input;
    SampleInput sample;
    bool sample_launched = false;  // guarded by mutex_
    Result<void> prepared;
    int64_t prepare_ns = 0;
  };
  void run();
  Job* next_job(bool block);
  void prepare(Job& job);
  void publish(StepOutput out);
  StepOutput run_job(Job& job, int64_t begin_ns);

  const Clock& clock_;
  Trace* trace_;
  int32_t in_flight_ = 0;     // engine's thread
  Job* launching_ = nullptr;  // engine's thread: between launch_forward and launch_sample

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Job>> jobs_;  // in the order of the launches; the front may be running
  std::deque<StepOutput> done_;
  bool stopping_ = false;

  DeviceStep device_;  // worker's thread
  int64_t last_forward_end_ns_ = 0;
  std::optional<StepOutput> publish_at_begin_;  // of the step before, when the next one begins at once
  int64_t waited_ns_ = 0;                       // for a job, since the last forward pass
  std::thread thread_;
};

}  // namespace di::engine
