// One step of the engine: choose rows, give them memory, launch them, and hand out what the step before gave. Read
// Engine::step() first.
#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "engine/engine.h"

namespace di::engine {
namespace {

// Adds a span to the trace when it goes out of scope.
class Span {
 public:
  Span(Trace* trace, const Clock& clock, const char* name, uint64_t step)
      : trace_(trace), clock_(clock), span_{name, TraceThread::kEngine, clock.now_ns(), 0, step, 0, 0} {}
  ~Span() {
    if (trace_ == nullptr) return;
    span_.end_ns = clock_.now_ns();
    trace_->add(span_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  int64_t begin_ns() const { return span_.begin_ns; }

 private:
  Trace* trace_;
  const Clock& clock_;
  TraceSpan span_;
};

}  // namespace

// False when there was nothing to do.
bool Engine::step() {
  bool launched = false;
  windows_.expire(clock_.now_ns());
  if (!sequences_.empty()) {
    const Span span(options_.trace, clock_, "schedule", next_step_);
    StepPlan plan = schedule();
    apply(plan);
    launched = launch(plan);
    counters_.times.schedule.observe(static_cast<double>(clock_.now_ns() - span.begin_ns()) * 1e-9);
  }
  const size_t keep = launched && options_.async_scheduling ? 1 : 0;
  const bool worked = launched || !launched_.empty();
  while (launched_.size() > keep) process();
#ifdef DI_DEBUG_CHECKS
  check_invariants();
#endif
  return worked;
}

StepPlan Engine::schedule() {
  input_.now_ns = clock_.now_ns();
  input_.pool = {blocks_.free_count(), slots_.free_count()};
  input_.running.clear();
  for (const Sequence* seq : running_) input_.running.push_back(seq->state());
  choose_verify_rows(input_.running);
  input_.waiting.clear();
  for (const Sequence* seq : waiting_) input_.waiting.push_back(seq->state());
  const Lookups lookups{[this](uint64_t id) { return find_start(sequence(id)); },
                        [this](uint64_t id) { return freed_blocks(sequence(id)); }};
  StepPlan plan = options_.recorder == nullptr ? plan_step(scheduler_, input_, lookups)
                                               : options_.recorder->plan(next_step_, scheduler_, input_, lookups);
  input_.policy = plan.policy;
  return plan;
}

// A fork of a choice that loses its memory in the same step waits for the next one.
void Engine::drop_broken_forks(StepPlan& plan) {
  const auto gone = [&](uint64_t id) {
    return std::find(plan.preempted.begin(), plan.preempted.end(), id) != plan.preempted.end() ||
           std::find(plan.exhausted.begin(), plan.exhausted.end(), id) != plan.exhausted.end();
  };
  std::erase_if(plan.rows, [&](const ScheduledRows& rows) {
    const bool broken = rows.admit && sequence(rows.id).start.fork_of != 0 && gone(sequence(rows.id).start.fork_of);
    if (broken) plan.total_rows -= rows.count;
    return broken;
  });
}

void Engine::apply(StepPlan& plan) {
  const int64_t now = clock_.now_ns();
  drop_broken_forks(plan);
  for (auto it = plan.preempted.rbegin(); it != plan.preempted.rend(); ++it) preempt(sequence(*it));
  for (const uint64_t id : plan.exhausted) finish(sequence(id), {}, FinishReason::kPreempted);
  for (const ScheduledRows& rows : plan.rows) {
    Sequence& seq = sequence(rows.id);
    if (rows.admit) {
      std::erase(waiting_, &seq);
      running_.push_back(&seq);
      seq.slot = slots_.allocate();
      seq.fresh = true;
      seq.sent_blocks = 0;
      take_over(seq);
      mark_scheduled(seq, now);
    }
  }
  // Only now: what is taken over has owners and cannot be given away any more.
  for (const ScheduledRows& rows : plan.rows) {
    Sequence& seq = sequence(rows.id);
    for (int32_t i = 0; i < rows.new_blocks; ++i) seq.blocks.push_back(blocks_.allocate());
    if (const int32_t from = std::exchange(seq.copy_last_block, 0); from != 0) {
      copies_.blocks.push_back({from, seq.blocks[static_cast<size_t>(seq.prompt_tokens / info_.block_tokens)]});
    }
  }
}

// Both halves go down without looking at the device in between; it knows the tokens of running sequences.
bool Engine::launch(const StepPlan& plan) {
  if (plan.rows.empty()) return false;
  Launched launched;
  launched.step = next_step_;
  launched.after_pause = std::exchange(paused_, false);
  StepInput input;
  input.step = next_step_;
  input.total_rows = launched.total_rows = plan.total_rows;
  input.block_copies = std::exchange(copies_.blocks, {});
  input.slot_copies = std::exchange(copies_.slots, {});
  const auto sampled =
      std::count_if(plan.rows.begin(), plan.rows.end(), [](const ScheduledRows& r) { return r.sample; });
  input.propose = launched.proposed = planner_.propose(static_cast<int32_t>(sampled));
  input.share_rows = options_.async_scheduling && planner_.mode() == SpeculationMode::kVariable;
  input.rows.reserve(plan.rows.size());
  launched.rows.reserve(plan.rows.size());
  for (const ScheduledRows& rows : plan.rows) input.rows.push_back(launch_rows(rows, launched));
  worker_.launch_forward(std::move(input));
  worker_.launch_sample({next_step_});
  launched_.push_back(std::move(launched));
  ++next_step_;
  return true;
}

StepRows Engine::launch_rows(const ScheduledRows& rows, Launched& launched) {
  Sequence& seq = sequence(rows.id);
  StepRows out;
  out.sequence = seq.id;
  out.slot = seq.slot;
  out.begin = rows.begin;
  out.count = rows.count;
  out.decode = rows.decode;
  out.sample = rows.sample && seq.spec->stop.max_tokens > 0;
  out.window_start = seq.window_start;
  out.block_write_begin = seq.block_write_begin;
  out.keep_begin = seq.keep_begin;
  out.masked = options_.reuse.mask;
  out.replaced_blocks = std::exchange(seq.replaced_blocks, {});
  out.window_load = std::exchange(seq.window_load, nullptr);
  out.receive = std::exchange(seq.arrived, nullptr);
  out.receive_from = seq.known_blocks;
  order_send(seq, rows, out);
  out.window_save = order_window(seq, rows);
  out.prompt_logprobs = seq.spec->prompt_logprobs >= 0 && !rows.decode && seq.output_tokens() == 0;
  if (seq.pending > 0) out.remap = seq.last_index;
  if (seq.fresh) {
    out.admitted = seq.spec;
    out.tokens = seq.tokens;
    seq.fresh = false;
  }
  out.new_blocks.assign(seq.blocks.begin() + seq.sent_blocks, seq.blocks.end());
  seq.sent_blocks = static_cast<int32_t>(seq.blocks.size());
  seq.last_index = static_cast<int32_t>(launched.rows.size());

  if (out.sample) seq.drafted = launched.proposed;
  const int32_t drafts = scheduler_.max_drafts;
  seq.computed = rows.decode ? rows.begin + 1 + drafts : rows.begin + rows.count + (out.sample ? drafts : 0);
  if (out.sample) {
    seq.pending += 1 + drafts;
    ++seq.steps_pending;
  }
  seq.in_flight += 1;
  launched.rows.push_back({seq.id, seq.epoch, rows.begin, rows.count, rows.decode, out.sample});
  return out;
}

// Waits for the oldest step in flight and hands out what it gave.
void Engine::process() {
  const Launched launched = std::move(launched_.front());
  launched_.pop_front();
  StepOutput output;
  {
    const Span span(options_.trace, clock_, "wait", launched.step);
    output = worker_.wait();
    counters_.times.wait.observe(static_cast<double>(clock_.now_ns() - span.begin_ns()) * 1e-9);
  }
  const Span span(options_.trace, clock_, "post", launched.step);
  count_step(launched, output);
  if (!output.status) step_failed(launched, output.status.error());
  for (size_t i = 0; i < launched.rows.size(); ++i) {
    const Launched::Rows& rows = launched.rows[i];
    const auto it = sequences_.find(rows.sequence);
    // Ended or preempted since: this output is void.
    if (it == sequences_.end() || it->second->epoch != rows.epoch) continue;
    if (output.status) {
      process_rows(rows, output.sequences[i]);
    } else {
      // With its other choices: they may have taken over what was not computed.
      end_request(*it->second->request, FinishReason::kError, output.status.error());
    }
  }
  counters_.times.post.observe(static_cast<double>(clock_.now_ns() - span.begin_ns()) * 1e-9);
}

void Engine::step_failed(const Launched& launched, const Error& error) {
  const auto decoding = std::ranges::count_if(launched.rows, [](const Launched::Rows& r) { return r.decode; });
  DI_LOG(kError, "step {} failed ({} rows of {} sequences, {} of them decoding): {}", launched.step,
         launched.total_rows, launched.rows.size(), decoding, error.message);
  if (error.code == Errc::kUnavailable && options_.on_device_lost) options_.on_device_lost(error);
}

void Engine::process_rows(const Launched::Rows& rows, RowsOutput& output) {
  Sequence& seq = sequence(rows.sequence);
  --seq.in_flight;
  std::move(output.prompt.begin(), output.prompt.end(), std::back_inserter(seq.prompt_logprobs));
  if (!rows.decode) {
    const int32_t end = rows.begin + rows.count;
    counters_.prompt_tokens +=
        static_cast<uint64_t>(std::min(end, seq.prompt_tokens) - std::min(rows.begin, seq.prompt_tokens));
    keep_window(seq, std::exchange(output.window, nullptr));
    blocks_filled(seq, end);
    if (!rows.sample) {
      if (end >= seq.length()) finish(seq, {}, FinishReason::kLength);  // max_tokens 0: only the prompt was wanted
      return;
    }
  }
  seq.pending -= 1 + scheduler_.max_drafts;
  --seq.steps_pending;
  if (output.skipped) {
    seq.computed = seq.length() - 1 + seq.pending;
    return;
  }
  count_drafts(seq, output);
  if (output.constraint_failed) {
    seq.constraint_failed = true;
    finish(seq, {}, FinishReason::kError,
           Error{Errc::kInternal, fmt::format("the constraint cannot go on after {} tokens of output: it reached its "
                                              "limits or leaves no token that the other parameters allow",
                                              seq.output_tokens())});
    return;
  }
  if (output.failed || output.tokens.empty()) {
    ++counters_.corrupted;
    finish(seq, {}, FinishReason::kError,
           Error{Errc::kInternal,
                 fmt::format("no token can follow position {}: the logits are not finite or all tokens are ruled out",
                             seq.length() - 1)});
    return;
  }
  append_tokens(seq, output);
}

// Drafts that were accepted and the sampled token, up to the first that ends the sequence.
void Engine::append_tokens(Sequence& seq, RowsOutput& output) {
  if (seq.request->spec.send != nullptr) return commit_transfer(seq, output);
  if (seq.times.first_token_ns == 0) {
    seq.times.first_token_ns = clock_.now_ns();
    const double ttft = static_cast<double>(seq.times.first_token_ns - seq.times.arrival_ns) * 1e-9;
    ++counters_.first_tokens;
    counters_.ttft_seconds_sum += ttft;
    counters_.ttft_seconds_max = std::max(counters_.ttft_seconds_max, ttft);
  }
  std::vector<OutputToken> tokens;
  FinishReason reason = FinishReason::kNone;
  for (OutputToken& token : output.tokens) {
    reason = check_stop(seq.spec->stop, token.token, seq.prompt_tokens, seq.output_tokens() + 1);
    if (reason != FinishReason::kStop) {
      seq.tokens.push_back(token.token);
      ++counters_.generated_tokens;
      tokens.push_back(std::move(token));
    }
    if (reason != FinishReason::kNone) break;
  }
  seq.computed = seq.length() - 1 + seq.pending;
  keep_window(seq, output.window);  // a decode step's; a chunk's was taken before
  // The last token has not gone through the model yet, unless a stop token was sampled behind it. Of a prompt that was
  // taken over, nothing is on the device yet.
  if (!seq.fresh) blocks_filled(seq, reason == FinishReason::kStop ? seq.length() : seq.length() - 1);
  if (reason == FinishReason::kNone) {
    emit(seq, std::move(tokens), reason);
  } else {
    finish(seq, std::move(tokens), reason);
  }
}

void Engine::count_drafts(Sequence& seq, const RowsOutput& output) {
  if (planner_.drafts() == 0) return;
  if (!seq.confidences.current.empty()) ++seq.draft_rounds;
  seq.drafts_verified += static_cast<int64_t>(output.accept_prob.size());
  seq.drafts_accepted += output.accepted;
  planner_.round_done({.sequence = seq.id,
                       .temperature = seq.spec->sampling.temperature,
                       .scheduled = output.scheduled,
                       .accepted = output.accepted,
                       .accept_prob = output.accept_prob,
                       .next_confidences = output.next_confidences},
                      seq.confidences);
}

void Engine::count_step(const Launched& launched, const StepOutput& output) {
  ++counters_.steps;
  const auto bucket = std::lower_bound(kIterationTokenBounds.begin(), kIterationTokenBounds.end(), launched.total_rows);
  ++counters_.iteration_tokens[static_cast<size_t>(bucket - kIterationTokenBounds.begin())];
  counters_.iteration_tokens_sum += launched.total_rows;
  counters_.times.forward.observe(static_cast<double>(output.forward_ns) * 1e-9);
  count_prompt_rate(launched, output);
  counters_.times.sample.observe(static_cast<double>(output.sample_ns + output.draft_ns) * 1e-9);
  counters_.times.prepare.observe(static_cast<double>(output.prepare_ns) * 1e-9);
  for (const WindowMove& move : output.moves) {
    WindowMoves& moves = move.save ? counters_.windows_saved : counters_.windows_loaded;
    moves.seconds.observe(static_cast<double>(move.ns) * 1e-9);
    moves.bytes += static_cast<uint64_t>(move.bytes);
  }
  counters_.transfer_bytes += static_cast<uint64_t>(output.sent_bytes);
  counters_.flops += output.flops;
  counters_.batch_fill_sum += static_cast<double>(launched.total_rows) / scheduler_.max_num_batched_tokens;
  if (!launched.after_pause) {
    counters_.gap_seconds += static_cast<double>(output.gap_ns) * 1e-9;
    counters_.bubble_seconds += static_cast<double>(output.idle_ns) * 1e-9;
  }
  count_rates(output);
  if (!output.status || output.prompt_rows > 0) return;
  const auto ms = [](int64_t ns) { return static_cast<double>(ns) * 1e-6; };
  DecodeStep step{.num_seqs = static_cast<int32_t>(launched.rows.size()),
                  .rows = output.decode_rows,
                  .forward_ms = ms(output.forward_ns),
                  .sample_ms = ms(output.sample_ns),
                  .draft_ms = ms(output.draft_ns),
                  .proposed = launched.proposed};
  for (const RowsOutput& rows : output.sequences) step.emitted += static_cast<int64_t>(rows.tokens.size());
  planner_.step_done(step);
}

// A window's time is that of its steps, so that pauses do not count.
void Engine::count_rates(const StepOutput& output) {
  window_.seconds +=
      static_cast<double>(output.forward_ns + output.sample_ns + output.draft_ns + output.prepare_ns) * 1e-9;
  if (counters_.steps % kRateWindowSteps != 0 || window_.seconds <= 0) return;
  const auto rate = [&](uint64_t now, uint64_t before) { return static_cast<double>(now - before) / window_.seconds; };
  counters_.steps_per_second = rate(counters_.steps, window_.steps);
  counters_.prompt_tokens_per_second = rate(counters_.prompt_tokens, window_.prompt_tokens);
  counters_.generated_tokens_per_second = rate(counters_.generated_tokens, window_.generated_tokens);
  counters_.batch_fill = (counters_.batch_fill_sum - window_.batch_fill_sum) / kRateWindowSteps;
  const double forward_seconds = counters_.times.forward.sum - window_.forward_seconds;
  if (options_.peak_flops > 0 && forward_seconds > 0) {
    counters_.flops_utilisation = (counters_.flops - window_.flops) / forward_seconds / options_.peak_flops;
  }
  DI_LOG(kDebug, "{} steps: {:.1f} steps/s, {:.0f} prompt and {:.0f} generated tokens/s, {} running, {} waiting",
         counters_.steps, counters_.steps_per_second, counters_.prompt_tokens_per_second,
         counters_.generated_tokens_per_second, running_.size(), waiting_.size());
  window_ = {0,
             counters_.steps,
             counters_.prompt_tokens,
             counters_.generated_tokens,
             counters_.batch_fill_sum,
             counters_.flops,
             counters_.times.forward.sum};
}

// Prompt tokens per second over the last steps that had some, decode rows' time included.
void Engine::count_prompt_rate(const Launched& launched, const StepOutput& output) {
  int32_t rows = 0;
  for (const Launched::Rows& r : launched.rows) rows += r.decode ? 0 : r.count;
  if (rows == 0 || output.forward_ns <= 0) return;
  constexpr double kKeep = 0.95;
  rate_tokens_ = kKeep * rate_tokens_ + rows;
  rate_seconds_ = kKeep * rate_seconds_ + static_cast<double>(output.forward_ns) * 1e-9;
  prompt_rate_.store(rate_tokens_ / rate_seconds_);
}

void Engine::preempt(Sequence& seq) {
  ++seq.preemptions;
  ++counters_.preemptions;
  if (!options_.recompute_preempted) {
    finish(seq, {}, FinishReason::kPreempted);
    return;
  }
  release_memory(seq);
  if (seq.output_tokens() == 0) seq.prompt_logprobs.clear();  // computed again
  std::erase(running_, &seq);
  enqueue(seq, true);
}

void Engine::release_memory(Sequence& seq) {
  blocks_.release_all(seq.blocks);
  seq.blocks.clear();
  if (seq.slot >= 0) slots_.release(seq.slot);
  seq.slot = -1;
  seq.computed = seq.pending = seq.steps_pending = seq.in_flight = 0;
  seq.filled_blocks = 0;
  seq.window_load = nullptr;
  seq.start = {};
  seq.drafted = seq.parked = false;
  seq.offered_blocks = seq.known_blocks = 0;
  seq.arrived = nullptr;
  seq.confidences.clear();
  ++seq.epoch;
}

void Engine::enqueue(Sequence& seq, bool front) {
  if (front) {
    waiting_.push_front(&seq);
  } else {
    waiting_.push_back(&seq);
  }
}

void Engine::mark_scheduled(Sequence& seq, int64_t now_ns) {
  if (seq.times.scheduled_ns == 0) seq.times.scheduled_ns = now_ns;
  if (!seq.request->queued) return;
  seq.request->queued = false;
  queued_requests_.fetch_sub(1);
  queued_tokens_.fetch_sub(seq.prompt_tokens);
}

void Engine::emit(Sequence& seq, std::vector<OutputToken> tokens, FinishReason reason, Error error) {
  Output out;
  out.choice = seq.choice;
  out.tokens = std::move(tokens);
  out.finish = reason;
  out.error = std::move(error);
  out.prompt_tokens = seq.prompt_tokens;
  out.cached_tokens = seq.cached_tokens;
  out.cache = seq.cache;
  out.output_tokens = seq.output_tokens();
  out.prompt_logprobs = std::exchange(seq.prompt_logprobs, {});
  out.preemptions = seq.preemptions;
  out.draft_rounds = seq.draft_rounds;
  out.drafts_verified = seq.drafts_verified;
  out.drafts_accepted = seq.drafts_accepted;
  out.times = seq.times;
  out.constraint_failed = seq.constraint_failed;
  out.transfer_failed = seq.transfer_failed;
  seq.request->sink(std::move(out));
}

void Engine::count_finish(const Sequence& seq, FinishReason reason) {
  if (reason == FinishReason::kAborted) {
    ++counters_.aborted;
  } else if (reason == FinishReason::kError) {
    ++counters_.failed;
  } else {
    ++counters_.finished;
    counters_.input_tokens += static_cast<uint64_t>(seq.prompt_tokens);
    counters_.output_tokens += static_cast<uint64_t>(seq.output_tokens());
  }
}

// Ends a choice; the last one of a request takes the request with it.
void Engine::finish(Sequence& seq, std::vector<OutputToken> tokens, FinishReason reason, Error error) {
  seq.times.finished_ns = clock_.now_ns();
  release_memory(seq);
  std::erase(running_, &seq);
  std::erase(waiting_, &seq);
  std::erase(incoming_, &seq);
  leave_transfer(seq, reason, error);
  count_finish(seq, reason);
  publish_stats();  // before the end is known outside: whoever sees it also sees the memory free
  emit(seq, std::move(tokens), reason, std::move(error));
  Request& request = *seq.request;
  sequences_.erase(seq.id);
  if (--request.unfinished > 0) return;
  if (request.queued) {
    queued_requests_.fetch_sub(1);
    queued_tokens_.fetch_sub(static_cast<int64_t>(request.spec.prompt.size()));
  }
  const auto tenant = tenants_.find(request.spec.tenant);
  if (--tenant->second.requests == 0) tenants_.erase(tenant);
  requests_.erase(request.id.v);
}

void Engine::check_invariants() const {
  blocks_.check();
  slots_.check();
  windows_.check();
  std::vector<int32_t> owners(static_cast<size_t>(blocks_.capacity()) + 1, 0);
  std::vector<uint8_t> slot_taken(static_cast<size_t>(slots_.capacity()) + 1, 0);
  for (const Sequence* seq : running_) {
    DI_CHECK(seq->slot > 0 && slot_taken[static_cast<size_t>(seq->slot)]++ == 0, "sequence {} has slot {}", seq->id,
             seq->slot);
    DI_CHECK(seq->computed < seq->length() + seq->pending || seq->ending(),
             "sequence {} has {} of {}+{} tokens computed", seq->id, seq->computed, seq->length(), seq->pending);
    DI_CHECK(static_cast<int64_t>(seq->blocks.size()) * info_.block_tokens >= std::min(seq->computed, seq->length()),
             "sequence {} lacks blocks", seq->id);
    DI_CHECK(seq->steps_pending <= seq->in_flight && seq->in_flight <= static_cast<int32_t>(launched_.size()),
             "sequence {} is in {} steps, {} are in flight", seq->id, seq->in_flight, launched_.size());
    for (const int32_t block : seq->blocks) ++owners[static_cast<size_t>(block)];
  }
  for (const Sequence* seq : waiting_) {
    DI_CHECK(seq->slot < 0 && seq->blocks.empty() && seq->computed == 0 && seq->in_flight == 0,
             "waiting sequence {} holds memory", seq->id);
  }
  for (int32_t id = 1; id <= blocks_.capacity(); ++id) {
    DI_CHECK(owners[static_cast<size_t>(id)] == blocks_.owners(id), "block {} is in {} tables and has {} owners", id,
             owners[static_cast<size_t>(id)], blocks_.owners(id));
  }
  DI_CHECK(static_cast<int32_t>(running_.size()) == slots_.used_count(), "{} sequences run, {} slots are in use",
           running_.size(), slots_.used_count());
  DI_CHECK(running_.size() + waiting_.size() + incoming_.size() == sequences_.size(), "{} sequences are not in a queue",
           sequences_.size());
}

}  // namespace di::engine
