// Character classes of the tokenizer's regular-expression engine (Unicode 16, recipe.md §1.2) and UTF-8 helpers.
// Pure functions over constant tables; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace di::codec {

enum CharClass : uint8_t {
  kLetter = 1,
  kMark = 2,
  kNumber = 4,
  kPunctuation = 8,
  kSymbol = 16,
  kWhiteSpace = 32,
  kIdeograph = 64,  // U+4E00-9FA5, U+3040-309F, U+30A0-30FF: the class of the second split
  kLineEnd = 128,   // CR, LF
};

extern const uint16_t kUnicodeBlock[8704];
extern const uint8_t kUnicodeClass[];

inline uint8_t char_class(uint32_t code_point) {
  return kUnicodeClass[(static_cast<size_t>(kUnicodeBlock[code_point >> 7]) << 7) | (code_point & 127)];
}

struct CodePoint {
  uint32_t value;
  uint32_t bytes;  // length in UTF-8; 1 for a byte that is part of no valid sequence (its value is then U+FFFD)
};

// The code point at `at` (at < end). Never reads past `end`.
inline CodePoint decode_utf8(const char* at, const char* end) {
  const auto byte = [&](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(at[i])); };
  const auto follows = [&](int i) { return (byte(i) & 0xC0) == 0x80; };
  const uint32_t lead = byte(0);
  const ptrdiff_t left = end - at;
  if (lead < 0x80) return {lead, 1};
  if (lead >= 0xE0 && lead < 0xF0 && left >= 3 && follows(1) && follows(2)) [[likely]] {
    const uint32_t v = ((lead & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F);
    if (v >= 0x800 && (v < 0xD800 || v > 0xDFFF)) return {v, 3};
  } else if (lead >= 0xC2 && lead < 0xE0 && left >= 2 && follows(1)) {
    return {((lead & 0x1F) << 6) | (byte(1) & 0x3F), 2};
  } else if (lead >= 0xF0 && lead < 0xF5 && left >= 4 && follows(1) && follows(2) && follows(3)) {
    const uint32_t v = ((lead & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F);
    if (v >= 0x10000 && v < 0x110000) return {v, 4};
  }
  return {0xFFFD, 1};
}

// Appends bytes as text; each maximal invalid subpart becomes one U+FFFD (recipe.md §1.5).
void append_utf8_lossy(std::string& out, std::string_view bytes);
bool is_valid_utf8(std::string_view bytes);

}  // namespace di::codec
