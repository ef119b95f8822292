#include "kv/prefix_cache.h"

#include <algorithm>

namespace di::kv {
namespace {

// How many siblings are compared to say where a text diverges; the newest come first.
constexpr int kSiblingsCompared = 64;

// A text's key whatever its namespace: the chain key under a root of no fields.
BlockKey text_key(std::span<const int32_t> tokens) {
  return block_key(BlockKey{}, tokens, 0, static_cast<int32_t>(tokens.size()));
}

}  // namespace

std::string_view to_string(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return "none";
    case MissReason::kTooShort:
      return "too_short";
    case MissReason::kDiverged:
      return "diverged";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kOtherNamespace:
      return "other_namespace";
    case MissReason::kNoWindow:
      return "no_window";
  }
  return "none";
}

PrefixCache::PrefixCache(int32_t n, int32_t block_tokens) : block_tokens_(block_tokens) {
  DI_CHECK(n >= 2, "a pool needs a null block and one more, asked for {}", n);
  DI_CHECK(block_tokens >= 1, "blocks of {} tokens", block_tokens);
  nodes_.resize(static_cast<size_t>(n));
  nodes_[0].owners = 1;
  tokens_.resize(static_cast<size_t>(n) * static_cast<size_t>(block_tokens));
  for (int32_t id = 1; id < n; ++id) free_.push_back(id);
}

std::span<const int32_t> PrefixCache::tokens_of(int32_t id) const {
  return std::span(tokens_).subspan(static_cast<size_t>(id) * static_cast<size_t>(block_tokens_),
                                    static_cast<size_t>(block_tokens_));
}

int32_t& PrefixCache::first_child_of(int32_t parent, const BlockKey& root) {
  return parent == 0 ? first_of_root_[root] : node(parent).first_child;
}

// At the end of the kept list: used last.
void PrefixCache::keep(int32_t id) {
  const int32_t newest = nodes_[0].older;
  node(id).older = newest;
  node(id).newer = 0;
  node(newest).newer = id;
  nodes_[0].older = id;
  node(id).left_ns = now_ns_;
  ++n_kept_;
}

void PrefixCache::unkeep(int32_t id) {
  Node& n = node(id);
  node(n.older).newer = n.newer;
  node(n.newer).older = n.older;
  n.older = n.newer = 0;
  --n_kept_;
}

// A kept block is owned again.
void PrefixCache::reuse(int32_t id) {
  lives_.reuse_gap.observe(seconds_since(node(id).left_ns));
  unkeep(id);
}

// A known block without children becomes unknown.
void PrefixCache::forget(int32_t id) {
  Node& n = node(id);
  DI_CHECK(n.known && n.first_child == 0, "block {} is forgotten before its children", id);
  if (n.prev_sibling != 0) {
    node(n.prev_sibling).next_sibling = n.next_sibling;
  } else {
    first_child_of(n.parent, n.root) = n.next_sibling;
  }
  if (n.next_sibling != 0) node(n.next_sibling).prev_sibling = n.prev_sibling;
  if (n.parent == 0) {
    if (first_of_root_.at(n.root) == 0) first_of_root_.erase(n.root);
    const auto text = first_texts_.find(text_key(tokens_of(id)));
    if (--text->second == 0) first_texts_.erase(text);
  }
  log(BlockEvent::Kind::kRemoved, n);
  by_key_.erase(n.key);
  n.known = false;
  n.parent = n.next_sibling = n.prev_sibling = 0;
}

int32_t PrefixCache::allocate() {
  int32_t id = 0;
  if (!free_.empty()) {
    id = free_.front();
    free_.pop_front();
  } else {
    id = nodes_[0].newer;
    DI_CHECK(id != 0, "the pool of {} blocks is used up", capacity());
    lives_.lifetime.observe(seconds_since(node(id).allocated_ns));
    lives_.idle.observe(seconds_since(node(id).left_ns));
    unkeep(id);
    evicted_.push_back(node(id).key);
    ++evicted_count_[node(id).key];
    if (evicted_.size() > nodes_.size()) {
      const auto oldest = evicted_count_.find(evicted_.front());
      if (--oldest->second == 0) evicted_count_.erase(oldest);
      evicted_.pop_front();
    }
    forget(id);
    ++evictions_;
  }
  node(id).owners = 1;
  node(id).allocated_ns = now_ns_;
  return id;
}

void PrefixCache::share(int32_t id) {
  DI_CHECK(id > 0 && id <= capacity() && node(id).owners > 0, "block {} is not in use", id);
  ++node(id).owners;
}

void PrefixCache::release(int32_t id) {
  DI_CHECK(id > 0 && id <= capacity() && node(id).owners > 0, "block {} is not in use", id);
  if (--node(id).owners > 0) return;
  if (node(id).known) {
    keep(id);
  } else {
    free_.push_back(id);
  }
}

void PrefixCache::release_all(std::span<const int32_t> table) {
  for (auto it = table.rbegin(); it != table.rend(); ++it) release(*it);
}

PrefixMatch PrefixCache::match(std::span<const BlockKey> chain) const {
  PrefixMatch out;
  for (const BlockKey& key : chain) {
    const auto it = by_key_.find(key);
    if (it == by_key_.end()) break;
    ++out.blocks;
    if (node(it->second).owners == 0) ++out.kept;
  }
  return out;
}

void PrefixCache::adopt(std::span<const BlockKey> keys, std::vector<int32_t>& table) {
  for (const BlockKey& key : keys) {
    const auto it = by_key_.find(key);
    DI_CHECK(it != by_key_.end(), "a block to adopt is not known any more");
    const int32_t id = it->second;
    if (node(id).owners++ == 0) reuse(id);
    table.push_back(id);
  }
}

int32_t PrefixCache::publish(std::span<const BlockKey> chain, const BlockKey& root, std::span<const int32_t> tokens,
                             int32_t parent, int32_t id) {
  DI_CHECK(!chain.empty() && node(id).owners > 0, "block {} cannot be published", id);
  DI_CHECK(static_cast<int32_t>(tokens.size()) == block_tokens_, "a block of {} tokens", tokens.size());
  const BlockKey& key = chain.back();
  if (node(id).known) {
    DI_CHECK(node(id).key == key, "block {} holds another text", id);
    return id;
  }
  const bool rooted = chain.size() == 1
                          ? parent == 0
                          : parent != 0 && node(parent).known && node(parent).key == chain[chain.size() - 2];
  if (!rooted) return id;
  if (const auto it = by_key_.find(key); it != by_key_.end()) {
    const int32_t known = it->second;
    if (node(known).owners++ == 0) reuse(known);
    release(id);
    return known;
  }
  Node& n = node(id);
  n.known = true;
  n.key = key;
  n.parent = parent;
  n.root = root;
  n.prev_sibling = 0;
  int32_t& first = first_child_of(parent, root);
  n.next_sibling = first;
  if (first != 0) node(first).prev_sibling = id;
  first = id;
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<std::ptrdiff_t>(id) * static_cast<std::ptrdiff_t>(block_tokens_));
  if (parent == 0) ++first_texts_[text_key(tokens)];
  by_key_.emplace(key, id);
  log(BlockEvent::Kind::kStored, n);
  return id;
}

Miss PrefixCache::explain(std::span<const BlockKey> chain, const BlockKey& root, std::span<const int32_t> tokens,
                          int32_t matched) const {
  const auto at = static_cast<size_t>(matched);
  if (at >= chain.size()) return {chain.empty() ? MissReason::kTooShort : MissReason::kNone, 0};
  const int32_t begin = matched * block_tokens_;
  if (evicted_count_.contains(chain[at])) return {MissReason::kEvicted, begin};
  const std::span<const int32_t> block = tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(block_tokens_));
  if (matched == 0 && first_texts_.contains(text_key(block))) return {MissReason::kOtherNamespace, 0};
  int32_t sibling = 0;
  if (matched > 0) {
    sibling = node(by_key_.at(chain[at - 1])).first_child;
  } else if (const auto it = first_of_root_.find(root); it != first_of_root_.end()) {
    sibling = it->second;
  }
  int32_t common = 0;
  for (int i = 0; i < kSiblingsCompared && sibling != 0; ++i, sibling = node(sibling).next_sibling) {
    const std::span<const int32_t> other = tokens_of(sibling);
    const auto differs = std::mismatch(block.begin(), block.end(), other.begin()).first;
    common = std::max(common, static_cast<int32_t>(differs - block.begin()));
  }
  return {MissReason::kDiverged, begin + common};
}

void PrefixCache::log_events(bool on) {
  events_.clear();
  logging_ = on;
  if (!on) return;
  events_.push_back({});
  std::vector<int32_t> next;
  for (const auto& [root, first] : first_of_root_) next.push_back(first);
  while (!next.empty()) {
    const Node& n = node(next.back());
    next.pop_back();
    log(BlockEvent::Kind::kStored, n);
    if (n.next_sibling != 0) next.push_back(n.next_sibling);
    if (n.first_child != 0) next.push_back(n.first_child);
  }
}

void PrefixCache::clear() {
  const bool logging = std::exchange(logging_, false);
  while (nodes_[0].newer != 0) {
    const int32_t id = nodes_[0].newer;
    unkeep(id);
    forget(id);
    free_.push_back(id);
  }
  for (Node& n : nodes_) {
    n.known = false;
    n.parent = n.first_child = n.next_sibling = n.prev_sibling = 0;
  }
  by_key_.clear();
  first_of_root_.clear();
  first_texts_.clear();
  evicted_.clear();
  evicted_count_.clear();
  logging_ = logging;
  log(BlockEvent::Kind::kCleared, {});
}

void PrefixCache::check() const {
  std::vector<uint8_t> free(nodes_.size(), 0);
  for (const int32_t id : free_) {
    DI_CHECK(id > 0 && id <= capacity() && free[static_cast<size_t>(id)] == 0, "free list holds {} twice", id);
    DI_CHECK(node(id).owners == 0 && !node(id).known, "free block {} is in use or known", id);
    free[static_cast<size_t>(id)] = 1;
  }
  int32_t kept = 0;
  std::vector<uint8_t> seen(nodes_.size(), 0);
  for (int32_t id = nodes_[0].newer; id != 0; id = node(id).newer) {
    DI_CHECK(node(id).owners == 0 && node(id).known && seen[static_cast<size_t>(id)] == 0, "kept block {}", id);
    for (int32_t c = node(id).first_child; c != 0; c = node(c).next_sibling) {
      DI_CHECK(seen[static_cast<size_t>(c)] == 1, "kept block {} stands before its child {}", id, c);
    }
    seen[static_cast<size_t>(id)] = 1;
    ++kept;
  }
  DI_CHECK(kept == n_kept_, "{} kept blocks are listed, {} are counted", kept, n_kept_);
  int32_t known = 0;
  for (int32_t id = 1; id <= capacity(); ++id) {
    const Node& n = node(id);
    DI_CHECK(n.owners > 0 || n.known || free[static_cast<size_t>(id)] == 1, "block {} is lost", id);
    if (!n.known) continue;
    ++known;
    const auto it = by_key_.find(n.key);
    DI_CHECK(it != by_key_.end() && it->second == id, "block {} is not found by its key", id);
    DI_CHECK(n.parent == 0 || node(n.parent).known, "block {} has an unknown parent", id);
    DI_CHECK(n.parent == 0 || n.owners == 0 || node(n.parent).owners > 0, "parent of block {} in use is not", id);
  }
  DI_CHECK(known == known_count(), "{} blocks are known, {} keys", known, known_count());
}

}  // namespace di::kv
