// The report of `deepinfer model inspect`: layers, parameters, bytes per tensor class, KV bytes and the memory plan,
// from the config alone when there are no weights; with weights every tensor is checked as for loading.
#pragma once

#include <string>

#include "base/result.h"
#include "model/config.h"
#include "model/memory_plan.h"
#include "model/safetensors.h"

namespace di::model {

struct InspectOptions {
  PlanOptions plan;
  bool json = false;  // one JSON object instead of text
};

// `checkpoint` may be null. A tensor that breaks a rule is the error; unknown tensors are listed in the report.
Result<std::string> inspect_report(const ModelConfig& config, const Safetensors* checkpoint,
                                   const InspectOptions& options);

// Opens a model folder (config.json, and the weights when there are some) and reports; the path of a config.json alone
// reports from it without weights.
Result<std::string> inspect_folder(const std::string& folder, const InspectOptions& options);

}  // namespace di::model
