#include "codec/api/regex_syntax.h"

#include <cstdint>

#include "codec/tokenizer/unicode.h"

namespace di::codec::api {

namespace {

class Parser {
 public:
  explicit Parser(std::string_view pattern) : pattern_(pattern) {}

  bool run() {
    count_groups();
    return alternatives(0) && at_ == pattern_.size();
  }

 private:
  static constexpr int kMaxDepth = 200;

  bool done() const { return at_ >= pattern_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool take(std::string_view text) {
    if (pattern_.substr(at_).substr(0, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }

  void count_groups() {
    bool in_class = false;
    for (size_t i = 0; i < pattern_.size(); ++i) {
      if (pattern_[i] == '\\') {
        ++i;
      } else if (pattern_[i] == '[') {
        in_class = true;
      } else if (pattern_[i] == ']') {
        in_class = false;
      } else if (!in_class && pattern_[i] == '(') {
        const std::string_view rest = pattern_.substr(i + 1, 3);
        const bool named = rest.starts_with("?P<") || (rest.starts_with("?<") && rest != "?<=" && rest != "?<!");
        if (!rest.starts_with('?') || named) ++groups_;
      }
    }
  }

  bool alternatives(int depth) {
    if (depth > kMaxDepth) return false;
    while (true) {
      while (!done() && peek() != '|' && peek() != ')') {
        if (!term(depth)) return false;
      }
      if (done() || peek() == ')') return true;
      ++at_;
    }
  }

  bool term(int depth) {
    const char c = peek();
    bool repeatable = true;
    if (c == '(') {
      if (!group(depth, repeatable)) return false;
    } else if (c == '[') {
      if (!char_class(depth)) return false;
    } else if (c == '\\') {
      if (!escape(false)) return false;
    } else if (c == '*' || c == '+' || c == '?') {
      return false;  // nothing to repeat
    } else if (c == '{') {
      uint32_t low = 0;
      uint32_t high = 0;
      if (braces(low, high)) return false;
      ++at_;  // a literal brace
    } else {
      at_ += decode_utf8(pattern_.data() + at_, pattern_.data() + pattern_.size()).bytes;
    }
    return quantifiers(repeatable);
  }

  bool quantifiers(bool repeatable) {
    static_cast<void>(repeatable);
    const char c = peek();
    if (!done() && (c == '*' || c == '+' || c == '?')) {
      ++at_;
    } else if (c == '{') {
      uint32_t low = 0;
      uint32_t high = 0;
      const size_t start = at_;
      if (!braces(low, high)) {
        at_ = start;
        return true;  // a literal brace
      }
      if (high < low) return false;
    } else {
      return true;
    }
    if (!done() && (peek() == '?' || peek() == '+')) ++at_;  // lazy, possessive
    return done() || (peek() != '*' && peek() != '+' && peek() != '?');
  }

  // {n}, {n,}, {n,m}, {,m}
  bool braces(uint32_t& low, uint32_t& high) {
    const size_t start = at_;
    ++at_;
    const bool has_low = number(low);
    high = low;
    bool comma = false;
    if (peek() == ',') {
      comma = true;
      ++at_;
      if (!number(high)) high = UINT32_MAX;
    }
    if (peek() == '}' && !done() && (has_low || (comma && high != UINT32_MAX))) {
      ++at_;
      return true;
    }
    at_ = start;
    return false;
  }

  bool number(uint32_t& out) {
    const size_t start = at_;
    out = 0;
    while (!done() && peek() >= '0' && peek() <= '9' && at_ - start < 9) {
      out = out * 10 + static_cast<uint32_t>(pattern_[at_++] - '0');
    }
    return at_ != start;
  }

  bool group(int depth, bool& repeatable) {
    ++at_;
    if (take("?")) {
      if (take(":") || take("=") || take("!") || take("<=") || take("<!") || take(">")) {
        repeatable = true;
      } else if (take("P<") || take("<")) {
        const size_t start = at_;
        while (!done() && peek() != '>') ++at_;
        if (done() || at_ == start) return false;
        ++at_;
      } else if (take("#")) {
        while (!done() && peek() != ')') ++at_;
      } else {
        while (!done() && (peek() == '-' || std::string_view("imsxuU").find(peek()) != std::string_view::npos)) ++at_;
        if (peek() == ')' && !done()) {
          ++at_;
          return true;
        }
        if (!take(":")) return false;
      }
    }
    if (!alternatives(depth + 1) || done()) return false;
    ++at_;
    return true;
  }

  bool char_class(int depth) {
    if (depth > kMaxDepth) return false;
    ++at_;
    if (peek() == '^') ++at_;
    bool first = true;
    while (true) {
      if (done()) return false;
      if (peek() == ']' && !first) break;
      first = false;
      if (peek() == '[') {
        if (peek(1) == ':') {
          const size_t end = pattern_.find(":]", at_ + 2);
          if (end == std::string_view::npos) return false;
          at_ = end + 2;
          continue;
        }
        if (!char_class(depth + 1)) return false;
        continue;
      }
      uint32_t low = 0;
      uint32_t high = 0;
      if (!class_item(low)) return false;
      if (peek() == '-' && peek(1) != ']' && at_ + 1 < pattern_.size() && peek(1) != '[') {
        ++at_;
        if (peek() == '-') continue;  // a set difference
        if (!class_item(high)) return false;
        if (low != kSet && high != kSet && high < low) return false;
        if (low == kSet || high == kSet) return false;
      }
    }
    ++at_;
    return true;
  }

  static constexpr uint32_t kSet = UINT32_MAX;  // an escape for several characters

  bool class_item(uint32_t& value) {
    if (peek() == '\\') {
      const char c = peek(1);
      value = std::string_view("dDwWsSpPhH").find(c) != std::string_view::npos ? kSet : static_cast<uint32_t>(c);
      return escape(true);
    }
    const CodePoint cp = decode_utf8(pattern_.data() + at_, pattern_.data() + pattern_.size());
    value = cp.value;
    at_ += cp.bytes;
    return true;
  }

  bool escape(bool in_class) {
    ++at_;
    if (done()) return false;
    const char c = pattern_[at_++];
    if (c >= '1' && c <= '9' && !in_class) {
      uint32_t n = static_cast<uint32_t>(c - '0');
      while (!done() && peek() >= '0' && peek() <= '9' && n < 1000)
        n = n * 10 + static_cast<uint32_t>(pattern_[at_++] - '0');
      return n <= groups_;
    }
    if (c == 'p' || c == 'P') return property();
    if (c == 'x' || c == 'u' || c == 'U') return hex(c == 'x' ? 2 : c == 'u' ? 4 : 8);
    if (c == 'k' && !in_class) {
      if (peek() != '<') return false;
      const size_t end = pattern_.find('>', at_);
      if (end == std::string_view::npos) return false;
      at_ = end + 1;
      return true;
    }
    constexpr std::string_view kClassLetters = "dDwWsSnrtfvaehH0";
    constexpr std::string_view kOutside = "bBAzZGK";
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
      return kClassLetters.find(c) != std::string_view::npos ||
             (!in_class && kOutside.find(c) != std::string_view::npos) || (in_class && c == 'b');
    }
    at_ += decode_utf8(pattern_.data() + at_ - 1, pattern_.data() + pattern_.size()).bytes - 1;
    return true;
  }

  bool property() {
    if (peek() != '{') {
      if (done()) return false;
      ++at_;
      return true;
    }
    const size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos || end == at_ + 1) return false;
    at_ = end + 1;
    return true;
  }

  bool hex(size_t digits) {
    const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); };
    if (peek() == '{') {
      const size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos || end == at_ + 1) return false;
      for (size_t i = at_ + 1; i < end; ++i) {
        if (!is_hex(pattern_[i])) return false;
      }
      at_ = end + 1;
      return true;
    }
    for (size_t i = 0; i < digits; ++i) {
      if (done() || !is_hex(pattern_[at_++])) return false;
    }
    return true;
  }

  std::string_view pattern_;
  size_t at_ = 0;
  uint32_t groups_ = 0;
};

}  // namespace

bool is_valid_regex(std::string_view pattern) {
  return Parser(pattern).run();
}

}  // namespace di::codec::api
