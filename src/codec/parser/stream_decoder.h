// Token ids -> text pieces (recipe.md §5.2). A piece ends at every special token and, else, with the chunk, unless a
// character is still incomplete. One instance per output stream; not thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codec/codec.h"
#include "codec/tokenizer/tokenizer.h"

namespace di::codec {

// A byte of a special piece can only match a special byte of a marker, and so on; text matches both (recipe.md §4.1).
enum class PieceKind : uint8_t { kPlain, kSpecial, kText };

// One token's log probability as the APIs print it.
struct LogprobEntry {
  struct Token {
    std::string text;  // the bytes, or \xhh for each when they are no UTF-8
    std::string bytes;
    float logprob = 0.0F;
  };
  Token token;
  std::vector<Token> top;
};
using LogprobList = std::vector<LogprobEntry>;
using LogprobListRef = std::shared_ptr<const LogprobList>;

struct Piece {
  std::string_view text;  // valid during the call
  PieceKind kind = PieceKind::kText;
  uint32_t tokens = 0;
  LogprobListRef logprobs;  // null: none
};

class StreamDecoder {
 public:
  // `tokens_as_ids`: log probabilities name tokens as `token_id:N`.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool tokens_as_ids = false)
      : tokenizer_(tokenizer), tokens_as_ids_(tokens_as_ids) {}

  // Calls sink(piece) -> bool for each finished piece; false stops, the rest of the ids is then ignored.
  template <class Sink>
  void feed(std::span<const TokenId> ids, std::span<const TokenLogprob> logprobs, const Sink& sink) {
    for (size_t i = 0; i < ids.size(); ++i) {
      const TokenLogprob* logprob = logprobs.empty() ? nullptr : &logprobs[i];
      if (tokenizer_.is_added(ids[i])) [[unlikely]] {
        if (!flush(true, PieceKind::kPlain, sink)) return;
        append(ids[i], logprob);
        if (!flush(true, PieceKind::kSpecial, sink)) return;
      } else {
        append(ids[i], logprob);
      }
    }
    flush(false, PieceKind::kPlain, sink);
  }

  // Bytes of the character that is not complete yet.
  size_t held_bytes() const { return bytes_.size(); }

 private:
  void append(TokenId id, const TokenLogprob* logprob);
  // The text to send, or nothing while more bytes may complete it.
  bool take_text(bool force);
  // Those of a piece of `tokens` ids: none unless every id had one.
  LogprobListRef take_logprobs(size_t tokens);

  template <class Sink>
  bool flush(bool force, PieceKind kind, const Sink& sink) {
    if (!take_text(force)) return true;
    const uint32_t tokens = tokens_;
    tokens_ = 0;
    return sink(Piece{text_, kind, tokens, take_logprobs(tokens)});
  }

  const Tokenizer& tokenizer_;
  const bool tokens_as_ids_;
  std::string bytes_;  // of the ids not yet sent
  std::string text_;   // of the piece being sent
  uint32_t tokens_ = 0;
  LogprobList logprobs_;
};

}  // namespace di::codec
