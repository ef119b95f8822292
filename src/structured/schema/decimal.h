// Decimal numbers of any size, and the texts of numbers within bounds (structured-output.md §4.6).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "structured/regex/arena.h"

namespace di::structured {

// sign, whole digits without leading zeros ("0" alone), fraction digits without trailing zeros.
struct Decimal {
  bool negative = false;
  std::string whole = "0";
  std::string fraction;

  // A JSON number; nothing when its plain form would have more than 400 digits.
  static std::optional<Decimal> parse(std::string_view text);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  bool is_whole() const { return fraction.empty(); }
  std::string text() const;
};

int compare(const Decimal& a, const Decimal& b);

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};

// Plain texts: -?whole[.fraction], no exponent; runs of at most 64 digits (20 in fractions; longer where a bound needs
// it). A set of numbers is kept "closed by value": with a number all its plain spellings.
NodeId plain_numbers(Arena& arena);
// As JSON has them, exponents included.
NodeId all_numbers(Arena& arena);
// Spelling of integers: no fraction, no minus zero.
NodeId integer_texts(Arena& arena);
// All plain spellings of whole numbers (5, 5.0, ...).
NodeId whole_numbers(Arena& arena);
NodeId at_least(Arena& arena, const NumberBound& bound);
NodeId at_most(Arena& arena, const NumberBound& bound);
NodeId number_equal(Arena& arena, const Decimal& value);

}  // namespace di::structured
