// Syntax tree of a pattern.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "structured/error.h"
#include "structured/regex/char_set.h"
#include "structured/regex/pattern.h"

namespace di::structured {

enum class SyntaxKind : uint8_t {
  kEmpty,
  kClass,
  kConcat,
  kAlt,
  kRepeat,
  kTextStart,
  kTextEnd,
  kLookAhead,
  kLookBehind,
  kWordBorder
};

struct Syntax {
  SyntaxKind kind = SyntaxKind::kEmpty;
  bool negated = false;  // looks and borders
  bool plain = true;     // holds no assertion
  uint32_t min = 0;
  uint32_t max = 0;
  uint32_t set = 0;  // kClass: index into sets
  std::vector<uint32_t> kids;
};

struct SyntaxTree {
  std::vector<Syntax> nodes;
  std::vector<CharSet> sets;
  uint32_t root = 0;
};

Expected<SyntaxTree> parse_pattern(std::string_view pattern, PatternUse use, const PatternLimits& limits);

// Characters of \s, \w and \d (ECMA).
CharSet space_set();
CharSet word_set();
CharSet digit_set();

}  // namespace di::structured
