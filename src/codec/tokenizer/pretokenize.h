// The three sequential splits of the pre-tokenizer as one scanner over code points (recipe.md §1.2 steps 2-4).
//
// Split 1 cuts runs of \p{N} into groups of three, split 2 cuts runs of ideographs and kana off, split 3 cuts what each
// of them left. A stretch without numbers and of one side of split 2 is a "segment"; the alternatives of split 3 never
// see past its end. Inside a segment there are no number characters unless the segment is a number group itself, so
// alternative 2
// ("one char that is no letter, punctuation, symbol, CR, LF") can only take white space, marks, controls and unassigned
// characters.
#pragma once

#include <string_view>

#include "codec/tokenizer/unicode.h"

namespace di::codec {

namespace pretokenize {

struct Cursor {
  const char* at;
  const char* end;

  bool done() const { return at == end; }
  // Class of the character at `at`, and its length.
  struct Char {
    uint8_t cls;
    uint32_t bytes;
  };
  Char peek() const {
    const CodePoint cp = decode_utf8(at, end);
    // A stray byte has no class: it can only be part of an unmatched stretch.
    if (cp.bytes == 1 && cp.value == 0xFFFD) return {0, 1};
    return {char_class(cp.value), cp.bytes};
  }
};

inline bool is_ascii_letter(char c) {
  return static_cast<unsigned char>((static_cast<unsigned char>(c) | 0x20) - 'a') < 26;
}

// End of the run of characters whose class meets `mask`, from `at`.
inline const char* run_of(const char* at, const char* end, uint8_t mask) {
  while (at != end) {
    const auto c = Cursor{at, end}.peek();
    if ((c.cls & mask) == 0) break;
    at += c.bytes;
  }
  return at;
}

inline const char* line_ends(const char* at, const char* end) {
  while (at != end && (*at == '\r' || *at == '\n')) ++at;
  return at;
}

// Alternatives 4-6 at a white-space character: without a backtracking engine, by the whole run.
inline const char* match_white_space(const char* at, const char* end) {
  const char* after_line_end = nullptr;
  const char* last = at;  // start of the run's last character
  const char* p = at;
  while (p != end) {
    const auto c = Cursor{p, end}.peek();
    if ((c.cls & kWhiteSpace) == 0) break;
    last = p;
    p += c.bytes;
    if ((c.cls & kLineEnd) != 0) after_line_end = p;
  }
  if (after_line_end != nullptr) return after_line_end;
  return p == end || last == at ? p : last;
}

// End of the match of split 3 at `at` (at < end), or nullptr when no alternative matches there.
inline const char* match(const char* at, const char* end) {
  constexpr uint8_t kWord = kLetter | kMark;
  constexpr uint8_t kMarkup = kPunctuation | kSymbol;
  const auto c = Cursor{at, end}.peek();
  const char* next = at + c.bytes;
  if ((c.cls & kWord) != 0) return run_of(next, end, kWord);
  if ((c.cls & kMarkup) != 0) {
    if (c.bytes == 1 && next != end && is_ascii_letter(*next)) {
      while (next != end && is_ascii_letter(*next)) ++next;
      return next;
    }
    return line_ends(run_of(next, end, kMarkup), end);
  }
  if (next != end && (c.cls & kLineEnd) == 0) {
    const auto following = Cursor{next, end}.peek();
    if ((following.cls & kWord) != 0) return run_of(next + following.bytes, end, kWord);
    if (*at == ' ' && (following.cls & kMarkup) != 0) {
      return line_ends(run_of(next + following.bytes, end, kMarkup), end);
    }
  }
  if ((c.cls & kWhiteSpace) != 0) return match_white_space(at, end);
  return nullptr;
}

template <class Sink>
void split_segment(const char* at, const char* end, const Sink& sink) {
  const char* unmatched = at;  // start of the stretch that no alternative matched
  while (at != end) {
    const char* stop = match(at, end);
    if (stop == nullptr) {
      at += Cursor{at, end}.peek().bytes;
      continue;
    }
    if (unmatched != at) sink(std::string_view(unmatched, static_cast<size_t>(at - unmatched)));
    sink(std::string_view(at, static_cast<size_t>(stop - at)));
    at = unmatched = stop;
  }
  if (unmatched != at) sink(std::string_view(unmatched, static_cast<size_t>(at - unmatched)));
}

}  // namespace pretokenize

// Calls sink(piece) for the pieces of `text` in order; their concatenation is the text.
template <class Sink>
void for_each_piece(std::string_view text, const Sink& sink) {
  using pretokenize::Cursor;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    const auto first = Cursor{at, end}.peek();
    const char* p = at + first.bytes;
    if ((first.cls & kNumber) != 0) {
      for (int n = 1; n < 3 && p != end; ++n) {
        const auto c = Cursor{p, end}.peek();
        if ((c.cls & kNumber) == 0) break;
        p += c.bytes;
      }
      sink(std::string_view(at, static_cast<size_t>(p - at)));
    } else {
      const uint8_t side = first.cls & kIdeograph;
      while (p != end) {
        const auto c = Cursor{p, end}.peek();
        if ((c.cls & kNumber) != 0 || (c.cls & kIdeograph) != side) break;
        p += c.bytes;
      }
      pretokenize::split_segment(at, p, sink);
    }
    at = p;
  }
}

}  // namespace di::codec
