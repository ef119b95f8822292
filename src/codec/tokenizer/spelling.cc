#include "codec/tokenizer/spelling.h"

namespace di::codec {
namespace {

// 0x21-0x7E, 0xA1-0xAC, 0xAE-0xFF stand for themselves, the other 68 bytes in order for U+0100, U+0101, … (recipe.md
// §1.2).
char32_t stand_in(unsigned char byte) {
  const auto printable = [](unsigned b) { return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad); };
  if (printable(byte)) return byte;
  char32_t n = 0;
  for (unsigned b = 0; b < byte; ++b) n += printable(b) ? 0 : 1;
  return 0x100 + n;
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else {
    out += static_cast<char>(0xc0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

}  // namespace

std::string token_spelling(const Tokenizer& tokenizer, TokenId id) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  if (tokenizer.is_added(id)) return std::string(bytes);
  std::string out;
  for (const char c : bytes) append_utf8(out, stand_in(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace di::codec
