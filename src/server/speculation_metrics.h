// Speculative decoding in /metrics (engine.md §9, server.md §10): counters under vLLM's names, histograms of verify and
// accepted lengths, speed-up, calibration, and whether it is at work and why not.
#pragma once

#include <string>

#include "engine/api.h"

namespace di::server {

// The series in text format. All exist from the start, whatever the engine does.
std::string speculation_text(const engine::SpeculationStats& stats, const std::string& model_name);

}  // namespace di::server
