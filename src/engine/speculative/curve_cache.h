// Cost curves that earlier starts measured, kept as files (speculative.md §4.4), so that the next start on the same
// machine need not measure again. A file holds [[rows, ms], …] and is called <key>.<32 random hex digits>.<unix seconds
// of the measurement>. Safe for several processes at once: files appear whole, under their own names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/speculative/cost_curve.h"

namespace di::engine {

// Hex digest of what a curve depends on: `model` names the weights, the machine and the arithmetic; sizes: rows of the
// steps that are timed.
std::string curve_key(std::string_view model, std::span<const int32_t> sizes);

class CurveCache {
 public:
  static constexpr int64_t kLifetimeSeconds = 3600;
  static constexpr int64_t kRemovedAfterSeconds = kLifetimeSeconds + 2 * 3600;

  explicit CurveCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // The newest curve of that key, not older than kLifetimeSeconds; nothing when there is none, or its file is not a
  // curve over exactly these sizes. now: unix seconds.
  std::optional<CostCurve> read(std::string_view key, std::span<const int32_t> sizes, int64_t now) const;
  // Makes the folder if need be, and removes files of old. Error: of the file system, naming the file.
  Result<void> write(std::string_view key, const CostCurve& curve, int64_t now) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace di::engine
