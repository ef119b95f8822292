// Whose turn it is to be admitted (engine.md §3.6). Classes in order, with ageing; inside a class deficit round robin
// over tenants on tokens; a tenant's own requests by priority, then first come first. One round gives all tenants
// together one step's token budget, so that nobody waits longer for the others than one step's work.
//
// Made for one plan; holds references to its input.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/scheduler.h"

namespace di::engine {

class QueueOrder {
 public:
  // cost(i): tokens that waiting[i] would have to have computed.
  QueueOrder(const SchedulerConfig& config, const SchedulerInput& input, std::function<int64_t(size_t)> cost);

  // Index into waiting of the one whose turn it is; nothing when none is left.
  std::optional<size_t> next();
  // What became of next(): it is admitted (or another that is first of its tenant), it cannot start yet, or its tenant
  // is out of this plan.
  void take(size_t i);
  void skip();
  void skip_tenant();

  // Not admitted after all.
  void give_back(const SeqState& seq, int32_t traffic_class, int64_t cost);

  // The rounds with the turns taken.
  const std::array<std::vector<TenantCredit>, kTrafficClasses>& rounds() const { return rounds_; }

 private:
  struct Line {
    std::vector<size_t> waiting;  // indices, in order
    size_t at = 0;
    bool closed = false;
    bool empty() const { return closed || at >= waiting.size(); }
  };
  Line& line(int32_t traffic_class, int32_t tenant);
  void update_round(size_t traffic_class);
  bool add_rounds(size_t traffic_class);

  const SchedulerConfig* config_;
  const SchedulerInput* input_;
  std::function<int64_t(size_t)> cost_;
  int64_t budget_;
  std::array<std::vector<TenantCredit>, kTrafficClasses> rounds_;
  std::array<std::vector<std::pair<int32_t, Line>>, kTrafficClasses> lines_;  // by tenant, ascending
  size_t class_ = 0;                                                          // of the last next()
};

}  // namespace di::engine
