// Sets of Unicode code points as sorted disjoint ranges, and their UTF-8 as byte expressions. Surrogates are never
// members.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace di::structured {

class Arena;

class CharSet {
 public:
  using Range = std::pair<uint32_t, uint32_t>;  // first and last code point
  CharSet() = default;
  static CharSet all();
  static CharSet of(uint32_t first, uint32_t last);

  void add(uint32_t first, uint32_t last);
  void add(const CharSet& other);
  // Sorts and joins; every reader below needs a normalised set, add() leaves one behind only after normalise().
  void normalise();
  CharSet complement() const;
  bool contains(uint32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }
  // The other case of ASCII letters too.
  void fold_case();
  bool subset_of(const CharSet& other) const;
  bool disjoint(const CharSet& other) const;

 private:
  std::vector<Range> ranges_;
};

uint32_t utf8_class(Arena& arena, const CharSet& set);
void append_utf8(std::string& out, uint32_t code_point);
// Reads one code point at `at` and moves on; nothing when the text is not valid UTF-8 there.
std::optional<uint32_t> read_utf8(std::string_view text, size_t& at);
// Number of code points of valid UTF-8.
size_t count_chars(std::string_view text);

// Sets by name: General_Category ("Lu", "Letter"), Script ("Greek", "Script=Grek"); nothing when unknown.
std::optional<CharSet> unicode_property(std::string_view name);

}  // namespace di::structured
