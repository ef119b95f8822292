// General_Category and Script of Unicode as ranges; the table is generated (tools/make_structured_unicode.py).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace di::structured {

struct UnicodeRange {
  uint32_t first;
  uint32_t last;
};

enum class UnicodeKind : uint8_t { kCategory, kScript };

struct UnicodeEntry {
  UnicodeKind kind;
  std::string_view name;       // "Lu", "Grek"
  std::string_view long_name;  // "Uppercase_Letter", "Greek"
  std::span<const UnicodeRange> ranges;
};

std::span<const UnicodeEntry> unicode_entries();

}  // namespace di::structured
