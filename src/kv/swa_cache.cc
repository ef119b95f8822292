#include "kv/swa_cache.h"

#include <algorithm>
#include <utility>

namespace di::kv {

std::string_view to_string(SwaOutcome outcome) {
  switch (outcome) {
    case SwaOutcome::kNone:
      return "none";
    case SwaOutcome::kHit:
      return "hit";
    case SwaOutcome::kHitLower:
      return "hit_lower";
    case SwaOutcome::kMiss:
      return "miss";
  }
  return "none";
}

SwaCache::Lru::iterator SwaCache::remove(Lru::iterator it) {
  stats_.bytes -= static_cast<int64_t>(it->entry->bytes.size());
  --stats_.entries;
  by_key_.erase(it->key);
  return lru_.erase(it);
}

SwaCache::Lru::iterator SwaCache::give_up(Lru::iterator it, int64_t now_ns) {
  stats_.age_at_end.observe(static_cast<double>(now_ns - it->stored_ns) * 1e-9);
  return remove(it);
}

void SwaCache::touch(Lru::iterator it, int64_t now_ns) {
  it->used_ns = now_ns;
  lru_.splice(lru_.end(), lru_, it);
}

// Entries in use elsewhere (a move that has not run yet) are passed over.
bool SwaCache::make_room(int64_t bytes, int64_t now_ns) {
  if (bytes > options_.limit_bytes) return false;
  for (auto it = lru_.begin(); it != lru_.end() && stats_.bytes + bytes > options_.limit_bytes;) {
    if (it->entry.use_count() > 1) {
      ++it;
      continue;
    }
    it = give_up(it, now_ns);
    ++stats_.evicted_lru;
  }
  return stats_.bytes + bytes <= options_.limit_bytes;
}

bool SwaCache::put(const BlockKey& key, SwaEntryRef entry, int64_t now_ns) {
  expire(now_ns);
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    const SwaEntry& old = *found->second->entry;
    if (old.layers == SwaLayers::kAll || entry->layers == SwaLayers::kEncoder) {
      touch(found->second, now_ns);
      return false;
    }
    remove(found->second);
  }
  const auto bytes = static_cast<int64_t>(entry->bytes.size());
  if (!make_room(bytes, now_ns)) return false;
  lru_.push_back({key, std::move(entry), now_ns, now_ns, false});
  by_key_.emplace(key, std::prev(lru_.end()));
  stats_.bytes += bytes;
  ++stats_.entries;
  ++stats_.stored;
  return true;
}

SwaFound SwaCache::find(std::span<const BlockKey> chain, int32_t blocks, int32_t block_tokens, int32_t reach,
                        SwaLayers need, int64_t now_ns, bool commit) {
  SwaFound out;
  for (int32_t n = blocks; n > 0 && int64_t{blocks - n} * block_tokens <= reach; --n) {
    const auto found = by_key_.find(chain[static_cast<size_t>(n - 1)]);
    if (found == by_key_.end() || expired(*found->second, now_ns)) continue;
    if (need == SwaLayers::kAll && found->second->entry->layers != SwaLayers::kAll) continue;
    out.outcome = n == blocks ? SwaOutcome::kHit : SwaOutcome::kHitLower;
    out.entry = found->second->entry;
    if (commit) {
      stats_.age_at_hit.observe(static_cast<double>(now_ns - found->second->used_ns) * 1e-9);
      found->second->hit = true;
      touch(found->second, now_ns);
    }
    break;
  }
  if (commit) {
    ++(out.outcome == SwaOutcome::kHit        ? stats_.hits
       : out.outcome == SwaOutcome::kHitLower ? stats_.hits_lower
                                              : stats_.misses);
  }
  return out;
}

bool SwaCache::has(const BlockKey& key, SwaLayers need, int64_t now_ns) const {
  const auto found = by_key_.find(key);
  return found != by_key_.end() && !expired(*found->second, now_ns) &&
         (need == SwaLayers::kEncoder || found->second->entry->layers == SwaLayers::kAll);
}

void SwaCache::drop_unused(const BlockKey& key) {
  const auto found = by_key_.find(key);
  if (found != by_key_.end() && !found->second->hit) remove(found->second);
}

void SwaCache::expire(int64_t now_ns) {
  while (!lru_.empty() && expired(lru_.front(), now_ns)) {
    give_up(lru_.begin(), now_ns);
    ++stats_.evicted_ttl;
  }
}

void SwaCache::clear() {
  lru_.clear();
  by_key_.clear();
  stats_.bytes = 0;
  stats_.entries = 0;
}

void SwaCache::check() const {
  int64_t bytes = 0;
  int64_t last = INT64_MIN;
  for (auto it = lru_.begin(); it != lru_.end(); ++it) {
    bytes += static_cast<int64_t>(it->entry->bytes.size());
    DI_CHECK(it->used_ns >= last, "windows are not in the order of their use");
    last = it->used_ns;
    const auto found = by_key_.find(it->key);
    DI_CHECK(found != by_key_.end() && found->second->entry == it->entry, "a window is not found by its key");
  }
  DI_CHECK(
      bytes == stats_.bytes && static_cast<int64_t>(lru_.size()) == stats_.entries && lru_.size() == by_key_.size(),
      "{} windows of {} bytes, counted {} of {}", lru_.size(), bytes, stats_.entries, stats_.bytes);
  DI_CHECK(bytes <= options_.limit_bytes, "windows of {} bytes, the limit is {}", bytes, options_.limit_bytes);
}

}  // namespace di::kv
