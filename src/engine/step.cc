// One step of the engine: choose rows, give them memory, compute, sample, hand the tokens out. Read Engine::step()
// first.
#include <algorithm>
#include <climits>

#include "base/log.h"
#include "engine/engine.h"

namespace di::engine {

void Engine::step() {
  const int64_t started = clock_.now_ns();
  const StepPlan plan = schedule();
  apply(plan);
  build_chunks(plan);
  if (chunks_.empty()) return;

  const int64_t scheduled = clock_.now_ns();
  const Result<LogitsView> logits = runner_->forward(chunks_, tags_);
  const int64_t computed = clock_.now_ns();
  if (!logits) {
    DI_LOG(kError, "forward pass failed: {}", logits.error().message);
    for (const ScheduledRows& rows : plan.rows) {
      if (sequences_.contains(rows.id)) finish(sequence(rows.id), {}, FinishReason::kError, logits.error());
    }
    return;
  }
  take_tokens(plan, *logits);
  const int64_t sampled = clock_.now_ns();

  ++counters_.steps;
  const auto bucket = std::lower_bound(kIterationTokenBounds.begin(), kIterationTokenBounds.end(), plan.total_rows);
  ++counters_.iteration_tokens[static_cast<size_t>(bucket - kIterationTokenBounds.begin())];
  counters_.iteration_tokens_sum += plan.total_rows;
  counters_.schedule_seconds += static_cast<double>(scheduled - started) * 1e-9;
  counters_.forward_seconds += static_cast<double>(computed - scheduled) * 1e-9;
  counters_.sample_seconds += static_cast<double>(sampled - computed) * 1e-9;
#ifdef DI_DEBUG_CHECKS
  check_invariants();
#endif
}

StepPlan Engine::schedule() {
  std::vector<SeqState> running;
  running.reserve(running_.size());
  for (const Sequence* seq : running_) running.push_back(seq->state());
  std::vector<SeqState> waiting;
  const size_t candidates = std::min(waiting_.size(), static_cast<size_t>(options_.max_num_seqs));
  for (size_t i = 0; i < candidates; ++i) waiting.push_back(waiting_[i]->state());
  return plan_step(scheduler_, {blocks_.free_count(), slots_.free_count()}, running, waiting);
}

void Engine::apply(const StepPlan& plan) {
  const int64_t now = clock_.now_ns();
  for (auto it = plan.preempted.rbegin(); it != plan.preempted.rend(); ++it) preempt(sequence(*it));
  for (const uint64_t id : plan.exhausted) finish(sequence(id), {}, FinishReason::kPreempted);
  for (const ScheduledRows& rows : plan.rows) {
    Sequence& seq = sequence(rows.id);
    if (rows.admit) {
      std::erase(waiting_, &seq);
      running_.push_back(&seq);
      seq.slot = slots_.allocate();
      mark_scheduled(seq, now);
    }
    for (int32_t i = 0; i < rows.new_blocks; ++i) seq.blocks.push_back(blocks_.allocate());
  }
}

bool Engine::wants_logits(const ScheduledRows& rows) const {
  return rows.sample && sequence(rows.id).request->spec.max_tokens > 0;
}

void Engine::build_chunks(const StepPlan& plan) {
  chunks_.clear();
  tags_.clear();
  for (const ScheduledRows& rows : plan.rows) {
    const Sequence& seq = sequence(rows.id);
    model::SequenceChunk chunk;
    chunk.tokens = seq.tokens;
    chunk.begin = rows.begin;
    chunk.count = rows.count;
    chunk.state_slot = seq.slot;
    chunk.block_table = seq.blocks;
    chunk.logits_begin = wants_logits(rows) ? rows.begin + rows.count - 1 : INT_MAX;
    chunks_.push_back(chunk);
    tags_.push_back({seq.id, seq.prompt_tokens});
  }
}

void Engine::take_tokens(const StepPlan& plan, const LogitsView& logits) {
  float* row = logits.data;
  for (const ScheduledRows& rows : plan.rows) {
    Sequence& seq = sequence(rows.id);
    const bool sample = wants_logits(rows);
    const int32_t prompt_rows =
        std::min(rows.begin + rows.count, seq.prompt_tokens) - std::min(rows.begin, seq.prompt_tokens);
    counters_.prompt_tokens += static_cast<uint64_t>(prompt_rows);
    seq.computed = rows.begin + rows.count;
    if (sample) {
      append_token(seq, {row, static_cast<size_t>(info_.vocab_size)});
      row += logits.stride;
    } else if (rows.sample) {
      finish(seq, {}, FinishReason::kLength);  // max_tokens 0: only the prompt was wanted
    }
  }
}

void Engine::append_token(Sequence& seq, std::span<float> logits) {
  const GenerateRequest& spec = seq.request->spec;
  apply_processors(logits, seq.sampling, seq.tokens, seq.prompt_tokens,
                   ruled_out_tokens(spec, info_.eos_token_id, seq.output_tokens()));
  std::optional<OutputToken> token = sampler_.sample(logits, seq.sampling, seq.length());
  if (!token) {
    ++counters_.corrupted;
    finish(seq, {}, FinishReason::kError,
           Error{Errc::kInternal,
                 fmt::format("no token can follow position {}: the logits are not finite or all tokens are ruled out",
                             seq.length() - 1)});
    return;
  }
  if (seq.times.first_token_ns == 0) seq.times.first_token_ns = clock_.now_ns();
  const FinishReason reason = check_stop(spec, info_.eos_token_id, info_.max_model_len, token->token, seq.prompt_tokens,
                                         seq.output_tokens() + 1);
  std::vector<OutputToken> tokens;
  if (reason != FinishReason::kStop) {
    seq.tokens.push_back(token->token);
    ++counters_.generated_tokens;
    tokens.push_back(std::move(*token));
  }
  if (reason == FinishReason::kNone) {
    emit(seq, std::move(tokens), reason);
  } else {
    finish(seq, std::move(tokens), reason);
  }
}

void Engine::preempt(Sequence& seq) {
  release_memory(seq);
  std::erase(running_, &seq);
  enqueue(seq, true);
  ++seq.preemptions;
  ++counters_.preemptions;
}

void Engine::release_memory(Sequence& seq) {
  blocks_.release_all(seq.blocks);
  seq.blocks.clear();
  if (seq.slot >= 0) slots_.release(seq.slot);
  seq.slot = -1;
  seq.computed = 0;
}

void Engine::enqueue(Sequence& seq, bool front) {
  const auto less = [](const Sequence* a, const Sequence* b) {
    return a->request->spec.priority < b->request->spec.priority;
  };
  const auto at = front ? std::lower_bound(waiting_.begin(), waiting_.end(), &seq, less)
                        : std::upper_bound(waiting_.begin(), waiting_.end(), &seq, less);
  waiting_.insert(at, &seq);
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
  out.output_tokens = seq.output_tokens();
  out.preemptions = seq.preemptions;
  out.times = seq.times;
  seq.request->sink(std::move(out));
}

// Ends a choice; the last one of a request takes the request with it.
void Engine::finish(Sequence& seq, std::vector<OutputToken> tokens, FinishReason reason, Error error) {
  seq.times.finished_ns = clock_.now_ns();
  release_memory(seq);
  std::erase(running_, &seq);
  std::erase(waiting_, &seq);
  publish_stats();  // before the end is known outside: whoever sees it also sees the memory free
  emit(seq, std::move(tokens), reason, std::move(error));
  Request& request = *seq.request;
  sequences_.erase(seq.id);
  if (--request.unfinished > 0) return;
  if (request.queued) {
    queued_requests_.fetch_sub(1);
    queued_tokens_.fetch_sub(static_cast<int64_t>(request.spec.prompt.size()));
  }
  requests_.erase(request.id.v);
}

void Engine::check_invariants() const {
  blocks_.check();
  slots_.check();
  int32_t blocks = 0;
  for (const Sequence* seq : running_) {
    DI_CHECK(seq->slot > 0, "running sequence {} has no slot", seq->id);
    DI_CHECK(seq->computed < seq->length(), "sequence {} has {} of {} tokens computed", seq->id, seq->computed,
             seq->length());
    DI_CHECK(static_cast<int64_t>(seq->blocks.size()) * info_.block_tokens >= seq->computed, "sequence {} lacks blocks",
             seq->id);
    blocks += static_cast<int32_t>(seq->blocks.size());
  }
  for (const Sequence* seq : waiting_) {
    DI_CHECK(seq->slot < 0 && seq->blocks.empty() && seq->computed == 0, "waiting sequence {} holds memory", seq->id);
  }
  DI_CHECK(blocks == blocks_.used_count(), "{} blocks are in tables, {} are in use", blocks, blocks_.used_count());
  DI_CHECK(static_cast<int32_t>(running_.size()) == slots_.used_count(), "{} sequences run, {} slots are in use",
           running_.size(), slots_.used_count());
  DI_CHECK(running_.size() + waiting_.size() == sequences_.size(), "{} sequences are not in a queue",
           sequences_.size());
}

}  // namespace di::engine
