// What speculation has done so far, for EngineStats and /metrics (engine.md §9). Plain data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace di::engine {

inline constexpr size_t kMaxDrafts = 16;  // most drafts a sequence may have verified in one step

enum class SpeculationState : uint8_t {
  kActive,
  kOff,            // switched off
  kNoDraftModule,  // the model or the runner has none
  kLoad,           // drafting does not pay at the present number of sequences
};
std::string_view to_string(SpeculationState state);

// Counters grow from start.
struct SpeculationStats {
  SpeculationState state = SpeculationState::kOff;
  int32_t max_drafts = 0;
  uint64_t rounds = 0;    // decode steps of a sequence while it had drafts
  uint64_t verified = 0;  // drafts that were looked at
  uint64_t accepted = 0;
  std::array<uint64_t, kMaxDrafts> verified_at{};  // by position
  std::array<uint64_t, kMaxDrafts> accepted_at{};
  std::array<uint64_t, kMaxDrafts + 1> verified_lengths{};  // rounds by drafts scheduled for verification
  std::array<uint64_t, kMaxDrafts + 1> accepted_lengths{};  // rounds by drafts accepted
  double accept_error_sum = 0;  // Σ |estimated acceptance - confidence| over `accept_error_rows`
  uint64_t accept_error_rows = 0;
  double calibration_error = 0;     // ECE of the survivals against outcomes
  double plain_seconds = 0;         // what the tokens of decode steps would have cost without speculation, estimated
  double speculative_seconds = 0;   // what those steps took
  double draft_seconds = 0;         // of these, the draft module
  double slope_ms_per_row = 0;      // correction of the cost curve
  uint64_t unprofitable_steps = 0;  // decode steps without drafts because of the load
};

}  // namespace di::engine
