#include "engine/queue_order.h"

#include <algorithm>
#include <utility>

#include "base/result.h"

namespace di::engine {

QueueOrder::QueueOrder(const SchedulerConfig& config, const SchedulerInput& input, std::function<int64_t(size_t)> cost)
    : config_(&config),
      input_(&input),
      cost_(std::move(cost)),
      budget_(std::max(1, config.max_num_batched_tokens)),
      rounds_(input.policy.rounds) {
  for (size_t i = 0; i < input.waiting.size(); ++i) {
    const SeqState& seq = input.waiting[i];
    line(effective_class(config, seq, input.now_ns), seq.tenant).waiting.push_back(i);
  }
  for (size_t c = 0; c < lines_.size(); ++c) {
    for (auto& [tenant, line] : lines_[c]) {
      const auto rank = [&](size_t i) {
        const SeqState& seq = input.waiting[i];
        return is_overdue(config, seq, input.now_ns) ? INT32_MIN : seq.priority;
      };
      std::stable_sort(line.waiting.begin(), line.waiting.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
    }
    update_round(c);
  }
}

// Tenants that no longer wait lose their place and what they had left. New ones join at the end with one turn's credit;
// nobody keeps more than that or his first request.
void QueueOrder::update_round(size_t traffic_class) {
  std::vector<TenantCredit>& round = rounds_[traffic_class];
  const auto& lines = lines_[traffic_class];
  const auto waits = [&](int32_t tenant) {
    return std::any_of(lines.begin(), lines.end(), [&](const auto& l) { return l.first == tenant; });
  };
  std::erase_if(round, [&](const TenantCredit& t) { return !waits(t.tenant); });
  if (lines.empty()) return;
  const int64_t quantum = std::max<int64_t>(1, budget_ / static_cast<int64_t>(lines.size()));
  for (const auto& [tenant, line] : lines) {
    const auto known =
        std::find_if(round.begin(), round.end(), [&](const TenantCredit& t) { return t.tenant == tenant; });
    if (known == round.end()) {
      round.push_back({tenant, quantum});
    } else if (known->credit > quantum) {
      known->credit = std::min(known->credit, std::max(quantum, cost_(line.waiting[0])));
    }
  }
}

QueueOrder::Line& QueueOrder::line(int32_t traffic_class, int32_t tenant) {
  auto& lines = lines_[static_cast<size_t>(traffic_class)];
  const auto at = std::lower_bound(lines.begin(), lines.end(), tenant,
                                   [](const auto& entry, int32_t wanted) { return entry.first < wanted; });
  if (at != lines.end() && at->first == tenant) return at->second;
  return lines.insert(at, {tenant, Line{}})->second;
}

// Nobody in the class can pay for his first: as many rounds at once as the first one who then can needs. False when
// nobody is left.
bool QueueOrder::add_rounds(size_t traffic_class) {
  std::vector<TenantCredit>& round = rounds_[traffic_class];
  const auto active = std::count_if(round.begin(), round.end(), [&](const TenantCredit& t) {
    return !line(static_cast<int32_t>(traffic_class), t.tenant).empty();
  });
  if (active == 0) return false;
  const int64_t quantum = std::max<int64_t>(1, budget_ / active);
  int64_t rounds = INT64_MAX;
  for (const TenantCredit& t : round) {
    const Line& l = line(static_cast<int32_t>(traffic_class), t.tenant);
    if (l.empty()) continue;
    const int64_t missing = std::max<int64_t>(1, cost_(l.waiting[l.at]) - t.credit);
    rounds = std::min(rounds, (missing + quantum - 1) / quantum);
  }
  for (TenantCredit& t : round) {
    if (!line(static_cast<int32_t>(traffic_class), t.tenant).empty()) t.credit += rounds * quantum;
  }
  return true;
}

std::optional<size_t> QueueOrder::next() {
  for (class_ = 0; class_ < rounds_.size(); ++class_) {
    std::vector<TenantCredit>& round = rounds_[class_];
    do {
      // The turn stays with the first as long as he can pay, then goes on.
      for (size_t tried = 0; tried < round.size(); ++tried) {
        const Line& l = line(static_cast<int32_t>(class_), round[0].tenant);
        if (!l.empty() && cost_(l.waiting[l.at]) <= round[0].credit) return l.waiting[l.at];
        std::rotate(round.begin(), round.begin() + 1, round.end());
      }
    } while (add_rounds(class_));
  }
  return std::nullopt;
}

void QueueOrder::take(size_t i) {
  const SeqState& seq = input_->waiting[i];
  const int32_t traffic_class = effective_class(*config_, seq, input_->now_ns);
  for (TenantCredit& t : rounds_[static_cast<size_t>(traffic_class)]) {
    if (t.tenant == seq.tenant) t.credit -= cost_(i);
  }
  Line& l = line(traffic_class, seq.tenant);
  std::erase(l.waiting, i);
}

void QueueOrder::give_back(const SeqState& seq, int32_t traffic_class, int64_t cost) {
  for (TenantCredit& t : rounds_[static_cast<size_t>(traffic_class)]) {
    if (t.tenant == seq.tenant) t.credit += cost;
  }
}

void QueueOrder::skip() {
  ++line(static_cast<int32_t>(class_), rounds_[class_][0].tenant).at;
}

void QueueOrder::skip_tenant() {
  line(static_cast<int32_t>(class_), rounds_[class_][0].tenant).closed = true;
}

}  // namespace di::engine
