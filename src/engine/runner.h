// What computes logits for the engine: the model on some backend, a script, a stub of a test. The border below
// scheduler, stop rules and sampler, so that all of these are the same for every kind of engine. Called by the device's
// thread only (step_worker.h), in the order of the steps; info() by any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/api.h"
#include "engine/transfer.h"
#include "kv/block_hash.h"
#include "kv/swa_cache.h"
#include "model/batch.h"

namespace di::engine {

struct RunnerInfo {
  int32_t vocab_size = 0;
  int32_t eos_token_id = -1;
  int64_t max_positions = 0;  // positions 0 … max_positions-1 may be computed
  int32_t block_tokens = 128;
  int32_t n_blocks = 0;     // with the null block
  int32_t n_slots = 0;      // with the padding slot
  int64_t block_bytes = 0;  // of one block, of one slot; 0: nothing is stored
  int64_t slot_bytes = 0;
  int32_t max_drafts = 0;    // most drafts a sequence may have verified in one step
  bool mixed_steps = true;   // prompt chunks and decode rows may share a step
  bool copies = false;       // copy() works: choices of one request can share a prompt
  int32_t backtracking = 0;  // positions that a state slot can be taken back by
  // Sliding windows that can be saved and put back (save_window, load_window): W, and the bytes of one with the rings
  // of all layers or of those up to the boundary layer. window 0: none, nothing is reused.
  int32_t window = 0;
  int64_t window_bytes = 0;
  int64_t window_bytes_encoder = 0;  // 0: the model has no decoder half, prefill is never truncated
  kv::RootFields identity;           // of the KV it stores, without a domain
  // Blocks and slots can be handed over to another engine (read_block … write_state); what their bytes depend on beside
  // `identity`: the draft module.
  bool transfers = false;
  std::string state_form;
  const char* kv_dtype = "";
  const char* backend = "";
};

// Whose chunk it is, for runners that act on requests (scripts).
struct SequenceTag {
  uint64_t sequence = 0;
  int32_t prompt_tokens = 0;
};

// A block or slot whose contents go to another one.
struct CopyPair {
  int32_t from = 0;
  int32_t to = 0;
};

// [rows, vocab] fp32; `stride` floats from one row to the next.
struct LogitsView {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t stride = 0;
};

// One sequence's draft round: the token `golden` follows position `context_position`, the last one the target has
// computed and kept; drafts are for the positions after golden's.
struct DraftStart {
  uint64_t sequence = 0;
  int32_t golden = 0;
  int32_t context_position = 0;
  int32_t state_slot = 0;
  int32_t window_start = 0;  // context below was not computed
};

class Runner {
 public:
  virtual ~Runner() = default;
  virtual const RunnerInfo& info() const = 0;

  // Computes the chunks' rows and stores their KV. Returns the logits of the positions >= logits_begin, in the order of
  // the chunks; they live until the next call and may be written to. An error ends the requests of the step.
  virtual Result<LogitsView> forward(std::span<const model::SequenceChunk> chunks,
                                     std::span<const SequenceTag> tags) = 0;

  // Copies whole blocks and state slots, in order, before the next forward(). Only with RunnerInfo::copies.
  virtual void copy(std::span<const CopyPair> blocks, std::span<const CopyPair> slots) {
    static_cast<void>(blocks);
    static_cast<void>(slots);
  }

  // The window of `slot` at entry.position, which the slot has reached and not passed by more than `backtracking` rows,
  // into entry.bytes; and the slot put back there, before the next forward(). Only with RunnerInfo::window.
  virtual void save_window(int32_t slot, kv::SwaEntry& entry) {
    static_cast<void>(slot);
    static_cast<void>(entry);
  }
  virtual void load_window(int32_t slot, const kv::SwaEntry& entry) {
    static_cast<void>(slot);
    static_cast<void>(entry);
  }

  // The bytes of a block, and of a slot that has computed the positions before `position` and no more than
  // `backtracking` rows beyond; and both put where another engine goes on. Between forward passes, with
  // RunnerInfo::transfers. Error: bytes of another size.
  virtual std::vector<std::byte> read_block(int32_t block) {
    static_cast<void>(block);
    return {};
  }
  virtual std::vector<std::byte> read_state(int32_t slot, int32_t position) {
    static_cast<void>(slot);
    static_cast<void>(position);
    return {};
  }
  virtual Result<void> write_block(int32_t block, std::span<const std::byte> bytes) {
    static_cast<void>(block);
    static_cast<void>(bytes);
    return fail(Errc::kInternal, "this runner takes nothing over");
  }
  virtual Result<void> write_state(int32_t slot, int32_t position, std::span<const std::byte> bytes) {
    static_cast<void>(slot);
    static_cast<void>(position);
    static_cast<void>(bytes);
    return fail(Errc::kInternal, "this runner takes nothing over");
  }
  // What goes wrong when this request's prompt is handed over (scripts).
  virtual TransferFault transfer_fault(const SequenceTag& tag, std::span<const int32_t> prompt) {
    static_cast<void>(tag);
    static_cast<void>(prompt);
    return {};
  }

  // With RunnerInfo::max_drafts > 0. A draft round (speculative.md §1.3, §1.4) for sequences whose forward() is done:
  // first what all drafts share, then draft k = 0, 1, … given the token before it (`previous`: golden, then draft k-1).
  // draft_step returns a row of logits per sequence, living until the next call, and the confidences. Errors of these
  // and of forward(): the step's sequences end; kUnavailable: nothing can be computed here any more.
  virtual Result<void> draft(std::span<const DraftStart> starts) {
    static_cast<void>(starts);
    return fail(Errc::kInternal, "this runner has no draft module");
  }
  virtual Result<LogitsView> draft_step(int32_t k, std::span<const int32_t> previous, std::span<float> confidences) {
    static_cast<void>(k);
    static_cast<void>(previous);
    static_cast<void>(confidences);
    return fail(Errc::kInternal, "this runner has no draft module");
  }

  // Arithmetic of the row at a position in FP8 equivalents (model::row_flops), without the draft module; 0: unknown.
  virtual double row_flops(int64_t position) const {
    static_cast<void>(position);
    return 0;
  }

  // The engine is being destroyed (called from another thread): a forward that waits for something returns soon.
  virtual void interrupt() {}
};

}  // namespace di::engine
