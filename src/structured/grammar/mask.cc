// Masks: a walk of the vocabulary's trie with the parser's automaton, shortened by slices (structured-output.md §2.4).
#include <algorithm>
#include <bit>

#include "structured/grammar/parser.h"

namespace di::structured {

// slice >= 0: the draft holds that slice already, or all of it that can be read (whole_slice false: refused tokens are
// taken out again).
void Parser::walk(const Trie& trie, SetId from, int slice, bool whole_slice) {
  std::array<SetId, 257> path{};
  std::array<const ItemSet*, 257> sets{};
  std::array<bool, 257> pure{};  // so far ASCII characters of the slice
  const Slice* base = slice >= 0 ? &vocabulary_.slices[static_cast<size_t>(slice)] : nullptr;
  pure[0] = base != nullptr;
  path[0] = from;
  sets[0] = sets_[from];
  step(from, 0);  // opens it
  const auto& nodes = trie.nodes;
  for (const uint32_t top : trie.root) {
    for (uint32_t i = top; i < (top == UINT32_MAX ? 0 : nodes[top].skip);) {
      const TrieNode& n = nodes[i];
      const ItemSet& at = *sets[n.depth];
      SetId to = kDeadSet;
      if (at.live.has(n.byte)) {
        // Sets of few bytes have no loops worth a look.
        if (at.next != nullptr && takes(with_loops(path[n.depth]), trie, n)) {
          const bool held =
              pure[n.depth] && ((n.inside >> slice) & 1) != 0 && uint32_t{n.depth} + n.chars <= base->max_chars;
          if (!held) draft_.set(trie.below(n));
          i = n.skip;
          continue;
        }
        to = step(path[n.depth], n.byte);
      }
      if (to == kDeadSet) {
        if (failed_) return;
        if (slice >= 0 && !whole_slice) draft_.clear(trie.below(n));
        i = n.skip;
        continue;
      }
      path[n.depth + 1U] = to;
      sets[n.depth + 1U] = sets_[to];
      pure[n.depth + 1U] = pure[n.depth] && n.byte < 0x80 && base->chars.has_ascii(n.byte);
      if (n.token >= 0) draft_.set(n.token);
      ++i;
    }
  }
}

// The slice to start from when most of its tokens go through after their first byte, else -1.
int Parser::pick_slice(SetId from) {
  const Trie& trie = vocabulary_.trie;
  const ItemSet& s = *sets_[from];
  step(from, 0);  // opens it
  if (s.next == nullptr) return -1;
  std::array<uint32_t, kSlices> possible{};
  std::array<uint32_t, kSlices> good{};
  for (size_t b = 0; b < 256; ++b) {
    if (!s.live.has(static_cast<uint8_t>(b))) continue;
    for (size_t k = 0; k < kSlices; ++k) possible[k] += vocabulary_.slices[k].by_byte[b];
  }
  bool any = false;
  for (size_t k = 0; k < kSlices; ++k) any = any || possible[k] > vocabulary_.slices[k].tokens / 2;
  if (!any) return -1;
  for (size_t b = 0; b < 256; ++b) {
    if (trie.root[b] == UINT32_MAX) continue;
    const SetId to = step(from, static_cast<uint8_t>(b));
    if (to == kDeadSet || sets_[to]->lexemes.empty()) continue;
    const uint8_t slices = with_loops(to).slices;
    for (size_t k = 0; k < kSlices; ++k) {
      if (((slices >> k) & 1U) != 0) good[k] += vocabulary_.slices[k].by_byte[b];
    }
  }
  for (size_t k = 0; k < kSlices; ++k) {
    if (good[k] > vocabulary_.slices[k].tokens / 2) return static_cast<int>(k);
  }
  return -1;
}

bool Parser::walk_all(SetId id) {
  step(id, 0);  // opens it
  const uint8_t slices = sets_[id]->next != nullptr ? with_loops(id).slices : uint8_t{0};
  const int slice = slices != 0 ? std::countr_zero(slices) : pick_slice(id);
  draft_.start(slice >= 0 ? &vocabulary_.slices[static_cast<size_t>(slice)].mask : nullptr);
  walk(vocabulary_.trie, id, slice, slices != 0);
  return !failed_;
}

bool Parser::make_mask(SetId id) {
  if (sets_[id]->mask_made) return true;
  if (takes_everything(id)) {
    draft_.start(&vocabulary_.ordinary_mask);
  } else if (sets_[id]->lexemes.empty()) {
    draft_.start(nullptr);
  } else if (!mask_in_string(id) && !mask_of_bounded(id) && !mask_near_wide(id) && !mask_of_multiple(id) &&
             !walk_all(id)) {
    return false;
  }
  if (failed_) return false;
  for (const Item& t : sets_[id]->tokens) {
    for (const TokenId token : grammar_.token_sets[t.what]) {
      if (token >= 0 && static_cast<size_t>(token) < vocabulary_.tokens.size()) draft_.set(token);
    }
  }
  ItemSet& s = *sets_[id];
  s.mask_made = true;
  s.base = draft_.base();
  constexpr size_t kMany = 1024;
  if (draft_.touched() >= 4 * kMany) {
    s.dense = std::make_unique<std::vector<uint32_t>>(draft_.take_whole());
    s.base = s.dense.get();
    bytes_ += static_cast<int64_t>(4 * s.dense->size() + 24);
    return true;
  }
  s.changed = draft_.take_changes();
  bytes_ += static_cast<int64_t>(4 * s.changed.size());
  return true;
}

void Parser::read_mask(SetId id, std::span<uint32_t> row) const {
  const ItemSet& s = *sets_[id];
  const size_t known = s.base != nullptr ? std::min(row.size(), s.base->size()) : 0;
  if (known > 0) std::copy_n(s.base->begin(), known, row.begin());
  std::fill(row.begin() + static_cast<std::ptrdiff_t>(known), row.end(), 0U);
  for (const TokenId token : s.changed) {
    const auto i = static_cast<uint32_t>(token);
    if (i >> 5U < row.size()) row[i >> 5U] ^= 1U << (i & 31U);
  }
}

}  // namespace di::structured
