// Encoding by matching instead of merging; why it gives the same ids is in bpe.h.
#include <algorithm>
#include <bit>
#include <functional>

#include "codec/tokenizer/bpe.h"

namespace di::codec {

namespace {

constexpr size_t kPrefixBits = 16;

// Tokens are sorted into lists of lengths by their first (up to three) bytes.
size_t prefix_slot(std::string_view text) {
  uint32_t prefix = 0;
  std::memcpy(&prefix, text.data(), std::min<size_t>(text.size(), 3));
  return static_cast<size_t>((prefix * 0x9E3779B1U) >> (32 - kPrefixBits));
}

uint64_t length_bit(size_t length) {
  return uint64_t{1} << std::min<size_t>(length, 63);
}

}  // namespace

void Bpe::find_matches() {
  const size_t n = offset_.size();
  std::vector<Split> splits(n, Split{-1, -1, -1});
  for (const Pair pair : pairs_) {
    if (pair == kNoPair) continue;
    const auto rank = static_cast<int32_t>(pair & kIdMask);
    Split& split = splits[static_cast<size_t>(merged_[static_cast<size_t>(rank)])];
    if (split.rank >= 0) return;  // two merges make this token
    split = {static_cast<TokenId>(pair >> (2 * kIdBits)), static_cast<TokenId>(pair >> kIdBits & kIdMask), rank};
  }
  const auto made_before = [&](TokenId part, int32_t rank) {
    const auto i = static_cast<size_t>(part);
    return splits[i].rank < rank && (splits[i].rank >= 0 || length_[i] == 1);
  };
  std::vector<TokenId> by_rank(merged_.size(), -1);
  for (size_t id = 0; id < n; ++id) {
    const Split& split = splits[id];
    if (split.rank < 0) continue;
    if (!made_before(split.left, split.rank) || !made_before(split.right, split.rank)) return;
    by_rank[static_cast<size_t>(split.rank)] = static_cast<TokenId>(id);
  }
  splits_ = std::move(splits);
  reachable_.assign(n, 0);
  for (const TokenId byte : byte_token_) reachable_[static_cast<size_t>(byte)] = 1;
  for (const TokenId id : by_rank) {  // parts before wholes
    if (id < 0) continue;
    const Split& split = splits_[static_cast<size_t>(id)];
    reachable_[static_cast<size_t>(id)] = reachable_[static_cast<size_t>(split.left)] != 0 &&
                                          reachable_[static_cast<size_t>(split.right)] != 0 &&
                                          is_compatible(split.left, split.right, split.rank);
  }
  lengths_.assign(size_t{1} << kPrefixBits, 0);
  for (size_t id = 0; id < n; ++id) {
    if (reachable_[id] == 0) continue;
    const std::string_view bytes = bytes_of(static_cast<TokenId>(id));
    // A short token is a candidate for every continuation, so it is looked for by itself (see longest_match).
    if (bytes.size() >= 3) lengths_[prefix_slot(bytes)] |= length_bit(bytes.size());
    if (bytes.size() >= 63) long_lengths_.push_back(static_cast<uint32_t>(bytes.size()));
  }
  std::sort(long_lengths_.begin(), long_lengths_.end(), std::greater<>());
  long_lengths_.erase(std::unique(long_lengths_.begin(), long_lengths_.end()), long_lengths_.end());
  shorter_.assign(n, -1);
  for (size_t id = 0; id < n; ++id) {
    if (reachable_[id] == 0) continue;
    const std::string_view bytes = bytes_of(static_cast<TokenId>(id));
    shorter_[id] = shorter_match(bytes, bytes.size());
  }
}

// Every border between three-byte characters inside a reachable token. A character cut off by the token's end may be
// any that has those bytes; a character of another length is none that encode() asks about.
void Bpe::add_neighbours(std::string_view token) {
  const auto continues = [&](size_t at) { return (static_cast<unsigned char>(token[at]) & 0xC0) == 0x80; };
  const auto leads = [&](size_t at) { return (static_cast<unsigned char>(token[at]) & 0xF0) == 0xE0; };
  for (size_t at = 1; at < token.size(); ++at) {
    if (!leads(at) || !continues(at - 1)) continue;
    const bool left_whole = at >= 3 && continues(at - 2) && leads(at - 3);
    const bool left_part = at == 1 || (at == 2 && continues(0));
    const size_t behind = std::min<size_t>(token.size() - at, 3);
    bool right = true;
    for (size_t i = 1; i < behind; ++i) right = right && continues(at + i);
    if (!right || (!left_whole && !left_part)) continue;
    if (left_whole && behind == 3) {
      neighbours_.add(bpe::load_tail(token.data() + at - 3, 4) | bpe::load_tail(token.data() + at + 1, 2) << 32);
    } else {
      uint16_t& bits = part_neighbours_[static_cast<unsigned char>(token[at - 1]) & 63];
      bits = static_cast<uint16_t>(bits | 1U << (static_cast<unsigned char>(token[at]) & 15));
    }
  }
}

void Bpe::find_neighbours() {
  neighbours_.size_for(offset_.size() / 2);
  for (size_t id = 0; id < offset_.size(); ++id) {
    if (reachable_[id] != 0) add_neighbours(bytes_of(static_cast<TokenId>(id)));
  }
}

// Would merging left·right never join bytes of both before time `limit`? Undoes the merges inside the two tokens,
// latest first; at each stage the two symbols at the border existed side by side, and their own merge must not have
// been due.
bool Bpe::is_compatible(TokenId left, TokenId right, int32_t limit) const {
  while (true) {
    if (find_pair(left, right) < limit) return false;
    const Split& l = splits_[static_cast<size_t>(left)];
    const Split& r = splits_[static_cast<size_t>(right)];
    if (l.rank > r.rank) {
      limit = l.rank;  // at equal rank the merge further left, inside `left`, comes first
      left = l.right;
    } else {
      if (r.rank < 0) return true;
      limit = r.rank + 1;  // at equal rank the merge across the border comes first
      right = r.left;
    }
  }
}

// Longest reachable token of fewer than `length` bytes that `text` starts with.
TokenId Bpe::shorter_match(std::string_view text, size_t length) const {
  const size_t limit = std::min(length - 1, text.size());
  if (limit >= 3) {
    uint64_t lengths = lengths_[prefix_slot(text)];
    if (limit < 63) lengths &= (uint64_t{2} << limit) - 1;
    if (lengths >> 63 != 0) {
      lengths &= ~(uint64_t{1} << 63);
      for (const uint32_t n : long_lengths_) {
        if (n > limit) continue;
        const TokenId id = find(text.substr(0, n));
        if (id >= 0 && reachable_[static_cast<size_t>(id)] != 0) return id;
      }
    }
    while (lengths != 0) {
      const int n = 63 - std::countl_zero(lengths);
      lengths &= ~(uint64_t{1} << n);
      const TokenId id = find(text.substr(0, static_cast<size_t>(n)));
      if (id >= 0 && reachable_[static_cast<size_t>(id)] != 0) return id;
    }
  }
  for (size_t n = std::min<size_t>(limit, 2); n > 0; --n) {
    const TokenId id = find(text.substr(0, n));
    if (id >= 0 && reachable_[static_cast<size_t>(id)] != 0) return id;
  }
  return -1;
}

TokenId Bpe::longest_match(std::string_view text) const {
  return shorter_match(text, text.size() + 1);
}

void Bpe::match(std::string_view piece, std::vector<TokenId>& out) const {
  // A position is dead when no encoding of what precedes it ends there and goes on.
  constexpr size_t kWords = 16;
  uint64_t small[kWords] = {};
  std::vector<uint64_t> big;
  uint64_t* dead = small;
  if (piece.size() >= kWords * 64) {
    big.resize(piece.size() / 64 + 1);
    dead = big.data();
  }
  const auto is_dead = [&](size_t at) { return (dead[at / 64] >> (at % 64) & 1) != 0; };
  const size_t base = out.size();
  size_t at = 0;
  TokenId token = longest_match(piece);
  while (true) {
    const TokenId last = out.size() > base ? out.back() : -1;
    const size_t end = at + length_[static_cast<size_t>(token)];
    if (!is_dead(end) && (last < 0 || is_compatible(last, token, kNoRank))) {
      out.push_back(token);
      at = end;
      if (at == piece.size()) return;
      token = longest_match(piece.substr(at));
      continue;
    }
    while (true) {
      token = shorter_[static_cast<size_t>(token)];
      if (token >= 0) break;
      dead[at / 64] |= uint64_t{1} << (at % 64);
      DI_CHECK(out.size() > base, "no encoding found");
      token = out.back();
      out.pop_back();
      at -= length_[static_cast<size_t>(token)];
    }
  }
}

}  // namespace di::codec
