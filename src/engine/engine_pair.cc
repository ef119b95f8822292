#include "engine/engine_pair.h"

#include <utility>

#include "base/log.h"

namespace di::engine {

Result<std::unique_ptr<EnginePair>> EnginePair::create(std::unique_ptr<EngineApi> prefill,
                                                       std::unique_ptr<EngineApi> decode,
                                                       const EnginePairOptions& options, const Clock& clock) {
  for (const EngineApi* engine : {prefill.get(), decode.get()}) {
    if (engine->info().transfer_compat) continue;
    return fail(Errc::kInvalidRequest, "the engine `{}` hands no requests over", engine->info().backend);
  }
  if (prefill->info().transfer_compat != decode->info().transfer_compat) {
    return fail(Errc::kInvalidRequest, "the two engines' KV is not the same: no request can be handed over");
  }
  return std::unique_ptr<EnginePair>(new EnginePair(std::move(prefill), std::move(decode), options, clock));
}

EnginePair::EnginePair(std::unique_ptr<EngineApi> prefill, std::unique_ptr<EngineApi> decode,
                       const EnginePairOptions& options, const Clock& clock)
    : options_(options), clock_(clock), prefill_(std::move(prefill)), decode_(std::move(decode)) {}

std::expected<RequestId, Rejection> EnginePair::submit(GenerateRequest request, OutputSink sink) {
  if (request.n < 1) {
    return std::unexpected(
        Rejection{RejectReason::kInvalid,
                  Error{Errc::kInvalidRequest, fmt::format("n is {}, expected at least 1", request.n)}, 0});
  }
  auto job = std::make_shared<Job>();
  job->id = RequestId{next_id_.fetch_add(1)};
  job->choices.resize(static_cast<size_t>(request.n));
  job->open = request.n;
  job->request = std::move(request);
  job->sink = std::move(sink);
  {
    const std::lock_guard lock(mutex_);
    jobs_.emplace(job->id.v, job);
  }
  // Until all are started nothing is delivered: a request is taken as a whole or not at all.
  const std::lock_guard lock(job->mutex);
  for (int32_t i = 0; i < job->request.n; ++i) {
    const auto started = start(job, i);
    if (started) continue;
    for (Choice& choice : job->choices) {
      choice.ended = true;
      if (choice.attempts == 0) continue;
      prefill_->cancel(choice.prefill);
      decode_->cancel(choice.decode);
    }
    const std::lock_guard jobs_lock(mutex_);
    jobs_.erase(job->id.v);
    return std::unexpected(started.error());
  }
  return job->id;
}

// With the job's mutex held.
std::expected<void, Rejection> EnginePair::start(const JobRef& job, int32_t index) {
  Choice& choice = job->choices[static_cast<size_t>(index)];
  GenerateRequest part = job->request;
  part.n = 1;
  part.sampling.seed += static_cast<uint64_t>(index);
  if (index > 0) part.prompt_logprobs = -1;
  const auto deliver_to = [this, job, index](Output output) { deliver(job, index, std::move(output)); };
  if (part.max_tokens == 0) {
    const auto id = prefill_->submit(std::move(part), deliver_to);
    if (!id) return std::unexpected(id.error());
    choice.prefill = *id;
    ++choice.attempts;
    return {};
  }
  static std::atomic<uint64_t> next_transfer{1};
  const auto transfer = std::make_shared<Transfer>(next_transfer.fetch_add(1), clock_, options_.transfer_timeout_ns);
  GenerateRequest prompt = part;
  prompt.send = transfer;
  part.receive = transfer;
  part.prompt_logprobs = -1;  // come with the first token
  // Whatever happens to it there, the second engine hears of it.
  const auto sent = prefill_->submit(std::move(prompt), [](const Output&) {});
  if (!sent) return std::unexpected(sent.error());
  const auto received = decode_->submit(std::move(part), deliver_to);
  if (!received) {
    transfer->abort({received.error().error, false, false});
    return std::unexpected(received.error());
  }
  choice.prefill = *sent;
  choice.decode = *received;
  ++choice.attempts;
  return {};
}

void EnginePair::deliver(const JobRef& job, int32_t index, Output output) {
  output.choice = index;
  {
    const std::lock_guard lock(job->mutex);
    Choice& choice = job->choices[static_cast<size_t>(index)];
    if (choice.ended) return;  // of a request that was refused
    if (choice.cancelled && output.finish == FinishReason::kError) {
      output.finish = FinishReason::kAborted;  // the other engine was quicker to hear of it
      output.error = {};
    } else if (output.transfer_failed && choice.attempts <= options_.retries) {
      const auto again = start(job, index);
      if (again) {
        DI_LOG(kWarn, "request {} is handed over once more: {}", job->request.id, output.error.message);
        return;
      }
      output.error = again.error().error;
    }
    if (output.finish != FinishReason::kNone) {
      choice.ended = true;
      if (--job->open == 0) {
        const std::lock_guard jobs_lock(mutex_);
        jobs_.erase(job->id.v);
      }
    }
  }
  job->sink(std::move(output));
}

EnginePair::JobRef EnginePair::find(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto it = jobs_.find(id.v);
  return it == jobs_.end() ? nullptr : it->second;
}

void EnginePair::cancel(RequestId id) {
  const JobRef job = find(id);
  if (job == nullptr) return;
  for (int32_t i = 0; i < job->request.n; ++i) cancel(id, i);
}

void EnginePair::cancel(RequestId id, int32_t index) {
  const JobRef job = find(id);
  if (job == nullptr || index < 0 || index >= job->request.n) return;
  const std::lock_guard lock(job->mutex);
  Choice& choice = job->choices[static_cast<size_t>(index)];
  choice.cancelled = true;
  if (choice.ended) return;
  decode_->cancel(choice.decode);
  prefill_->cancel(choice.prefill);
}

// A request is known to both engines while it is handed over; it waits where its prompt waits.
EngineStats EnginePair::stats() const {
  const EngineStats prompts = prefill_->stats();
  EngineStats out = decode_->stats();
  out.waiting = prompts.waiting;
  out.waiting_tokens = prompts.waiting_tokens;
  out.running += prompts.running;
  out.chunked = prompts.chunked;
  out.used_blocks += prompts.used_blocks;
  out.total_blocks += prompts.total_blocks;
  out.leased_blocks += prompts.leased_blocks;
  out.used_slots += prompts.used_slots;
  out.total_slots += prompts.total_slots;
  out.steps += prompts.steps;
  out.prompt_tokens += prompts.prompt_tokens;
  out.prompt_tokens_per_second = prompts.prompt_tokens_per_second;
  out.preemptions += prompts.preemptions;
  out.corrupted += prompts.corrupted;
  out.flops += prompts.flops;
  out.transfers_sent = prompts.transfers_sent;
  out.transfer_bytes = prompts.transfer_bytes;
  out.prefix_queries = prompts.prefix_queries;
  out.prefix_hits = prompts.prefix_hits;
  out.cached_by_host = prompts.cached_by_host;
  out.replays = prompts.replays;
  out.replayed_tokens = prompts.replayed_tokens;
  out.misses = prompts.misses;
  out.kept_blocks += prompts.kept_blocks;
  out.evicted_blocks += prompts.evicted_blocks;
  out.windows = prompts.windows;
  out.windows_saved = prompts.windows_saved;
  out.windows_loaded = prompts.windows_loaded;
  return out;
}

void EnginePair::flush_cache() {
  prefill_->flush_cache();
  decode_->flush_cache();
}

void EnginePair::look_up(const GenerateRequest& request, std::function<void(CacheLookup)> done) {
  prefill_->look_up(request, std::move(done));
}

// Where prompts find what is known of them.
void EnginePair::watch_kv(std::function<void(KvEvents)> watcher) {
  prefill_->watch_kv(std::move(watcher));
}

}  // namespace di::engine
