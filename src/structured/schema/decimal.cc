#include "structured/schema/decimal.h"

#include <algorithm>

namespace di::structured {
namespace {

// structured-output.md §4.6 would have 40; the bignum group of the JSON Schema test suite has a number of 53 digits.
constexpr uint32_t kWholeDigits = 64;
constexpr uint32_t kFractionDigits = 20;

NodeId digits(Arena& a, uint32_t min, uint32_t max) {
  return a.repeat(a.bytes(ByteSet::range('0', '9')), min, max);
}
NodeId digit_between(Arena& a, int low, int high) {
  return low > high ? kNothing
                    : a.bytes(ByteSet::range('0' + static_cast<uint32_t>(low), '0' + static_cast<uint32_t>(high)));
}
NodeId any_fraction(Arena& a) {
  return a.optional(a.concat(a.byte('.'), digits(a, 1, kFractionDigits)));
}
NodeId zero_fraction(Arena& a) {
  return a.optional(a.concat(a.byte('.'), a.repeat(a.byte('0'), 1, kFractionDigits)));
}

size_t run(const std::string& fraction) {
  return std::max<size_t>(kFractionDigits, fraction.size() + 2);
}

// Fractions (with the point, or empty) greater than f; or equal too.
NodeId fraction_above(Arena& a, const std::string& f, bool equal) {
  const auto most = static_cast<uint32_t>(run(f));
  std::vector<NodeId> parts;
  auto left = [&](size_t used) { return most - static_cast<uint32_t>(used); };
  for (size_t i = 0; i < f.size(); ++i) {
    parts.push_back(
        a.concat({a.literal("." + f.substr(0, i)), digit_between(a, f[i] - '0' + 1, 9), digits(a, 0, left(i + 1))}));
  }
  // Longer than f with something in it.
  const NodeId zeros = a.repeat(a.byte('0'), 0, left(f.size()) - 1);
  parts.push_back(a.concat({a.literal("." + f), zeros, digit_between(a, 1, 9), digits(a, 0, left(f.size()) - 1)}));
  if (equal) {
    if (f.empty()) {
      parts.push_back(zero_fraction(a));
    } else {
      parts.push_back(a.concat(a.literal("." + f), a.repeat(a.byte('0'), 0, left(f.size()))));
    }
  }
  return a.alt(std::move(parts));
}

NodeId fraction_below(Arena& a, const std::string& f, bool equal) {
  const auto most = static_cast<uint32_t>(run(f));
  std::vector<NodeId> parts;
  auto left = [&](size_t used) { return most - static_cast<uint32_t>(used); };
  for (size_t i = 0; i < f.size(); ++i) {
    // f[0..i) then a smaller digit, or the end.
    const std::string head = "." + f.substr(0, i);
    parts.push_back(a.concat({a.literal(head), digit_between(a, 0, f[i] - '0' - 1), digits(a, 0, left(i + 1))}));
    parts.push_back(i == 0 ? kEmptyText : a.literal(head));
  }
  if (equal) {
    if (f.empty()) {
      parts.push_back(zero_fraction(a));
    } else {
      parts.push_back(a.concat(a.literal("." + f), a.repeat(a.byte('0'), 0, left(f.size()))));
    }
  }
  return a.alt(std::move(parts));
}

// Unsigned texts with a value above (or at) d.
NodeId magnitude_above(Arena& a, const Decimal& d, bool equal) {
  const std::string& w = d.whole;
  const auto n = static_cast<uint32_t>(w.size());
  const uint32_t most = std::max(kWholeDigits, n + 2);
  std::vector<NodeId> parts;
  // More digits.
  parts.push_back(a.concat({digit_between(a, 1, 9), digits(a, n, most - 1), any_fraction(a)}));
  for (uint32_t i = 0; i < n; ++i) {
    parts.push_back(a.concat({a.literal(w.substr(0, i)), digit_between(a, w[i] - '0' + 1, 9),
                              digits(a, n - i - 1, n - i - 1), any_fraction(a)}));
  }
  parts.push_back(a.concat(a.literal(w), fraction_above(a, d.fraction, equal)));
  return a.alt(std::move(parts));
}

NodeId magnitude_below(Arena& a, const Decimal& d, bool equal) {
  const std::string& w = d.whole;
  const auto n = static_cast<uint32_t>(w.size());
  std::vector<NodeId> parts;
  if (n > 1) {
    parts.push_back(a.concat(a.byte('0'), any_fraction(a)));
    parts.push_back(a.concat({digit_between(a, 1, 9), digits(a, 0, n - 2), any_fraction(a)}));
  }
  for (uint32_t i = 0; i < n; ++i) {
    const int low = i == 0 && n > 1 ? 1 : 0;
    parts.push_back(a.concat({a.literal(w.substr(0, i)), digit_between(a, low, w[i] - '0' - 1),
                              digits(a, n - i - 1, n - i - 1), any_fraction(a)}));
  }
  parts.push_back(a.concat(a.literal(w), fraction_below(a, d.fraction, equal)));
  return a.alt(std::move(parts));
}

NodeId magnitude(Arena& a) {
  return a.concat(a.alt(a.byte('0'), a.concat(digit_between(a, 1, 9), digits(a, 0, kWholeDigits - 1))),
                  any_fraction(a));
}

}  // namespace

std::optional<Decimal> Decimal::parse(std::string_view text) {
  Decimal d;
  size_t at = 0;
  if (at < text.size() && text[at] == '-') {
    d.negative = true;
    ++at;
  }
  std::string all;
  int64_t point = -1;
  for (; at < text.size() && text[at] != 'e' && text[at] != 'E'; ++at) {
    if (text[at] == '.') {
      point = static_cast<int64_t>(all.size());
    } else {
      all.push_back(text[at]);
    }
  }
  if (point < 0) point = static_cast<int64_t>(all.size());
  if (at < text.size()) {
    ++at;
    const bool down = at < text.size() && text[at] == '-';
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    int64_t exponent = 0;
    for (; at < text.size(); ++at) exponent = std::min<int64_t>(exponent * 10 + (text[at] - '0'), 100'000);
    point += down ? -exponent : exponent;
  }
  if (all.find_first_not_of('0') == std::string::npos) return Decimal{d.negative, "0", ""};
  if (point > 400 || point < -400 || all.size() > 400) return std::nullopt;
  if (point < 0) {
    all.insert(0, static_cast<size_t>(-point), '0');
    point = 0;
  }
  if (point > static_cast<int64_t>(all.size())) all.append(static_cast<size_t>(point) - all.size(), '0');
  d.whole = all.substr(0, static_cast<size_t>(point));
  d.fraction = all.substr(static_cast<size_t>(point));
  d.whole.erase(0, std::min(d.whole.find_first_not_of('0'), d.whole.size()));
  if (d.whole.empty()) d.whole = "0";
  while (!d.fraction.empty() && d.fraction.back() == '0') d.fraction.pop_back();
  return d;
}

std::string Decimal::text() const {
  return (negative && !is_zero() ? "-" : "") + whole + (fraction.empty() ? "" : "." + fraction);
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.is_zero() && b.is_zero()) return 0;
  const bool an = a.negative && !a.is_zero();
  const bool bn = b.negative && !b.is_zero();
  if (an != bn) return an ? -1 : 1;
  int m = a.whole.size() != b.whole.size() ? (a.whole.size() < b.whole.size() ? -1 : 1) : a.whole.compare(b.whole);
  if (m == 0) m = a.fraction.compare(b.fraction);
  m = m < 0 ? -1 : m > 0 ? 1 : 0;
  return an ? -m : m;
}

NodeId plain_numbers(Arena& a) {
  return a.concat(a.optional(a.byte('-')), magnitude(a));
}

NodeId all_numbers(Arena& a) {
  const NodeId sign = a.optional(a.alt(a.byte('+'), a.byte('-')));
  const NodeId e = a.alt(a.byte('e'), a.byte('E'));
  const NodeId whole = a.alt(a.byte('0'), a.concat(digit_between(a, 1, 9), digits(a, 0, kWholeDigits - 1)));
  const NodeId fraction = a.optional(a.concat(a.byte('.'), digits(a, 1, kWholeDigits)));
  return a.concat({a.optional(a.byte('-')), whole, fraction, a.optional(a.concat({e, sign, digits(a, 1, 3)}))});
}

NodeId integer_texts(Arena& a) {
  const NodeId positive = a.concat(digit_between(a, 1, 9), digits(a, 0, 399));
  return a.alt(a.byte('0'), a.concat(a.optional(a.byte('-')), positive));
}

NodeId whole_numbers(Arena& a) {
  const NodeId whole = a.alt(a.byte('0'), a.concat(digit_between(a, 1, 9), digits(a, 0, kWholeDigits - 1)));
  return a.concat({a.optional(a.byte('-')), whole, zero_fraction(a)});
}

NodeId at_least(Arena& a, const NumberBound& b) {
  const NodeId minus = a.byte('-');
  if (b.value.is_zero()) {
    const NodeId zero = a.concat(a.byte('0'), zero_fraction(a));
    if (!b.exclusive) return a.alt(magnitude(a), a.concat(minus, zero));
    return magnitude_above(a, b.value, false);
  }
  if (!b.value.negative) return magnitude_above(a, b.value, !b.exclusive);
  return a.alt(magnitude(a), a.concat(minus, magnitude_below(a, b.value, !b.exclusive)));
}

NodeId at_most(Arena& a, const NumberBound& b) {
  const NodeId minus = a.byte('-');
  if (b.value.is_zero()) {
    if (b.exclusive) return a.concat(minus, magnitude_above(a, b.value, false));
    return a.alt(a.concat(minus, magnitude(a)), a.concat(a.byte('0'), zero_fraction(a)));
  }
  if (b.value.negative) return a.concat(minus, magnitude_above(a, b.value, !b.exclusive));
  return a.alt(a.concat(minus, magnitude(a)), magnitude_below(a, b.value, !b.exclusive));
}

NodeId number_equal(Arena& a, const Decimal& d) {
  NodeId m = a.literal(d.whole);
  if (d.fraction.empty()) {
    m = a.concat(m, zero_fraction(a));
  } else {
    m = a.concat({m, a.literal("." + d.fraction), a.repeat(a.byte('0'), 0, kFractionDigits)});
  }
  if (d.is_zero()) return a.concat(a.optional(a.byte('-')), m);
  return d.negative ? a.concat(a.byte('-'), m) : m;
}

}  // namespace di::structured
