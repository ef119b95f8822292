#include "engine/scheduler.h"

#include <algorithm>
#include <optional>

#include "base/result.h"

namespace di::engine {
namespace {

bool is_decode(const SeqState& seq) {
  return seq.computed > 0 && seq.output_tokens > 0 && seq.length - seq.computed == 1;
}

// One planning round; `alive[i]` tells whether running[i] still has its memory.
struct Planner {
  const SchedulerConfig& config;
  PoolState pool;
  std::span<const SeqState> running;
  std::vector<uint8_t> alive;
  std::vector<uint8_t> planned;
  StepPlan plan;

  int32_t room() const { return config.max_num_batched_tokens - plan.total_rows; }

  // Decode rows beyond the first are drafts: they lie behind the sequence's last token.
  void add(const SeqState& seq, int32_t begin, int32_t count, int32_t new_blocks, bool admit) {
    const bool decode = !admit && is_decode(seq);
    plan.rows.push_back({seq.id, begin, count, new_blocks, admit, decode, decode || begin + count == seq.length});
    plan.total_rows += count;
    pool.free_blocks -= new_blocks;
  }

  // The running sequence that gives up its memory for `wanted`: never one that already has rows in this step, and never
  // one that is more important. Nothing when `wanted` itself is the one to go.
  std::optional<size_t> victim(size_t wanted) const {
    size_t best = wanted;
    for (size_t i = 0; i < running.size(); ++i) {
      if (alive[i] == 0 || planned[i] != 0 || i == wanted || running[i].ending) continue;
      const SeqState& a = running[i];
      const SeqState& b = running[best];
      if (a.priority > b.priority || (a.priority == b.priority && a.output_tokens > b.output_tokens)) best = i;
    }
    return best == wanted ? std::nullopt : std::optional(best);
  }

  void preempt(size_t i) {
    alive[i] = 0;
    plan.preempted.push_back(running[i].id);
    pool.free_blocks += running[i].blocks;
    ++pool.free_slots;
  }

  // Makes the blocks for `count` rows of running[i] free, or takes its own memory away. False: it gets no rows.
  bool secure_blocks(size_t i, int32_t count, int32_t& new_blocks) {
    const SeqState& seq = running[i];
    const int32_t beyond = is_decode(seq) ? config.max_drafts : 0;
    new_blocks = std::max(0, blocks_for(int64_t{seq.computed} + count + beyond, config.block_tokens) - seq.blocks);
    while (new_blocks > pool.free_blocks) {
      if (const std::optional<size_t> v = victim(i)) {
        preempt(*v);
        continue;
      }
      if (std::any_of(running.begin(), running.end(), [](const SeqState& s) { return s.ending; })) return false;
      const bool alone = std::count(alive.begin(), alive.end(), 1) == 1;
      if (alone && plan.rows.empty()) {
        alive[i] = 0;
        plan.exhausted.push_back(seq.id);
        pool.free_blocks += seq.blocks;
        ++pool.free_slots;
      } else {
        preempt(i);
      }
      return false;
    }
    return true;
  }

  void add_running(bool decode) {
    for (size_t i = 0; i < running.size() && room() > 0; ++i) {
      const SeqState& seq = running[i];
      if (alive[i] == 0 || planned[i] != 0 || seq.ending || is_decode(seq) != decode) continue;
      const int32_t count = std::min(decode ? seq.decode_rows : seq.length - seq.computed, room());
      int32_t new_blocks = 0;
      if (!secure_blocks(i, count, new_blocks)) continue;
      planned[i] = 1;
      add(seq, seq.computed, count, new_blocks, false);
    }
  }

  void admit(std::span<const SeqState> waiting, const StartLookup& lookup) {
    auto active = static_cast<int32_t>(std::count(alive.begin(), alive.end(), 1));
    for (const SeqState& seq : waiting) {
      if (room() <= 0 || active >= config.max_num_seqs || pool.free_slots <= 0) return;
      const Start start = lookup ? lookup(seq.id) : Start{};
      if (!start.ready) continue;
      const int32_t new_blocks = std::max(0, blocks_for(seq.length, config.block_tokens) - start.blocks);
      const int32_t reserve = active == 0 ? 0 : active;
      if (new_blocks + start.idle_blocks + reserve > pool.free_blocks) return;
      pool.free_blocks -= start.idle_blocks;
      add(seq, start.computed, std::min(seq.length - start.computed, room()), new_blocks, true);
      --pool.free_slots;
      ++active;
    }
  }
};

}  // namespace

int32_t blocks_for(int64_t tokens, int32_t block_tokens) {
  return static_cast<int32_t>((tokens + block_tokens - 1) / block_tokens);
}

StepPlan plan_step(const SchedulerConfig& config, PoolState pool, std::span<const SeqState> running,
                   std::span<const SeqState> waiting, const StartLookup& start) {
  Planner p{config, pool, running, std::vector<uint8_t>(running.size(), 1), std::vector<uint8_t>(running.size(), 0),
            {}};
  p.add_running(true);
  p.add_running(false);
  if (p.plan.preempted.empty()) p.admit(waiting, start);
  return p.plan;
}

}  // namespace di::engine
