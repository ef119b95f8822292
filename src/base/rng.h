// The counter-based generator of engine.md §5.4: a draw depends on seed, position and kind only, so a sampled token is
// the same alone, in any batch, and after a preemption. Plain C++20 without state.
#pragma once

#include <cstdint>

namespace di {

// What a uniform is for at one position. kResidual and kAccept belong to speculative verification.
enum class DrawKind : uint8_t { kSample = 0, kResidual = 1, kAccept = 2 };

inline constexpr uint64_t kSplitMixGamma = 0x9E3779B97F4A7C15ULL;
// Seed offset of the draft module's draws.
inline constexpr uint64_t kDraftSeedOffset = 1'000'000'007ULL;

// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators), after one step of
// its counter.
inline constexpr uint64_t split_mix64(uint64_t state) {
  uint64_t z = state + kSplitMixGamma;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// Uniform in [0, 1) with 53 random bits.
//   seq = (position·3 + kind)·gamma;  z = seed + (seq ^ (seq << 13)) for draws, seed ^ seq for acceptance tests
inline constexpr double counter_uniform(uint64_t seed, int64_t position, DrawKind kind) {
  const uint64_t sequence = (static_cast<uint64_t>(position) * 3 + static_cast<uint64_t>(kind)) * kSplitMixGamma;
  const uint64_t state = kind == DrawKind::kAccept ? seed ^ sequence : seed + (sequence ^ (sequence << 13));
  return static_cast<double>(split_mix64(state) >> 11) * 0x1p-53;
}

// 64 bits from the operating system, for requests that name no seed and for unguessable ids.
uint64_t random_u64();

}  // namespace di
