// Requests between two engines (transfer.h; distributed.md §2.3), on the engine's thread.
//
// Receiving. A request waits in incoming_ until there is room for its prompt; then it gets a slot and the blocks,
// prepares its transfer and is parked: it holds its memory and has no rows. When everything has arrived it puts out the
// first token and runs on like any other; its first rows carry the bytes to the device. Until those rows are processed
// none of its blocks is offered to others, because nothing is in them.
//
// Sending. A request waits in waiting_ like any other, but is passed over until its transfer has a target. Each chunk
// is read when it is computed; the first token is the commit, and the request is parked until the other side has taken
// over.
//
// Whatever ends a request on one side before that fails the transfer, and so ends it on the other.
#include <algorithm>
#include <tuple>

#include "base/log.h"
#include "engine/engine.h"

namespace di::engine {

// From before the engine's thread has the request until it has ended there, or the transfer has.
void Engine::watch_transfer(const TransferRef& send, const TransferRef& receive, const std::function<void()>& wake) {
  if (send != nullptr) send->on_change(Transfer::Side::kSender, wake);
  if (receive != nullptr) receive->on_change(Transfer::Side::kReceiver, wake);
}

void Engine::step_transfers() {
  if (transfers_ == 0) return;
  std::vector<uint64_t> ids;
  for (const auto& [id, seq] : sequences_) {
    const GenerateRequest& spec = seq->request->spec;
    if (spec.send != nullptr || spec.receive != nullptr) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  for (const uint64_t id : ids) follow_transfer(sequence(id));
  while (Sequence* next = next_incoming()) take_in(*next);
}

void Engine::follow_transfer(Sequence& seq) {
  GenerateRequest& spec = seq.request->spec;
  Transfer& transfer = spec.send != nullptr ? *spec.send : *spec.receive;
  if (transfer.expire()) {
    const TransferFailure why = transfer.failure().value();
    seq.constraint_failed = why.constraint_failed;
    seq.transfer_failed = why.retry;
    return finish(seq, {}, FinishReason::kError, why.error);
  }
  if (spec.send != nullptr) {
    if (transfer.stage() != TransferStage::kSuccess) return;
    ++counters_.transfers_sent;
    return finish(seq, {}, FinishReason::kLength);
  }
  if (seq.parked && transfer.poll() == Transfer::Progress::kReady && transfer.accept()) take_arrived(seq);
}

// The one whose turn it is, if there is room: the better class, then priority, then who came first. Those that lost
// their memory here go before all that come from elsewhere.
Sequence* Engine::next_incoming() {
  if (incoming_.empty() || slots_.free_count() == 0) return nullptr;
  if (static_cast<int32_t>(running_.size()) >= options_.max_num_seqs) return nullptr;
  if (std::any_of(waiting_.begin(), waiting_.end(), [](const Sequence* s) { return s->preemptions > 0; })) {
    return nullptr;
  }
  const int64_t now = clock_.now_ns();
  const auto turn = [&](const Sequence* s) {
    return std::tuple(effective_class(scheduler_, s->state(), now), s->request->spec.priority, s->id);
  };
  Sequence* seq = *std::min_element(incoming_.begin(), incoming_.end(),
                                    [&](const Sequence* a, const Sequence* b) { return turn(a) < turn(b); });
  const kv::PrefixMatch known = known_blocks(*seq);
  const int32_t needed = incoming_blocks(*seq) - known.blocks + known.kept;
  // One block in hand for each running sequence, as at any admission.
  return needed + static_cast<int32_t>(running_.size()) <= blocks_.free_count() ? seq : nullptr;
}

// Of its prompt, and for the rows of its first step.
int32_t Engine::incoming_blocks(const Sequence& seq) const {
  return blocks_for(std::min<int64_t>(int64_t{seq.prompt_tokens} + 1 + scheduler_.max_drafts, info_.max_model_len),
                    info_.block_tokens);
}

kv::PrefixMatch Engine::known_blocks(const Sequence& seq) const {
  if (!info_.prefix_cache) return {};
  const auto full = static_cast<size_t>(seq.prompt_tokens / info_.block_tokens);
  return blocks_.match(seq.chain.keys().first(std::min(full, seq.chain.keys().size())));
}

void Engine::take_in(Sequence& seq) {
  std::erase(incoming_, &seq);
  running_.push_back(&seq);
  mark_scheduled(seq, clock_.now_ns());
  seq.slot = slots_.allocate();
  seq.known_blocks = known_blocks(seq).blocks;
  blocks_.adopt(seq.chain.keys().first(static_cast<size_t>(seq.known_blocks)), seq.blocks);
  const int32_t wanted = incoming_blocks(seq);
  while (static_cast<int32_t>(seq.blocks.size()) < wanted) seq.blocks.push_back(blocks_.allocate());
  seq.filled_blocks = seq.known_blocks;
  seq.fresh = true;
  seq.parked = true;
  seq.sent_blocks = 0;
  seq.computed = seq.prompt_tokens;
  seq.window_ordered = seq.window_kept = 0;
  seq.request->spec.receive->prepare(
      {*info_.transfer_compat, blocks_for(seq.prompt_tokens, info_.block_tokens), seq.known_blocks});
}

void Engine::take_arrived(Sequence& seq) {
  ++counters_.transfers_received;
  end_transfer(seq);
  seq.arrived = std::exchange(seq.request->spec.receive, nullptr);
  const TransferCommit& commit = seq.arrived->committed();
  seq.parked = false;
  seq.window_start = commit.window_start;
  seq.keep_begin = commit.keep_begin;
  seq.block_write_begin = seq.prompt_tokens;
  seq.cached_tokens = static_cast<int32_t>(commit.cached_tokens);
  seq.cache = commit.cache;
  seq.times.scheduled_ns = commit.scheduled_ns;
  seq.prompt_logprobs = commit.prompt_logprobs;
  RowsOutput first;
  first.tokens.push_back(commit.first);
  append_tokens(seq, first);
}

// The first token is there, on the sending side.
void Engine::commit_transfer(Sequence& seq, RowsOutput& output) {
  TransferCommit commit;
  commit.first = std::move(output.tokens.front());
  commit.prompt_logprobs = std::exchange(seq.prompt_logprobs, {});
  commit.cached_tokens = seq.cached_tokens;
  commit.cache = seq.cache;
  commit.window_start = seq.window_start;
  commit.keep_begin = seq.keep_begin;
  commit.scheduled_ns = seq.times.scheduled_ns;
  seq.parked = true;
  seq.computed = seq.prompt_tokens;
  seq.request->spec.send->commit(std::move(commit));  // refused: it has failed, and the next turn ends the request
}

// Its blocks and their state are read when this chunk is computed.
void Engine::order_send(Sequence& seq, const ScheduledRows& rows, StepRows& out) const {
  const TransferRef& send = seq.request->spec.send;
  if (send == nullptr || rows.decode) return;
  const int32_t end = rows.begin + rows.count;
  out.send = send;
  out.send_from = std::max(seq.offered_blocks, send->target().value().first_needed);
  out.send_to = rows.sample ? blocks_for(end, info_.block_tokens) : end / info_.block_tokens;
  seq.offered_blocks = std::max(out.send_from, out.send_to);
}

// A request that is to be sent starts when the other side has room for it.
bool Engine::may_send(const Sequence& seq) const {
  const TransferRef& send = seq.request->spec.send;
  if (send == nullptr) return true;
  const std::optional<TransferTarget> target = send->target();
  if (!target) return false;
  if (target->compat == *info_.transfer_compat) return true;
  DI_LOG(kError, "a hand-over is refused: the two engines' KV is not the same");
  send->abort(
      {Error{Errc::kInternal, "the prompt cannot be handed over: the two engines' KV is not the same"}, false, false});
  return false;
}

// It has ended here. Nothing happens to a transfer that has succeeded or failed before.
void Engine::leave_transfer(Sequence& seq, FinishReason reason, const Error& error) {
  const GenerateRequest& spec = seq.request->spec;
  if (spec.send == nullptr && spec.receive == nullptr) return;
  const TransferRef transfer = spec.send != nullptr ? spec.send : spec.receive;
  end_transfer(seq);
  if (transfer->stage() == TransferStage::kSuccess) return;
  ++counters_.transfers_failed;
  TransferFailure why{error, false, seq.constraint_failed};
  if (reason == FinishReason::kAborted) {
    why.error = Error{Errc::kUnavailable, "the request was cancelled"};
  } else if (reason == FinishReason::kPreempted) {
    why.error = Error{Errc::kResourceExhausted, "there is no memory for the prompt"};
    why.retry = true;
  } else {
    why.retry = error.code == Errc::kUnavailable || (error.code == Errc::kInternal && !seq.constraint_failed);
  }
  transfer->abort(std::move(why));
}

void Engine::end_transfer(Sequence& seq) {
  --transfers_;
  watch_transfer(seq.request->spec.send, seq.request->spec.receive, nullptr);
}

}  // namespace di::engine
