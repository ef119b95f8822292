#include "model/engram.h"

#include <utf8proc.h>

#include <array>
#include <bit>
#include <unordered_map>

namespace di::model {
namespace {

// ---- compressed vocabulary ----

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool is_mark(utf8proc_category_t c) {
  return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

// The Unicode property White_Space.
bool is_white_space(utf8proc_int32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_blank(utf8proc_int32_t c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// Code points of the text after NFKC and NFD; NFD of NFKC is NFKD. False when the text is no valid UTF-8.
bool decompose(std::string_view text, std::vector<utf8proc_int32_t>& out) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  const utf8proc_ssize_t needed = utf8proc_decompose(bytes, size, nullptr, 0, kOptions);
  if (needed < 0) return false;
  out.resize(static_cast<size_t>(needed));
  return utf8proc_decompose(bytes, size, out.data(), needed, kOptions) == needed;
}

void append_utf8(std::string& out, utf8proc_int32_t c) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t n = utf8proc_encode_char(c, bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
}

// NFKC, NFD, without accents, lower case, runs of blanks to one space, trimmed unless it is exactly one space; empty:
// the text itself. Lower case is taken character by character (a capital sigma becomes σ everywhere). The accents are
// the marks of all three kinds, Mn, Mc and Me: only so the published map of the real tokenizer results.
std::string fold(std::string_view text, std::vector<utf8proc_int32_t>& points) {
  size_t n = 0;
  bool blank = false;
  for (const utf8proc_int32_t c : points) {
    if (is_mark(utf8proc_category(c))) continue;
    // U+0130, the one capital whose lower case is two characters, was decomposed.
    const utf8proc_int32_t lower = utf8proc_tolower(c);
    if (is_blank(lower)) {
      if (!blank) points[n++] = ' ';
      blank = true;
    } else {
      points[n++] = lower;
      blank = false;
    }
  }
  size_t first = 0;
  if (n != 1 || points[0] != ' ') {
    while (first < n && is_white_space(points[first])) ++first;
    while (n > first && is_white_space(points[n - 1])) --n;
  }
  std::string out;
  for (size_t i = first; i < n; ++i) append_utf8(out, points[i]);
  return out.empty() ? std::string(text) : out;
}

// ---- primes ----

bool is_prime(int64_t n) {
  if (n < 4) return n >= 2;
  if (n % 2 == 0 || n % 3 == 0) return false;
  for (int64_t d = 5; d * d <= n; d += 6) {
    if (n % d == 0 || n % (d + 2) == 0) return false;
  }
  return true;
}

// ---- numpy's default_rng(seed).integers(0, bound, dtype=int64) (model.md §5.10) ----

__extension__ typedef unsigned __int128 uint128;

// SeedSequence(seed).generate_state(4, uint64).
std::array<uint64_t, 4> seed_words(uint64_t seed) {
  uint32_t a = 0x43b0d7e5U;
  const auto hash = [&a](uint32_t v) {
    v ^= a;
    a *= 0x931e8875U;
    v *= a;
    return v ^ (v >> 16);
  };
  const auto mix = [](uint32_t x, uint32_t y) {
    const uint32_t r = 0xca01f9ddU * x - 0x4973f715U * y;
    return r ^ (r >> 16);
  };
  std::array<uint32_t, 4> pool = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0, 0};
  for (uint32_t& word : pool) word = hash(word);
  for (size_t s = 0; s < 4; ++s) {
    for (size_t d = 0; d < 4; ++d) {
      if (s != d) pool[d] = mix(pool[d], hash(pool[s]));
    }
  }
  std::array<uint64_t, 4> out = {};
  uint32_t b = 0x8b51f9ddU;
  for (size_t i = 0; i < 8; ++i) {
    uint32_t v = pool[i % 4] ^ b;
    b *= 0x58f38dedU;
    v *= b;
    v ^= v >> 16;
    out[i / 2] |= static_cast<uint64_t>(v) << (32 * (i % 2));
  }
  return out;
}

class Pcg64 {
 public:
  explicit Pcg64(const std::array<uint64_t, 4>& q) : inc_((((uint128{q[2]} << 64) | q[3]) << 1) | 1) {
    step();
    state_ += (uint128{q[0]} << 64) | q[1];
    step();
  }

  // Uniform in [0, bound), bound > 2^32 (Lemire's multiplication with rejection).
  uint64_t below(uint64_t bound) {
    uint128 m = uint128{next()} * bound;
    if (static_cast<uint64_t>(m) < bound) {
      const uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(m) < threshold) m = uint128{next()} * bound;
    }
    return static_cast<uint64_t>(m >> 64);
  }

 private:
  void step() {
    constexpr uint128 kMultiplier = (uint128{2549297995355413924ULL} << 64) | 4865540595714422341ULL;
    state_ = state_ * kMultiplier + inc_;
  }
  uint64_t next() {
    step();
    return std::rotr(static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_),
                     static_cast<int>(state_ >> 122));
  }

  uint128 state_ = 0;
  uint128 inc_;
};

}  // namespace

std::string engram_key(const TokenText& token) {
  std::vector<utf8proc_int32_t> points;
  if (token.text.find(kReplacement) != std::string::npos || !decompose(token.text, points)) return token.spelling;
  return fold(token.text, points);
}

CompressedVocabulary compress_vocabulary(std::span<const TokenText> tokens) {
  CompressedVocabulary out;
  std::unordered_map<std::string, int32_t> numbers;
  numbers.reserve(tokens.size());
  for (const TokenText& token : tokens) {
    const auto [at, is_new] = numbers.try_emplace(engram_key(token), out.size);
    if (is_new) ++out.size;
    out.map.push_back(at->second);
  }
  return out;
}

std::vector<int64_t> engram_multipliers(int32_t layer, int32_t compressed_vocab, int32_t count) {
  constexpr uint64_t kSeedStep = 10007;
  const uint64_t bound = static_cast<uint64_t>(INT64_MAX) / static_cast<uint64_t>(compressed_vocab) / 2;
  Pcg64 generator(seed_words(kSeedStep * static_cast<uint64_t>(layer)));
  std::vector<int64_t> out;
  for (int32_t i = 0; i < count; ++i) out.push_back(static_cast<int64_t>(generator.below(bound)) * 2 + 1);
  return out;
}

std::vector<EngramLayer> engram_layers(const ModelConfig& c) {
  std::vector<EngramLayer> out;
  // Each (layer, order) takes the next primes from engram_vocab_size on that nothing before it took: one ascending run.
  int64_t prime = c.engram_vocab_size - 1;
  for (const int32_t layer : c.engram_layer_ids) {
    EngramLayer e;
    e.layer = layer;
    for (int32_t column = 0; column < c.engram_columns(); ++column) {
      do ++prime;
      while (!is_prime(prime));
      e.primes.push_back(prime);
      e.offsets.push_back(e.rows);
      e.rows += prime;
    }
    e.multipliers = engram_multipliers(layer, c.engram_compressed_vocab_size, c.engram_max_ngram_size);
    out.push_back(std::move(e));
  }
  return out;
}

Result<EngramTables> make_engram_tables(const ModelConfig& c, std::span<const TokenText> tokens) {
  EngramTables t;
  if (c.engram_layer_ids.empty()) return t;
  t.layers = engram_layers(c);
  t.max_ngram = c.engram_max_ngram_size;
  t.columns = c.engram_columns();
  t.image_token_id = c.image_token_id;
  t.pad = c.engram_pad_token_id;
  if (c.engram_identity_map()) return t;
  CompressedVocabulary vocabulary = compress_vocabulary(tokens);
  if (vocabulary.size != c.engram_compressed_vocab_size) {
    return fail(Errc::kInvalidRequest,
                "engram_compressed_vocab_size: expected {}, the size of the tokenizer's compressed vocabulary "
                "({} ids), found {}",
                vocabulary.size, tokens.size(), c.engram_compressed_vocab_size);
  }
  const auto pad = static_cast<size_t>(c.engram_pad_token_id);
  if (pad >= vocabulary.map.size()) {
    return fail(Errc::kInvalidRequest, "engram_pad_token_id: expected an id of the tokenizer (below {}), found {}",
                vocabulary.map.size(), pad);
  }
  t.vocab_map = std::move(vocabulary.map);
  t.pad = t.vocab_map[pad];
  return t;
}

void engram_hash(const EngramLayer& layer, int32_t max_ngram, std::span<const int32_t> grams, std::span<int64_t> rows) {
  const auto n = static_cast<size_t>(max_ngram);
  const size_t columns = layer.primes.size();
  const size_t heads = columns / (n - 1);
  const size_t tokens = grams.size() / n;
  DI_CHECK(grams.size() == tokens * n && rows.size() == tokens * columns, "{} ids, {} rows", grams.size(), rows.size());
  for (size_t t = 0; t < tokens; ++t) {
    const int32_t* c = grams.data() + t * n;
    int64_t* out = rows.data() + t * columns;
    int64_t h = c[0] * layer.multipliers[0];
    for (size_t k = 1; k < n; ++k) {
      h ^= c[k] * layer.multipliers[k];
      for (size_t head = 0; head < heads; ++head) {
        const size_t column = (k - 1) * heads + head;
        out[column] = h % layer.primes[column] + layer.offsets[column];
      }
    }
  }
}

void engram_rows(const EngramTables& tables, int32_t engram_index, std::span<const int32_t> ids, int32_t history,
                 std::span<int64_t> rows) {
  const EngramLayer& layer = tables.layers[static_cast<size_t>(engram_index)];
  const auto n = static_cast<size_t>(tables.max_ngram);
  const auto before = static_cast<size_t>(history);
  DI_CHECK(before <= ids.size(), "history {} of {} ids", history, ids.size());
  const auto compressed = [&](int32_t id) {
    if (tables.vocab_map.empty()) return id;
    const auto at = static_cast<size_t>(static_cast<uint32_t>(id));
    return at < tables.vocab_map.size() ? tables.vocab_map[at] : tables.pad;
  };
  std::vector<int32_t> grams((ids.size() - before) * n, tables.pad);
  for (size_t i = before; i < ids.size(); ++i) {
    int32_t* c = grams.data() + (i - before) * n;
    for (size_t k = 0; k < n && k <= i; ++k) {
      const int32_t id = ids[i - k];
      if (id == tables.image_token_id) break;
      c[k] = compressed(id);
    }
  }
  engram_hash(layer, tables.max_ngram, grams, rows);
}

}  // namespace di::model
