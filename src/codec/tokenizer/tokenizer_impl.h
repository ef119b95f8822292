// Parts of a loaded tokenizer; shared by tokenizer.cc and the reader of tokenizer.json.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "codec/tokenizer/added_vocab.h"
#include "codec/tokenizer/bpe.h"
#include "codec/tokenizer/tokenizer.h"

namespace di::codec {

struct Tokenizer::Impl {
  Bpe bpe;
  std::vector<AddedToken> added;
  std::unordered_map<std::string_view, TokenId> added_by_text;  // keys point into `added`
  SpellingFinder first_pass;                                    // normalized: false
  SpellingFinder second_pass;                                   // normalized: true
  std::vector<std::string_view> bytes;                          // [id], empty for an unknown id
  std::vector<uint8_t> flags;                                   // [id], kAdded | kSpecial
  std::deque<std::string> extra_bytes;  // owns the entries of `bytes` that are not in the BPE pool

  static constexpr uint8_t kAdded = 1;
  static constexpr uint8_t kSpecial = 2;
};

// Fills `impl` from the text of a tokenizer.json. Errors start with `name`.
Result<void> read_tokenizer_json(std::string_view json, const std::string& name, const TokenizerOptions& options,
                                 Tokenizer::Impl& impl);

}  // namespace di::codec
