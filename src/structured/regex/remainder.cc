// Multiples of a number: an automaton whose states are remainders, made as they are met. A large divisor has too many
// of them to search for a way to the end: arithmetic finds the numbers that the other parts of a conjunction leave.
#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "structured/regex/arena.h"

namespace di::structured {
namespace {

// Phases: what has been read. From kFraction on, phase - kFraction digits follow the point.
constexpr uint32_t kStart = 0;
constexpr uint32_t kMinus = 1;
constexpr uint32_t kZero = 2;
constexpr uint32_t kWhole = 3;
constexpr uint32_t kPoint = 4;
constexpr uint32_t kFraction = 4;

constexpr uint64_t kFewRemainders = 16;  // so many are searched like any other states
constexpr uint32_t kMostDigits = 420;    // more than any plain number has
constexpr size_t kMostPlaces = 2'000;
constexpr uint8_t kEnds = 1;
constexpr uint8_t kGoesOn = 2;

uint64_t shifted(uint64_t value, uint32_t digits, uint64_t modulus) {
  value %= modulus;
  for (uint32_t i = 0; i < digits && value != 0; ++i) value = value * 10 % modulus;
  return value;
}

bool ends_here(const Divisor& d, Remainder at) {
  if (at.phase != kZero && at.phase != kWhole && at.phase <= kPoint) return false;
  const uint32_t read = at.phase > kPoint ? at.phase - kFraction : 0;
  return shifted(at.value, read < d.digits ? d.digits - read : 0, d.modulus) == 0;
}

uint64_t remainder_of(const std::string& digits, uint64_t modulus) {
  uint64_t r = 0;
  for (const char c : digits) r = (r * 10 + static_cast<uint64_t>(c - '0')) % modulus;
  return r;
}

// False when the sum needs more digits.
bool add(std::string& digits, uint64_t more) {
  for (size_t i = digits.size(); i > 0 && more > 0; --i) {
    more += static_cast<uint64_t>(digits[i - 1] - '0');
    digits[i - 1] = static_cast<char>('0' + more % 10);
    more /= 10;
  }
  return more == 0;
}

}  // namespace

NodeId Arena::multiple_of(uint64_t modulus, uint32_t digits) {
  Divisor d{modulus, digits, modulus};
  // v * 10^digits is a multiple of the modulus when v is one of what is left of it without its twos and fives in
  // 10^digits.
  for (uint32_t i = 0; i < digits; ++i) d.whole /= std::gcd(d.whole, uint64_t{10});
  large_divisors_ = large_divisors_ || modulus > kFewRemainders;
  const auto it = std::ranges::find(divisors_, d);
  const auto index = static_cast<uint32_t>(it - divisors_.begin());
  if (it == divisors_.end()) divisors_.push_back(d);
  return remainder(index, {0, kStart});
}

NodeId Arena::remainder(uint32_t divisor, Remainder at) {
  Node n;
  n.kind = NodeKind::kRemainder;
  n.a = divisor;
  n.b = static_cast<uint32_t>(at.value);
  n.max = static_cast<uint32_t>(at.value >> 32U);
  n.min = at.phase;
  n.boolean = true;
  n.nullable = ends_here(divisors_[divisor], at);
  return intern(n, {});
}

std::optional<Remainder> Arena::after(const Divisor& d, Remainder at, uint8_t byte) {
  if (byte < '0' || byte > '9') {
    if (byte == '-' && at.phase == kStart) return Remainder{at.value, kMinus};
    if (byte == '.' && (at.phase == kZero || at.phase == kWhole)) return Remainder{at.value, kPoint};
    return std::nullopt;
  }
  const uint64_t digit = uint64_t{byte} - '0';
  const uint64_t value = (at.value * 10 + digit) % d.modulus;
  if (at.phase == kStart || at.phase == kMinus) return Remainder{value, digit == 0 ? kZero : kWhole};
  if (at.phase == kZero) return std::nullopt;
  if (at.phase == kWhole) return Remainder{value, kWhole};
  if (at.phase - kFraction < d.digits) return Remainder{value, at.phase + 1};
  // Digits past those that count must be zeros; the phase stays behind the last one.
  if (digit != 0) return std::nullopt;
  return Remainder{at.value, kFraction + std::max(d.digits, 1U)};
}

NodeId Arena::derive_remainder(const Node& n, uint8_t byte) {
  const auto next = after(divisors_[n.a], {uint64_t{n.max} << 32U | n.b, n.min}, byte);
  return next ? remainder(n.a, *next) : kNothing;
}

// Of multiples of several numbers, those of their least common multiple.
void Arena::merge_divisors(std::vector<NodeId>& parts) {
  if (divisors_.size() < 2) return;
  NodeId first = kNothing;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Node n = nodes_[parts[i]];
    if (n.kind != NodeKind::kRemainder || n.min != kStart) continue;
    if (first == kNothing) {
      first = parts[i];
      continue;
    }
    if (parts[i] == first) continue;
    Divisor a = divisors_[nodes_[first].a];
    Divisor b = divisors_[n.a];
    const uint32_t digits = std::max(a.digits, b.digits);
    bool fits = true;
    for (Divisor* d : {&a, &b}) {
      for (; d->digits < digits && fits; ++d->digits) {
        fits = d->modulus <= kMaxModulus / 10;
        d->modulus *= fits ? 10 : 1;
      }
    }
    const uint64_t part = a.modulus / std::gcd(a.modulus, b.modulus);
    if (!fits || b.modulus > kMaxModulus / part) continue;
    const NodeId merged = multiple_of(part * b.modulus, digits);
    std::ranges::replace(parts, first, merged);
    parts[i] = first = merged;
  }
}

std::optional<Arena::Multiple> Arena::multiple(NodeId id) {
  if (!large_divisors_) return std::nullopt;
  const Node& n = nodes_[id];
  if (n.kind != NodeKind::kAnd && n.kind != NodeKind::kRemainder) return std::nullopt;
  NodeId found = kNothing;
  std::vector<NodeId> others;
  const auto kids = n.kind == NodeKind::kAnd ? children(id) : std::span<const NodeId>(&id, 1);
  for (const NodeId kid : kids) {
    const Node& k = nodes_[kid];
    if (found == kNothing && k.kind == NodeKind::kRemainder && divisors_[k.a].modulus > kFewRemainders) {
      found = kid;
    } else {
      others.push_back(kid);
    }
  }
  if (found == kNothing) return std::nullopt;
  const Node r = nodes_[found];
  return Multiple{both(std::move(others)), divisors_[r.a], {uint64_t{r.max} << 32U | r.b, r.min}};
}

// Whether the language is empty, where a large divisor would make the search too long; nothing: not such a case.
std::optional<bool> Arena::no_multiple(NodeId id) {
  const Node n = nodes_[id];
  if (n.kind == NodeKind::kAlt) {
    for (uint32_t i = 0; i < n.b; ++i) {
      if (!is_nothing(kids_[n.a + i])) return false;
    }
    return true;
  }
  if (n.kind == NodeKind::kConcat) {
    NodeId at = id;
    for (; nodes_[at].kind == NodeKind::kConcat; at = nodes_[at].b) {
      if (is_nothing(nodes_[at].a)) return true;
    }
    return is_nothing(at);
  }
  const auto m = multiple(id);
  if (!m) return std::nullopt;
  return !multiple_fits(m->others, m->divisor, m->at);
}

bool Arena::multiple_fits(NodeId others, const Divisor& d, Remainder at) {
  if (others == kNothing || is_nothing(others)) return false;
  if (ends_here(d, at) && nullable(others)) return true;
  if (at.phase == kStart || at.phase == kMinus) {
    return std::ranges::any_of(std::string_view("-0123456789"), [&](char c) {
      const auto next = after(d, at, static_cast<uint8_t>(c));
      return next && multiple_fits(step(others, static_cast<uint8_t>(c)), d, *next);
    });
  }
  auto missing = [](uint64_t value, uint64_t modulus) { return value == 0 ? 0 : modulus - value; };
  if (at.phase >= kPoint) {
    const uint32_t read = at.phase - kFraction;
    if (read < d.digits) {
      const uint32_t left = d.digits - read;
      return some_number(others, left, kNoLimit, missing(shifted(at.value, left, d.modulus), d.modulus), d.modulus);
    }
    if (at.value % d.modulus != 0) return false;
    NodeId zeros = others;
    for (uint32_t i = 0; i < kMostDigits && zeros != kNothing; ++i) {
      zeros = step(zeros, '0');
      if (zeros != kNothing && nullable(zeros)) return true;
    }
    return false;
  }
  // So many more whole digits, then the end or a point and all digits that count; the others are closed by value.
  const std::vector<uint8_t>& counts = digit_counts(others);
  const size_t most = at.phase == kZero ? 1 : counts.size();
  for (uint32_t k = 0; k < std::min(most, counts.size()); ++k) {
    const uint64_t whole = missing(shifted(at.value, k, d.whole), d.whole);
    if (k > 0 && (counts[k] & kEnds) != 0 && some_number(others, k, kNoLimit, whole, d.whole)) return true;
    if (d.digits == 0 || (counts[k] & kGoesOn) == 0) continue;
    const uint64_t all = missing(shifted(at.value, k + d.digits, d.modulus), d.modulus);
    if (some_number(others, k + d.digits, k, all, d.modulus)) return true;
  }
  return budget_.exhausted();
}

// By number of digits: whether a text can end after so many, and whether it can go on with a point.
const std::vector<uint8_t>& Arena::digit_counts(NodeId texts) {
  const auto [it, fresh] = digit_counts_.try_emplace(texts);
  if (!fresh) return it->second;
  std::vector<uint8_t> counts;
  std::vector<NodeId> level{texts};
  while (!level.empty() && counts.size() < kMostDigits && !budget_.exhausted()) {
    // Bounds and lists have few places; more are those of another divisor, which cannot be followed digit by digit.
    if (level.size() > kMostPlaces) budget_.fail("states");
    uint8_t flags = 0;
    std::vector<NodeId> next;
    for (const NodeId id : level) {
      if (!budget_.step()) break;
      if (nullable(id)) flags |= kEnds;
      if (step(id, '.') != kNothing) flags |= kGoesOn;
      for (uint8_t c = '0'; c <= '9'; ++c) {
        if (const NodeId to = step(id, c); to != kNothing) next.push_back(to);
      }
    }
    std::ranges::sort(next);
    next.erase(std::unique(next.begin(), next.end()), next.end());
    level = std::move(next);
    counts.push_back(flags);
  }
  std::vector<uint8_t>& kept = digit_counts_[texts];
  if (!budget_.exhausted()) kept = std::move(counts);
  return kept;
}

// Whether a text of so many digits, with a point before digit `point`, is in `texts` and as a number is `value` modulo
// `modulus`.
bool Arena::some_number(NodeId texts, uint32_t length, uint32_t point, uint64_t value, uint64_t modulus) {
  constexpr int kTries = 10'000;  // the others of a schema are few intervals: two or three do
  std::string digits = std::to_string(value);
  if (digits.size() > length) return false;
  digits.insert(0, length - digits.size(), '0');
  for (int i = 0; i < kTries; ++i) {
    if (!least_text(texts, point, digits)) return false;
    const uint64_t found = remainder_of(digits, modulus);
    if (found == value) return true;
    if (!add(digits, value > found ? value - found : value + (modulus - found))) return false;
  }
  budget_.fail("states");
  return false;
}

// Makes `digits` the least number of as many digits that is not below it and, with its point, one of the texts.
bool Arena::least_text(NodeId texts, uint32_t point, std::string& digits) {
  struct Level {
    NodeId node;
    int next;    // digit to try
    bool bound;  // as digits has it so far
  };
  const std::string low = digits;
  if (point == 0) texts = step(texts, '.');
  if (texts == kNothing) return false;
  std::vector<Level> levels{{texts, low[0] - '0', true}};
  std::unordered_set<uint64_t> dead;
  auto key = [](NodeId node, size_t at) { return uint64_t{node} << 32U | at; };
  while (!levels.empty()) {
    const size_t at = levels.size() - 1;
    Level& l = levels.back();
    if (at == low.size() && nullable(l.node)) return true;
    if (at == low.size() || l.next > 9) {
      if (!l.bound) dead.insert(key(l.node, at));
      levels.pop_back();
      continue;
    }
    if (!budget_.step()) return false;
    const int digit = l.next++;
    NodeId to = step(l.node, static_cast<uint8_t>('0' + digit));
    if (at + 1 == point && to != kNothing) to = step(to, '.');
    const bool bound = l.bound && digit == low[at] - '0';
    if (to == kNothing || (!bound && dead.contains(key(to, at + 1)))) continue;
    digits[at] = static_cast<char>('0' + digit);
    levels.push_back({to, bound && at + 1 < low.size() ? low[at + 1] - '0' : 0, bound});
  }
  return false;
}

}  // namespace di::structured
