// The engine: one thread that owns every request, the scheduler's queues and the memory pools, and launches steps while
// there is work; a second one, the device's, computes and samples them (step_worker.h). Other threads talk to it
// through a queue of commands. step.cc is one step; reuse.cc is where memory comes from and what is done with it
// afterwards; engine_transfer.cc takes requests over from other engines and hands them over; what computes the logits
// is a Runner.
//
// One turn of the loop, asynchronous: schedule and launch step n while the device computes n-1, then hand out what n-1
// gave while the device computes n. The scheduler sees the results of n-2 and, for n-1, the most it can bring. Memory
// of a sequence that ends is free at once although a launched step may still write to it: whoever gets it writes later,
// in a later step, and reads nothing that he has not written.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
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
#include "engine/constraint.h"
#include "engine/runner.h"
#include "engine/schedule_record.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/speculative/planner.h"
#include "engine/step_worker.h"
#include "engine/trace.h"
#include "kv/block_hash.h"
#include "kv/block_pool.h"
#include "kv/prefix_cache.h"
#include "kv/replay_plan.h"
#include "kv/swa_cache.h"

namespace di::engine {

// Reuse of KV between requests (kv-cache.md §6, model.md §6). Without prefix_cache only the choices of one request
// share.
struct ReuseOptions {
  bool prefix_cache = true;
  bool replay =
      false;  // a hit without its sliding window recomputes the last W positions; off: it is used up to a window
  int64_t window_memory_bytes = 0;  // of the host cache of windows
  int64_t window_retention_ns = 180 * kNsPerSecond;
  int32_t replay_keep = 0;  // truncated prefill: rows at the prompt's end that run through the decoder half; 0: all
  bool mask = false;        // truncated prefill computes all rows and hides what it would have left out
};

struct EngineOptions {
  int64_t max_model_len = 0;  // 0: as many positions as the runner has and the pool can hold
  int32_t max_num_seqs = 16;
  int32_t max_num_batched_tokens = 512;  // at least max_num_seqs
  int64_t max_queue_size = 4096;         // requests not yet scheduled
  int64_t max_queue_tokens = 0;          // their prompt tokens; 0: no bound
  int64_t max_queue_ms = 2000;           // ageing: a request gains a traffic class each time it has waited this long
  int64_t ttft_target_ms = 0;            // refuse what would wait longer for its prompt to be computed; 0: never
  bool async_scheduling = true;          // false: a step is handed out before the next is scheduled; the same tokens
  bool recompute_preempted = true;       // false: a sequence that loses its memory ends with kPreempted
  // A mask that is not there so long after its step began is waited for no longer: its sequence sits this step out
  // (structured-output.md §2.7). 0: none is waited for.
  int64_t mask_patience_ns = kMaskPatienceNs;
  double peak_flops = 0;  // of the device per second, FP8 equivalents, for EngineStats; 0: unknown
  SpeculationOptions speculation = {};
  Trace* trace = nullptr;  // this and the next must outlive the engine
  ScheduleRecorder* recorder = nullptr;
  ReuseOptions reuse = {};
  // Told, on the engine's thread and perhaps more than once, that the runner can compute nothing any more: the step's
  // requests have ended with the error, and so will all others.
  std::function<void(const Error&)> on_device_lost = {};
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
  void flush_cache() override;
  void look_up(const GenerateRequest& request, std::function<void(CacheLookup)> done) override;
  void watch_kv(std::function<void(KvEvents)> watcher) override;

 private:
  struct Cancel {
    RequestId id;
    int32_t choice = -1;  // -1: all
  };
  struct Flush {};
  struct WatchKv {
    std::function<void(KvEvents)> watcher;
  };
  struct Wake {};  // something has changed outside
  struct LookUp {
    kv::BlockChain chain;
    std::function<void(CacheLookup)> done;
  };
  using Command = std::variant<std::unique_ptr<Request>, Cancel, Flush, LookUp, WatchKv, Wake>;

  Engine(std::unique_ptr<Runner> runner, const EngineOptions& options, EngineInfo info, DraftPlanner planner,
         const Clock& clock);

  void run();
  void take_commands();
  void answer(LookUp& question);
  void tell_kv_events();
  void add_request(std::unique_ptr<Request> request);
  void end_expired();
  void end_all(const Error& error);
  double queue_seconds() const;
  std::optional<Rejection> reject_for_queue(const GenerateRequest& request);

  // step.cc
  // A launched step as the host remembers it, until its outputs are there.
  struct Launched {
    struct Rows {
      uint64_t sequence = 0;
      uint32_t epoch = 0;
      int32_t begin = 0;
      int32_t count = 0;
      bool decode = false;
      bool sample = false;
    };
    uint64_t step = 0;
    std::vector<Rows> rows;  // in the order of StepInput::rows
    int32_t total_rows = 0;
    bool proposed = false;     // its sequences got drafts
    bool after_pause = false;  // there was no work before it
  };
  bool step();
  StepPlan schedule();
  void drop_broken_forks(StepPlan& plan);
  void apply(StepPlan& plan);
  bool launch(const StepPlan& plan);
  StepRows launch_rows(const ScheduledRows& rows, Launched& launched);
  void process();
  void step_failed(const Launched& launched, const Error& error);
  void process_rows(const Launched::Rows& rows, RowsOutput& output);
  void append_tokens(Sequence& seq, RowsOutput& output);
  void count_step(const Launched& launched, const StepOutput& output);
  void count_rates(const StepOutput& output);
  void count_finish(const Sequence& seq, FinishReason reason);
  void count_prompt_rate(const Launched& launched, const StepOutput& output);
  void count_drafts(Sequence& seq, const RowsOutput& output);
  void preempt(Sequence& seq);
  void release_memory(Sequence& seq);
  void enqueue(Sequence& seq, bool front);
  void mark_scheduled(Sequence& seq, int64_t now_ns);
  void emit(Sequence& seq, std::vector<OutputToken> tokens, FinishReason finish, Error error = {});
  void finish(Sequence& seq, std::vector<OutputToken> tokens, FinishReason reason, Error error = {});
  void end_request(Request& request, FinishReason reason, const Error& error = {}, int32_t choice = -1);
  void publish_stats();
  void check_invariants() const;

  // engine_transfer.cc
  static void watch_transfer(const TransferRef& send, const TransferRef& receive, const std::function<void()>& wake);
  void step_transfers();
  void follow_transfer(Sequence& seq);
  Sequence* next_incoming();
  int32_t incoming_blocks(const Sequence& seq) const;
  kv::PrefixMatch known_blocks(const Sequence& seq) const;
  void take_in(Sequence& seq);
  void take_arrived(Sequence& seq);
  void commit_transfer(Sequence& seq, RowsOutput& output);
  void order_send(Sequence& seq, const ScheduledRows& rows, StepRows& out) const;
  bool may_send(const Sequence& seq) const;
  void leave_transfer(Sequence& seq, FinishReason reason, const Error& error);
  void end_transfer(Sequence& seq);

  // reuse.cc: the life of a sequence's memory, in this order.
  //   find_start     its turn to be admitted has come: what of it exists already? May be asked again in later steps.
  //   take_over      it is admitted with a slot: make seq.blocks, computed, cached_tokens, window_start and
  //                  block_write_begin what find_start promised. Copies that must precede the step go to copies_.
  //   order_window   its rows are launched: the window to be saved when it reaches a block boundary, if any.
  //   keep_window    such a window has come back.
  //   blocks_filled  positions [0, tokens) are stored for good (results of their step are processed): full blocks are
  //                  offered to others. Called when `tokens` has grown. A step in flight may still write positions
  //                  >= seq.length()-1 when the sequence ends, never those of a full block.
  //   freed_blocks   how many blocks would be free if it gave up its own.
  Start find_start(Sequence& seq);
  void take_over(Sequence& seq);
  kv::SwaEntryRef order_window(Sequence& seq, const ScheduledRows& rows);
  void keep_window(Sequence& seq, const kv::SwaEntryRef& window);
  void blocks_filled(Sequence& seq, int32_t tokens);
  int32_t freed_blocks(const Sequence& seq) const;
  bool find_fork(const Sequence& seq, StartChoice& choice, bool& ready) const;
  void find_prefix(Sequence& seq, StartChoice& choice);
  void count_start(Sequence& seq, const StartChoice& choice);
  bool keeps_windows() const;
  bool truncates(const Sequence& seq) const;
  kv::SwaLayers needed_layers(const Sequence& seq) const;
  kv::BlockChain chain_of(const GenerateRequest& request) const;
  // Rows of the next decode step of a running sequence: 1 + drafts to verify (all sequences at once: StepInput order).
  void choose_verify_rows(std::span<SeqState> running);

  Sequence& sequence(uint64_t id) { return *sequences_.at(id); }
  const Sequence& sequence(uint64_t id) const { return *sequences_.at(id); }

  std::unique_ptr<Runner> runner_;
  EngineOptions options_;
  EngineInfo info_;
  DraftPlanner planner_;
  SchedulerConfig scheduler_;
  const Clock& clock_;

  Queue<Command> commands_;
  std::atomic<uint64_t> next_request_{1};
  std::atomic<bool> stopping_{false};
  // Of requests that no step has touched yet, for the queue bound.
  std::atomic<int64_t> queued_requests_{0};
  std::atomic<int64_t> queued_tokens_{0};
  std::atomic<double> prompt_rate_{0};  // prompt tokens per second lately; 0: unknown

  // Owned by the engine's thread.
  kv::PrefixCache blocks_;
  kv::BlockPool slots_;
  kv::SwaCache windows_;
  std::function<void(KvEvents)> kv_watcher_;
  uint64_t kv_deliveries_ = 0;
  kv::ReplayRules rules_;
  std::unordered_map<uint64_t, std::unique_ptr<Request>> requests_;    // by RequestId::v
  std::unordered_map<uint64_t, std::unique_ptr<Sequence>> sequences_;  // by Sequence::id, all unfinished ones
  std::vector<Sequence*> running_;                                     // with a slot, in order of admission
  std::deque<Sequence*> waiting_;                                      // preempted ones, then by arrival
  std::vector<Sequence*> incoming_;                                    // from other engines, no room for them yet
  int32_t transfers_ = 0;                                              // sequences that are part of one
  struct Tenant {
    int32_t number = 0;
    int32_t requests = 0;  // unfinished
  };
  std::unordered_map<std::string, Tenant> tenants_;
  int32_t next_tenant_ = 0;
  SchedulerInput input_;  // of the current step; carries the policy's state
  uint64_t next_sequence_ = 1;
  uint64_t next_step_ = 1;
  std::deque<Launched> launched_;  // not yet processed; at most two
  struct Copies {
    std::vector<CopyPair> blocks;
    std::vector<CopyPair> slots;
  };
  Copies copies_;  // before the next step
  EngineStats counters_;
  struct Window {
    double seconds = 0;
    uint64_t steps = 0;
    uint64_t prompt_tokens = 0;
    uint64_t generated_tokens = 0;
    double batch_fill_sum = 0;
    double flops = 0;
    double forward_seconds = 0;
  };
  Window window_;  // since the last rates
  bool paused_ = true;
  double rate_tokens_ = 0;
  double rate_seconds_ = 0;

  mutable std::mutex stats_mutex_;  // guards stats_
  EngineStats stats_;

  StepWorker worker_;   // used by the engine's thread
  std::thread thread_;  // last: everything above is there when it starts
};

}  // namespace di::engine
