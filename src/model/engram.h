// Engram's hash side (model.md §5.10): the compressed vocabulary, the bucket primes and offsets, the multipliers, and
// the table rows of each token. All of it follows from the config and the token texts and is computed at load.
// Immutable afterwards.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace di::model {

// What the compressed vocabulary reads of one token id.
struct TokenText {
  std::string text;      // decoded alone, special tokens kept; U+FFFD where its bytes are no whole UTF-8
  std::string spelling;  // the raw entry of the vocabulary (byte-level stand-ins), or the added token's content
};

// The key under which a token shares a compressed id: its folded text, or its spelling if the text contains U+FFFD.
std::string engram_key(const TokenText& token);

// Token id → compressed id, numbered in order of first appearance; `tokens` holds every id from 0 in id order, added
// tokens too.
struct CompressedVocabulary {
  std::vector<int32_t> map;
  int32_t size = 0;
};
CompressedVocabulary compress_vocabulary(std::span<const TokenText> tokens);

// One Engram layer's hash tables.
struct EngramLayer {
  int32_t layer = 0;
  std::vector<int64_t> primes;       // [columns], column = (n - 2)·heads + head
  std::vector<int64_t> offsets;      // [columns], exclusive prefix sums of the primes
  std::vector<int64_t> multipliers;  // [engram_max_ngram_size]
  int64_t rows = 0;                  // sum of the primes = rows of the table
};

struct EngramTables {
  std::vector<EngramLayer> layers;  // in the order of engram_layer_ids
  std::vector<int32_t> vocab_map;   // token id → compressed id; empty = identity
  int32_t pad = 0;                  // compressed id of engram_pad_token_id
  int32_t max_ngram = 0;            // tokens a hash looks at; lookback() = max_ngram - 1
  int32_t columns = 0;              // rows gathered per token
  int32_t image_token_id = -1;

  int32_t lookback() const { return max_ngram > 0 ? max_ngram - 1 : 0; }
};

// Primes, offsets and multipliers only (vocab_map left empty). The sums equal engram_num_embeddings in a loaded config.
std::vector<EngramLayer> engram_layers(const ModelConfig& config);

// `tokens` may be empty when the map is the identity (engram_compressed_vocab_size == vocab_size), else it must hold
// every token id of the tokenizer; the number of compressed ids must be the config's (kInvalidRequest). Ids that the
// tokenizer does not have (up to vocab_size) hash as the pad id.
Result<EngramTables> make_engram_tables(const ModelConfig& config, std::span<const TokenText> tokens);

// Table rows of consecutive tokens of one sequence.
//   ids         [lookback() known predecessors at most | T tokens]: `history` of its first ids are look-back only
//   history     number of predecessors given; fewer than lookback() means that the sequence starts there
//   rows        out [T, columns] row-major, T = ids.size() - history
// A look-back that reaches before the sequence, or passes an image token, reads the pad id from there on.
void engram_rows(const EngramTables& tables, int32_t engram_index, std::span<const int32_t> ids, int32_t history,
                 std::span<int64_t> rows);

// The hash of n-grams given as compressed ids, newest first: grams [T, max_ngram] → rows [T, columns].
void engram_hash(const EngramLayer& layer, int32_t max_ngram, std::span<const int32_t> grams, std::span<int64_t> rows);

// Building blocks, public for tests and for the conformance program.
std::vector<int64_t> engram_multipliers(int32_t layer, int32_t compressed_vocab, int32_t count);

}  // namespace di::model
