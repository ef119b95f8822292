// Sliding windows in host memory (kv-cache.md §6): one entry holds the window rows of the stored layers at one position
// of one chain. An entry lives until it has not been used for the retention time, or is the least recently used one
// when the bytes run out. Losing an entry costs a replay, never an answer.
//
// The bytes are written and read by whoever moves them from and to the device, in the order of the steps; the cache
// only hands out buffers. A buffer that someone still holds is not evicted.
//
// Owned by the engine's thread; time comes from the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/ages.h"
#include "kv/block_hash.h"

namespace di::kv {

struct SwaOptions {
  int64_t limit_bytes = 0;  // 0: no entries are kept
  int64_t retention_ns = int64_t{180} * 1'000'000'000;
};

// Which layers' windows an entry has.
enum class SwaLayers : uint8_t {
  kEncoder,  // those up to the boundary layer: prefill with a truncated decoder half
  kAll,      // all of them, with the draft layers
};

struct SwaEntry {
  int32_t position = 0;  // H: windows of [H - W, H)
  SwaLayers layers = SwaLayers::kAll;
  std::vector<std::byte> bytes;
};
using SwaEntryRef = std::shared_ptr<SwaEntry>;

enum class SwaOutcome : uint8_t {
  kNone,      // no block hit that needs a window
  kHit,       // entry at the hit's end
  kHitLower,  // entry at an earlier block boundary
  kMiss,      // replay, or a cold run where that is off
};

std::string_view to_string(SwaOutcome outcome);

struct SwaStats {
  uint64_t hits = 0;
  uint64_t hits_lower = 0;
  uint64_t misses = 0;
  uint64_t evicted_ttl = 0;
  uint64_t evicted_lru = 0;
  uint64_t stored = 0;
  int64_t bytes = 0;
  int64_t entries = 0;
  Ages age_at_hit;  // of entries that are found: time since their last use
  Ages age_at_end;  // of entries that are given up: time since they were stored
};

struct SwaFound {
  SwaOutcome outcome = SwaOutcome::kMiss;
  SwaEntryRef entry;  // null: a miss
};

class SwaCache {
 public:
  explicit SwaCache(const SwaOptions& options) : options_(options) {}

  // Takes an entry under the key of the block that ends at its position. Nothing is changed when the key has an entry
  // with the same layers or more (its use is refreshed) or when no room can be made; an entry with fewer layers is
  // replaced. True: it was taken.
  bool put(const BlockKey& key, SwaEntryRef entry, int64_t now_ns);

  // The window to start from after a hit of `blocks` blocks of the chain: the entry at its end, else the nearest one
  // at most `reach` tokens before. `need` = kAll: entries of the encoder half do not count. Counts the outcome and
  // refreshes the entry when `commit`; without, it only looks.
  SwaFound find(std::span<const BlockKey> chain, int32_t blocks, int32_t block_tokens, int32_t reach, SwaLayers need,
                int64_t now_ns, bool commit);
  bool has(const BlockKey& key, SwaLayers need, int64_t now_ns) const;

  // An entry whose chain has gone on and that nobody used since it was stored.
  void drop_unused(const BlockKey& key);
  // Entries past their retention.
  void expire(int64_t now_ns);
  void clear();

  const SwaStats& stats() const { return stats_; }
  void check() const;

 private:
  struct Slot {
    BlockKey key;
    SwaEntryRef entry;
    int64_t stored_ns = 0;
    int64_t used_ns = 0;
    bool hit = false;
  };
  using Lru = std::list<Slot>;  // least recently used first

  bool expired(const Slot& slot, int64_t now_ns) const { return now_ns - slot.used_ns > options_.retention_ns; }
  bool make_room(int64_t bytes, int64_t now_ns);
  Lru::iterator give_up(Lru::iterator it, int64_t now_ns);
  Lru::iterator remove(Lru::iterator it);
  void touch(Lru::iterator it, int64_t now_ns);

  SwaOptions options_;
  Lru lru_;
  std::unordered_map<BlockKey, Lru::iterator, BlockKeyHash> by_key_;
  SwaStats stats_;
};

}  // namespace di::kv
