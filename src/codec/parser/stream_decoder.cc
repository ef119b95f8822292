#include "codec/parser/stream_decoder.h"

#include <fmt/format.h>

#include "codec/tokenizer/unicode.h"

namespace di::codec {

namespace {

LogprobEntry::Token describe(const Tokenizer& tokenizer, TokenId id, float logprob, bool as_id) {
  LogprobEntry::Token token;
  token.bytes = tokenizer.token_bytes(id);
  token.logprob = logprob;
  if (as_id) {
    token.text = fmt::format("token_id:{}", id);
  } else if (is_valid_utf8(token.bytes)) {
    token.text = token.bytes;
  } else {
    for (const char byte : token.bytes) token.text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  }
  return token;
}

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

}  // namespace

void StreamDecoder::append(TokenId id, const TokenLogprob* logprob) {
  bytes_ += tokenizer_.token_bytes(id);
  ++tokens_;
  if (logprob == nullptr) return;
  LogprobEntry entry;
  entry.token = describe(tokenizer_, id, logprob->logprob, tokens_as_ids_);
  for (const auto& [top_id, top_logprob] : logprob->top) {
    entry.top.push_back(describe(tokenizer_, top_id, top_logprob, tokens_as_ids_));
  }
  logprobs_.push_back(std::move(entry));
}

bool StreamDecoder::take_text(bool force) {
  if (bytes_.empty()) return false;
  if (is_ascii(bytes_)) [[likely]] {
    text_.swap(bytes_);
    bytes_.clear();
    return true;
  }
  text_.clear();
  append_utf8_lossy(text_, bytes_);
  if (!force && text_.ends_with("\xEF\xBF\xBD")) return false;
  bytes_.clear();
  return true;
}

LogprobListRef StreamDecoder::take_logprobs(size_t tokens) {
  if (logprobs_.empty()) return nullptr;
  LogprobListRef list;
  if (logprobs_.size() == tokens) list = std::make_shared<const LogprobList>(std::move(logprobs_));
  logprobs_.clear();
  return list;
}

}  // namespace di::codec
