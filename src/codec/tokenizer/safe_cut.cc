// The proof of the cut rule. Ids depend on the text only through its pieces, and each piece is encoded for itself, so a
// cut is safe when (a) a piece of the whole text ends there and (b) the pieces on both sides do not change when the
// other side is missing. Splits 1 and 2 cut runs of one class (numbers in threes from the left, ideographs); split 3
// works on what is left between them and never looks beyond its stretch.
//
// 1. Between a number and a character that is none, or between an ideograph and a character that is none (and no
// number):
//    splits 1 and 2 end a stretch exactly there. The stretches on either side, and so their pieces, are the same
//    without the other side; for numbers this needs the cut to be at an end of the run, as it is, so that the threes
//    are counted alike.
// 2. Before one U+0020 between a letter on the left and a letter on the right (ideographs included).
//    Left side: the letter is the last character of a piece, for the only alternatives that contain letters (1 and 2)
//    take no white space behind them, and neither has a look-ahead; so every piece up to it matches the same way when
//    the text ends there. Right side: the space begins a piece in the whole text, since no piece goes on from a letter
//    to a space; scanning from the space on, the matcher sees the same characters in both cases. When the right letter
//    is an ideograph the space is the end of a stretch and a piece of its own either way (alternative 5 takes a run of
//    white space up to the end of its stretch); when the left letter is one, rule 1 applies as well. Two spaces would
//    not do: alternative 5 gives the last space of a run to what follows, so the run must be seen whole.
// A mark on either side excludes a cut by rule 2: it is no letter here, and may belong to the piece of what precedes
// it.
#include "codec/tokenizer/safe_cut.h"

#include "codec/tokenizer/unicode.h"

namespace di::codec {

namespace {

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

uint8_t class_at(std::string_view text, size_t at) {
  const CodePoint cp = decode_utf8(text.data() + at, text.data() + text.size());
  return cp.bytes == 1 && cp.value == 0xFFFD ? 0 : char_class(cp.value);
}

// Class of the character that ends at `at`; nothing when the bytes before it are no character.
bool class_before(std::string_view text, size_t at, uint8_t& cls) {
  for (size_t n = 1; n <= 4 && n <= at; ++n) {
    if (is_continuation(text[at - n])) continue;
    const CodePoint cp = decode_utf8(text.data() + (at - n), text.data() + at);
    if (cp.bytes != n || (n == 1 && cp.value == 0xFFFD)) return false;
    cls = char_class(cp.value);
    return true;
  }
  return false;
}

}  // namespace

bool is_safe_cut(std::string_view text, size_t at) {
  if (at == 0 || at >= text.size() || is_continuation(text[at])) return false;
  uint8_t left = 0;
  if (!class_before(text, at, left)) return false;
  const uint8_t right = class_at(text, at);
  if (((left ^ right) & kNumber) != 0) return true;
  if ((left & kNumber) == 0 && ((left ^ right) & kIdeograph) != 0) return true;
  if (text[at] != ' ' || (left & (kLetter | kNumber)) == 0 || at + 1 >= text.size()) return false;
  return (class_at(text, at + 1) & kLetter) != 0;
}

size_t next_safe_cut(std::string_view text, size_t from) {
  for (size_t at = from; at < text.size(); ++at) {
    if (is_safe_cut(text, at)) return at;
  }
  return text.size();
}

}  // namespace di::codec
