#include "codec/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>

namespace di::codec {

namespace {

constexpr size_t kShortPiece = 64;  // bytes; longer ones use the heap, which is O(n log n)

// Three bytes of the form of a three-byte character. (Stray bytes of invalid text may look otherwise anywhere.)
bool is_three(const char* at) {
  const uint64_t bytes = bpe::load_tail(at, 2) | bpe::load_tail(at + 2, 1) << 16;
  return (bytes & 0xC0C0F0) == 0x8080E0;
}

int table_bits(size_t entries) {
  return std::max(4, static_cast<int>(std::bit_width(entries * 2 - 1)));
}

}  // namespace

void Bpe::Filter::size_for(size_t entries) {
  const int bits_log = table_bits(entries) + 2;
  bits.assign((size_t{1} << bits_log) / 64 + 1, 0);
  shift = 64 - bits_log;
}

void Bpe::reserve(size_t tokens, size_t merges) {
  const int piece_bits = table_bits(tokens);
  pieces_.assign(size_t{1} << piece_bits, Piece{0, -1, 0});
  piece_shift_ = 64 - piece_bits;
  const int pair_bits = table_bits(merges);
  pairs_.assign(size_t{1} << pair_bits, kNoPair);
  merged_.reserve(merges);
  pair_shift_ = 64 - pair_bits;
  piece_filter_.size_for(tokens);
  pair_filter_.size_for(merges);
  std::fill(std::begin(byte_token_), std::end(byte_token_), -1);
}

void Bpe::add_token(std::string_view bytes, TokenId id) {
  const auto i = static_cast<size_t>(id);
  if (offset_.size() <= i) {
    offset_.resize(i + 1, 0);
    length_.resize(i + 1, 0);
  }
  offset_[i] = static_cast<uint32_t>(pool_.size());
  length_[i] = static_cast<uint32_t>(bytes.size());
  pool_.append(bytes);
  const uint64_t key = piece_key(bytes);
  piece_filter_.add(key);
  const size_t mask = pieces_.size() - 1;
  size_t slot = spread(key, piece_shift_);
  while (pieces_[slot].id >= 0) slot = (slot + 1) & mask;
  pieces_[slot] = Piece{key, id, static_cast<uint32_t>(bytes.size())};
  if (bytes.size() == 1) byte_token_[static_cast<unsigned char>(bytes[0])] = id;
}

Result<void> Bpe::add_merge(std::string_view left, std::string_view right) {
  const TokenId l = find(left);
  const TokenId r = find(right);
  std::string joined;
  joined.append(left).append(right);
  const TokenId merged = find(joined);
  if (l < 0 || r < 0 || merged < 0) {
    return fail(Errc::kCorruption, "merge {}: a part or the result is not in the vocabulary", merged_.size());
  }
  const uint64_t key = pair_key(l, r);
  pair_filter_.add(key);
  const size_t mask = pairs_.size() - 1;
  size_t slot = spread(key, pair_shift_);
  while (pairs_[slot] != kNoPair && pairs_[slot] >> kIdBits != key) slot = (slot + 1) & mask;
  if (merged_.size() > kIdMask) return fail(Errc::kCorruption, "more than {} merges", kIdMask);
  pairs_[slot] = key << kIdBits | merged_.size();  // of a repeated pair the later line counts
  merged_.push_back(merged);
  return {};
}

Result<void> Bpe::finish(bool ignore_merges) {
  ignore_merges_ = ignore_merges;
  byte_pair_.assign(65536, kNoRank);
  for (size_t byte = 0; byte < 256; ++byte) {
    if (byte_token_[byte] < 0) return fail(Errc::kCorruption, "the vocabulary has no entry for byte {}", byte);
  }
  std::vector<int> byte_of(offset_.size(), -1);
  for (int byte = 0; byte < 256; ++byte) byte_of[static_cast<size_t>(byte_token_[byte])] = byte;
  for (const Pair pair : pairs_) {
    if (pair == kNoPair) continue;
    const int left = byte_of[pair >> (2 * kIdBits)];
    const int right = byte_of[pair >> kIdBits & kIdMask];
    if (left >= 0 && right >= 0)
      byte_pair_[static_cast<size_t>(left << 8 | right)] = static_cast<int32_t>(pair & kIdMask);
  }
  whole_ = std::make_unique<std::atomic<uint8_t>[]>(offset_.size());
  find_matches();
  if (!splits_.empty()) find_neighbours();
  return {};
}

bool Bpe::encodes_to_itself(TokenId id, std::string_view piece) const {
  if (ignore_merges_) return true;
  if (!splits_.empty()) return reachable_[static_cast<size_t>(id)] != 0;
  std::atomic<uint8_t>& state = whole_[static_cast<size_t>(id)];
  const uint8_t known = state.load(std::memory_order_relaxed);
  if (known != 0) return known == 1;
  std::vector<TokenId> ids;
  merge_long(piece, ids);
  const bool whole = ids.size() == 1;
  state.store(whole ? 1 : 2, std::memory_order_relaxed);
  return whole;
}

void Bpe::encode(std::string_view piece, std::vector<TokenId>& out) const {
  if (piece.size() < 6 || !is_three(piece.data()) || splits_.empty() || ignore_merges_) {
    encode_part(piece, out);
    return;
  }
  const char* start = piece.data();
  const char* end = start + piece.size();
  for (const char* at = start + 3; at + 3 <= end && is_three(at); at += 3) {
    if (may_join(at)) continue;
    encode_part({start, static_cast<size_t>(at - start)}, out);
    start = at;
  }
  encode_part({start, static_cast<size_t>(end - start)}, out);
}

void Bpe::encode_part(std::string_view part, std::vector<TokenId>& out) const {
  if (const TokenId id = find(part); id >= 0 && encodes_to_itself(id, part)) {
    out.push_back(id);
    return;
  }
  if (!splits_.empty()) {
    match(part, out);
  } else if (part.size() <= kShortPiece) {
    merge_short(part, out);
  } else {
    merge_long(part, out);
  }
}

// Arrays on the stack: the lowest rank by a scan, the neighbours' ranks anew after each merge, the gap closed by
// moving.
void Bpe::merge_short(std::string_view piece, std::vector<TokenId>& out) const {
  TokenId ids[kShortPiece];
  int32_t ranks[kShortPiece];  // rank of the pair (i, i+1)
  auto n = static_cast<int>(piece.size());
  const auto* bytes = reinterpret_cast<const unsigned char*>(piece.data());
  for (int i = 0; i < n; ++i) ids[i] = byte_token_[bytes[i]];
  for (int i = 0; i + 1 < n; ++i) ranks[i] = byte_pair_[static_cast<size_t>(bytes[i] << 8 | bytes[i + 1])];
  while (n > 1) {
    int best = 0;
    int32_t best_rank = ranks[0];
    for (int i = 1; i + 1 < n; ++i) {
      if (ranks[i] < best_rank) {
        best_rank = ranks[i];
        best = i;
      }
    }
    if (best_rank == kNoRank) break;
    ids[best] = merged_[static_cast<size_t>(best_rank)];
    const auto gap = static_cast<size_t>(n - best - 2);
    std::memmove(ids + best + 1, ids + best + 2, gap * sizeof *ids);
    if (gap > 0) std::memmove(ranks + best + 1, ranks + best + 2, (gap - 1) * sizeof *ranks);
    --n;
    if (best + 1 < n) ranks[best] = find_pair(ids[best], ids[best + 1]);
    if (best > 0) ranks[best - 1] = find_pair(ids[best - 1], ids[best]);
  }
  out.insert(out.end(), ids, ids + n);
}

struct Bpe::Symbol {
  TokenId id;        // -1: merged away
  int32_t previous;  // -1 at the start
  int32_t next;      // -1 at the end
};

// A heap of candidate merges by (rank, position) over a linked list; stale candidates are recognised when they come up.
void Bpe::merge_long(std::string_view piece, std::vector<TokenId>& out) const {
  struct Candidate {
    int32_t rank;
    int32_t left;
    TokenId left_id;
    TokenId right_id;
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
  };
  std::vector<Symbol> symbols(piece.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](int32_t left) {
    if (left < 0) return;
    const Symbol& l = symbols[static_cast<size_t>(left)];
    if (l.next < 0) return;
    const TokenId right_id = symbols[static_cast<size_t>(l.next)].id;
    const int32_t rank = find_pair(l.id, right_id);
    if (rank != kNoRank) queue.push({rank, left, l.id, right_id});
  };
  const auto n = static_cast<int32_t>(piece.size());
  for (int32_t i = 0; i < n; ++i) {
    symbols[static_cast<size_t>(i)] = {byte_token_[static_cast<unsigned char>(piece[static_cast<size_t>(i)])], i - 1,
                                       i + 1 < n ? i + 1 : -1};
  }
  for (int32_t i = 0; i < n; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate candidate = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<size_t>(candidate.left)];
    if (left.id != candidate.left_id || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != candidate.right_id) continue;
    left.id = merged_[static_cast<size_t>(candidate.rank)];
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = candidate.left;
    offer(left.previous);
    offer(candidate.left);
  }
  for (int32_t i = 0; i >= 0 && i < n; i = symbols[static_cast<size_t>(i)].next) {
    out.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

void Bpe::encode_reference(std::string_view piece, std::vector<TokenId>& out) const {
  if (ignore_merges_) {
    if (const TokenId id = find(piece); id >= 0) {
      out.push_back(id);
      return;
    }
  }
  std::vector<TokenId> ids;
  for (const char c : piece) ids.push_back(byte_token_[static_cast<unsigned char>(c)]);
  while (true) {
    int32_t best = kNoRank;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const int32_t rank = find_pair(ids[i], ids[i + 1]);
      if (rank < best) {
        best = rank;
        at = i;
      }
    }
    if (best == kNoRank) break;
    ids[at] = merged_[static_cast<size_t>(best)];
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
  out.insert(out.end(), ids.begin(), ids.end());
}

size_t Bpe::memory_bytes() const {
  return (piece_filter_.bits.capacity() + pair_filter_.bits.capacity() + neighbours_.bits.capacity()) *
             sizeof(uint64_t) +
         pieces_.capacity() * sizeof(Piece) + pairs_.capacity() * sizeof(Pair) + pool_.capacity() +
         (offset_.capacity() + length_.capacity()) * sizeof(uint32_t) + splits_.capacity() * sizeof(Split) +
         reachable_.capacity() + lengths_.capacity() * sizeof(uint64_t) + shorter_.capacity() * sizeof(TokenId) +
         (byte_pair_.capacity() + merged_.capacity()) * sizeof(int32_t) + offset_.size();
}

}  // namespace di::codec
