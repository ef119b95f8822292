// Vocabulary and merges of a byte-level BPE model, and the merging itself (recipe.md §1.2 step 6). Internal to the tokenizer.
// Immutable after finish(), except for one byte per token that caches whether the token's own bytes encode to it alone.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "codec/token.h"

namespace di::codec {

class Bpe {
 public:
  // Loading: vocabulary first, then merges in rank order, then finish().
  void reserve(size_t tokens, size_t merges);
  void add_token(std::string_view bytes, TokenId id);
  Result<void> add_merge(std::string_view left, std::string_view right);
  Result<void> finish(bool ignore_merges);

  // Token with exactly these bytes, or -1.
  TokenId find(std::string_view bytes) const;

  // Appends the ids of one piece.
  void encode(std::string_view piece, std::vector<TokenId>& out) const;
  // The same by scanning all pairs after every merge.
  void encode_reference(std::string_view piece, std::vector<TokenId>& out) const;

  // Bytes of a token; empty for an id that is none.
  std::string_view bytes_of(TokenId id) const;
  size_t memory_bytes() const;

 private:
  struct Piece {     // open addressing on the token's bytes
    uint64_t key;    // the bytes themselves (up to 8, zero padded), else their hash
    int32_t id;      // -1: free
    uint32_t length;
  };
  struct Pair {      // open addressing on (left, right)
    uint64_t key;    // left << 32 | right; all ones: free
    int32_t rank;
    TokenId merged;
  };
  struct Symbol;     // long pieces: doubly linked
  static constexpr int32_t kNoRank = INT32_MAX;

  static uint64_t piece_key(std::string_view bytes);
  static size_t spread(uint64_t key, int shift) { return static_cast<size_t>((key * 0x9E3779B97F4A7C15ULL) >> shift); }
  const Pair* find_pair(TokenId left, TokenId right) const;
  bool encodes_to_itself(TokenId id, std::string_view piece) const;
  void merge_short(std::string_view piece, std::vector<TokenId>& out) const;
  void merge_long(std::string_view piece, std::vector<TokenId>& out) const;

  std::vector<Piece> pieces_;
  std::vector<Pair> pairs_;
  int piece_shift_ = 0;
  int pair_shift_ = 0;
  std::string pool_;                   // bytes of all tokens
  std::vector<uint32_t> offset_;       // [id], start in pool_
  std::vector<uint32_t> length_;       // [id]
  TokenId byte_token_[256] = {};
  std::vector<const Pair*> byte_pair_;  // [left byte << 8 | right byte], merges of two single bytes
  int32_t n_merges_ = 0;
  bool ignore_merges_ = false;
  // Per token: 0 not looked at, 1 its bytes encode to itself, 2 they do not. Any thread may fill it in (same answer).
  mutable std::unique_ptr<std::atomic<uint8_t>[]> whole_;
};

}  // namespace di::codec
