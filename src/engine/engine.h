// The engine: one thread that owns every request, the scheduler's queues and the memory pools, and runs steps while
// there is work. Other threads talk to it through a queue of commands. step.cc is one step; what computes the logits is
// a Runner.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/queue.h"
#include "engine/api.h"
#include "engine/runner.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "kv/block_pool.h"

namespace di::engine {

struct EngineOptions {
  int64_t max_model_len = 0;  // 0: as many positions as the runner has and the pool can hold
  int32_t max_num_seqs = 16;
  int32_t max_num_batched_tokens = 512;  // at least max_num_seqs
  int64_t max_queue_size = 4096;         // requests not yet scheduled
  int64_t max_queue_tokens = 0;          // their prompt tokens; 0: no bound
};

class Engine final : public EngineApi {
 public:
  // The clock must outlive the engine. Errors: limits that do not fit the runner or each other.
  static Result<std::unique_ptr<Engine>> create(std::unique_ptr<Runner> runner, const EngineOptions& options,
                                                const Clock& clock);
  // Ends what is unfinished with kError (kUnavailable).
  ~Engine() override;

  const EngineInfo& info() const override { return info_; }
  std::expected<RequestId, Rejection> submit(GenerateRequest request, OutputSink sink) override;
  void cancel(RequestId id) override;
  void cancel(RequestId id, int32_t choice) override;
  EngineStats stats() const override;

 private:
  struct Cancel {
    RequestId id;
    int32_t choice = -1;  // -1: all
  };
  using Command = std::variant<std::unique_ptr<Request>, Cancel>;

  Engine(std::unique_ptr<Runner> runner, const EngineOptions& options, EngineInfo info, const Clock& clock);

  void run();
  void take_commands();
  void add_request(std::unique_ptr<Request> request);
  void end_expired();
  void end_all(const Error& error);
  int32_t retry_after_s() const;

  // step.cc
  void step();
  StepPlan schedule();
  void apply(const StepPlan& plan);
  void build_chunks(const StepPlan& plan);
  bool wants_logits(const ScheduledRows& rows) const;
  void take_tokens(const StepPlan& plan, const LogitsView& logits);
  void append_token(Sequence& seq, std::span<float> logits);
  void preempt(Sequence& seq);
  void release_memory(Sequence& seq);
  void enqueue(Sequence& seq, bool front);
  void mark_scheduled(Sequence& seq, int64_t now_ns);
  void emit(Sequence& seq, std::vector<OutputToken> tokens, FinishReason finish, Error error = {});
  void finish(Sequence& seq, std::vector<OutputToken> tokens, FinishReason reason, Error error = {});
  void end_request(Request& request, FinishReason reason, const Error& error = {}, int32_t choice = -1);
  void publish_stats();
  void check_invariants() const;
  Sequence& sequence(uint64_t id) { return *sequences_.at(id); }
  const Sequence& sequence(uint64_t id) const { return *sequences_.at(id); }

  std::unique_ptr<Runner> runner_;
  EngineOptions options_;
  EngineInfo info_;
  SchedulerConfig scheduler_;
  const Clock& clock_;

  Queue<Command> commands_;
  std::atomic<uint64_t> next_request_{1};
  std::atomic<bool> stopping_{false};
  // Of requests that no step has touched yet, for the queue bound.
  std::atomic<int64_t> queued_requests_{0};
  std::atomic<int64_t> queued_tokens_{0};

  // Owned by the engine's thread.
  kv::BlockPool blocks_;
  kv::BlockPool slots_;
  std::unordered_map<uint64_t, std::unique_ptr<Request>> requests_;    // by RequestId::v
  std::unordered_map<uint64_t, std::unique_ptr<Sequence>> sequences_;  // by Sequence::id, all unfinished ones
  std::vector<Sequence*> running_;                                     // with a slot, in order of admission
  std::deque<Sequence*> waiting_;                                      // by priority, then arrival
  uint64_t next_sequence_ = 1;
  Sampler sampler_;
  EngineStats counters_;
  std::vector<model::SequenceChunk> chunks_;  // of the current step
  std::vector<SequenceTag> tags_;

  mutable std::mutex stats_mutex_;  // guards stats_
  EngineStats stats_;

  std::thread thread_;  // last: everything above is there when it starts
};

}  // namespace di::engine
