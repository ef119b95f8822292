#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>

#include "base/log.h"

namespace di::engine {
namespace {

// What both sides of a hand-over must agree about (kv-cache.md §8.2).
Sha256 compat_of(const RunnerInfo& runner) {
  kv::RootFields fields = runner.identity;
  fields.block_tokens = runner.block_tokens;
  const kv::BlockKey root = kv::root_key(fields);
  return sha256(fmt::format("deepinfer/transfer/1 {} {}", to_hex(root), runner.state_form));
}

Result<EngineInfo> plan_info(const RunnerInfo& runner, const EngineOptions& options) {
  EngineInfo info;
  info.vocab_size = runner.vocab_size;
  info.eos_token_id = runner.eos_token_id;
  info.block_tokens = runner.block_tokens;
  info.n_blocks = runner.n_blocks - 1;
  info.block_bytes = runner.block_bytes;
  info.slot_bytes = runner.slot_bytes;
  info.kv_dtype = runner.kv_dtype;
  info.backend = runner.backend;
  if (runner.transfers) info.transfer_compat = compat_of(runner);
  info.max_num_seqs = options.max_num_seqs;
  const ReuseOptions& reuse = options.reuse;
  info.prefix_cache = reuse.prefix_cache && runner.window > 0;
  info.swa_replay = info.prefix_cache && reuse.replay;
  if (info.prefix_cache) info.window_memory_bytes = reuse.window_memory_bytes;
  if (runner.window_bytes_encoder > 0) info.replay_keep = reuse.replay_keep;
  if (info.replay_keep > 0) info.prefill_truncation = reuse.mask ? "mask" : "compact";
  if (info.replay_keep > 0 && info.replay_keep < runner.window + runner.backtracking) {
    return fail(Errc::kInvalidRequest, "replay-keep is {}, expected at least window + roll-back rows = {}",
                info.replay_keep, runner.window + runner.backtracking);
  }

  if (options.max_num_seqs < 1) {
    return fail(Errc::kInvalidRequest, "max-num-seqs is {}, expected at least 1", options.max_num_seqs);
  }
  if (options.max_num_seqs > runner.n_slots - 1) {
    return fail(Errc::kInvalidRequest, "max-num-seqs is {}, there is memory for {} sequences", options.max_num_seqs,
                runner.n_slots - 1);
  }
  if (options.max_num_batched_tokens < options.max_num_seqs) {
    return fail(Errc::kInvalidRequest, "max-num-batched-tokens is {}, expected at least max-num-seqs = {}",
                options.max_num_batched_tokens, options.max_num_seqs);
  }
  const int64_t pool_tokens = int64_t{info.n_blocks} * info.block_tokens;
  const int64_t most = std::min(runner.max_positions, pool_tokens);
  info.max_model_len = options.max_model_len > 0 ? options.max_model_len : most;
  if (info.max_model_len > runner.max_positions) {
    return fail(Errc::kInvalidRequest, "max-model-len is {}, the model has {} positions", info.max_model_len,
                runner.max_positions);
  }
  if (info.max_model_len > pool_tokens) {
    return fail(Errc::kResourceExhausted,
                "max-model-len is {}, the KV memory holds {} tokens; the largest context that fits is {}",
                info.max_model_len, pool_tokens, most);
  }
  return info;
}

SchedulerConfig scheduler_config(const RunnerInfo& runner, const EngineOptions& options, const EngineInfo& info,
                                 int32_t drafts) {
  SchedulerConfig config;
  config.max_num_seqs = options.max_num_seqs;
  config.max_num_batched_tokens = options.max_num_batched_tokens;
  config.block_tokens = runner.block_tokens;
  config.max_drafts = drafts;
  config.max_positions = info.max_model_len;
  config.max_queue_ns = options.max_queue_ms * kNsPerMs;
  config.mixed_steps = runner.mixed_steps;
  return config;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(std::unique_ptr<Runner> runner, const EngineOptions& options,
                                               const Clock& clock) {
  EngineInfo info = DI_TRY(plan_info(runner->info(), options));
  const SpeculationOptions& speculation = options.speculation;
  const int32_t drafts = agreed_drafts(speculation, runner->info());
  CostCurve curve = speculation.curve;
  if (drafts > 0 && speculation.mode == SpeculationMode::kVariable && curve.empty()) {
    const std::vector<int32_t> sizes = decode_curve_sizes(options.max_num_seqs, drafts, options.max_num_batched_tokens);
    curve = DI_TRY(measure_decode_curve(*runner, sizes, drafts, clock));
    DI_LOG(kInfo, "decode steps of n rows take (n:ms) {}", curve.to_string());
  }
  info.max_drafts = drafts;
  DraftPlanner planner(speculation, drafts, std::move(curve));
  return std::unique_ptr<Engine>(new Engine(std::move(runner), options, std::move(info), std::move(planner), clock));
}

Engine::Engine(std::unique_ptr<Runner> runner, const EngineOptions& options, EngineInfo info, DraftPlanner planner,
               const Clock& clock)
    : runner_(std::move(runner)),
      options_(options),
      info_(std::move(info)),
      planner_(std::move(planner)),
      scheduler_(scheduler_config(runner_->info(), options, info_, planner_.drafts())),
      clock_(clock),
      blocks_(runner_->info().n_blocks, info_.block_tokens),
      slots_(runner_->info().n_slots),
      windows_({options.reuse.window_memory_bytes, options.reuse.window_retention_ns}),
      rules_{runner_->info().window, info_.block_tokens, options.reuse.replay,
             options.reuse.replay ? kv::ReplayRules{}.lower_reach : INT32_MAX},
      worker_(*runner_, planner_.drafts(), options.mask_patience_ns, clock, options.trace) {
  publish_stats();
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  stopping_.store(true);
  commands_.close();
  runner_->interrupt();
  thread_.join();
}

// Until the prompts that wait are computed, at the rate of late; 0: unknown.
double Engine::queue_seconds() const {
  const double rate = prompt_rate_.load();
  return rate > 0 ? static_cast<double>(queued_tokens_.load()) / rate : 0;
}

// Takes a place in the queue, or says why there is none.
std::optional<Rejection> Engine::reject_for_queue(const GenerateRequest& request) {
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  const double wait = queue_seconds();
  const auto full = [&](std::string message) {
    const auto retry = static_cast<int32_t>(std::ceil(std::clamp(wait, 1.0, 60.0)));
    return Rejection{RejectReason::kQueueFull, Error{Errc::kResourceExhausted, std::move(message)}, retry};
  };
  const int64_t target_ms = request.ttft_target_ms > 0 ? request.ttft_target_ms : options_.ttft_target_ms;
  if (target_ms > 0 && wait * 1e3 > static_cast<double>(target_ms)) {
    return full(fmt::format("the first token would take {:.0f} ms, the target is {} ms", wait * 1e3, target_ms));
  }
  if (queued_requests_.fetch_add(1) >= options_.max_queue_size) {
    queued_requests_.fetch_sub(1);
    return full(fmt::format("the queue is full: {} requests are waiting", options_.max_queue_size));
  }
  if (queued_tokens_.fetch_add(tokens) + tokens > options_.max_queue_tokens && options_.max_queue_tokens > 0) {
    queued_tokens_.fetch_sub(tokens);
    queued_requests_.fetch_sub(1);
    return full(fmt::format("the queue is full: {} tokens are waiting", options_.max_queue_tokens));
  }
  return std::nullopt;
}

std::expected<RequestId, Rejection> Engine::submit(GenerateRequest request, OutputSink sink) {
  if (const auto ok = check_request(request, info_); !ok) return std::unexpected(ok.error());
  if (std::optional<Rejection> rejection = reject_for_queue(request)) return std::unexpected(std::move(*rejection));
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  auto entry = std::make_unique<Request>();
  const RequestId id{next_request_.fetch_add(1)};
  entry->id = id;
  entry->spec = std::move(request);
  entry->sink = std::move(sink);
  entry->arrival_ns = clock_.now_ns();
  const TransferRef send = entry->spec.send;
  const TransferRef receive = entry->spec.receive;
  watch_transfer(send, receive, [this] { commands_.push(Wake{}); });
  if (info_.prefix_cache) entry->chain = chain_of(entry->spec);  // on the caller's thread: long prompts take their time
  if (!commands_.push(std::move(entry))) {
    watch_transfer(send, receive, nullptr);
    queued_tokens_.fetch_sub(tokens);
    queued_requests_.fetch_sub(1);
    return std::unexpected(Rejection{RejectReason::kStopped, Error{Errc::kUnavailable, "the engine has stopped"}, 0});
  }
  return id;
}

void Engine::cancel(RequestId id) {
  commands_.push(Cancel{id, -1});
}

void Engine::cancel(RequestId id, int32_t choice) {
  commands_.push(Cancel{id, choice});
}

void Engine::flush_cache() {
  commands_.push(Flush{});
}

void Engine::look_up(const GenerateRequest& request, std::function<void(CacheLookup)> done) {
  if (!info_.prefix_cache) return done({});
  if (!commands_.push(LookUp{chain_of(request), done})) done({});
}

void Engine::watch_kv(std::function<void(KvEvents)> watcher) {
  commands_.push(WatchKv{std::move(watcher)});
}

void Engine::tell_kv_events() {
  if (!kv_watcher_) return;
  std::vector<kv::BlockEvent> events = blocks_.take_events();
  if (!events.empty()) kv_watcher_({++kv_deliveries_, std::move(events)});
}

// On the engine's thread.
void Engine::answer(LookUp& question) {
  CacheLookup out;
  const std::span<const kv::BlockKey> keys = question.chain.keys();
  const int32_t blocks = blocks_.match(keys).blocks;
  out.block_tokens = int64_t{blocks} * info_.block_tokens;
  if (blocks > 0 && keeps_windows()) {
    out.window =
        windows_.find(keys, blocks, info_.block_tokens, rules_.lower_reach, kv::SwaLayers::kAll, clock_.now_ns(), false)
            .outcome;
  }
  question.done(out);
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(stats_mutex_);
  return stats_;
}

void Engine::run() {
  using std::chrono_literals::operator""ms;
  while (!stopping_.load()) {
    if (sequences_.empty() && launched_.empty()) {
      paused_ = true;
      if (!commands_.wait()) break;
    }
    // One request must not take the others down: what a step throws (memory) ends the requests it was about.
    try {
      blocks_.set_time(clock_.now_ns());
      take_commands();
      end_expired();
      step_transfers();
      // Nothing in flight and nothing to launch: all that wait need something from outside.
      if (!step() && !sequences_.empty()) commands_.wait_for(5ms);
    } catch (const std::exception& e) {
      DI_LOG(kError, "engine step failed: {}", e.what());
      end_all(Error{Errc::kInternal, "the engine ran into an internal error"});
    }
    publish_stats();
    tell_kv_events();
  }
  commands_.close();
  while (worker_.in_flight() > 0) worker_.wait();
  take_commands();
  end_all(Error{Errc::kUnavailable, "the server is shutting down"});
  publish_stats();
}

void Engine::take_commands() {
  for (Command& command : commands_.take_all()) {
    if (auto* request = std::get_if<std::unique_ptr<Request>>(&command)) {
      add_request(std::move(*request));
      continue;
    }
    if (auto* question = std::get_if<LookUp>(&command)) {
      answer(*question);
      continue;
    }
    if (std::holds_alternative<Wake>(command)) continue;
    if (auto* watch = std::get_if<WatchKv>(&command)) {
      kv_watcher_ = std::move(watch->watcher);
      blocks_.log_events(kv_watcher_ != nullptr);
      continue;
    }
    if (std::holds_alternative<Flush>(command)) {
      blocks_.clear();
      windows_.clear();
      continue;
    }
    const Cancel cancel = std::get<Cancel>(command);
    const auto it = requests_.find(cancel.id.v);
    if (it != requests_.end()) end_request(*it->second, FinishReason::kAborted, {}, cancel.choice);
  }
}

void Engine::add_request(std::unique_ptr<Request> owned) {
  Request& request = *requests_.emplace(owned->id.v, std::move(owned)).first->second;
  request.unfinished = request.spec.n;
  Tenant& tenant = tenants_[request.spec.tenant];
  if (tenant.requests++ == 0) tenant.number = next_tenant_++;
  request.tenant = tenant.number;
  for (int32_t choice = 0; choice < request.spec.n; ++choice) {
    auto seq = std::make_unique<Sequence>();
    seq->id = next_sequence_++;
    seq->request = &request;
    seq->choice = choice;
    seq->tokens.reserve(request.spec.prompt.size() +
                        static_cast<size_t>(std::min<int64_t>(request.spec.max_tokens, 4096)));
    seq->tokens = request.spec.prompt;
    seq->prompt_tokens = seq->length();
    seq->spec = sequence_spec(request.spec, choice, info_);
    seq->times.arrival_ns = request.arrival_ns;
    seq->chain = request.chain;
    request.choices.push_back(seq->id);
    transfers_ += request.spec.send != nullptr || request.spec.receive != nullptr ? 1 : 0;
    if (request.spec.receive != nullptr) {
      incoming_.push_back(seq.get());
    } else {
      enqueue(*seq, false);
    }
    sequences_.emplace(seq->id, std::move(seq));
  }
}

void Engine::end_expired() {
  const int64_t now = clock_.now_ns();
  std::vector<std::pair<Request*, Error>> expired;
  for (const auto& [id, request] : requests_) {
    const GenerateRequest& spec = request->spec;
    if (spec.deadline_ns > 0 && now >= spec.deadline_ns) {
      expired.emplace_back(request.get(),
                           Error{Errc::kDeadlineExceeded, "the request took longer than its time limit"});
    } else if (request->queued && spec.queue_deadline_ns > 0 && now >= spec.queue_deadline_ns) {
      expired.emplace_back(request.get(), Error{Errc::kResourceExhausted, "the request waited too long in the queue"});
    }
  }
  for (const auto& [request, error] : expired) end_request(*request, FinishReason::kError, error);
}

void Engine::end_all(const Error& error) {
  std::vector<Request*> all;
  for (const auto& [id, request] : requests_) all.push_back(request.get());
  for (Request* request : all) end_request(*request, FinishReason::kError, error);
}

void Engine::end_request(Request& request, FinishReason reason, const Error& error, int32_t choice) {
  std::vector<Sequence*> left;
  for (const auto& [id, seq] : sequences_) {
    if (seq->request == &request && (choice < 0 || seq->choice == choice)) left.push_back(seq.get());
  }
  std::sort(left.begin(), left.end(), [](const Sequence* a, const Sequence* b) { return a->choice < b->choice; });
  for (Sequence* seq : left) finish(*seq, {}, reason, error);  // the last one frees `request`
}

void Engine::publish_stats() {
  counters_.running = static_cast<int64_t>(running_.size());
  counters_.waiting = static_cast<int64_t>(waiting_.size() + incoming_.size());
  counters_.chunked =
      std::count_if(running_.begin(), running_.end(), [](const Sequence* s) { return s->computed < s->prompt_tokens; });
  counters_.waiting_tokens = 0;
  for (const Sequence* seq : waiting_) counters_.waiting_tokens += seq->length();
  counters_.leased_blocks = 0;
  for (const Sequence* seq : running_) counters_.leased_blocks += seq->parked ? std::ssize(seq->blocks) : 0;
  counters_.speculation = planner_.stats();
  counters_.used_blocks = blocks_.used_count();
  counters_.total_blocks = blocks_.capacity();
  counters_.used_slots = slots_.used_count();
  counters_.total_slots = slots_.capacity();
  counters_.kept_blocks = blocks_.kept_count();
  counters_.evicted_blocks = blocks_.evictions();
  counters_.block_lives = blocks_.lives();
  counters_.windows = windows_.stats();
  counters_.last_step_ns = clock_.now_ns();
  const std::lock_guard lock(stats_mutex_);
  stats_ = counters_;
}

}  // namespace di::engine
