#include "structured/regex/char_set.h"
#include "structured/regex/unicode_table.h"

namespace di::structured {
namespace {

struct Group {
  std::string_view long_name;
  std::string_view short_name;
};

// Groups of categories: all whose short name begins so.
constexpr Group kGroups[] = {{"Letter", "L"},         {"Mark", "M"},   {"Number", "N"},    {"Punctuation", "P"},
                             {"punct", "P"},          {"Symbol", "S"}, {"Separator", "Z"}, {"Other", "C"},
                             {"Combining_Mark", "M"}, {"digit", "Nd"}, {"cntrl", "Cc"}};

}  // namespace

std::optional<CharSet> unicode_property(std::string_view name) {
  bool category = true;
  bool script = true;
  if (const size_t eq = name.find('='); eq != std::string_view::npos) {
    const std::string_view key = name.substr(0, eq);
    category = key == "General_Category" || key == "gc";
    script = key == "Script" || key == "sc" || key == "Script_Extensions" || key == "scx";
    name = name.substr(eq + 1);
    if (!category && !script) return std::nullopt;
  } else if (name == "Any") {
    return CharSet::all();
  } else if (name == "ASCII") {
    return CharSet::of(0, 127);
  } else if (name == "Alphabetic" || name == "Alpha") {
    name = "L";
  } else if (name == "Uppercase" || name == "Lowercase") {
    name = name == "Uppercase" ? "Lu" : "Ll";
  }
  std::string_view prefix = name.size() == 1 ? name : std::string_view();
  for (const Group& g : kGroups) {
    if (name == g.long_name) prefix = g.short_name;
  }
  CharSet out;
  for (const UnicodeEntry& e : unicode_entries()) {
    const bool is_category = e.kind == UnicodeKind::kCategory;
    if (is_category ? !category : !script) continue;
    const bool hit =
        is_category && !prefix.empty() ? e.name.starts_with(prefix) : name == e.name || name == e.long_name;
    if (!hit) continue;
    for (const UnicodeRange& r : e.ranges) out.add(r.first, r.last);
  }
  out.normalise();
  if (out.empty()) return std::nullopt;
  return out;
}

}  // namespace di::structured
