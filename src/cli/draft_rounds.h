// Draft rounds of a model on a file of requests: what `model calibrate` fits and `bench speculation` reports.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "cli/speculation_replay.h"
#include "codec/codec.h"
#include "device/device.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "engine/speculative/calibration.h"
#include "kernels/cpu/cpu.h"

namespace di::cli {

// A line of the file, rendered.
struct DraftPrompt {
  std::string group;  // custom_id up to its last "-", or "all"
  std::vector<int32_t> tokens;
};

// Rounds of one request, in order.
struct RecordedRequest {
  std::string group;
  int64_t output_tokens = 0;
  std::vector<RecordedRound> rounds;
};

struct Played {
  std::vector<RecordedRequest> requests;
  std::vector<engine::DecodeStep> steps;  // those without prompt rows
  engine::EngineStats stats;
  double seconds = 0;      // wall
  double cpu_seconds = 0;  // of the process
};

// A model folder and its tokenizer on this machine's CPU; engines are made from it one after the other.
class DraftModel {
 public:
  // processor_time: what is measured is the processor time of this process, so that a busy machine does not disturb it.
  static Result<std::unique_ptr<DraftModel>> open(const std::string& folder, int32_t threads,
                                                  bool processor_time = false);

  // Chat bodies or Batch lines; at most `limit` of each group.
  Result<std::vector<DraftPrompt>> read_prompts(const std::string& path, int32_t limit) const;

  struct Run {
    engine::SpeculationOptions speculation;
    double temperature = 0;
    bool seeded = false;  // the seeds are the requests' own: the target chooses alone
    int32_t concurrency = 16;
    // Requests in flight when this one comes, at most `concurrency`; empty: `concurrency` for all.
    std::vector<int32_t> load;
    int64_t max_tokens = 256;
    std::vector<double> confidence_temperatures;  // empty: the folder's
  };
  // Every prompt once, `concurrency` at a time.
  Result<Played> play(const std::vector<DraftPrompt>& prompts, const Run& run);
  Result<engine::CostCurve> measure_curve(int32_t max_num_seqs);
  int32_t drafts() const { return drafts_; }

 private:
  Result<std::unique_ptr<engine::ModelRunner>> runner(int32_t sequences, bool drafts,
                                                      const std::vector<double>& temperatures);

  std::string folder_;
  std::unique_ptr<ThreadPool> pool_;
  kernels::cpu::StreamPtr stream_;
  std::unique_ptr<device::Device> device_;
  codec::TokenizerRef tokenizer_;
  codec::CodecOptions codec_;
  std::unique_ptr<Clock> clock_;
  int32_t drafts_ = 0;
};

// What temperatures of the confidences are worth; calibration errors are means over positions and request temperatures.
struct CalibrationFit {
  std::vector<double> temperatures;
  size_t rounds = 0;  // that were fitted
  double before = 0;
  double after = 0;
};
// Plays the requests at each temperature with every draft verified, fits on every other request, and prints acceptance
// and calibration error on the rest. `run` gives concurrency and length of the answers.
Result<CalibrationFit> fit_and_print(DraftModel& model, const std::vector<DraftPrompt>& prompts, DraftModel::Run run,
                                     const std::vector<double>& request_temperatures);

// Rounds as calibration wants them: logits before the temperatures they were made with, and outcomes.
std::vector<engine::CalibrationRound> calibration_rounds(const std::vector<RecordedRequest>& requests,
                                                         const std::vector<double>& temperatures);

}  // namespace di::cli
