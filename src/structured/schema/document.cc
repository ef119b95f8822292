#include "structured/schema/document.h"

#include <fmt/format.h>

#include <algorithm>

#include "structured/regex/char_set.h"
#include "structured/schema/decimal.h"

namespace di::structured {
namespace {

class Reader {
 public:
  Reader(std::string_view text, uint32_t max_nesting, std::string_view code)
      : text_(text), max_nesting_(max_nesting), code_(code) {}

  Expected<Value> run() {
    Value root;
    stack_.push_back(&root);
    // Each turn reads one value into the innermost open place, then closes what ends.
    for (;;) {
      skip_space();
      Value& v = *stack_.back();
      if (auto opened = value(v); !opened) return std::unexpected(opened.error());
      if (v.is_array() || v.is_object()) {
        if (stack_.size() > max_nesting_) {
          return refuse("constraint_too_complex", fmt::format("document nested deeper than {}", max_nesting_));
        }
        skip_space();
        const char close = v.is_array() ? ']' : '}';
        if (peek() != close) {
          if (auto ok = open_place(v); !ok) return std::unexpected(ok.error());
          continue;
        }
        ++at_;
      }
      if (auto more = close_places(); !more) {
        return std::unexpected(more.error());
      } else if (!*more) {
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) return bad("end of the text expected");
    return root;
  }

 private:
  std::unexpected<CompileError> bad(std::string_view what) const {
    return refuse(code_, fmt::format("at byte {}: {}", at_, what));
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }

  Expected<bool> open_place(Value& v) {
    if (v.is_object()) {
      std::string key;
      skip_space();
      if (peek() != '"') return bad("a member name expected");
      if (auto ok = string(key); !ok) return ok;
      skip_space();
      if (peek() != ':') return bad("`:` expected");
      ++at_;
      const auto it = std::ranges::find(v.keys, key);
      if (it != v.keys.end()) {
        Value& old = v.items[static_cast<size_t>(it - v.keys.begin())];
        old = Value{};
        stack_.push_back(&old);
        return true;
      }
      v.keys.push_back(std::move(key));
    }
    v.items.emplace_back();
    stack_.push_back(&v.items.back());
    return true;
  }

  // After a finished value: false when the root is finished.
  Expected<bool> close_places() {
    for (;;) {
      stack_.pop_back();
      if (stack_.empty()) return false;
      Value& parent = *stack_.back();
      skip_space();
      if (peek() == ',') {
        ++at_;
        if (auto ok = open_place(parent); !ok) return ok;
        return true;
      }
      if (peek() != (parent.is_array() ? ']' : '}'))
        return bad(parent.is_array() ? "`,` or `]` expected" : "`,` or `}` expected");
      ++at_;
    }
  }

  Expected<bool> value(Value& v) {
    const char c = peek();
    auto word = [&](std::string_view w) {
      if (!text_.substr(at_).starts_with(w)) return false;
      at_ += w.size();
      return true;
    };
    if (c == '[' || c == '{') {
      v.kind = c == '[' ? Value::Kind::kArray : Value::Kind::kObject;
      ++at_;
      return true;
    }
    if (c == '"') {
      v.kind = Value::Kind::kString;
      return string(v.text);
    }
    if (c == '-' || (c >= '0' && c <= '9')) return number(v);
    if (word("true")) {
      v.kind = Value::Kind::kBool;
      v.boolean = true;
    } else if (word("false")) {
      v.kind = Value::Kind::kBool;
    } else if (!word("null")) {
      return bad("a value expected");
    }
    return true;
  }

  Expected<bool> number(Value& v) {
    const size_t from = at_;
    auto digits = [&] {
      const size_t start = at_;
      while (peek() >= '0' && peek() <= '9') ++at_;
      return at_ > start;
    };
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
    } else if (!digits()) {
      return bad("a digit expected");
    }
    if (peek() == '.') {
      ++at_;
      if (!digits()) return bad("a digit expected");
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (!digits()) return bad("a digit expected");
    }
    v.kind = Value::Kind::kNumber;
    v.text = text_.substr(from, at_ - from);
    return true;
  }

  Expected<uint32_t> unit() {
    uint32_t u = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      if (c >= '0' && c <= '9') {
        u = u * 16 + static_cast<uint32_t>(c - '0');
      } else if ((c | 32) >= 'a' && (c | 32) <= 'f') {
        u = u * 16 + static_cast<uint32_t>((c | 32) - 'a') + 10;
      } else {
        return bad("four hexadecimal digits expected");
      }
    }
    return u;
  }

  Expected<bool> string(std::string& out) {
    ++at_;
    while (peek() != '"') {
      if (at_ >= text_.size()) return bad("string is not closed");
      if (peek() != '\\') {
        if (static_cast<uint8_t>(peek()) < 0x20) return bad("control character in a string");
        const auto c = read_utf8(text_, at_);
        if (!c) return bad("not valid UTF-8");
        append_utf8(out, *c);
        continue;
      }
      ++at_;
      const char e = peek();
      ++at_;
      constexpr std::string_view kFrom = "\"\\/bfnrt";
      constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
      if (const size_t i = kFrom.find(e); i != std::string_view::npos && e != '\0') {
        out.push_back(kTo[i]);
      } else if (e == 'u') {
        auto u = unit();
        if (!u) return std::unexpected(u.error());
        if (*u >= 0xd800 && *u <= 0xdfff) {
          // A lone half is no character; U+FFFD stands for it.
          uint32_t c = 0xfffd;
          if (*u < 0xdc00 && text_.substr(at_).starts_with("\\u")) {
            const size_t save = at_;
            at_ += 2;
            auto low = unit();
            if (low && *low >= 0xdc00 && *low <= 0xdfff) {
              c = 0x10000 + ((*u - 0xd800) << 10U) + (*low - 0xdc00);
            } else {
              at_ = save;
            }
          }
          append_utf8(out, c);
        } else {
          append_utf8(out, *u);
        }
      } else {
        return bad("unknown escape in a string");
      }
    }
    ++at_;
    return true;
  }

  std::string_view text_;
  uint32_t max_nesting_;
  std::string_view code_;
  size_t at_ = 0;
  std::vector<Value*> stack_;
};

}  // namespace

const Value* Value::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == key) return &items[i];
  }
  return nullptr;
}

Expected<Value> read_document(std::string_view text, uint32_t max_nesting, std::string_view code) {
  return Reader(text, max_nesting, code).run();
}

// Recursive; documents are nested at most as deep as the reader allows.
bool same_value(const Value& a, const Value& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Value::Kind::kNull:
      return true;
    case Value::Kind::kBool:
      return a.boolean == b.boolean;
    case Value::Kind::kNumber: {
      const auto x = Decimal::parse(a.text);
      const auto y = Decimal::parse(b.text);
      return x && y ? compare(*x, *y) == 0 : a.text == b.text;
    }
    case Value::Kind::kString:
      return a.text == b.text;
    case Value::Kind::kArray:
      return a.items.size() == b.items.size() &&
             std::equal(a.items.begin(), a.items.end(), b.items.begin(), same_value);
    case Value::Kind::kObject:
      if (a.items.size() != b.items.size()) return false;
      for (size_t i = 0; i < a.items.size(); ++i) {
        const Value* other = b.find(a.keys[i]);
        if (other == nullptr || !same_value(a.items[i], *other)) return false;
      }
      return true;
  }
  return false;
}

}  // namespace di::structured
