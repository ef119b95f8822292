#include "codec/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "codec/tokenizer/unicode.h"

namespace di::codec {

namespace {

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// byte + 1 for each code point below U+0144 (256 + the 68 remapped bytes); 0: not in the alphabet.
constexpr std::array<uint16_t, 324> kByteOf = [] {
  std::array<uint16_t, 324> table{};
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    table[stands_for_itself(byte) ? byte : next++] = static_cast<uint16_t>(byte + 1);
  }
  return table;
}();

}  // namespace

bool from_byte_level(std::string_view text, std::string& bytes) {
  bytes.clear();
  const char* end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    const CodePoint cp = decode_utf8(at, end);
    if (cp.value >= kByteOf.size() || kByteOf[cp.value] == 0) return false;
    bytes.push_back(static_cast<char>(kByteOf[cp.value] - 1));
    at += cp.bytes;
  }
  return true;
}

}  // namespace di::codec
