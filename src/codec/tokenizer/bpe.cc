#include "codec/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>

namespace di::codec {

namespace {

constexpr size_t kShortPiece = 64;  // bytes; longer ones use the heap, which is O(n log n)

int table_bits(size_t entries) { return std::max(4, static_cast<int>(std::bit_width(entries * 2 - 1))); }

uint64_t load_tail(const char* p, size_t n) {  // n <= 8 bytes, zero padded
  uint64_t v = 0;
  std::memcpy(&v, p, n);
  return v;
}

__extension__ using Uint128 = unsigned __int128;

uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<Uint128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

uint64_t Bpe::piece_key(std::string_view bytes) {
  const char* p = bytes.data();
  size_t n = bytes.size();
  switch (n) {  // the common lengths without a call to memcpy
    case 1: return static_cast<unsigned char>(p[0]);
    case 2: return load_tail(p, 2);
    case 3: return load_tail(p, 2) | load_tail(p + 2, 1) << 16;
    case 4: return load_tail(p, 4);
    case 5:
    case 6:
    case 7:
      return load_tail(p, 4) | load_tail(p + n - 4, 4) << ((n - 4) * 8);
    case 8: return load_tail(p, 8);
    default: break;
  }
  uint64_t h = n;
  while (n > 16) {
    h = mix(h ^ load_tail(p, 8), 0xA0761D6478BD642FULL ^ load_tail(p + 8, 8));
    p += 16;
    n -= 16;
  }
  if (n >= 8) return mix(h ^ load_tail(p, 8), 0xE7037ED1A0B428DBULL ^ load_tail(p + n - 8, 8));
  return mix(h ^ load_tail(p, n), 0xE7037ED1A0B428DBULL);
}

void Bpe::Filter::size_for(size_t entries) {
  const int bits_log = table_bits(entries) + 2;
  bits.assign((size_t{1} << bits_log) / 64 + 1, 0);
  shift = 64 - bits_log;
}

std::string_view Bpe::bytes_of(TokenId id) const {
  const auto i = static_cast<size_t>(id);
  if (i >= offset_.size()) return {};
  return std::string_view(pool_).substr(offset_[i], length_[i]);
}

void Bpe::reserve(size_t tokens, size_t merges) {
  const int piece_bits = table_bits(tokens);
  pieces_.assign(size_t{1} << piece_bits, Piece{0, -1, 0});
  piece_shift_ = 64 - piece_bits;
  const int pair_bits = table_bits(merges);
  pairs_.assign(size_t{1} << pair_bits, Pair{UINT64_MAX, 0, 0});
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

TokenId Bpe::find(std::string_view bytes) const {
  const uint64_t key = piece_key(bytes);
  if (!piece_filter_.has(key)) return -1;
  const size_t mask = pieces_.size() - 1;
  for (size_t slot = spread(key, piece_shift_);; slot = (slot + 1) & mask) {
    const Piece& piece = pieces_[slot];
    if (piece.id < 0) return -1;
    if (piece.key != key || piece.length != bytes.size()) continue;
    if (bytes.size() <= 8 || bytes_of(piece.id) == bytes) return piece.id;
  }
}

Result<void> Bpe::add_merge(std::string_view left, std::string_view right) {
  const TokenId l = find(left);
  const TokenId r = find(right);
  std::string joined;
  joined.append(left).append(right);
  const TokenId merged = find(joined);
  if (l < 0 || r < 0 || merged < 0) {
    return fail(Errc::kCorruption, "merge {}: a part or the result is not in the vocabulary", n_merges_);
  }
  const uint64_t key = static_cast<uint64_t>(l) << 32 | static_cast<uint64_t>(r);
  pair_filter_.add(key);
  const size_t mask = pairs_.size() - 1;
  size_t slot = spread(key, pair_shift_);
  while (pairs_[slot].key != UINT64_MAX && pairs_[slot].key != key) slot = (slot + 1) & mask;
  pairs_[slot] = Pair{key, n_merges_, merged};  // of a repeated pair the later line counts
  ++n_merges_;
  return {};
}

const Bpe::Pair* Bpe::find_pair(TokenId left, TokenId right) const {
  const uint64_t key = static_cast<uint64_t>(left) << 32 | static_cast<uint64_t>(right);
  if (!pair_filter_.has(key)) return nullptr;
  const size_t mask = pairs_.size() - 1;
  for (size_t slot = spread(key, pair_shift_);; slot = (slot + 1) & mask) {
    const Pair& pair = pairs_[slot];
    if (pair.key == key) return &pair;
    if (pair.key == UINT64_MAX) return nullptr;
  }
}

Result<void> Bpe::finish(bool ignore_merges) {
  ignore_merges_ = ignore_merges;
  byte_pair_.assign(65536, nullptr);
  for (size_t byte = 0; byte < 256; ++byte) {
    if (byte_token_[byte] < 0) return fail(Errc::kCorruption, "the vocabulary has no entry for byte {}", byte);
  }
  std::vector<int> byte_of(offset_.size(), -1);
  for (int byte = 0; byte < 256; ++byte) byte_of[static_cast<size_t>(byte_token_[byte])] = byte;
  for (const Pair& pair : pairs_) {
    if (pair.key == UINT64_MAX) continue;
    const int left = byte_of[static_cast<size_t>(pair.key >> 32)];
    const int right = byte_of[static_cast<size_t>(pair.key & UINT32_MAX)];
    if (left >= 0 && right >= 0) byte_pair_[static_cast<size_t>(left << 8 | right)] = &pair;
  }
  whole_ = std::make_unique<std::atomic<uint8_t>[]>(offset_.size());
  find_matches();
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
  if (const TokenId id = find(piece); id >= 0 && encodes_to_itself(id, piece)) {
    out.push_back(id);
    return;
  }
  if (!splits_.empty()) {
    match(piece, out);
  } else if (piece.size() <= kShortPiece) {
    merge_short(piece, out);
  } else {
    merge_long(piece, out);
  }
}

// Arrays on the stack: the lowest rank by a scan, the neighbours' ranks anew after each merge, the gap closed by moving.
void Bpe::merge_short(std::string_view piece, std::vector<TokenId>& out) const {
  TokenId ids[kShortPiece];
  int32_t ranks[kShortPiece];     // rank of the pair (i, i+1)
  TokenId merged[kShortPiece];    // its result
  auto n = static_cast<int>(piece.size());
  const auto* bytes = reinterpret_cast<const unsigned char*>(piece.data());
  const auto set_pair = [&](int i, const Pair* pair) {
    ranks[i] = pair != nullptr ? pair->rank : kNoRank;
    merged[i] = pair != nullptr ? pair->merged : -1;
  };
  for (int i = 0; i < n; ++i) ids[i] = byte_token_[bytes[i]];
  for (int i = 0; i + 1 < n; ++i) set_pair(i, byte_pair_[static_cast<size_t>(bytes[i] << 8 | bytes[i + 1])]);
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
    ids[best] = merged[best];
    const auto gap = static_cast<size_t>(n - best - 2);
    std::memmove(ids + best + 1, ids + best + 2, gap * sizeof *ids);
    if (gap > 0) {
      std::memmove(ranks + best + 1, ranks + best + 2, (gap - 1) * sizeof *ranks);
      std::memmove(merged + best + 1, merged + best + 2, (gap - 1) * sizeof *merged);
    }
    --n;
    if (best + 1 < n) set_pair(best, find_pair(ids[best], ids[best + 1]));
    if (best > 0) set_pair(best - 1, find_pair(ids[best - 1], ids[best]));
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
    TokenId merged;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  std::vector<Symbol> symbols(piece.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](int32_t left) {
    if (left < 0) return;
    const Symbol& l = symbols[static_cast<size_t>(left)];
    if (l.next < 0) return;
    const TokenId right_id = symbols[static_cast<size_t>(l.next)].id;
    if (const Pair* pair = find_pair(l.id, right_id)) queue.push({pair->rank, left, l.id, right_id, pair->merged});
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
    left.id = candidate.merged;
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
    const Pair* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const Pair* pair = find_pair(ids[i], ids[i + 1]);
      if (pair != nullptr && (best == nullptr || pair->rank < best->rank)) {
        best = pair;
        at = i;
      }
    }
    if (best == nullptr) break;
    ids[at] = best->merged;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
  out.insert(out.end(), ids.begin(), ids.end());
}

size_t Bpe::memory_bytes() const {
  return (piece_filter_.bits.capacity() + pair_filter_.bits.capacity()) * sizeof(uint64_t) + pieces_.capacity() * sizeof(Piece) + pairs_.capacity() * sizeof(Pair) + pool_.capacity() +
         (offset_.capacity() + length_.capacity()) * sizeof(uint32_t) + splits_.capacity() * sizeof(Split) +
         reachable_.capacity() + lengths_.capacity() * sizeof(uint64_t) + shorter_.capacity() * sizeof(TokenId) + byte_pair_.capacity() * sizeof(void*) +
         offset_.size();
}

}  // namespace di::codec
