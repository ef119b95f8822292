// Vocabulary and merges of a byte-level BPE model, and the merging itself (recipe.md §1.2 step 6). Internal to the tokenizer.
// Immutable after finish(), except for one byte per token that caches whether the token's own bytes encode to it alone.
//
// Two ways to the same ids:
// - Merging: the pair of lowest rank first. Needs nothing of the model.
// - Matching: the longest token that goes with its predecessor, with steps back where that leads nowhere. It rests on this:
//   a sequence of tokens is the encoding of its text if and only if each token is the encoding of its own bytes and each
//   neighbouring pair is the encoding of its joined bytes. For suppose all pairs are, and merging the whole text first crosses
//   the border between t and u. Until then nothing crossed a border, so within t·u the merges done so far are exactly those
//   that merging t·u alone would do (the lowest pair of the whole text that lies in t·u is the lowest pair of t·u), and the
//   crossing merge would come next there too, against the assumption. Whether a pair crosses is read off the merges that
//   made its two tokens, backwards in time. This needs models in which a token has one merge that makes it and parts are
//   made before what they are used for; finish() checks both, and merging serves the other models.
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
  void find_matches();
  bool is_compatible(TokenId left, TokenId right, int32_t limit) const;
  TokenId longest_match(std::string_view text) const;
  TokenId shorter_match(std::string_view text, size_t length) const;
  void match(std::string_view piece, std::vector<TokenId>& out) const;
  void merge_short(std::string_view piece, std::vector<TokenId>& out) const;
  void merge_long(std::string_view piece, std::vector<TokenId>& out) const;

  // One bit per hash value: most look-ups are for what does not exist, and these two small tables say so without touching
  // the big ones.
  struct Filter {
    std::vector<uint64_t> bits;
    int shift = 0;
    void size_for(size_t entries);
    bool has(uint64_t key) const {
      const size_t bit = spread(key, shift);
      return (bits[bit / 64] >> (bit % 64) & 1) != 0;
    }
    void add(uint64_t key) {
      const size_t bit = spread(key, shift);
      bits[bit / 64] |= uint64_t{1} << (bit % 64);
    }
  };
  Filter piece_filter_;
  Filter pair_filter_;
  std::vector<Piece> pieces_;
  std::vector<Pair> pairs_;
  int piece_shift_ = 0;
  int pair_shift_ = 0;
  std::string pool_;                   // bytes of all tokens
  std::vector<uint32_t> offset_;       // [id], start in pool_
  std::vector<uint32_t> length_;       // [id]
  TokenId byte_token_[256] = {};
  std::vector<const Pair*> byte_pair_;  // [left byte << 8 | right byte], merges of two single bytes
  // Matching; empty when the model does not allow it.
  struct Split {
    TokenId left;
    TokenId right;
    int32_t rank;  // of the merge that makes the token, -1: none does
  };
  std::vector<Split> splits_;             // [id]
  std::vector<uint8_t> reachable_;        // [id], the token's bytes encode to it alone
  std::vector<uint64_t> lengths_;         // [hash of the first bytes]: lengths of the tokens that start so, bit 63 = 63 and more
  std::vector<uint32_t> long_lengths_;    // token lengths of 63 bytes and more, longest first
  std::vector<TokenId> shorter_;          // [id], longest reachable token that is a proper prefix, or -1
  int32_t n_merges_ = 0;
  bool ignore_merges_ = false;
  // Per token: 0 not looked at, 1 its bytes encode to itself, 2 they do not. Any thread may fill it in (same answer).
  mutable std::unique_ptr<std::atomic<uint8_t>[]> whole_;
};

}  // namespace di::codec
