// Byte-level BPE tokenizer of the DeepSeek family, read from a Hugging Face tokenizer.json of that form (recipe.md §1).
// Owns the vocabulary, the merge table and the added tokens; immutable after loading, so one instance serves every
// thread. Encoding never fails: all 256 bytes are tokens. Text should be valid UTF-8; a stray byte is treated as a
// character without class and encodes to its byte token.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "codec/token.h"

namespace di::codec {

class Tokenizer;
using TokenizerRef = std::shared_ptr<const Tokenizer>;

struct AddedToken {
  TokenId id = 0;
  std::string text;
  bool special = false;     // the file's flag: dropped by decode(skip_special)
  bool normalized = false;  // matched in the second pass of encode_full
};

struct TokenizerOptions {
  // Added tokens to rename after reading, id -> new spelling (to get the V4.1 tokenizer from V4's file).
  std::map<TokenId, std::string> rename_added;
};

class Tokenizer {
 public:
  // `path` is a tokenizer.json or a folder that holds one. Errors name the file and what was expected of it.
  static Result<TokenizerRef> load(const std::string& path, const TokenizerOptions& options = {});
  // `name` stands for the file in errors.
  static Result<TokenizerRef> from_json(std::string_view json, const std::string& name,
                                        const TokenizerOptions& options = {});
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Appends the ids of `text` without the added vocabulary: a spelling such as <think> becomes ordinary ids. Adds no
  // BOS.
  void encode_plain(std::string_view text, std::vector<TokenId>& out) const;
  std::vector<TokenId> encode_plain(std::string_view text) const;
  // The same with added-token spellings recognised (leftmost, longest; not-normalized ones first).
  std::vector<TokenId> encode_full(std::string_view text) const;
  // Slow twins of encode_plain's merging, for tests: merge pair by pair as recipe.md §1.2 step 6 words it.
  void encode_plain_reference(std::string_view text, std::vector<TokenId>& out) const;

  // Text of the ids, bytes joined before they become characters; invalid UTF-8 becomes U+FFFD (recipe.md §1.5).
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;
  // Bytes of one id; empty when the id is unknown. Valid as long as the tokenizer.
  std::string_view token_bytes(TokenId id) const;

  // One past the highest id.
  int32_t vocab_size() const;
  bool is_added(TokenId id) const;
  bool is_special(TokenId id) const;
  std::optional<TokenId> added_id(std::string_view spelling) const;
  const std::vector<AddedToken>& added_tokens() const;
  // Bytes held by this object.
  size_t memory_bytes() const;

  struct Impl;

 private:
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace di::codec
