#include "codec/tokenizer/tokenizer.h"

#include <simdjson.h>

#include <filesystem>

#include "codec/tokenizer/pretokenize.h"
#include "codec/tokenizer/tokenizer_impl.h"
#include "codec/tokenizer/unicode.h"

namespace di::codec {

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<TokenizerRef> Tokenizer::load(const std::string& path, const TokenizerOptions& options) {
  std::error_code ignored;
  const std::string file = std::filesystem::is_directory(path, ignored) ? path + "/tokenizer.json" : path;
  simdjson::padded_string text;
  if (simdjson::padded_string::load(file).get(text) != simdjson::SUCCESS) {
    return fail(Errc::kNotFound, "{}: cannot be read", file);
  }
  return from_json(std::string_view(text), file, options);
}

Result<TokenizerRef> Tokenizer::from_json(std::string_view json, const std::string& name,
                                          const TokenizerOptions& options) {
  auto impl = std::make_unique<Impl>();
  DI_TRY(read_tokenizer_json(json, name, options, *impl));
  return TokenizerRef(new Tokenizer(std::move(impl)));
}

void Tokenizer::encode_plain(std::string_view text, std::vector<TokenId>& out) const {
  for_each_piece(text, [&](std::string_view piece) { impl_->bpe.encode(piece, out); });
}

std::vector<TokenId> Tokenizer::encode_plain(std::string_view text) const {
  std::vector<TokenId> out;
  out.reserve(text.size() / 3);
  encode_plain(text, out);
  return out;
}

void Tokenizer::encode_plain_reference(std::string_view text, std::vector<TokenId>& out) const {
  for_each_piece(text, [&](std::string_view piece) { impl_->bpe.encode_reference(piece, out); });
}

std::vector<TokenId> Tokenizer::encode_full(std::string_view text) const {
  std::vector<TokenId> out;
  // Cuts `part` at the spellings of `finder` and hands the stretches between them on.
  const auto cut = [&](std::string_view part, const SpellingFinder& finder, const auto& plain) {
    size_t at = 0;
    while (at < part.size()) {
      const SpellingFinder::Match match = finder.find(part, at);
      if (match.begin > at) plain(part.substr(at, match.begin - at));
      if (match.id >= 0) out.push_back(match.id);
      at = match.end;
    }
  };
  cut(text, impl_->first_pass, [&](std::string_view rest) {
    cut(rest, impl_->second_pass, [&](std::string_view plain) { encode_plain(plain, out); });
  });
  return out;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (skip_special && is_special(id)) continue;
    bytes.append(token_bytes(id));
  }
  if (is_valid_utf8(bytes)) return bytes;
  std::string text;
  append_utf8_lossy(text, bytes);
  return text;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  const auto i = static_cast<size_t>(id);
  return i < impl_->bytes.size() ? impl_->bytes[i] : std::string_view();
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(impl_->bytes.size());
}

bool Tokenizer::is_added(TokenId id) const {
  const auto i = static_cast<size_t>(id);
  return i < impl_->flags.size() && (impl_->flags[i] & Impl::kAdded) != 0;
}

bool Tokenizer::is_special(TokenId id) const {
  const auto i = static_cast<size_t>(id);
  return i < impl_->flags.size() && (impl_->flags[i] & Impl::kSpecial) != 0;
}

std::optional<TokenId> Tokenizer::added_id(std::string_view spelling) const {
  const auto at = impl_->added_by_text.find(spelling);
  if (at == impl_->added_by_text.end()) return std::nullopt;
  return at->second;
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const {
  return impl_->added;
}

size_t Tokenizer::memory_bytes() const {
  return impl_->bpe.memory_bytes() + impl_->bytes.capacity() * sizeof(std::string_view) + impl_->flags.capacity() +
         impl_->added.capacity() * 128;
}

}  // namespace di::codec
