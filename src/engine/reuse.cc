// Where a sequence's memory comes from, what of it exists before anything is computed, and who may use it afterwards
// (engine.md §2.5, §6.4; kv-cache.md §6). engine.h says when each of these is called.
//
// Three ways to start: cold; as a fork of another choice of the request, which has just computed the prompt (its full
// blocks are shared, its slot and last block are copied, and the prompt's last row is computed again for its logits);
// from a known prefix, with the sliding window that was saved at its end, or with a replay that rebuilds it.
#include <algorithm>

#include "base/log.h"
#include "engine/engine.h"

namespace di::engine {

bool Engine::keeps_windows() const {
  return info_.prefix_cache && options_.reuse.window_memory_bytes > 0;
}

// Its prefill leaves the decoder half's rows below keep_begin out. What wants log-probabilities of the prompt runs
// whole.
bool Engine::truncates(const Sequence& seq) const {
  return info_.replay_keep > 0 && seq.spec->prompt_logprobs < 0;
}

kv::SwaLayers Engine::needed_layers(const Sequence& seq) const {
  return truncates(seq) ? kv::SwaLayers::kEncoder : kv::SwaLayers::kAll;
}

kv::BlockChain Engine::chain_of(const GenerateRequest& request) const {
  kv::RootFields fields = runner_->info().identity;
  fields.block_tokens = info_.block_tokens;
  if (!request.cache_namespace.empty()) {
    fields.domain_salt = request.cache_namespace;
  } else if (!request.tenant.empty()) {
    const Sha256 salt = sha256("deepinfer/tenant/" + request.tenant);
    fields.domain_salt = std::string(salt.begin(), salt.end());
  }
  kv::BlockChain chain(kv::root_key(fields), info_.block_tokens);
  chain.extend(request.prompt, request.media);
  return chain;
}

// A choice takes over another one's prompt while that is still in the other's slot. False: there is none to wait for or
// to take from.
bool Engine::find_fork(const Sequence& seq, StartChoice& choice, bool& ready) const {
  const RunnerInfo& runner = runner_->info();
  if (!runner.copies || seq.choice == 0 || seq.output_tokens() > 0 || seq.prompt_tokens < 2) return false;
  for (const uint64_t id : seq.request->choices) {
    const auto it = sequences_.find(id);
    if (it == sequences_.end() || id == seq.id) continue;
    const Sequence& other = *it->second;
    if (other.slot < 0 || other.computed < seq.prompt_tokens) {
      if (other.choice > 0 || other.output_tokens() > 0) continue;
      ready = false;  // the first choice is about to compute the prompt
      return true;
    }
    // What launched steps have written behind the prompt must not have pushed its last rows out of the rings.
    if (other.computed - seq.prompt_tokens > runner.backtracking - 1) continue;
    choice.fork_of = id;
    choice.shared_blocks = seq.prompt_tokens / info_.block_tokens;
    choice.plan.start = seq.prompt_tokens - 1;
    choice.plan.window_start = other.window_start;
    choice.plan.block_write_begin = seq.prompt_tokens;
    return true;
  }
  return false;
}

void Engine::find_prefix(Sequence& seq, StartChoice& choice) {
  if (!info_.prefix_cache || seq.spec->prompt_logprobs >= 0) return;
  seq.chain.extend(seq.tokens, seq.request->spec.media);
  const int32_t block = info_.block_tokens;
  const auto usable = static_cast<size_t>(kv::usable_tokens(seq.length(), block) / block);
  const auto chain = seq.chain.keys().first(usable);
  const int32_t hit = blocks_.match(chain).blocks;
  std::optional<int32_t> window_at;
  if (kv::worth_adopting(rules_, hit * block)) {
    choice.window = windows_
                        .find(chain, hit, block, rules_.lower_reach, needed_layers(seq), clock_.now_ns(),
                              /*commit=*/false)
                        .entry;
    if (choice.window != nullptr) window_at = choice.window->position;
  }
  choice.hit_blocks = hit;
  choice.plan = kv::plan_start(rules_, hit * block, window_at);
  if (!keeps_windows()) return;
  // Windows to save on the way: at the end of a prefix that others have too, and at the prompt's last boundary.
  for (const int32_t at : {hit * block, seq.length() / block * block}) {
    const bool there = at > 0 && windows_.has(seq.chain.keys()[static_cast<size_t>(at / block - 1)], needed_layers(seq),
                                              clock_.now_ns());
    const bool saved = !choice.checkpoints.empty() && choice.checkpoints.back() == at;
    if (at >= rules_.window && at > choice.plan.start && !there && !saved) choice.checkpoints.push_back(at);
  }
}

Start Engine::find_start(Sequence& seq) {
  StartChoice choice;
  Start out;
  if (find_fork(seq, choice, out.ready)) {
    out.blocks = choice.shared_blocks;
  } else {
    find_prefix(seq, choice);
    out.blocks = choice.plan.hit_tokens / info_.block_tokens;
    if (out.blocks > 0) out.idle_blocks = blocks_.match(seq.chain.keys().first(static_cast<size_t>(out.blocks))).kept;
    if (!choice.checkpoints.empty()) out.checkpoint = choice.checkpoints.front();
  }
  if (!may_send(seq)) out.ready = false;
  out.computed = choice.plan.start;
  seq.start = std::move(choice);
  return out;
}

void Engine::take_over(Sequence& seq) {
  StartChoice choice = std::exchange(seq.start, {});
  const kv::StartPlan& plan = choice.plan;
  const auto known = static_cast<size_t>(plan.hit_tokens / info_.block_tokens);
  if (seq.times.scheduled_ns == 0) count_start(seq, choice);
  seq.computed = plan.start;
  seq.window_start = plan.window_start;
  seq.block_write_begin = plan.block_write_begin;
  seq.keep_begin = 0;
  seq.filled_blocks = static_cast<int32_t>(known);
  seq.checkpoints = std::move(choice.checkpoints);
  seq.replaced_blocks.clear();
  seq.copy_last_block = 0;
  seq.window_ordered = seq.window_kept = 0;
  if (choice.fork_of != 0) {
    const Sequence& other = sequence(choice.fork_of);
    for (int32_t i = 0; i < choice.shared_blocks; ++i) {
      blocks_.share(other.blocks[static_cast<size_t>(i)]);
      seq.blocks.push_back(other.blocks[static_cast<size_t>(i)]);
    }
    if (seq.prompt_tokens % info_.block_tokens != 0) {
      seq.copy_last_block = other.blocks[static_cast<size_t>(choice.shared_blocks)];
    }
    copies_.slots.push_back({other.slot, seq.slot});
    seq.keep_begin = other.keep_begin;
    seq.cached_tokens = other.cached_tokens;  // the prompt is counted once
    seq.cache = other.cache;
    return;
  }
  blocks_.adopt(seq.chain.keys().first(known), seq.blocks);
  const bool whole_window = choice.window == nullptr || choice.window->layers == kv::SwaLayers::kAll;
  if (truncates(seq)) {
    seq.keep_begin = kv::keep_begin(seq.length(), info_.replay_keep, plan.start, whole_window && plan.replay_rows == 0);
  }
  if (plan.outcome != kv::SwaOutcome::kNone) {
    // Counts the outcome and keeps the entry young.
    windows_.find(seq.chain.keys(), choice.hit_blocks, info_.block_tokens, rules_.lower_reach, needed_layers(seq),
                  clock_.now_ns(),
                  /*commit=*/true);
  }
  seq.window_load = std::move(choice.window);
}

// What a request found when it was admitted first.
void Engine::count_start(Sequence& seq, const StartChoice& choice) {
  if (choice.fork_of != 0) {
    ++counters_.forks;
    return;
  }
  if (!info_.prefix_cache) return;
  const kv::StartPlan& plan = choice.plan;
  const int32_t block = info_.block_tokens;
  const int32_t hit = choice.hit_blocks;
  const auto usable = static_cast<size_t>(kv::usable_tokens(seq.length(), block) / block);
  const auto chain = seq.chain.keys().first(std::min(usable, seq.chain.keys().size()));
  CacheReport& report = seq.cache;
  report.window = plan.outcome;
  report.replay_rows = plan.replay_rows;
  report.miss = blocks_.explain(chain, seq.chain.root(), seq.tokens, hit);
  if (plan.outcome == kv::SwaOutcome::kMiss && plan.hit_tokens == 0) {
    report.miss = {kv::MissReason::kNoWindow, 0};
  } else if (plan.outcome == kv::SwaOutcome::kHitLower) {
    report.miss = {kv::MissReason::kNoWindow, plan.start};
  } else if (hit > 0 && plan.hit_tokens == 0) {
    report.miss = {kv::MissReason::kTooShort, hit * block};
  }
  ++counters_.misses[static_cast<size_t>(report.miss.reason)];
  seq.cached_tokens = plan.cached_tokens;
  counters_.prefix_queries += static_cast<uint64_t>(seq.prompt_tokens);
  counters_.prefix_hits += static_cast<uint64_t>(plan.cached_tokens);
  if (choice.window != nullptr) counters_.cached_by_host += static_cast<uint64_t>(plan.cached_tokens);
  if (plan.replay_rows > 0) {
    ++counters_.replays;
    counters_.replayed_tokens += static_cast<uint64_t>(plan.replay_rows);
  }
}

kv::SwaEntryRef Engine::order_window(Sequence& seq, const ScheduledRows& rows) {
  if (!keeps_windows() || seq.spec->prompt_logprobs >= 0) return nullptr;
  const int32_t block = info_.block_tokens;
  const int32_t end = rows.begin + rows.count;
  int32_t at = 0;
  if (rows.decode) {
    // The boundary that comes next, as far as the host knows; with drafts it may take another step to get there.
    at = ((seq.length() - 1) / block + 1) * block;
    if (end < at || seq.window_ordered >= at || at < rules_.window) return nullptr;
    seq.window_ordered = at;
  } else {
    if (std::find(seq.checkpoints.begin(), seq.checkpoints.end(), end) == seq.checkpoints.end()) return nullptr;
    at = end;
  }
  auto window = std::make_shared<kv::SwaEntry>();
  window->position = at;
  // The decoder half has rows from keep_begin on.
  const bool whole = seq.keep_begin == 0 || at - rules_.window >= seq.keep_begin;
  window->layers = whole ? kv::SwaLayers::kAll : kv::SwaLayers::kEncoder;
  window->bytes.resize(
      static_cast<size_t>(whole ? runner_->info().window_bytes : runner_->info().window_bytes_encoder));
  return window;
}

void Engine::keep_window(Sequence& seq, const kv::SwaEntryRef& window) {
  if (window == nullptr || window->position > seq.length()) return;
  seq.chain.extend(seq.tokens, seq.request->spec.media);
  const auto key = [&](int32_t position) {
    return seq.chain.keys()[static_cast<size_t>(position / info_.block_tokens - 1)];
  };
  windows_.put(key(window->position), window, clock_.now_ns());
  if (window->position <= seq.prompt_tokens) return;
  // Of the boundaries inside an answer only the last one is of use, unless others went on from an earlier one.
  if (seq.window_kept > 0) windows_.drop_unused(key(seq.window_kept));
  seq.window_kept = window->position;
}

void Engine::blocks_filled(Sequence& seq, int32_t tokens) {
  if (!info_.prefix_cache) return;
  const auto size = static_cast<size_t>(info_.block_tokens);
  if (tokens / info_.block_tokens <= seq.filled_blocks) return;
  seq.chain.extend(seq.tokens, seq.request->spec.media);
  for (; seq.filled_blocks < tokens / info_.block_tokens; ++seq.filled_blocks) {
    const auto i = static_cast<size_t>(seq.filled_blocks);
    const int32_t own = seq.blocks[i];
    const int32_t use =
        blocks_.publish(seq.chain.keys().first(i + 1), seq.chain.root(), std::span(seq.tokens).subspan(i * size, size),
                        i == 0 ? 0 : seq.blocks[i - 1], own);
    if (use == own) continue;
    seq.blocks[i] = use;
    seq.replaced_blocks.emplace_back(seq.filled_blocks, use);
  }
}

int32_t Engine::freed_blocks(const Sequence& seq) const {
  return static_cast<int32_t>(
      std::count_if(seq.blocks.begin(), seq.blocks.end(), [this](int32_t id) { return blocks_.owners(id) == 1; }));
}

void Engine::choose_verify_rows(std::span<SeqState> running) {
  if (planner_.drafts() == 0) return;
  std::vector<SequenceRates> sequences;
  std::vector<SeqState*> states;
  for (SeqState& state : running) {
    if (state.ending || !is_decode(state)) continue;
    const Sequence& seq = sequence(state.id);
    SequenceRates rates;
    rates.num_drafts = seq.drafted ? planner_.drafts() : 0;
    if (planner_.mode() == SpeculationMode::kVariable) {
      // No budget for tokens that are not wanted: what is in flight gives at least one a step, the step itself one.
      const int64_t wanted = seq.spec->stop.max_tokens - seq.output_tokens() - seq.steps_pending - 1;
      rates.num_drafts = static_cast<int32_t>(std::clamp<int64_t>(wanted, 0, rates.num_drafts));
    }
    rates.has_draft_info = seq.drafted;
    rates.schedule_count = seq.steps_pending > 0 ? 1 : 0;
    rates.rates = seq.confidences.rates;
    rates.previous_rates = seq.confidences.previous;
    sequences.push_back(rates);
    states.push_back(&state);
  }
  const std::vector<int32_t> rows = planner_.plan(sequences, options_.max_num_batched_tokens);
  for (size_t i = 0; i < rows.size(); ++i) states[i]->decode_rows = rows[i];
}

}  // namespace di::engine
