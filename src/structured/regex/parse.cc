// Parser of patterns: an explicit stack of open groups, no recursion.
#include <fmt/format.h>

#include "structured/regex/syntax.h"

namespace di::structured {

CharSet space_set() {
  CharSet s;
  s.add(9, 13);
  s.add(0x20, 0x20);
  s.add(0xa0, 0xa0);
  s.add(0x1680, 0x1680);
  s.add(0x2000, 0x200a);
  s.add(0x2028, 0x2029);
  s.add(0x202f, 0x202f);
  s.add(0x205f, 0x205f);
  s.add(0x3000, 0x3000);
  s.add(0xfeff, 0xfeff);
  s.normalise();
  return s;
}

CharSet digit_set() {
  return CharSet::of('0', '9');
}

CharSet word_set() {
  CharSet s;
  s.add('0', '9');
  s.add('A', 'Z');
  s.add('_', '_');
  s.add('a', 'z');
  s.normalise();
  return s;
}

namespace {

std::optional<CharSet> posix_class(std::string_view name) {
  CharSet s;
  if (name == "alpha" || name == "alnum" || name == "upper") s.add('A', 'Z');
  if (name == "alpha" || name == "alnum" || name == "lower") s.add('a', 'z');
  if (name == "digit" || name == "alnum" || name == "xdigit") s.add('0', '9');
  if (name == "xdigit") {
    s.add('a', 'f');
    s.add('A', 'F');
  }
  if (name == "space") s.add(9, 13);
  if (name == "space" || name == "blank" || name == "print") s.add(' ', ' ');
  if (name == "blank") s.add(9, 9);
  if (name == "word") s.add(word_set());
  if (name == "print" || name == "graph") s.add(0x21, 0x7e);
  if (name == "cntrl") {
    s.add(0, 31);
    s.add(127, 127);
  }
  if (name == "punct") {
    s.add(0x21, 0x2f);
    s.add(0x3a, 0x40);
    s.add(0x5b, 0x60);
    s.add(0x7b, 0x7e);
  }
  if (s.empty()) return std::nullopt;
  s.normalise();
  return s;
}

class Parser {
 public:
  Parser(std::string_view text, PatternUse use, const PatternLimits& limits)
      : text_(text), use_(use), limits_(limits) {}

  Expected<SyntaxTree> run() {
    if (text_.starts_with("(?i)")) {
      fold_ = true;
      at_ = 4;
    }
    groups_.emplace_back();
    while (at_ < text_.size()) {
      if (auto done = term(); !done) return std::unexpected(done.error());
    }
    if (groups_.size() != 1)
      return refuse("invalid_regex", fmt::format("group opened at offset {} is not closed", groups_.back().offset));
    tree_.root = close(groups_.back());
    return std::move(tree_);
  }

 private:
  struct Group {
    std::vector<uint32_t> branches;
    std::vector<uint32_t> items;
    SyntaxKind look = SyntaxKind::kConcat;  // kLookAhead, kLookBehind, else a plain group
    bool negated = false;
    size_t offset = 0;
  };
  using Done = Expected<bool>;

  std::unexpected<CompileError> bad(std::string_view what) const {
    return refuse("invalid_regex", fmt::format("at offset {}: {}", at_, what));
  }
  std::unexpected<CompileError> unsupported(std::string_view what) const {
    return refuse("unsupported_regex_feature", fmt::format("at offset {}: {} is not supported", at_, what));
  }
  bool next_is(std::string_view s) const { return text_.substr(at_).starts_with(s); }

  uint32_t add(Syntax n) {
    for (const uint32_t k : n.kids) n.plain = n.plain && tree_.nodes[k].plain;
    if (n.kind >= SyntaxKind::kTextStart) n.plain = false;
    tree_.nodes.push_back(std::move(n));
    return static_cast<uint32_t>(tree_.nodes.size() - 1);
  }

  uint32_t add_class(CharSet set) {
    set.normalise();
    if (fold_) set.fold_case();
    tree_.sets.push_back(std::move(set));
    Syntax n;
    n.kind = SyntaxKind::kClass;
    n.set = static_cast<uint32_t>(tree_.sets.size() - 1);
    return add(std::move(n));
  }

  uint32_t concat(std::vector<uint32_t> items) {
    if (items.size() == 1) return items[0];
    Syntax n;
    n.kind = items.empty() ? SyntaxKind::kEmpty : SyntaxKind::kConcat;
    n.kids = std::move(items);
    return add(std::move(n));
  }

  uint32_t close(Group& g) {
    g.branches.push_back(concat(std::move(g.items)));
    uint32_t body = g.branches[0];
    if (g.branches.size() > 1) {
      Syntax n;
      n.kind = SyntaxKind::kAlt;
      n.kids = std::move(g.branches);
      body = add(std::move(n));
    }
    if (g.look == SyntaxKind::kConcat) return body;
    Syntax n;
    n.kind = g.look;
    n.negated = g.negated;
    n.kids = {body};
    return add(std::move(n));
  }

  Done term() {
    const char c = text_[at_];
    Group& g = groups_.back();
    switch (c) {
      case '(':
        return open_group();
      case ')': {
        if (groups_.size() == 1) return bad("unmatched `)`");
        ++at_;
        Group top = std::move(groups_.back());
        groups_.pop_back();
        const bool plain_group = top.look == SyntaxKind::kConcat;
        return push(close(top), plain_group);
      }
      case '|':
        ++at_;
        g.branches.push_back(concat(std::move(g.items)));
        g.items.clear();
        return true;
      case '^':
      case '$': {
        ++at_;
        return push_kind(c == '^' ? SyntaxKind::kTextStart : SyntaxKind::kTextEnd, false);
      }
      case '*':
      case '+':
      case '?':
        return bad("nothing to repeat");
      case '.': {
        ++at_;
        CharSet s;
        s.add('\n', '\n');
        if (use_ == PatternUse::kSearch) {
          s.add('\r', '\r');
          s.add(0x2028, 0x2029);
        }
        s.normalise();
        return push(add_class(s.complement()));
      }
      case '[':
        return char_class();
      case '\\':
        return escape();
      default: {
        const auto code = read_utf8(text_, at_);
        if (!code) return bad("not valid UTF-8");
        return push(add_class(CharSet::of(*code, *code)));
      }
    }
  }

  Done push_kind(SyntaxKind kind, bool negated) {
    Syntax n;
    n.kind = kind;
    n.negated = negated;
    return push(add(std::move(n)));
  }

  // group: the item stood in parentheses of its own, so that even an assertion may be repeated.
  Done push(uint32_t item, bool group = false) {
    uint32_t min = 0;
    uint32_t max = kNoLimit;
    const size_t from = at_;
    const auto q = quantifier(min, max);
    if (!q) return std::unexpected(q.error());
    if (*q) {
      const bool behind_only = tree_.nodes[item].kind == SyntaxKind::kLookBehind;
      if (behind_only && !group) {
        at_ = from;
        return bad("nothing to repeat");
      }
      if (!behind_only || min == 0 || max == 0) {  // an assertion that holds once holds again
        Syntax n;
        n.kind = behind_only ? SyntaxKind::kEmpty : SyntaxKind::kRepeat;
        n.min = min;
        n.max = max;
        if (!behind_only) n.kids = {item};
        item = add(std::move(n));
      }
      const size_t behind = at_;
      uint32_t again = 0;
      const auto second = quantifier(again, again);
      if (!second) return std::unexpected(second.error());
      if (*second) {  // repeats are not repeated: a**
        at_ = behind;
        return bad("nothing to repeat");
      }
    }
    groups_.back().items.push_back(item);
    return true;
  }

  Done quantifier(uint32_t& min, uint32_t& max) {
    if (at_ >= text_.size()) return false;
    const char c = text_[at_];
    if (c == '*' || c == '+' || c == '?') {
      min = c == '+' ? 1 : 0;
      max = c == '?' ? 1 : kNoLimit;
      ++at_;
    } else if (c == '{') {
      const size_t from = at_;
      size_t p = at_ + 1;
      auto number = [&](uint64_t& v) {
        const size_t start = p;
        v = 0;
        while (p < text_.size() && text_[p] >= '0' && text_[p] <= '9') {
          v = std::min<uint64_t>(v * 10 + static_cast<uint64_t>(text_[p] - '0'), UINT32_MAX);
          ++p;
        }
        return p > start;
      };
      uint64_t low = 0;
      uint64_t high = 0;
      if (!number(low)) return false;  // Annex B: a brace that is no quantifier is a literal
      bool open = false;
      high = low;
      if (p < text_.size() && text_[p] == ',') {
        ++p;
        open = !number(high);
      }
      if (p >= text_.size() || text_[p] != '}') return false;
      at_ = p + 1;
      if (!open && high < low) {
        at_ = from;
        return bad("repeat bounds are in the wrong order");
      }
      if (low > limits_.max_repeat || (!open && high > limits_.max_repeat)) {
        return refuse("constraint_too_complex",
                      fmt::format("at offset {}: repeat bound above {}", from, limits_.max_repeat));
      }
      min = static_cast<uint32_t>(low);
      max = open ? kNoLimit : static_cast<uint32_t>(high);
    } else {
      return false;
    }
    if (at_ < text_.size() && text_[at_] == '?') ++at_;
    if (at_ < text_.size() && text_[at_] == '+') return unsupported("a possessive quantifier");
    return true;
  }

  Done open_group() {
    Group g;
    g.offset = at_;
    if (groups_.size() > limits_.max_nesting)
      return refuse("constraint_too_complex",
                    fmt::format("at offset {}: groups nested deeper than {}", at_, limits_.max_nesting));
    ++at_;
    if (next_is("?")) {
      if (next_is("?:")) {
        at_ += 2;
      } else if (next_is("?=") || next_is("?!")) {
        g.look = SyntaxKind::kLookAhead;
        g.negated = text_[at_ + 1] == '!';
        at_ += 2;
      } else if (next_is("?<=") || next_is("?<!")) {
        g.look = SyntaxKind::kLookBehind;
        g.negated = text_[at_ + 2] == '!';
        at_ += 3;
      } else if (next_is("?<") || next_is("?P<")) {
        const size_t end = text_.find('>', at_);
        if (end == std::string_view::npos) return bad("group name is not closed");
        at_ = end + 1;
      } else if (next_is("?>")) {
        return unsupported("an atomic group");
      } else if (next_is("?(")) {
        return unsupported("a conditional");
      } else if (next_is("?P=") || next_is("?R") || next_is("?&") || next_is("?P>")) {
        return unsupported("a back-reference or recursion");
      } else if (next_is("?i") || next_is("?m") || next_is("?s") || next_is("?x") || next_is("?-")) {
        return unsupported("an inline flag that is not (?i) at the start");
      } else {
        return bad("unknown group");
      }
    }
    groups_.push_back(std::move(g));
    return true;
  }

  Expected<uint32_t> hex(size_t digits) {
    uint32_t v = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      if (at_ >= text_.size()) return bad("hexadecimal digit expected");
      const char c = text_[at_];
      uint32_t d = 0;
      if (c >= '0' && c <= '9') {
        d = static_cast<uint32_t>(c - '0');
      } else if ((c | 32) >= 'a' && (c | 32) <= 'f') {
        d = static_cast<uint32_t>((c | 32) - 'a') + 10;
      } else {
        return bad("hexadecimal digit expected");
      }
      v = v * 16 + d;
    }
    return v;
  }

  // After a backslash: one character or a set. Nothing for escapes that mean something else.
  Expected<std::optional<CharSet>> escaped_set() {
    const char c = text_[at_];
    auto one = [](uint32_t code) { return std::optional(CharSet::of(code, code)); };
    ++at_;
    switch (c) {
      case 'd':
        return std::optional(digit_set());
      case 'D':
        return std::optional(digit_set().complement());
      case 'w':
        return std::optional(word_set());
      case 'W':
        return std::optional(word_set().complement());
      case 's':
        return std::optional(space_set());
      case 'S':
        return std::optional(space_set().complement());
      case 'h': {
        CharSet s = CharSet::of(' ', ' ');
        s.add(9, 9);
        s.normalise();
        return std::optional(s);
      }
      case 't':
        return one(9);
      case 'n':
        return one(10);
      case 'v':
        return one(11);
      case 'f':
        return one(12);
      case 'r':
        return one(13);
      case '0':
        return one(0);
      case 'x': {
        auto v = hex(2);
        if (!v) return std::unexpected(v.error());
        return one(*v);
      }
      case 'u': {
        auto v = unicode_escape();
        if (!v) return std::unexpected(v.error());
        return one(*v);
      }
      case 'c':
        if (at_ < text_.size() && ((text_[at_] | 32) >= 'a' && (text_[at_] | 32) <= 'z')) {
          return one(static_cast<uint32_t>(text_[at_++]) & 31U);
        }
        return bad("letter expected after \\c");
      case 'p':
      case 'P':
        return property(c == 'P');
      default:
        break;
    }
    if ((c >= '1' && c <= '9') || c == 'k') return unsupported("a back-reference");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return std::optional<CharSet>();
    --at_;
    const auto code = read_utf8(text_, at_);
    if (!code) return bad("not valid UTF-8");
    return one(*code);
  }

  Expected<uint32_t> unicode_escape() {
    if (next_is("{")) {
      const size_t end = text_.find('}', at_);
      if (end == std::string_view::npos || end - at_ < 2 || end - at_ > 9) return bad("malformed \\u{...}");
      ++at_;
      auto v = hex(end - at_);
      if (!v) return v;
      ++at_;
      if (*v > 0x10ffff) return bad("code point above U+10FFFF");
      return v;
    }
    auto v = hex(4);
    if (!v) return v;
    if (*v >= 0xd800 && *v <= 0xdbff && next_is("\\u")) {
      const size_t save = at_;
      at_ += 2;
      auto low = hex(4);
      if (low && *low >= 0xdc00 && *low <= 0xdfff) return 0x10000 + ((*v - 0xd800) << 10U) + (*low - 0xdc00);
      at_ = save;
    }
    return v;
  }

  Expected<std::optional<CharSet>> property(bool negated) {
    std::string_view name;
    if (next_is("{")) {
      const size_t end = text_.find('}', at_);
      if (end == std::string_view::npos) return bad("property name is not closed");
      name = text_.substr(at_ + 1, end - at_ - 1);
      at_ = end + 1;
    } else {
      name = text_.substr(at_, 1);
      ++at_;
    }
    auto set = unicode_property(name);
    if (!set) return bad(fmt::format("unknown Unicode property `{}`", name));
    return std::optional(negated ? set->complement() : *set);
  }

  Done escape() {
    ++at_;
    if (at_ >= text_.size()) return bad("pattern ends in a backslash");
    const char c = text_[at_];
    if (c == 'b' || c == 'B') {
      ++at_;
      return push_kind(SyntaxKind::kWordBorder, c == 'B');
    }
    if (c == 'A' || c == 'Z' || c == 'z') {
      ++at_;
      return push_kind(c == 'A' ? SyntaxKind::kTextStart : SyntaxKind::kTextEnd, false);
    }
    auto set = escaped_set();
    if (!set) return std::unexpected(set.error());
    if (!*set) return bad(fmt::format("unknown escape `\\{}`", c));
    return push(add_class(std::move(**set)));
  }

  // One member of a class: a set, or a single character that may begin a range.
  Expected<CharSet> class_member(bool& single) {
    single = true;
    if (next_is("[:")) {
      const size_t end = text_.find(":]", at_);
      if (end != std::string_view::npos) {
        if (auto set = posix_class(text_.substr(at_ + 2, end - at_ - 2))) {
          at_ = end + 2;
          single = false;
          return *set;
        }
      }
    }
    if (text_[at_] == '\\') {
      ++at_;
      if (at_ >= text_.size()) return bad("class is not closed");
      if (text_[at_] == 'b') {
        ++at_;
        return CharSet::of(8, 8);
      }
      const char c = text_[at_];
      auto set = escaped_set();
      if (!set) return std::unexpected(set.error());
      if (!*set) return bad(fmt::format("unknown escape `\\{}`", c));
      single = (*set)->ranges().size() == 1 && (*set)->ranges()[0].first == (*set)->ranges()[0].second;
      return **set;
    }
    const auto code = read_utf8(text_, at_);
    if (!code) return bad("not valid UTF-8");
    return CharSet::of(*code, *code);
  }

  Done char_class() {
    const size_t from = at_;
    ++at_;
    bool negated = false;
    if (next_is("^")) {
      negated = true;
      ++at_;
    }
    CharSet set;
    for (;;) {
      if (at_ >= text_.size()) {
        at_ = from;
        return bad("class is not closed");
      }
      if (text_[at_] == ']') break;
      bool single = false;
      auto low = class_member(single);
      if (!low) return std::unexpected(low.error());
      if (single && next_is("-") && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        const size_t dash = at_;
        ++at_;
        bool high_single = false;
        auto high = class_member(high_single);
        if (!high) return std::unexpected(high.error());
        if (high_single && !low->empty() && !high->empty()) {
          const uint32_t a = low->ranges()[0].first;
          const uint32_t b = high->ranges()[0].first;
          if (b < a) {
            at_ = dash;
            return bad("range is in the wrong order");
          }
          set.add(a, b);
          continue;
        }
        set.add('-', '-');
        set.add(*high);
      }
      set.add(*low);
    }
    ++at_;
    set.normalise();
    if (fold_) set.fold_case();
    return push(add_class(negated ? set.complement() : std::move(set)));
  }

  std::string_view text_;
  PatternUse use_;
  PatternLimits limits_;
  size_t at_ = 0;
  bool fold_ = false;
  SyntaxTree tree_;
  std::vector<Group> groups_;
};

}  // namespace

Expected<SyntaxTree> parse_pattern(std::string_view pattern, PatternUse use, const PatternLimits& limits) {
  if (pattern.size() > limits.max_bytes) {
    return refuse("constraint_too_large",
                  fmt::format("pattern of {} bytes, at most {} are accepted", pattern.size(), limits.max_bytes));
  }
  return Parser(pattern, use, limits).run();
}

}  // namespace di::structured
