// Reader of EBNF as GBNF writes it (structured-output.md §6): name ::= expression, strings, classes, groups, repeats.
#include <fmt/format.h>

#include "structured/regex/char_set.h"
#include "structured/tag_parts.h"
#include "structured/text_grammar.h"

namespace di::structured {
namespace {

class EbnfReader {
 public:
  EbnfReader(Build& b, std::string_view text) : b_(b), text_(text) {}

  Expected<TextGrammar> run() {
    for (skip(); at_ < text_.size(); skip()) {
      const size_t offset = at_;
      const std::string name = identifier();
      if (name.empty()) return bad("a rule name expected");
      skip();
      if (!text_.substr(at_).starts_with("::=")) return bad("`::=` expected");
      at_ += 3;
      auto e = choice(0);
      if (!e) return std::unexpected(e.error());
      g_.rules.push_back({name, *e, offset});
    }
    return std::move(g_);
  }

 private:
  using Index = Expected<uint32_t>;
  std::unexpected<CompileError> bad(std::string_view what) const {
    return refuse("invalid_grammar", fmt::format("{}: {}", place_in(text_, at_), what));
  }

  void skip() {
    while (at_ < text_.size()) {
      if (text_[at_] == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r' || text_[at_] == '\n') {
        ++at_;
      } else {
        return;
      }
    }
  }

  static bool name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  }

  std::string identifier() {
    const size_t from = at_;
    while (at_ < text_.size() && name_char(text_[at_])) ++at_;
    return std::string(text_.substr(from, at_ - from));
  }

  // A name that begins the next rule, not an item of this one.
  bool at_rule() {
    const size_t save = at_;
    const bool named = !identifier().empty();
    skip();
    const bool yes = named && text_.substr(at_).starts_with("::=");
    at_ = save;
    return yes;
  }

  Index choice(int depth) {
    if (depth > 250)
      return refuse("constraint_too_complex", fmt::format("{}: groups nested deeper than 250", place_in(text_, at_)));
    GrammarExpr alternatives;
    alternatives.kind = GrammarExpr::Kind::kChoice;
    for (;;) {
      auto s = sequence(depth);
      if (!s) return s;
      alternatives.kids.push_back(*s);
      skip();
      if (at_ >= text_.size() || text_[at_] != '|') break;
      ++at_;
    }
    return alternatives.kids.size() == 1 ? alternatives.kids[0] : g_.add(std::move(alternatives));
  }

  Index sequence(int depth) {
    GrammarExpr seq;
    seq.kind = GrammarExpr::Kind::kSequence;
    for (;;) {
      skip();
      if (at_ >= text_.size() || text_[at_] == '|' || text_[at_] == ')') break;
      if (name_char(text_[at_]) && at_rule()) break;
      auto item = primary(depth);
      if (!item) return item;
      item = repeats(*item);
      if (!item) return item;
      seq.kids.push_back(*item);
    }
    if (seq.kids.size() == 1) return seq.kids[0];
    if (seq.kids.empty()) return g_.add({});
    return g_.add(std::move(seq));
  }

  Index repeats(uint32_t item) {
    for (;;) {
      if (at_ >= text_.size()) return item;
      GrammarExpr r;
      r.kind = GrammarExpr::Kind::kRepeat;
      r.kids = {item};
      r.offset = at_;
      const char c = text_[at_];
      if (c == '*' || c == '+' || c == '?') {
        ++at_;
        r.min = c == '+' ? 1 : 0;
        r.max = c == '?' ? 1 : kNoLimit;
      } else if (c == '{') {
        ++at_;
        auto low = number();
        if (!low) return low;
        r.min = r.max = *low;
        skip();
        if (at_ < text_.size() && text_[at_] == ',') {
          ++at_;
          skip();
          r.max = kNoLimit;
          if (at_ < text_.size() && text_[at_] != '}') {
            auto high = number();
            if (!high) return high;
            r.max = *high;
          }
        }
        skip();
        if (at_ >= text_.size() || text_[at_] != '}') return bad("`}` expected");
        ++at_;
        if (r.min > r.max) return bad("repeat bounds are in the wrong order");
      } else {
        return item;
      }
      item = g_.add(std::move(r));
    }
  }

  Index number() {
    skip();
    const size_t from = at_;
    uint64_t v = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9')
      v = std::min<uint64_t>(v * 10 + static_cast<uint64_t>(text_[at_++] - '0'), 1U << 30U);
    if (at_ == from) return bad("a number expected");
    if (v > b_.limits.max_repeat)
      return refuse("constraint_too_complex",
                    fmt::format("{}: repeat bound above {}", place_in(text_, from), b_.limits.max_repeat));
    return static_cast<uint32_t>(v);
  }

  Index node(NodeId n) {
    GrammarExpr e;
    e.node = n;
    return g_.add(std::move(e));
  }

  Index primary(int depth) {
    const char c = text_[at_];
    if (c == '(') {
      if (text_.substr(at_).starts_with("(="))
        return refuse("invalid_grammar",
                      fmt::format("{}: look-ahead assertions are not supported", place_in(text_, at_)));
      ++at_;
      auto inner = choice(depth + 1);
      if (!inner) return inner;
      skip();
      if (at_ >= text_.size() || text_[at_] != ')') return bad("`)` expected");
      ++at_;
      return inner;
    }
    if (c == '"') return string();
    if (c == '[') return char_class();
    if (c == '.') {
      ++at_;
      return node(b_.arena.any_char());
    }
    if (name_char(c)) {
      GrammarExpr e;
      e.kind = GrammarExpr::Kind::kReference;
      e.offset = at_;
      e.name = identifier();
      if (e.name == "TagDispatch" || e.name == "Token")
        return refuse("invalid_grammar", fmt::format("{}: {} is not supported", place_in(text_, e.offset), e.name));
      return g_.add(std::move(e));
    }
    return bad("a string, class, group or rule name expected");
  }

  // One character of a string or class, escapes resolved.
  Index character() {
    if (text_[at_] != '\\') {
      const auto c = read_utf8(text_, at_);
      if (!c) return bad("not valid UTF-8");
      return *c;
    }
    ++at_;
    if (at_ >= text_.size()) return bad("text ends in a backslash");
    const char c = text_[at_++];
    size_t digits = 0;
    switch (c) {
      case 'n':
        return 10U;
      case 't':
        return 9U;
      case 'r':
        return 13U;
      case 'x':
        digits = 2;
        break;
      case 'u':
        digits = 4;
        break;
      case 'U':
        digits = 8;
        break;
      default:
        return static_cast<uint32_t>(static_cast<uint8_t>(c));
    }
    uint32_t v = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const char h = at_ < text_.size() ? text_[at_] : '\0';
      if (h >= '0' && h <= '9') {
        v = v * 16 + static_cast<uint32_t>(h - '0');
      } else if ((h | 32) >= 'a' && (h | 32) <= 'f') {
        v = v * 16 + static_cast<uint32_t>((h | 32) - 'a') + 10;
      } else {
        return bad("hexadecimal digit expected");
      }
    }
    if (v > 0x10ffff) return bad("code point above U+10FFFF");
    return v;
  }

  Index string() {
    ++at_;
    std::string out;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\n') return bad("string is not closed");
      auto c = character();
      if (!c) return c;
      append_utf8(out, *c);
    }
    if (at_ >= text_.size()) return bad("string is not closed");
    ++at_;
    return node(b_.arena.literal(out));
  }

  Index char_class() {
    ++at_;
    const bool negated = at_ < text_.size() && text_[at_] == '^';
    if (negated) ++at_;
    CharSet set;
    while (at_ < text_.size() && text_[at_] != ']') {
      auto low = character();
      if (!low) return low;
      uint32_t high = *low;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        ++at_;
        auto h = character();
        if (!h) return h;
        high = *h;
        if (high < *low) return bad("range is in the wrong order");
      }
      set.add(*low, high);
    }
    if (at_ >= text_.size()) return bad("class is not closed");
    ++at_;
    set.normalise();
    return node(utf8_class(b_.arena, negated ? set.complement() : set));
  }

  Build& b_;
  std::string_view text_;
  size_t at_ = 0;
  TextGrammar g_;
};

}  // namespace

Expected<RuleId> build_ebnf(Build& b, std::string_view text) {
  auto g = EbnfReader(b, text).run();
  if (!g) return std::unexpected(g.error());
  return lower_grammar(b, *g, "root", text);
}

}  // namespace di::structured
