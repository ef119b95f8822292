#include "engine/scheduler.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "base/result.h"
#include "engine/queue_order.h"

namespace di::engine {
bool is_decode(const SeqState& seq) {
  return seq.computed > 0 && seq.output_tokens > 0 && seq.length - seq.computed == 1;
}

namespace {

// Rows of a prompt chunk that begins there.
int32_t chunk_rows(int32_t begin, int32_t length, int32_t checkpoint) {
  return (checkpoint > begin && checkpoint < length ? checkpoint : length) - begin;
}

// A prompt chunk that wants rows.
struct Demand {
  const SeqState* seq = nullptr;
  int32_t traffic_class = 0;  // effective
  int32_t begin = 0;
  int32_t wanted = 0;
  int32_t count = 0;
  int32_t new_blocks = 0;
  bool admit = false;
};

// One planning round.
class Planner {
 public:
  Planner(const SchedulerConfig& config, const SchedulerInput& input, const Lookups& lookups)
      : config_(config),
        input_(input),
        lookups_(lookups),
        pool_(input.pool),
        alive_(input.running.size(), 1),
        planned_(input.running.size(), 0),
        classes_(input.running.size(), 0) {
    plan.policy = input.policy;
    for (size_t i = 0; i < classes_.size(); ++i) {
      classes_[i] = effective_class(config_, input_.running[i], input_.now_ns);
    }
  }

  void make_place();
  void add_decodes();
  void add_chunks();
  bool has_decodes() const {
    return std::any_of(input_.running.begin(), input_.running.end(),
                       [](const SeqState& seq) { return !seq.ending && is_decode(seq); });
  }
  bool has_chunks() const {
    return !input_.waiting.empty() || std::any_of(input_.running.begin(), input_.running.end(),
                                                  [](const SeqState& seq) { return !seq.ending && !is_decode(seq); });
  }

  StepPlan plan;

 private:
  int32_t room() const { return config_.max_num_batched_tokens - plan.total_rows; }
  int32_t active() const { return static_cast<int32_t>(std::count(alive_.begin(), alive_.end(), 1)); }
  Start start_of(const SeqState& seq);
  bool worse(size_t a, size_t b) const;
  std::optional<size_t> victim(size_t wanted) const;
  std::optional<size_t> place_for(const SeqState& seq, int32_t traffic_class, std::span<const uint8_t> taken) const;
  bool take_places(const SeqState& seq, int32_t traffic_class);
  bool runs(int32_t tenant) const;
  QueueOrder& order();
  int32_t blocks_needed(const SeqState& seq, bool after_preemption);
  bool fits(const SeqState& seq, const PoolState& pool, int32_t holders, bool after_preemption);
  void preempt(size_t i);
  bool secure_blocks(size_t i, int32_t count, int32_t& new_blocks);
  void collect_running_chunks();
  void admit();
  bool try_admit(const SeqState& seq);
  bool gets_rows(const SeqState& seq, int32_t traffic_class, int32_t room) const;
  void share_room();
  void add_rows(const SeqState& seq, const ScheduledRows& rows);

  const SchedulerConfig& config_;
  const SchedulerInput& input_;
  const Lookups& lookups_;
  PoolState pool_;
  std::vector<uint8_t> alive_;    // running[i] still has its memory
  std::vector<uint8_t> planned_;  // running[i] has rows in this step
  std::vector<int32_t> classes_;  // running[i], effective
  std::vector<Demand> demands_;
  int32_t admitted_ = 0;
  bool short_of_blocks_ = false;  // running sequences lost their memory to others: nobody new
  std::map<uint64_t, Start> starts_;
  std::optional<QueueOrder> order_;
};

Start Planner::start_of(const SeqState& seq) {
  if (!lookups_.start) return {};
  const auto [it, fresh] = starts_.try_emplace(seq.id);
  if (fresh) it->second = lookups_.start(seq.id);
  return it->second;
}

void Planner::add_rows(const SeqState& seq, const ScheduledRows& rows) {
  plan.rows.push_back(rows);
  plan.rows.back().id = seq.id;
  plan.total_rows += rows.count;
}

// Gives its memory up before b does.
bool Planner::worse(size_t a, size_t b) const {
  const SeqState& x = input_.running[a];
  const SeqState& y = input_.running[b];
  return std::tuple(classes_[a], x.priority, x.output_tokens) > std::tuple(classes_[b], y.priority, y.output_tokens);
}

// The running sequence that gives up its memory for `wanted`: never one that already has rows in this step, and never
// one that is more important. Nothing when `wanted` itself is the one to go.
std::optional<size_t> Planner::victim(size_t wanted) const {
  size_t best = wanted;
  for (size_t i = 0; i < input_.running.size(); ++i) {
    if (alive_[i] == 0 || planned_[i] != 0 || i == wanted || input_.running[i].ending) continue;
    if (worse(i, best)) best = i;
  }
  return best == wanted ? std::nullopt : std::optional(best);
}

void Planner::preempt(size_t i) {
  const SeqState& seq = input_.running[i];
  alive_[i] = 0;
  plan.preempted.push_back(seq.id);
  pool_.free_blocks += lookups_.freed_blocks ? lookups_.freed_blocks(seq.id) : seq.blocks;
  ++pool_.free_slots;
}

// Makes the blocks for `count` rows of running[i] free, or takes its own memory away. False: it gets no rows.
bool Planner::secure_blocks(size_t i, int32_t count, int32_t& new_blocks) {
  const SeqState& seq = input_.running[i];
  const int32_t beyond = is_decode(seq) ? config_.max_drafts : 0;
  const int64_t end = std::min(int64_t{seq.computed} + count + beyond, config_.max_positions);
  new_blocks = std::max(0, blocks_for(end, config_.block_tokens) - seq.blocks);
  while (new_blocks > pool_.free_blocks) {
    short_of_blocks_ = true;
    if (const std::optional<size_t> v = victim(i)) {
      preempt(*v);
      continue;
    }
    const bool soon =
        std::any_of(input_.running.begin(), input_.running.end(), [](const SeqState& s) { return s.ending; });
    if (soon) return false;
    if (active() == 1 && plan.rows.empty()) {
      alive_[i] = 0;
      plan.exhausted.push_back(seq.id);
      pool_.free_blocks += seq.blocks;
      ++pool_.free_slots;
    } else {
      preempt(i);
    }
    return false;
  }
  pool_.free_blocks -= new_blocks;
  return true;
}

void Planner::add_decodes() {
  for (size_t i = 0; i < input_.running.size() && room() > 0; ++i) {
    const SeqState& seq = input_.running[i];
    if (alive_[i] == 0 || seq.ending || !is_decode(seq)) continue;
    const int32_t count = std::min(seq.decode_rows, room());
    int32_t new_blocks = 0;
    if (!secure_blocks(i, count, new_blocks)) continue;
    planned_[i] = 1;
    add_rows(seq, {0, seq.computed, count, new_blocks, false, true, true});
  }
}

void Planner::collect_running_chunks() {
  for (size_t i = 0; i < input_.running.size(); ++i) {
    const SeqState& seq = input_.running[i];
    if (alive_[i] == 0 || planned_[i] != 0 || seq.ending || is_decode(seq)) continue;
    Demand demand{&seq, classes_[i], seq.computed, chunk_rows(seq.computed, seq.length, seq.checkpoint), 0, 0, false};
    if (!secure_blocks(i, std::min(demand.wanted, room()), demand.new_blocks)) continue;
    planned_[i] = 1;
    demands_.push_back(demand);
  }
}

// share_room() would give a new sequence of that class and tenant at least one of so many rows.
bool Planner::gets_rows(const SeqState& seq, int32_t traffic_class, int32_t rows) const {
  int64_t before = 0;  // rows that go before it
  std::vector<int32_t> tenants;
  const auto count = [&](int32_t other_class, int32_t tenant, int32_t wanted) {
    if (other_class < traffic_class || (other_class == traffic_class && tenant == seq.tenant)) {
      before += wanted;
    } else if (other_class == traffic_class && std::find(tenants.begin(), tenants.end(), tenant) == tenants.end()) {
      tenants.push_back(tenant);
    }
  };
  for (size_t i = 0; i < input_.running.size(); ++i) {
    const SeqState& other = input_.running[i];
    if (alive_[i] != 0 && !other.ending && !is_decode(other)) {
      count(classes_[i], other.tenant, other.length - other.computed);
    }
  }
  for (const Demand& d : demands_) {
    if (d.admit) count(d.traffic_class, d.seq->tenant, d.wanted);
  }
  return before + static_cast<int64_t>(tenants.size()) < rows;
}

QueueOrder& Planner::order() {
  if (!order_) {
    order_.emplace(config_, input_, [this](size_t i) {
      const SeqState& seq = input_.waiting[i];
      return int64_t{seq.length} - start_of(seq).computed;
    });
  }
  return *order_;
}

// Of the free ones. What it takes over may belong to a sequence that has lost its memory in this step: then it counts
// among the free ones too.
int32_t Planner::blocks_needed(const SeqState& seq, bool after_preemption) {
  const Start start = start_of(seq);
  const int32_t new_blocks = std::max(0, blocks_for(seq.length, config_.block_tokens) - start.blocks);
  return new_blocks + (after_preemption ? start.blocks : start.idle_blocks);
}

bool Planner::fits(const SeqState& seq, const PoolState& pool, int32_t holders, bool after_preemption) {
  if (holders >= config_.max_num_seqs || pool.free_slots <= 0) return false;
  return blocks_needed(seq, after_preemption) + holders <= pool.free_blocks;
}

bool Planner::try_admit(const SeqState& seq) {
  const bool after_preemption = !plan.preempted.empty();
  if (!fits(seq, pool_, active() + admitted_, after_preemption)) return false;
  const Start start = start_of(seq);
  const int32_t new_blocks = std::max(0, blocks_for(seq.length, config_.block_tokens) - start.blocks);
  pool_.free_blocks -= blocks_needed(seq, after_preemption);
  --pool_.free_slots;
  ++admitted_;
  demands_.push_back({&seq, effective_class(config_, seq, input_.now_ns), start.computed,
                      chunk_rows(start.computed, seq.length, start.checkpoint), 0, new_blocks, true});
  return true;
}

bool Planner::runs(int32_t tenant) const {
  return std::any_of(input_.running.begin(), input_.running.end(),
                     [&](const SeqState& s) { return s.tenant == tenant; });
}

// A running sequence whose place a tenant that runs nothing may take: of the tenant that runs most, at least two; in no
// better class; the one that has done least. `taken`: those that are gone already.
std::optional<size_t> Planner::place_for(const SeqState& seq, int32_t traffic_class,
                                         std::span<const uint8_t> taken) const {
  std::map<int32_t, int32_t> running;
  for (size_t i = 0; i < input_.running.size(); ++i) running[input_.running[i].tenant] += taken[i] == 0 ? 1 : 0;
  int32_t most = 1;
  for (const auto& [tenant, count] : running) most = std::max(most, count);
  if (most < 2 || running[seq.tenant] > 0) return std::nullopt;
  std::optional<size_t> best;
  const auto key = [&](size_t i) {
    const SeqState& s = input_.running[i];
    return std::tuple(-classes_[i], -s.priority, s.output_tokens, s.computed);
  };
  for (size_t i = 0; i < input_.running.size(); ++i) {
    const SeqState& s = input_.running[i];
    if (taken[i] != 0 || s.ending || classes_[i] < traffic_class || running[s.tenant] != most) continue;
    if (!best || key(i) < key(*best)) best = i;
  }
  return best;
}

// All of them or none.
bool Planner::take_places(const SeqState& seq, int32_t traffic_class) {
  PoolState pool = pool_;
  int32_t holders = active();
  std::vector<uint8_t> taken(input_.running.size(), 0);
  std::vector<size_t> places;
  while (!fits(seq, pool, holders, true)) {
    const std::optional<size_t> place = place_for(seq, traffic_class, taken);
    if (!place) return false;
    taken[*place] = 1;
    places.push_back(*place);
    const SeqState& loser = input_.running[*place];
    pool.free_blocks += lookups_.freed_blocks ? lookups_.freed_blocks(loser.id) : loser.blocks;
    ++pool.free_slots;
    --holders;
  }
  for (const size_t place : places) preempt(place);
  return try_admit(seq);
}

// The first in the queue whose tenant runs nothing: if there is no room for it, those that run several make some. One a
// step.
void Planner::make_place() {
  const bool wanted =
      std::any_of(input_.waiting.begin(), input_.waiting.end(), [&](const SeqState& s) { return !runs(s.tenant); });
  if (!wanted || input_.running.empty()) return;
  int32_t rows = config_.max_num_batched_tokens;
  for (const SeqState& seq : input_.running) rows -= !seq.ending && is_decode(seq) ? seq.decode_rows : 0;
  QueueOrder scan(order());  // turns are taken from the real one only
  while (const std::optional<size_t> i = scan.next()) {
    const SeqState& seq = input_.waiting[*i];
    if (!start_of(seq).ready) {
      scan.skip();
      continue;
    }
    const int32_t traffic_class = effective_class(config_, seq, input_.now_ns);
    if (runs(seq.tenant) || !gets_rows(seq, traffic_class, rows)) {
      scan.skip_tenant();
      continue;
    }
    if (!fits(seq, pool_, active(), false) && take_places(seq, traffic_class)) order().take(*i);
    return;
  }
}

void Planner::admit() {
  if (input_.waiting.empty() || room() <= 0) return;
  if (pool_.free_slots <= 0 || active() + admitted_ >= config_.max_num_seqs) return;
  while (const std::optional<size_t> i = order().next()) {
    const SeqState& seq = input_.waiting[*i];
    if (!start_of(seq).ready) {
      order().skip();
    } else if (!gets_rows(seq, effective_class(config_, seq, input_.now_ns), room())) {
      order().skip_tenant();
    } else if (try_admit(seq)) {
      order().take(*i);
      if (pool_.free_slots <= 0 || active() + admitted_ >= config_.max_num_seqs) return;
    } else if (is_overdue(config_, seq, input_.now_ns)) {
      return;
    } else {
      order().skip_tenant();
    }
  }
}

// Class by class; inside a class equal shares of what is left for its tenants, those that want less leave the rest.
void Planner::share_room() {
  int32_t left = room();
  for (int32_t c = 0; c < kTrafficClasses && left > 0; ++c) {
    std::map<int32_t, std::vector<Demand*>> tenants;
    for (Demand& d : demands_) {
      if (d.traffic_class == c) tenants[d.seq->tenant].push_back(&d);
    }
    while (left > 0 && !tenants.empty()) {
      const int32_t share = std::max(1, left / static_cast<int32_t>(tenants.size()));
      for (auto it = tenants.begin(); it != tenants.end() && left > 0;) {
        int32_t mine = std::min(share, left);
        left -= mine;
        for (Demand* d : it->second) {
          const int32_t more = std::min(mine, d->wanted - d->count);
          d->count += more;
          mine -= more;
        }
        left += mine;
        it = mine > 0 ? tenants.erase(it) : std::next(it);
      }
    }
  }
}

void Planner::add_chunks() {
  collect_running_chunks();
  if (!short_of_blocks_) admit();
  share_room();
  for (const Demand& d : demands_) {
    if (d.count > 0) {
      add_rows(*d.seq, {0, d.begin, d.count, d.new_blocks, d.admit, false, d.begin + d.count == d.seq->length});
    } else if (d.admit) {
      order().give_back(*d.seq, d.traffic_class, d.wanted);  // it waits for the next step
    }
  }
  if (order_) plan.policy.rounds = order_->rounds();
}

// engine.md §3.1 for one rank: true when chunks are tried in this step.
bool attempts_prefill(const SchedulerConfig& config, const SchedulerInput& input) {
  const int32_t steps = input.policy.decode_steps;
  return steps % config.prefill_attempt_interval == 0 ||
         (steps != 0 && steps % config.prefill_any_attempt_interval == 0);
}

}  // namespace

int32_t blocks_for(int64_t tokens, int32_t block_tokens) {
  return static_cast<int32_t>((tokens + block_tokens - 1) / block_tokens);
}

int32_t effective_class(const SchedulerConfig& config, const SeqState& seq, int64_t now_ns) {
  const int64_t gained = config.max_queue_ns > 0 ? (now_ns - seq.arrival_ns) / config.max_queue_ns : 0;
  return static_cast<int32_t>(std::clamp<int64_t>(seq.traffic_class - gained, 0, kTrafficClasses - 1));
}

bool is_overdue(const SchedulerConfig& config, const SeqState& seq, int64_t now_ns) {
  return config.max_queue_ns > 0 && now_ns - seq.arrival_ns >= config.max_queue_ns * (seq.traffic_class + 1);
}

StepPlan plan_step(const SchedulerConfig& config, const SchedulerInput& input, const Lookups& lookups) {
  Planner p(config, input, lookups);
  if (config.mixed_steps) {
    p.make_place();
    p.add_decodes();
    p.add_chunks();
    p.plan.policy.decode_steps = 0;
    return p.plan;
  }
  if (p.has_chunks() && (!p.has_decodes() || attempts_prefill(config, input))) {
    p.make_place();
    p.add_chunks();
    if (!p.plan.rows.empty() || !p.plan.exhausted.empty()) {
      p.plan.policy.decode_steps = 0;
      return p.plan;
    }
  }
  p.add_decodes();
  ++p.plan.policy.decode_steps;
  return p.plan;
}

}  // namespace di::engine
