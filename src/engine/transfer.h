// One request's way from the engine that computes its prompt to the engine that goes on with it (kv-cache.md §8,
// distributed.md §2.3). Both sides hold the same Transfer, each in its GenerateRequest, and are told when the other one
// has done something:
//
//   receiver  prepare()   it has a state slot and the blocks; says which blocks it knows already (PREPARE)
//   sender    write()     blocks as each chunk of the prompt completes them, at last the state (CHUNK_DONE)
//             commit()    the first token, and where the windows begin (COMMIT)
//   receiver  poll()      compares the checksums of what has come; ready when nothing is missing
//             accept()    the request is the receiver's: the sender gives its memory back (ACK)
//   either    abort()     at any time before that (ABORT)
//
// What is written waits here, not in the receiver's memory: the receiver's device copies it into its own blocks when
// the request gets its first rows there. So a late write of a sender that has been given up reaches no block that
// somebody else may have by then; here it is refused.
//
// Thread-safety: all members may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/sha256.h"
#include "engine/api.h"

namespace di::engine {

enum class TransferStage : uint8_t {
  kFailed,
  kBootstrapping,  // the receiver has no room yet
  kWaiting,        // it has; nothing is written
  kTransferring,
  kSuccess,
};

// Why it ended without success.
struct TransferFailure {
  Error error;
  bool retry = false;              // another attempt may do better
  bool constraint_failed = false;  // as in Output
};

// What the receiver has room for.
struct TransferTarget {
  Sha256 compat{};           // EngineInfo::transfer_compat; both sides' must be equal
  int32_t blocks = 0;        // of the prompt
  int32_t first_needed = 0;  // the receiver knows the blocks before
};

// What the receiver has to know beside the bytes.
struct TransferCommit {
  OutputToken first;  // the token behind the prompt
  std::vector<OutputToken> prompt_logprobs;
  int64_t cached_tokens = 0;  // of the prompt
  CacheReport cache;
  int32_t window_start = 0;  // as in model::SequenceChunk
  int32_t keep_begin = 0;    // as in model::SequenceChunk
  int64_t scheduled_ns = 0;  // first step of the prompt, on the clock of both
};

// Faults for tests (server.md §18).
struct TransferFault {
  int64_t late_ns = 0;       // the commit is seen so much later than it was made
  bool wrong_order = false;  // the commit overtakes the first block that is written
  bool damage = false;       // a byte of what is written changes on the way
};

class Transfer {
 public:
  enum class Side : uint8_t { kSender, kReceiver };
  using Bytes = std::vector<std::byte>;

  // Fails by itself `timeout_ns` from now. The clock must outlive it.
  Transfer(uint64_t id, const Clock& clock, int64_t timeout_ns);

  uint64_t id() const { return id_; }
  TransferStage stage() const;
  // Set in kFailed.
  std::optional<TransferFailure> failure() const;

  // `wake` is called when the other side has done something or has failed: on that side's thread, and it must not call
  // back. Null: not any more; it is not running then either.
  void on_change(Side side, std::function<void()> wake);

  // True when the time is over: it has failed now or before.
  bool expire();
  // Nothing happens after success or an earlier failure. What was written is dropped.
  void abort(TransferFailure why);

  // Receiver.
  void prepare(const TransferTarget& target);
  enum class Progress : uint8_t { kIncomplete, kReady, kFailed };
  Progress poll();
  // False: it has failed meanwhile.
  bool accept();
  // After accept(). What was written stays until the last owner of the Transfer is gone.
  const TransferCommit& committed() const { return *commit_; }
  std::span<const std::byte> block(int32_t index) const;
  std::span<const std::byte> state() const { return state_.bytes; }

  // Sender. Nothing before the target is there; what comes after a failure is refused (false).
  std::optional<TransferTarget> target() const;
  bool write(int32_t block, Bytes bytes) { return put(block, std::move(bytes)); }
  bool write_state(Bytes bytes) { return put(kState, std::move(bytes)); }
  bool commit(TransferCommit commit);
  void inject(const TransferFault& fault);

 private:
  static constexpr int32_t kState = -1;  // among the blocks
  struct Piece {
    Bytes bytes;
    uint64_t sum = 0;  // XXH3-64, made by the sender
    bool written = false;
    bool checked = false;
  };
  bool put(int32_t block, Bytes bytes);
  bool check(Piece& piece);
  void fail_locked(TransferFailure why);
  void wake(Side side);

  const uint64_t id_;
  const Clock& clock_;
  const int64_t deadline_ns_;

  mutable std::mutex mutex_;  // guards the members below; those that the receiver reads after accept() stay as they are
  TransferStage stage_ = TransferStage::kBootstrapping;
  std::optional<TransferFailure> failure_;
  std::function<void()> wake_[2];
  std::optional<TransferTarget> target_;
  std::vector<Piece> blocks_;
  Piece state_;
  std::optional<TransferCommit> commit_;
  TransferFault fault_;
  int64_t visible_ns_ = 0;     // of the commit
  int32_t held_block_ = -1;    // of the fault: comes after the commit …
  int64_t held_until_ns_ = 0;  // … at this time
};

}  // namespace di::engine
