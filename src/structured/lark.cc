// Reader of the Lark subset (structured-output.md §6): rules and terminals, strings, regexes, repeats, %ignore and
// imports from `common`. All parses are followed; priorities are ignored.
#include <fmt/format.h>

#include "structured/regex/char_set.h"
#include "structured/regex/pattern.h"
#include "structured/tag_parts.h"
#include "structured/text_grammar.h"

namespace di::structured {
namespace {

struct Common {
  std::string_view name;
  std::string_view pattern;
};

constexpr Common kCommon[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"NUMBER", "[0-9]+(?:\\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\\.[0-9]+(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?(?:[0-9]+(?:\\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\\.[0-9]+(?:[eE][+-]?[0-9]+)?)"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z0-9_]*"},
    {"WS_INLINE", "[ \\t]{1,32}"},
    {"WS", "[ \\t\\f\\r\\n]{1,32}"},
    {"NEWLINE", "(?:\\r?\\n){1,32}"}};

class LarkReader {
 public:
  LarkReader(Build& b, std::string_view text) : b_(b), text_(text) {}

  Expected<TextGrammar> run() {
    for (skip(true); at_ < text_.size(); skip(true)) {
      auto ok = text_[at_] == '%' ? directive() : rule();
      if (!ok) return std::unexpected(ok.error());
    }
    if (auto ok = resolve_ignored(); !ok) return std::unexpected(ok.error());
    return std::move(g_);
  }

 private:
  using Index = Expected<uint32_t>;
  using Done = Expected<bool>;
  std::unexpected<CompileError> bad(std::string_view what) const {
    return refuse("invalid_grammar", fmt::format("{}: {}", place_in(text_, at_), what));
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip(bool lines) {
    for (;;) {
      const char c = peek();
      if (at_ < text_.size() && (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n'))) {
        ++at_;
      } else if (text_.substr(at_).starts_with("//") || (c == '#' && lines)) {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else {
        return;
      }
    }
  }

  static bool name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
  static bool terminal_name(const std::string& n) {
    for (const char c : n) {
      if (c >= 'A' && c <= 'Z') return true;
      if (c >= 'a' && c <= 'z') return false;
    }
    return false;
  }

  std::string identifier() {
    const size_t from = at_;
    while (name_char(peek())) ++at_;
    return std::string(text_.substr(from, at_ - from));
  }

  Done directive() {
    ++at_;
    const std::string what = identifier();
    skip(false);
    if (what == "ignore") {
      in_terminal_ = true;
      auto e = choice(0);
      if (!e) return std::unexpected(e.error());
      ignored_.push_back(*e);
      return true;
    }
    if (what != "import") return bad(fmt::format("%{} is not supported", what));
    if (!text_.substr(at_).starts_with("common.")) return bad("only imports from `common` are supported");
    at_ += 7;
    if (peek() == '(') {
      ++at_;
      do {
        skip(true);
        if (auto ok = import(identifier(), ""); !ok) return ok;
        skip(true);
      } while (peek() == ',' && ++at_ != 0);
      if (peek() != ')') return bad("`)` expected");
      ++at_;
      return true;
    }
    const std::string name = identifier();
    skip(false);
    std::string as;
    if (text_.substr(at_).starts_with("->")) {
      at_ += 2;
      skip(false);
      as = identifier();
    }
    return import(name, as);
  }

  Done import(const std::string& name, const std::string& as) {
    for (const Common& c : kCommon) {
      if (c.name != name) continue;
      auto node = compile_pattern(b_.arena, c.pattern, PatternUse::kWhole);
      if (!node) return std::unexpected(node.error());
      GrammarExpr e;
      e.node = *node;
      g_.rules.push_back({as.empty() ? name : as, g_.add(std::move(e)), at_});
      return true;
    }
    return bad(fmt::format("common.{} is not known", name));
  }

  Done rule() {
    if (peek() == '?' || peek() == '!') ++at_;
    const size_t offset = at_;
    const std::string name = identifier();
    if (name.empty()) return bad("a rule name expected");
    if (peek() == '{') return bad("templates are not supported");
    if (peek() == '.') {
      ++at_;
      if (peek() == '-') ++at_;
      identifier();
      b_.warnings.push_back(fmt::format("{}: the priority of \"{}\" is ignored", place_in(text_, offset), name));
    }
    skip(false);
    if (peek() != ':') return bad("`:` expected");
    ++at_;
    in_terminal_ = terminal_name(name);
    auto e = choice(0);
    if (!e) return std::unexpected(e.error());
    g_.rules.push_back({name, *e, offset});
    return true;
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
      // An alternative may stand on the next line.
      const size_t save = at_;
      skip(true);
      if (peek() != '|') {
        if (depth == 0) at_ = save;
        break;
      }
      ++at_;
    }
    return alternatives.kids.size() == 1 ? alternatives.kids[0] : g_.add(std::move(alternatives));
  }

  Index sequence(int depth) {
    GrammarExpr seq;
    seq.kind = GrammarExpr::Kind::kSequence;
    for (;;) {
      skip(depth > 0);
      const char c = peek();
      if (at_ >= text_.size() || c == '|' || c == ')' || c == ']' || c == '\n') break;
      if (text_.substr(at_).starts_with("->")) {
        at_ += 2;
        skip(false);
        identifier();
        continue;
      }
      auto item = primary(depth);
      if (!item) return item;
      item = repeats(*item);
      if (!item) return item;
      seq.kids.push_back(*item);
    }
    if (seq.kids.size() == 1) return seq.kids[0];
    return seq.kids.empty() ? g_.add({}) : g_.add(std::move(seq));
  }

  Index number() {
    skip(false);
    uint64_t v = 0;
    const size_t from = at_;
    while (peek() >= '0' && peek() <= '9')
      v = std::min<uint64_t>(v * 10 + static_cast<uint64_t>(text_[at_++] - '0'), 1U << 30U);
    if (at_ == from) return bad("a number expected");
    if (v > b_.limits.max_repeat)
      return refuse("constraint_too_complex",
                    fmt::format("{}: repeat bound above {}", place_in(text_, from), b_.limits.max_repeat));
    return static_cast<uint32_t>(v);
  }

  Index repeats(uint32_t item) {
    for (;;) {
      const size_t save = at_;
      skip(false);
      GrammarExpr r;
      r.kind = GrammarExpr::Kind::kRepeat;
      r.kids = {item};
      r.offset = at_;
      const char c = peek();
      if (c == '*' || c == '+' || c == '?') {
        // A `?` that begins the next rule stands behind a line end, which skip(false) does not pass.
        ++at_;
        r.min = c == '+' ? 1 : 0;
        r.max = c == '?' ? 1 : kNoLimit;
      } else if (c == '~') {
        ++at_;
        auto low = number();
        if (!low) return low;
        r.min = r.max = *low;
        if (text_.substr(at_).starts_with("..")) {
          at_ += 2;
          auto high = number();
          if (!high) return high;
          r.max = *high;
        }
        if (r.min > r.max) return bad("repeat bounds are in the wrong order");
      } else {
        at_ = save;
        return item;
      }
      item = g_.add(std::move(r));
    }
  }

  // A terminal inside a rule may be followed by what is ignored.
  Index terminal(NodeId n) {
    GrammarExpr e;
    e.node = n;
    const uint32_t id = g_.add(std::move(e));
    if (in_terminal_) return id;
    GrammarExpr seq;
    seq.kind = GrammarExpr::Kind::kSequence;
    seq.kids = {id, ignored_ref()};
    return g_.add(std::move(seq));
  }

  uint32_t ignored_ref() {
    GrammarExpr e;
    e.kind = GrammarExpr::Kind::kReference;
    e.name = "%ignored";
    e.offset = at_;
    return g_.add(std::move(e));
  }

  Index primary(int depth) {
    const char c = peek();
    if (c == '(' || c == '[') {
      ++at_;
      auto inner = choice(depth + 1);
      if (!inner) return inner;
      skip(true);
      if (peek() != (c == '(' ? ')' : ']')) return bad(c == '(' ? "`)` expected" : "`]` expected");
      ++at_;
      if (c == '(') return inner;
      GrammarExpr r;
      r.kind = GrammarExpr::Kind::kRepeat;
      r.kids = {*inner};
      r.max = 1;
      return g_.add(std::move(r));
    }
    if (c == '"') return string();
    if (c == '/') return regex();
    if (!name_char(c)) return bad("a string, regex, group or name expected");
    GrammarExpr e;
    e.kind = GrammarExpr::Kind::kReference;
    e.offset = at_;
    e.name = identifier();
    const bool is_terminal = terminal_name(e.name);
    if (peek() == '{') return bad("templates are not supported");
    const uint32_t id = g_.add(std::move(e));
    if (!is_terminal || in_terminal_) return id;
    GrammarExpr seq;
    seq.kind = GrammarExpr::Kind::kSequence;
    seq.kids = {id, ignored_ref()};
    return g_.add(std::move(seq));
  }

  Expected<std::string> quoted() {
    ++at_;
    std::string out;
    while (peek() != '"') {
      if (at_ >= text_.size() || peek() == '\n') return bad("string is not closed");
      if (peek() != '\\') {
        out.push_back(text_[at_++]);
        continue;
      }
      ++at_;
      const char e = peek();
      ++at_;
      if (e == 'n' || e == 't' || e == 'r' || e == 'f') {
        out.push_back(e == 'n' ? '\n' : e == 't' ? '\t' : e == 'r' ? '\r' : '\f');
      } else if (e == 'x' || e == 'u') {
        const size_t digits = e == 'x' ? 2 : 4;
        const std::string hex(text_.substr(at_, digits));
        if (hex.size() != digits || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
          return bad("hexadecimal digits expected");
        append_utf8(out, static_cast<uint32_t>(std::stoul(hex, nullptr, 16)));
        at_ += digits;
      } else {
        out.push_back(e);
      }
    }
    ++at_;
    return out;
  }

  Index string() {
    auto s = quoted();
    if (!s) return std::unexpected(s.error());
    if (text_.substr(at_).starts_with("..") && text_.substr(at_ + 2).starts_with("\"")) {
      at_ += 2;
      auto high = quoted();
      if (!high) return std::unexpected(high.error());
      size_t i = 0;
      size_t j = 0;
      const auto a = read_utf8(*s, i);
      const auto b = read_utf8(*high, j);
      if (!a || !b || i != s->size() || j != high->size() || *a > *b)
        return bad("a range is between two characters in order");
      return terminal(utf8_class(b_.arena, CharSet::of(*a, *b)));
    }
    if (peek() != 'i') return terminal(b_.arena.literal(*s));
    ++at_;
    NodeId r = kEmptyText;
    for (size_t i = s->size(); i > 0; --i) {
      const auto b = static_cast<uint8_t>((*s)[i - 1]);
      ByteSet set = ByteSet::of(b);
      if ((b | 32U) >= 'a' && (b | 32U) <= 'z') set.add(b ^ 32U);
      r = b_.arena.concat(b_.arena.bytes(set), r);
    }
    return terminal(r);
  }

  Index regex() {
    const size_t from = ++at_;
    bool in_class = false;
    while (at_ < text_.size() && (text_[at_] != '/' || in_class)) {
      if (text_[at_] == '\n') return bad("regex is not closed");
      if (text_[at_] == '\\')
        ++at_;
      else if (text_[at_] == '[')
        in_class = true;
      else if (text_[at_] == ']')
        in_class = false;
      ++at_;
    }
    if (at_ >= text_.size()) return bad("regex is not closed");
    std::string pattern(text_.substr(from, at_ - from));
    ++at_;
    while (peek() == 'i' || peek() == 'm' || peek() == 's' || peek() == 'u' || peek() == 'x' || peek() == 'l') {
      if (peek() != 'i' && peek() != 'u') return bad("only the flag i is supported");
      if (peek() == 'i') pattern = "(?i)" + pattern;
      ++at_;
    }
    PatternLimits limits;
    limits.max_bytes = b_.limits.max_regex_bytes;
    auto node = compile_pattern(b_.arena, pattern, PatternUse::kWhole, limits);
    if (!node) {
      CompileError e = node.error();
      e.message = fmt::format("{}: {}", place_in(text_, from), e.message);
      return std::unexpected(std::move(e));
    }
    return terminal(*node);
  }

  // The rule "%ignored": any number of ignored terminals; and the start may begin with them.
  Done resolve_ignored() {
    GrammarExpr all;
    all.kind = GrammarExpr::Kind::kChoice;
    all.kids = ignored_;
    if (ignored_.empty()) all = GrammarExpr{};
    GrammarExpr many;
    many.kind = GrammarExpr::Kind::kRepeat;
    many.max = kNoLimit;
    many.kids = {g_.add(std::move(all))};
    g_.rules.push_back({"%ignored", g_.add(std::move(many)), 0});
    GrammarExpr start;
    start.kind = GrammarExpr::Kind::kReference;
    start.name = "start";
    GrammarExpr seq;
    seq.kind = GrammarExpr::Kind::kSequence;
    seq.kids = {ignored_ref(), g_.add(std::move(start))};
    g_.rules.push_back({"%start", g_.add(std::move(seq)), 0});
    return true;
  }

  Build& b_;
  std::string_view text_;
  size_t at_ = 0;
  bool in_terminal_ = false;
  std::vector<uint32_t> ignored_;
  TextGrammar g_;
};

}  // namespace

Expected<RuleId> build_lark(Build& b, std::string_view text) {
  auto g = LarkReader(b, text).run();
  if (!g) return std::unexpected(g.error());
  return lower_grammar(b, *g, "%start", text);
}

}  // namespace di::structured
