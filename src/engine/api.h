// What the rest of the system needs of an engine: hand in token ids, get token ids back, cancel, look at the load. The
// server and the command line know only this header. Every implementation goes through the same scheduler, stop rules
// and sampler; they differ in what computes the logits (engine/runner.h).
//
// Thread-safety: all members of EngineApi may be called from any thread. A sink is called on the engine's thread, one
// call at a time per request, and must return soon: it hands the output on and does no work of its own.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/metrics.h"
#include "base/result.h"
#include "base/sha256.h"
#include "engine/speculative/stats.h"
#include "kv/block_hash.h"
#include "kv/prefix_cache.h"
#include "kv/swa_cache.h"
#include "structured/structured.h"

namespace di::engine {

struct RequestId {
  uint64_t v = 0;
  friend bool operator==(RequestId, RequestId) = default;
};

// Sampling of engine.md §5. Values must be in range (check_sampling()).
struct SamplingParams {
  double temperature = 1.0;  // >= 0; below 1e-5: greedy
  double top_p = 1.0;        // (0, 1]
  int32_t top_k = -1;        // -1: off, else >= 1
  double min_p = 0.0;        // [0, 1]
  uint64_t seed = 0;
  // The seed is the request's own: its tokens are those of a run without speculation, whatever runs beside it. Off for
  // seeds nobody knows: their drafts go through exact rejection sampling, which keeps the distribution and accepts more
  // (docs/speculation.md).
  bool seed_given = false;
  double repetition_penalty = 1.0;  // > 0
  double frequency_penalty = 0.0;   // [-2, 2]
  double presence_penalty = 0.0;    // [-2, 2]
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> allowed_token_ids;  // empty: all
  std::vector<std::vector<int32_t>>
      bad_words;  // token sequences; the last token is ruled out where the others precede it
  // Tokens of thinking after which think_end is the only choice, for outputs that begin inside thinking; -1: any
  // number.
  int64_t thinking_budget = -1;
  int32_t think_end = -1;  // the token that ends it
  bool logprobs = false;
  int32_t top_logprobs = 0;                // [0, 1000]
  std::vector<int32_t> logprob_token_ids;  // with logprobs: these have their place after the best, once each
};

// Classes of traffic, most urgent first (engine.md §3.6): chat, agent, batch of server.md §4.1; `pin` counts as agent.
enum class TrafficClass : uint8_t { kInteractive, kAgent, kBatch };

class Transfer;
using TransferRef = std::shared_ptr<Transfer>;

// Positions of the prompt whose KV depends on an image: the placeholder's ids are the same for all.
using MediaSpan = kv::MediaSpan;

struct GenerateRequest {
  std::string id;  // for logs; need not be unique
  std::string tenant;
  // Blocks of KV are shared inside a namespace only (server.md §2.1: 32 bytes derived from tenant, user and salt).
  // Empty: that of the tenant; without a tenant too: shared by all.
  std::string cache_namespace;
  std::vector<int32_t> prompt;
  std::vector<MediaSpan> media;  // ascending, inside the prompt
  SamplingParams sampling;
  int32_t n = 1;            // choices; choice i draws with seed + i
  int64_t max_tokens = 16;  // 0: compute the prompt only
  int64_t min_tokens = 0;   // end-of-sequence and stop tokens are ruled out before
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;  // beside the model's own end of sequence
  // What the output has to be (structured-output.md); null: anything. Ready to use: whoever submits has it compiled
  // before. The last constrained_prompt_tokens tokens of the prompt are the beginning of the constrained text.
  structured::CompiledRef constraint;
  int32_t constrained_prompt_tokens = 0;
  // Log-probabilities of the prompt's tokens, with this many alternatives each (0 to 1000); -1: none.
  int32_t prompt_logprobs = -1;
  TrafficClass traffic_class = TrafficClass::kInteractive;
  int32_t priority = 0;           // inside the class, lower first
  int64_t ttft_target_ms = 0;     // refuse it when the queue is longer than that; 0: the engine's own target
  int64_t queue_deadline_ns = 0;  // on the engine's clock; 0: none. Reached while waiting: the request ends
  int64_t deadline_ns = 0;        // reached at any time: the request ends
  // Hand-over between engines (transfer.h), of requests with one choice and at least one token. `send`: only the prompt
  // and the first token are computed here; no token is put out, and the request ends when the other side has it, with
  // kLength. `receive`: the prompt is computed there, and this engine goes on behind it.
  TransferRef send;
  TransferRef receive;
};

enum class FinishReason : uint8_t {
  kNone,       // not finished
  kStop,       // end of sequence or a stop token, which is not among the tokens
  kLength,     // max_tokens or the context is used up
  kAborted,    // cancel()
  kPreempted,  // no memory to go on, and nothing can be recomputed
  kError,      // see Output::error
};
std::string_view to_string(FinishReason reason);

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct OutputToken {
  int32_t token = 0;
  float logprob = 0;  // natural log, after temperature, top-p and top-k; -9999 for pruned tokens. With logprobs only
  std::vector<TokenLogprob> top;  // descending, top_logprobs of them; then logprob_token_ids that are not among them
};

// When the stages of a request were reached, on the engine's clock; 0: never.
struct RequestTimes {
  int64_t arrival_ns = 0;
  int64_t scheduled_ns = 0;  // first step that computed it
  int64_t first_token_ns = 0;
  int64_t finished_ns = 0;
};

// Why no more of a prompt was there already, and where it was started from (kv-cache.md §6.4).
struct CacheReport {
  kv::Miss miss;
  kv::SwaOutcome window = kv::SwaOutcome::kNone;
  int32_t replay_rows = 0;
};

// One delivery: the tokens a step gave to one choice, and its end with the last one.
struct Output {
  int32_t choice = 0;
  std::vector<OutputToken> tokens;
  // With prompt_logprobs, in the first output of choice 0: of the prompt's tokens 1, 2, … (nothing precedes token 0).
  std::vector<OutputToken> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  Error error;  // of kError: kDeadlineExceeded, kResourceExhausted (waited too long, or no memory for its step),
                // kUnavailable (engine stopped, device lost), kInternal
  bool constraint_failed = false;  // of kError: the constraint ran into its limits or contradicts other parameters
  bool transfer_failed = false;    // of kError: the prompt did not arrive; handed over once more, it may
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, taken from a cache
  CacheReport cache;          // of this choice's first admission
  int64_t output_tokens = 0;  // so far, this choice, without the stop token
  int32_t preemptions = 0;
  // Speculation so far, this choice: decode steps with drafts, drafts looked at, and of these accepted.
  int64_t draft_rounds = 0;
  int64_t drafts_verified = 0;
  int64_t drafts_accepted = 0;
  RequestTimes times;
};
using OutputSink = std::function<void(Output)>;

// Why submit() refused.
enum class RejectReason : uint8_t { kInvalid, kContextLength, kQueueFull, kStopped };

struct Rejection {
  RejectReason reason = RejectReason::kInvalid;
  Error error;
  int32_t retry_after_s = 0;  // of kQueueFull
};

struct EngineInfo {
  int32_t vocab_size = 0;
  int32_t eos_token_id = -1;
  int64_t max_model_len = 0;  // tokens of prompt and answer together
  int32_t max_num_seqs = 0;
  int32_t block_tokens = 0;
  int32_t n_blocks = 0;             // usable ones
  int32_t max_drafts = 0;           // that a sequence may have verified in one step; 0: no speculation
  int64_t block_bytes = 0;          // memory of a KV block …
  int64_t slot_bytes = 0;           // … of a state slot (sliding windows and compressor state); 0: none
  int64_t window_memory_bytes = 0;  // of the host, for windows
  bool prefix_cache = false;
  bool swa_replay = false;
  std::string_view prefill_truncation = "off";  // off, mask, compact
  int32_t replay_keep = 0;                      // rows kept by truncated prefill
  std::string kv_dtype;                         // "fp4", "fp32", … for dashboards
  std::string backend;                          // "cpu-avx2", "scripted", …
  // Of what is handed over between engines: equal where one can read the other's. Absent: nothing can be.
  std::optional<Sha256> transfer_compat;
};

inline constexpr std::array<double, 16> kIterationTokenBounds = {1,   8,    16,   32,   64,   128,  256,  512,
                                                                 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384};

// Upper bounds of StepTimes and of the moves of windows, seconds.
inline constexpr std::array<double, 18> kStepTimeBounds = {
    .00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10};
using StepTime = Buckets<kStepTimeBounds>;

// The engine's thread, per step: schedule and launch; hand out what a step gave (post); wait for the device. The
// device's: prepare, forward pass, sample.
struct StepTimes {
  StepTime schedule;
  StepTime prepare;
  StepTime forward;
  StepTime sample;
  StepTime post;
  StepTime wait;
};

// Sliding windows between the device and host memory, in one direction.
struct WindowMoves {
  StepTime seconds;
  uint64_t bytes = 0;
};

inline constexpr uint64_t kRateWindowSteps = 100;

// Counters grow from start; the rest is the state after the last step.
struct EngineStats {
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t waiting_tokens = 0;
  int64_t used_blocks = 0;
  int64_t total_blocks = 0;
  int64_t leased_blocks = 0;  // of these, of requests between two engines
  int64_t used_slots = 0;
  int64_t total_slots = 0;
  uint64_t steps = 0;
  uint64_t prompt_tokens = 0;  // computed, including recomputation
  uint64_t generated_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t corrupted = 0;  // requests ended by NaN or all -inf logits
  std::array<uint64_t, kIterationTokenBounds.size() + 1> iteration_tokens{};  // steps by number of rows
  double iteration_tokens_sum = 0;
  StepTimes times;
  // Gap: between two forward passes of steps that follow each other without a pause in the work; bubble: the part of it
  // in which the device had nothing to do.
  double gap_seconds = 0;
  double bubble_seconds = 0;
  double batch_fill_sum = 0;  // over the steps: rows / max_num_batched_tokens
  // Arithmetic of the forward passes in FP8 equivalents (Runner::row_flops), of what was computed; and the part of
  // the device's peak that it is, while forward passes ran (0: peak unknown).
  double flops = 0;
  double flops_utilisation = 0;
  int64_t chunked = 0;              // running sequences whose prompt is not computed yet
  uint64_t finished = 0;            // choices that ended by themselves
  uint64_t aborted = 0;             // by cancel()
  uint64_t failed = 0;              // by an error or a deadline
  uint64_t transfers_sent = 0;      // requests handed over to another engine …
  uint64_t transfers_received = 0;  // … taken over from one …
  uint64_t transfers_failed = 0;    // … and those that were to be
  uint64_t transfer_bytes = 0;      // read here for another engine
  // Of the finished ones.
  uint64_t input_tokens = 0;
  uint64_t output_tokens = 0;
  // Time to first token of the choices that have one.
  uint64_t first_tokens = 0;
  double ttft_seconds_sum = 0;
  double ttft_seconds_max = 0;
  // Rates over the last kRateWindowSteps steps, pauses left out; 0 before the first.
  double steps_per_second = 0;
  double prompt_tokens_per_second = 0;
  double generated_tokens_per_second = 0;
  double batch_fill = 0;  // mean
  SpeculationStats speculation;
  // Reuse of KV.
  uint64_t prefix_queries = 0;  // prompt tokens looked up
  uint64_t prefix_hits = 0;     // of these, found
  uint64_t cached_by_host = 0;  // of these, started from a window of the host cache
  uint64_t forks = 0;           // choices that took over another one's prompt
  uint64_t replays = 0;
  uint64_t replayed_tokens = 0;
  std::array<uint64_t, kv::kMissReasons> misses{};  // requests by kv::MissReason
  int64_t kept_blocks = 0;                          // known and without an owner
  uint64_t evicted_blocks = 0;
  kv::BlockLives block_lives;
  kv::SwaStats windows;
  WindowMoves windows_saved;
  WindowMoves windows_loaded;
  int64_t last_step_ns = 0;  // when a step ended last, or the engine was last idle
};

struct CacheLookup {
  int64_t block_tokens = 0;                       // of the prompt, in the blocks of the device
  kv::SwaOutcome window = kv::SwaOutcome::kNone;  // whether the host has the sliding window at their end
};

// Changes of what an engine knows of earlier prompts, in order. Numbers go up by one with each delivery: whoever misses
// one watches anew.
struct KvEvents {
  uint64_t number = 0;
  std::vector<kv::BlockEvent> events;
};

class EngineApi {
 public:
  virtual ~EngineApi() = default;
  virtual const EngineInfo& info() const = 0;

  // Checks the request and puts it into the queue. Afterwards the sink gets outputs for each choice until each has had
  // one with a finish reason.
  virtual std::expected<RequestId, Rejection> submit(GenerateRequest request, OutputSink sink) = 0;

  // Ends every unfinished choice with kAborted before the next step. Unknown and finished ids are ignored.
  virtual void cancel(RequestId id) = 0;
  // The same for one choice.
  virtual void cancel(RequestId id, int32_t choice) = 0;

  virtual EngineStats stats() const = 0;

  // Forgets what is known of earlier prompts; running sequences keep their memory.
  virtual void flush_cache() = 0;
  // What is known of a prompt now. `done` is called once, on the engine's thread (at once where that has ended).
  virtual void look_up(const GenerateRequest& request, std::function<void(CacheLookup)> done) = 0;
  // From now on `watcher` gets, on the engine's thread, all that is known and then each step's changes. One at a time:
  // it takes the place of the one before; null: none.
  virtual void watch_kv(std::function<void(KvEvents)> watcher) = 0;
};

}  // namespace di::engine
