// Vocabulary and merges of a byte-level BPE model, and the merging itself (recipe.md §1.2 step 6). Internal to the
// tokenizer. Immutable after finish(), except for one byte per token that caches whether the token's own bytes encode
// to it alone.
//
// Two ways to the same ids:
// - Merging: the pair of lowest rank first. Needs nothing of the model.
// - Matching: the longest token that goes with its predecessor, with steps back where that leads nowhere. It rests on
// this:
//   a sequence of tokens is the encoding of its text if and only if each token is the encoding of its own bytes and
//   each neighbouring pair is the encoding of its joined bytes. For suppose all pairs are, and merging the whole text
//   first crosses the border between t and u. Until then nothing crossed a border, so within t·u the merges done so far
//   are exactly those that merging t·u alone would do (the lowest pair of the whole text that lies in t·u is the lowest
//   pair of t·u), and the crossing merge would come next there too, against the assumption. Whether a pair crosses is
//   read off the merges that made its two tokens, backwards in time. This needs models in which a token has one merge
//   that makes it and parts are made before what they are used for; finish() checks both, and merging serves the other
//   models.
// Texts of three-byte characters (ideographs, kana, hangul) are first cut where no token crosses: between two
// characters that no token holds side by side. The encoding has a border there whatever stands around it, for a merge
// across it would make such a token; and an encoding with a border is the encodings of its two sides. What is left are
// mostly words, and those mostly tokens.
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
  static constexpr int32_t kNoRank = INT32_MAX;
  struct Piece {   // open addressing on the token's bytes
    uint64_t key;  // the bytes themselves (up to 8, zero padded), else their hash
    int32_t id;    // -1: free
    uint32_t length;
  };
  // Open addressing on (left, right); left, right and rank share one word (21 bits each), so that the table stays
  // small. All ones: free.
  using Pair = uint64_t;
  static constexpr int kIdBits = 21;
  static constexpr uint64_t kIdMask = (uint64_t{1} << kIdBits) - 1;
  static constexpr Pair kNoPair = UINT64_MAX;
  static uint64_t pair_key(TokenId left, TokenId right) {
    return static_cast<uint64_t>(left) << kIdBits | static_cast<uint64_t>(right);
  }
  struct Symbol;  // long pieces: doubly linked

  static uint64_t piece_key(std::string_view bytes);
  static size_t spread(uint64_t key, int shift) { return static_cast<size_t>((key * 0x9E3779B97F4A7C15ULL) >> shift); }
  // Rank of the merge of two tokens, or kNoRank.
  int32_t find_pair(TokenId left, TokenId right) const;
  bool encodes_to_itself(TokenId id, std::string_view piece) const;
  void find_matches();
  bool is_compatible(TokenId left, TokenId right, int32_t limit) const;
  TokenId longest_match(std::string_view text) const;
  TokenId shorter_match(std::string_view text, size_t length) const;
  void match(std::string_view piece, std::vector<TokenId>& out) const;
  void encode_part(std::string_view part, std::vector<TokenId>& out) const;
  void find_neighbours();
  void add_neighbours(std::string_view token);
  // Could a token hold the three-byte characters on both sides of `at`?
  bool may_join(const char* at) const;
  void merge_short(std::string_view piece, std::vector<TokenId>& out) const;
  void merge_long(std::string_view piece, std::vector<TokenId>& out) const;

  // One bit per hash value: most look-ups are for what does not exist, and these two small tables say so without
  // touching the big ones.
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
  std::string pool_;              // bytes of all tokens
  std::vector<uint32_t> offset_;  // [id], start in pool_
  std::vector<uint32_t> length_;  // [id]
  TokenId byte_token_[256] = {};
  std::vector<int32_t> byte_pair_;  // [left byte << 8 | right byte], rank of the merge of two single bytes
  std::vector<TokenId> merged_;     // [rank]
  // Matching; empty when the model does not allow it.
  struct Split {
    TokenId left;
    TokenId right;
    int32_t rank;  // of the merge that makes the token, -1: none does
  };
  std::vector<Split> splits_;       // [id]
  std::vector<uint8_t> reachable_;  // [id], the token's bytes encode to it alone
  std::vector<uint64_t>
      lengths_;  // [hash of the first bytes]: lengths of the tokens that start so, bit 63 = 63 and more
  std::vector<uint32_t> long_lengths_;  // token lengths of 63 bytes and more, longest first
  std::vector<TokenId> shorter_;        // [id], longest reachable token that is a proper prefix, or -1
  // Pairs of three-byte characters that some token holds, by their six bytes; and, of tokens that hold only part of one
  // of the two, [low six bits of the byte before the border]: bits of the low four bits of the byte behind it.
  Filter neighbours_;
  uint16_t part_neighbours_[64] = {};
  bool ignore_merges_ = false;
  // Per token: 0 not looked at, 1 its bytes encode to itself, 2 they do not. Any thread may fill it in (same answer).
  mutable std::unique_ptr<std::atomic<uint8_t>[]> whole_;
};

// The look-ups, inline because nearly all of the encoder's time goes into them.
namespace bpe {

inline uint64_t load_tail(const char* p, size_t n) {  // n <= 8 bytes, zero padded
  uint64_t v = 0;
  std::memcpy(&v, p, n);
  return v;
}

__extension__ using Uint128 = unsigned __int128;

inline uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<Uint128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Equal strings of equal length.
inline bool same_bytes(std::string_view a, std::string_view b) {
  if (a.size() >= 8 && a.size() <= 16) {
    const size_t tail = a.size() - 8;
    return load_tail(a.data(), 8) == load_tail(b.data(), 8) &&
           load_tail(a.data() + tail, 8) == load_tail(b.data() + tail, 8);
  }
  return a == b;
}

}  // namespace bpe

inline uint64_t Bpe::piece_key(std::string_view bytes) {
  const char* p = bytes.data();
  size_t n = bytes.size();
  switch (n) {  // the common lengths without a call to memcpy
    case 1:
      return static_cast<unsigned char>(p[0]);
    case 2:
      return bpe::load_tail(p, 2);
    case 3:
      return bpe::load_tail(p, 2) | bpe::load_tail(p + 2, 1) << 16;
    case 4:
      return bpe::load_tail(p, 4);
    case 5:
    case 6:
    case 7:
      return bpe::load_tail(p, 4) | bpe::load_tail(p + n - 4, 4) << ((n - 4) * 8);
    case 8:
      return bpe::load_tail(p, 8);
    default:
      break;
  }
  uint64_t h = n;
  while (n > 16) {
    h = bpe::mix(h ^ bpe::load_tail(p, 8), 0xA0761D6478BD642FULL ^ bpe::load_tail(p + 8, 8));
    p += 16;
    n -= 16;
  }
  if (n >= 8) return bpe::mix(h ^ bpe::load_tail(p, 8), 0xE7037ED1A0B428DBULL ^ bpe::load_tail(p + n - 8, 8));
  return bpe::mix(h ^ bpe::load_tail(p, n), 0xE7037ED1A0B428DBULL);
}

inline std::string_view Bpe::bytes_of(TokenId id) const {
  const auto i = static_cast<size_t>(id);
  if (i >= offset_.size()) return {};
  return std::string_view(pool_).substr(offset_[i], length_[i]);
}

inline TokenId Bpe::find(std::string_view bytes) const {
  const uint64_t key = piece_key(bytes);
  if (!piece_filter_.has(key)) return -1;
  const size_t mask = pieces_.size() - 1;
  for (size_t slot = spread(key, piece_shift_);; slot = (slot + 1) & mask) {
    const Piece& piece = pieces_[slot];
    if (piece.id < 0) return -1;
    if (piece.key != key || piece.length != bytes.size()) continue;
    if (bytes.size() <= 8 || bpe::same_bytes(bytes_of(piece.id), bytes)) return piece.id;
  }
}

inline bool Bpe::may_join(const char* at) const {
  const auto before = static_cast<unsigned char>(at[-1]);
  const auto behind = static_cast<unsigned char>(at[0]);
  if ((part_neighbours_[before & 63] >> (behind & 15) & 1) != 0) return true;
  return neighbours_.has(bpe::load_tail(at - 3, 4) | bpe::load_tail(at + 1, 2) << 32);
}

inline int32_t Bpe::find_pair(TokenId left, TokenId right) const {
  const uint64_t key = pair_key(left, right);
  if (!pair_filter_.has(key)) return kNoRank;
  const size_t mask = pairs_.size() - 1;
  for (size_t slot = spread(key, pair_shift_);; slot = (slot + 1) & mask) {
    const Pair pair = pairs_[slot];
    if (pair >> kIdBits == key) return static_cast<int32_t>(pair & kIdMask);
    if (pair == kNoPair) return kNoRank;
  }
}

}  // namespace di::codec
