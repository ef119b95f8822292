// A set of bytes as four words. Plain value type.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace di::structured {

struct ByteSet {
  std::array<uint64_t, 4> words{};

  static ByteSet of(uint8_t byte) {
    ByteSet s;
    s.add(byte);
    return s;
  }
  static ByteSet range(uint32_t low, uint32_t high) {
    ByteSet s;
    for (uint32_t b = low; b <= high; ++b) s.add(static_cast<uint8_t>(b));
    return s;
  }
  void add(uint8_t byte) { words[byte >> 6U] |= uint64_t{1} << (byte & 63U); }
  bool has(uint8_t byte) const { return ((words[byte >> 6U] >> (byte & 63U)) & 1U) != 0; }
  bool empty() const { return (words[0] | words[1] | words[2] | words[3]) == 0; }
  ByteSet& operator|=(const ByteSet& o) {
    for (std::size_t i = 0; i < 4; ++i) words[i] |= o.words[i];
    return *this;
  }
  friend bool operator==(const ByteSet&, const ByteSet&) = default;
};

}  // namespace di::structured
