// Two engines as one: the first computes prompts and hands them over (transfer.h), the second goes on with them. What a
// router does between a prefill and a decode worker (distributed.md §2.3, §2.4), in one process: it makes the transfer,
// tells both engines, and hands a request over once more when a transfer fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/api.h"
#include "engine/transfer.h"

namespace di::engine {

struct EnginePairOptions {
  int64_t transfer_timeout_ns = 300 * kNsPerSecond;  // from the request's arrival to the second engine's taking over
  int32_t retries = 1;                               // of a failed transfer
};

class EnginePair final : public EngineApi {
 public:
  // The clock must outlive it. Errors: one of the engines hands nothing over, or their KV is not the same.
  static Result<std::unique_ptr<EnginePair>> create(std::unique_ptr<EngineApi> prefill,
                                                    std::unique_ptr<EngineApi> decode, const EnginePairOptions& options,
                                                    const Clock& clock);

  // Those of the second engine.
  const EngineInfo& info() const override { return decode_->info(); }
  // Choices are requests of their own below; requests without output go to the first engine alone.
  std::expected<RequestId, Rejection> submit(GenerateRequest request, OutputSink sink) override;
  void cancel(RequestId id) override;
  void cancel(RequestId id, int32_t choice) override;
  // Memory and work of both, prompts and their reuse of the first, answers of the second.
  EngineStats stats() const override;
  void flush_cache() override;
  void look_up(const GenerateRequest& request, std::function<void(CacheLookup)> done) override;
  void watch_kv(std::function<void(KvEvents)> watcher) override;

 private:
  struct Choice {
    RequestId prefill;
    RequestId decode;
    int32_t attempts = 0;
    bool cancelled = false;
    bool ended = false;
  };
  struct Job {
    RequestId id;
    GenerateRequest request;
    OutputSink sink;
    std::mutex mutex;  // guards the choices
    std::vector<Choice> choices;
    int32_t open = 0;
  };
  using JobRef = std::shared_ptr<Job>;

  EnginePair(std::unique_ptr<EngineApi> prefill, std::unique_ptr<EngineApi> decode, const EnginePairOptions& options,
             const Clock& clock);
  std::expected<void, Rejection> start(const JobRef& job, int32_t choice);
  void deliver(const JobRef& job, int32_t choice, Output output);
  JobRef find(RequestId id);

  const EnginePairOptions options_;
  const Clock& clock_;
  std::atomic<uint64_t> next_id_{1};
  std::mutex mutex_;  // guards jobs_
  std::unordered_map<uint64_t, JobRef> jobs_;
  // The last members: while they end, they still deliver and are still asked.
  std::unique_ptr<EngineApi> prefill_;
  std::unique_ptr<EngineApi> decode_;
};

}  // namespace di::engine
