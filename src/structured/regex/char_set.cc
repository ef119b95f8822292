#include "structured/regex/char_set.h"

#include <algorithm>

#include "structured/regex/arena.h"

namespace di::structured {

CharSet CharSet::all() {
  return of(0, 0x10ffff);
}

CharSet CharSet::of(uint32_t first, uint32_t last) {
  CharSet s;
  s.add(first, last);
  s.normalise();
  return s;
}

void CharSet::add(uint32_t first, uint32_t last) {
  if (first <= last) ranges_.emplace_back(first, last);
}

void CharSet::add(const CharSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
}

void CharSet::normalise() {
  std::vector<Range> cut;
  for (auto [a, b] : ranges_) {
    b = std::min(b, 0x10ffffU);
    if (a < 0xd800 && b >= 0xd800) {
      cut.emplace_back(a, 0xd7ff);
      a = 0xe000;
    } else if (a >= 0xd800 && a <= 0xdfff) {
      a = 0xe000;
    }
    if (b >= 0xd800 && b <= 0xdfff) continue;
    if (a <= b) cut.emplace_back(a, b);
  }
  std::ranges::sort(cut);
  ranges_.clear();
  for (const auto& [a, b] : cut) {
    if (!ranges_.empty() && (a <= ranges_.back().second + 1 || (a == 0xe000 && ranges_.back().second == 0xd7ff))) {
      ranges_.back().second = std::max(ranges_.back().second, b);
    } else {
      ranges_.emplace_back(a, b);
    }
  }
}

CharSet CharSet::complement() const {
  CharSet out;
  uint32_t next = 0;
  for (const auto& [a, b] : ranges_) {
    if (a > next) out.add(next, a - 1);
    next = b + 1;
  }
  if (next <= 0x10ffff) out.add(next, 0x10ffff);
  out.normalise();
  return out;
}

bool CharSet::contains(uint32_t c) const {
  return std::ranges::any_of(ranges_, [c](const Range& r) { return c >= r.first && c <= r.second; });
}

void CharSet::fold_case() {
  CharSet more;
  for (const auto& [a, b] : ranges_) {
    for (uint32_t c = std::max(a, uint32_t{'A'}); c <= std::min(b, uint32_t{'Z'}); ++c) more.add(c + 32, c + 32);
    for (uint32_t c = std::max(a, uint32_t{'a'}); c <= std::min(b, uint32_t{'z'}); ++c) more.add(c - 32, c - 32);
  }
  add(more);
  normalise();
}

bool CharSet::disjoint(const CharSet& other) const {
  for (const auto& [a, b] : ranges_) {
    for (const auto& [c, d] : other.ranges_) {
      if (a <= d && c <= b) return false;
    }
  }
  return true;
}

bool CharSet::subset_of(const CharSet& other) const {
  return disjoint(other.complement());
}

namespace {

struct Utf8Pieces {
  Arena& arena;
  std::vector<NodeId> parts;

  static size_t encode(uint32_t c, uint8_t* out) {
    std::string s;
    append_utf8(s, c);
    const size_t n = std::min<size_t>(s.size(), 4);
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(s[i]);
    return n;
  }

  // All texts of n bytes between low and high, byte by byte.
  NodeId between(const uint8_t* low, const uint8_t* high, size_t n) {
    if (n == 1) return arena.bytes(ByteSet::range(low[0], high[0]));
    constexpr uint8_t kLow[3] = {0x80, 0x80, 0x80};
    constexpr uint8_t kHigh[3] = {0xbf, 0xbf, 0xbf};
    if (low[0] == high[0]) return arena.concat(arena.byte(low[0]), between(low + 1, high + 1, n - 1));
    uint32_t first = low[0];
    uint32_t last = high[0];
    std::vector<NodeId> out;
    if (!std::equal(low + 1, low + n, kLow)) {
      out.push_back(arena.concat(arena.byte(low[0]), between(low + 1, kHigh, n - 1)));
      ++first;
    }
    if (!std::equal(high + 1, high + n, kHigh)) {
      out.push_back(arena.concat(arena.byte(high[0]), between(kLow, high + 1, n - 1)));
      --last;
    }
    if (first <= last) {
      out.push_back(arena.concat(arena.bytes(ByteSet::range(first, last)), between(kLow, kHigh, n - 1)));
    }
    return arena.alt(std::move(out));
  }

  void add(uint32_t first, uint32_t last) {
    constexpr uint32_t kEnds[4] = {0x7f, 0x7ff, 0xffff, 0x10ffff};
    for (const uint32_t end : kEnds) {
      if (first > last) return;
      if (first > end) continue;
      uint32_t low = first;
      const uint32_t high = std::min(last, end);
      first = high + 1;
      uint8_t a[4];
      uint8_t b[4];
      if (end == 0xffff && low < 0xd800 && high > 0xdfff) {
        const size_t n = encode(low, a);
        encode(0xd7ff, b);
        parts.push_back(between(a, b, n));
        low = 0xe000;
      }
      const size_t n = encode(low, a);
      encode(high, b);
      parts.push_back(between(a, b, n));
    }
  }
};

}  // namespace

uint32_t utf8_class(Arena& arena, const CharSet& set) {
  Utf8Pieces pieces{arena, {}};
  for (const auto& [a, b] : set.ranges()) pieces.add(a, b);
  return arena.alt(std::move(pieces.parts));
}

void append_utf8(std::string& out, uint32_t c) {
  auto put = [&](uint32_t b) { out.push_back(static_cast<char>(static_cast<uint8_t>(b))); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0U | (c >> 6U));
    put(0x80U | (c & 0x3fU));
  } else if (c < 0x10000) {
    put(0xe0U | (c >> 12U));
    put(0x80U | ((c >> 6U) & 0x3fU));
    put(0x80U | (c & 0x3fU));
  } else {
    put(0xf0U | (c >> 18U));
    put(0x80U | ((c >> 12U) & 0x3fU));
    put(0x80U | ((c >> 6U) & 0x3fU));
    put(0x80U | (c & 0x3fU));
  }
}

std::optional<uint32_t> read_utf8(std::string_view text, size_t& at) {
  if (at >= text.size()) return std::nullopt;
  const auto lead = static_cast<uint8_t>(text[at]);
  if (lead < 0x80) {
    ++at;
    return lead;
  }
  const size_t n = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || at + n > text.size()) return std::nullopt;
  uint32_t c = lead & (0xffU >> (n + 1));
  for (size_t i = 1; i < n; ++i) {
    const auto b = static_cast<uint8_t>(text[at + i]);
    if ((b & 0xc0U) != 0x80) return std::nullopt;
    c = (c << 6U) | (b & 0x3fU);
  }
  constexpr uint32_t kLeast[5] = {0, 0, 0x80, 0x800, 0x10000};
  if (c < kLeast[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) return std::nullopt;
  at += n;
  return c;
}

size_t count_chars(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xc0U) != 0x80; }));
}

}  // namespace di::structured
