// The KV blocks of the device and what they hold (engine.md §6.1, kv-cache.md §2): who owns each block, which blocks
// are known by their key, and which of those may be taken when memory runs short.
//
// A block is free (no owner, unknown), in use (owners, known or not), or kept (known, no owner). allocate() takes free
// blocks in the order they came back and then kept ones, least recently used first. Block 0 is the null block.
//
// Invariant: an owner of a known block owns the blocks of all its parents too (adopt() and publish() give a sequence
// the known block of each key), so that a kept block has only kept children. release_all() gives back a table's last
// block first; children therefore always stand before their parents in the order of eviction, and the oldest kept block
// never has children.
//
// Owned by the engine's thread; not thread-safe. Nothing here touches the memory itself.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/ages.h"
#include "kv/block_hash.h"

namespace di::kv {

// Why a request's prompt was not (wholly) found.
enum class MissReason : uint8_t {
  kNone,            // everything that can be used was found
  kTooShort,        // less than one full block, or a hit not longer than the window: nothing to gain
  kDiverged,        // the text differs from what is known from token `at` on (new text: where the known text ends)
  kEvicted,         // the block was known and has been given away
  kOtherNamespace,  // the same text is known to another domain only
  kNoWindow,        // blocks found, but no sliding window at their end, and replay is off
};
inline constexpr std::size_t kMissReasons = 6;
std::string_view to_string(MissReason reason);

struct Miss {
  MissReason reason = MissReason::kNone;
  int32_t at = 0;  // token position
};

struct PrefixMatch {
  int32_t blocks = 0;  // of the chain, from its start
  int32_t kept = 0;    // of these, without an owner: adopting them uses free memory
};

// What becomes of known blocks. Times are as exact as set_time() is called often.
struct BlockLives {
  Ages lifetime;   // of evicted blocks: since their allocation
  Ages idle;       // of evicted blocks: since their last owner left
  Ages reuse_gap;  // of kept blocks that are owned again: the same
};

// What an index of the known blocks is kept with (kv-cache.md §7.4). Parents are stored before their children and
// removed after them.
struct BlockEvent {
  enum class Kind : uint8_t {
    kStored,
    kRemoved,
    kCleared,  // nothing is known any more
  };
  Kind kind = Kind::kCleared;
  BlockKey root{};  // of its chain
  BlockKey key{};
};

class PrefixCache {
 public:
  // Blocks 1 … n-1 are usable.
  PrefixCache(int32_t n, int32_t block_tokens);

  // Blocks that allocate() can give.
  int32_t free_count() const { return static_cast<int32_t>(free_.size()) + n_kept_; }
  int32_t used_count() const { return capacity() - free_count(); }
  int32_t kept_count() const { return n_kept_; }
  int32_t known_count() const { return static_cast<int32_t>(by_key_.size()); }
  int32_t capacity() const { return static_cast<int32_t>(nodes_.size()) - 1; }
  uint64_t evictions() const { return evictions_; }
  const BlockLives& lives() const { return lives_; }
  // The time at which what follows happens, nanoseconds.
  void set_time(int64_t now_ns) { now_ns_ = now_ns; }
  int32_t owners(int32_t id) const { return node(id).owners; }

  // There must be one (checked). The caller owns it once.
  int32_t allocate();
  // One more owner of a block in use.
  void share(int32_t id);
  // One owner less. Without owners a known block is kept, another one is free.
  void release(int32_t id);
  void release_all(std::span<const int32_t> table);

  // The longest run of known blocks from the start of the chain. Does not change the order of eviction.
  PrefixMatch match(std::span<const BlockKey> chain) const;
  // Takes ownership of the known blocks of `keys` (all of them, checked) and appends them to the table.
  void adopt(std::span<const BlockKey> keys, std::vector<int32_t>& table);
  // Block `id`, owned by the caller, holds the `tokens` of the chain's last key from now on; `parent` is the caller's
  // block before it (0: none). Returns the block to use: when the key is known already, that block, owned instead of
  // `id`. A block whose parent is unknown stays unknown; one that is known under this key already stays as it is.
  int32_t publish(std::span<const BlockKey> chain, const BlockKey& root, std::span<const int32_t> tokens,
                  int32_t parent, int32_t id);
  bool knows(const BlockKey& key) const { return by_key_.contains(key); }

  // Why match() ended after `matched` blocks of the chain, which belongs to `tokens`.
  Miss explain(std::span<const BlockKey> chain, const BlockKey& root, std::span<const int32_t> tokens,
               int32_t matched) const;

  // Forgets every kept block and every key: what is in use stays with its owners, unknown.
  void clear();

  // Events from now on, beginning with all that is known behind a kCleared; off: none, and those not taken are dropped.
  void log_events(bool on);
  std::vector<BlockEvent> take_events() { return std::exchange(events_, {}); }

  // Aborts when counts, lists and keys disagree.
  void check() const;

 private:
  // A block; its place in the tree of known blocks while it is known.
  struct Node {
    int32_t owners = 0;
    bool known = false;
    BlockKey key{};
    int32_t parent = 0;  // block, 0: the root
    BlockKey root{};     // of the chain
    int32_t first_child = 0;
    int32_t next_sibling = 0;
    int32_t prev_sibling = 0;
    // List of kept blocks, oldest first.
    int32_t older = 0;
    int32_t newer = 0;
    int64_t allocated_ns = 0;
    int64_t left_ns = 0;  // of kept blocks: when the last owner left
  };

  Node& node(int32_t id) { return nodes_[static_cast<size_t>(id)]; }
  const Node& node(int32_t id) const { return nodes_[static_cast<size_t>(id)]; }
  std::span<const int32_t> tokens_of(int32_t id) const;
  int32_t& first_child_of(int32_t parent, const BlockKey& root);
  double seconds_since(int64_t ns) const { return static_cast<double>(now_ns_ - ns) * 1e-9; }
  void keep(int32_t id);
  void reuse(int32_t id);
  void unkeep(int32_t id);
  void forget(int32_t id);
  void log(BlockEvent::Kind kind, const Node& n) {
    if (logging_) events_.push_back({kind, n.root, n.key});
  }

  int32_t block_tokens_;
  std::vector<Node> nodes_;      // [n]; nodes_[0].newer / .older are the ends of the kept list
  std::vector<int32_t> tokens_;  // [n, block_tokens] of the known blocks
  std::deque<int32_t> free_;     // exactly the unknown blocks without owners
  int32_t n_kept_ = 0;
  std::unordered_map<BlockKey, int32_t, BlockKeyHash> by_key_;
  std::unordered_map<BlockKey, int32_t, BlockKeyHash> first_of_root_;  // first block of each chain, by root
  // Keys that were evicted lately, oldest first, and the text of first blocks whatever their namespace, for explain().
  std::deque<BlockKey> evicted_;
  std::unordered_map<BlockKey, int32_t, BlockKeyHash> evicted_count_;
  std::unordered_map<BlockKey, int32_t, BlockKeyHash> first_texts_;
  uint64_t evictions_ = 0;
  BlockLives lives_;
  int64_t now_ns_ = 0;
  bool logging_ = false;
  std::vector<BlockEvent> events_;
};

}  // namespace di::kv
