// Recorded draft rounds played again on given step costs, without a model: what verify lengths are worth where no other
// load of the machine disturbs them, and on machines that are not there. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/speculative/planner.h"

namespace di::cli {

// A round of which every draft was verified, up to the end of the text.
struct RecordedRound {
  std::vector<float> confidences;
  int32_t decided = 0;  // drafts that are before the end of the text, or end it
  int32_t accepted = 0;
};

struct SpeculationPolicy {
  std::string name;
  engine::SpeculationMode mode = engine::SpeculationMode::kOff;
  int32_t length = 0;
};
// Off, every fixed length, variable.
std::vector<SpeculationPolicy> speculation_policies(int32_t drafts);

// Times in ms.
struct StepCosts {
  engine::CostCurve curve;                           // of the forward pass, by rows; what the planner knows
  double row_ms = 0;                                 // sampling, a row
  double sequence_ms = 0;                            // of the forward pass beyond the curve, a sequence
  std::function<double(int32_t num_seqs)> draft_ms;  // the draft pass
};

// Fits sampling and drafting to steps that ran.
StepCosts measured_costs(engine::CostCurve curve, std::span<const engine::DecodeStep> steps);

// A card of eight H200 by the arithmetic of performance.md §2.4: contexts of 32k, attention data-parallel, experts
// spread over the cards, the other cards loaded alike. A floor, not a measurement.
StepCosts h200_costs(int32_t max_num_seqs, int32_t drafts);

// One H200 as measured: steps of 40 layers at V4.1's widths with 48 experts (a card's share of eight) at contexts of
// 1k, up to 3,072 rows, and rounds of the draft module with its share of experts for up to 512 sequences, but for the
// sampling between its steps (bench/RESULTS.md, verify lengths).
StepCosts h200_measured_costs();

struct Replayed {
  double tokens_per_second = 0;
  double mean_length = 0;  // drafts verified by a sequence in a step
  double mean_accepted = 0;
};

// That many sequences until they have given so many tokens together: the same work for every policy.
struct LoadStage {
  int32_t num_seqs = 0;
  int64_t tokens = 0;
};

// Sequence s plays the recorded rounds from its own place on, in order; a round that is
// verified shorter than recorded gives what it would have given, and the next recorded one follows.
Replayed replay_rounds(std::span<const RecordedRound> rounds, const SpeculationPolicy& policy,
                       std::span<const LoadStage> load, const StepCosts& costs, int32_t drafts);

// Up and down again through the powers of two, as many tokens of each sequence at every stage.
std::vector<LoadStage> mixed_load(int32_t most);

}  // namespace di::cli
