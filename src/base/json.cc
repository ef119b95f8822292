// Values and parser. The parser is a recursive descent over bytes because the error texts, the position of each error
// and the rules for duplicate keys, "-0" and big integers are part of the behaviour (recipe.md §3.0); simdjson checks
// UTF-8.
#include "base/json.h"

#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace di {

Json::Json(Array v) : value_(std::move(v)) {}
Json::Json(Object v) : value_(std::move(v)) {}
Json::~Json() = default;
Json::Json(const Json&) = default;
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(const Json&) = default;
Json& Json::operator=(Json&&) noexcept = default;

bool Json::as_bool() const {
  DI_CHECK(is_bool(), "found {}", describe_json(*this));
  return std::get<bool>(value_);
}
const std::string& Json::as_string() const {
  DI_CHECK(is_string(), "found {}", describe_json(*this));
  return *std::get_if<std::string>(&value_);
}
const Json::Array& Json::as_array() const {
  DI_CHECK(is_array(), "found {}", describe_json(*this));
  return *std::get_if<Array>(&value_);
}
const Json::Object& Json::as_object() const {
  DI_CHECK(is_object(), "found {}", describe_json(*this));
  return *std::get_if<Object>(&value_);
}
std::string& Json::as_string() {
  return const_cast<std::string&>(std::as_const(*this).as_string());
}
Json::Array& Json::as_array() {
  return const_cast<Array&>(std::as_const(*this).as_array());
}
Json::Object& Json::as_object() {
  return const_cast<Object&>(std::as_const(*this).as_object());
}

std::optional<int64_t> Json::to_i64() const {
  if (const auto* v = std::get_if<int64_t>(&value_)) return *v;
  return std::nullopt;
}

std::optional<uint64_t> Json::to_u64() const {
  if (const auto* v = std::get_if<uint64_t>(&value_)) return *v;
  if (const auto* v = std::get_if<int64_t>(&value_); v != nullptr && *v >= 0) return static_cast<uint64_t>(*v);
  return std::nullopt;
}

std::optional<double> Json::to_double() const {
  if (const auto* v = std::get_if<double>(&value_)) return *v;
  if (const auto* v = std::get_if<int64_t>(&value_)) return static_cast<double>(*v);
  if (const auto* v = std::get_if<uint64_t>(&value_)) return static_cast<double>(*v);
  return std::nullopt;
}

const Json* Json::find(std::string_view key) const {
  if (const Object* object = if_object()) {
    for (const JsonMember& member : *object) {
      if (member.key == key) return &member.value;
    }
  }
  return nullptr;
}

Json* Json::find(std::string_view key) {
  return const_cast<Json*>(std::as_const(*this).find(key));
}

const Json* Json::find_value(std::string_view key) const {
  const Json* member = find(key);
  return member != nullptr && !member->is_null() ? member : nullptr;
}

Json& Json::set(std::string_view key, Json value) {
  if (is_null()) value_ = Object{};
  if (Json* member = find(key)) return *member = std::move(value);
  as_object().push_back(JsonMember{std::string(key), std::move(value)});
  return as_object().back().value;
}

void Json::push_back(Json value) {
  if (is_null()) value_ = Array{};
  as_array().push_back(std::move(value));
}

size_t Json::size() const {
  if (const Array* array = if_array()) return array->size();
  if (const Object* object = if_object()) return object->size();
  return 0;
}

bool operator==(const Json& a, const Json& b) {
  if (a.kind() != b.kind()) return false;
  if (const Json::Object* object = a.if_object()) {
    if (object->size() != b.size()) return false;
    return std::all_of(object->begin(), object->end(), [&](const JsonMember& member) {
      const Json* other = b.find(member.key);
      return other != nullptr && member.value == *other;
    });
  }
  switch (a.kind()) {
    case Json::Kind::kNull:
      return true;
    case Json::Kind::kBool:
      return a.as_bool() == b.as_bool();
    case Json::Kind::kInt:
      return a.to_i64() == b.to_i64();
    case Json::Kind::kUint:
      return a.to_u64() == b.to_u64();
    case Json::Kind::kDouble:
      return a.to_double() == b.to_double();
    case Json::Kind::kString:
      return a.as_string() == b.as_string();
    default:
      return std::equal(a.as_array().begin(), a.as_array().end(), b.as_array().begin(), b.as_array().end());
  }
}

namespace {

constexpr int kMaxDepth = 127;
constexpr size_t kLinearKeys = 12;  // objects up to this size look for duplicate keys by scanning

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Json> run() {
    Json value;
    if (parse_value(value, kMaxDepth) && (skip_space(), at_ < text_.size())) fail_here("trailing characters");
    if (message_ != nullptr) {
      size_t line_start = 0;
      int64_t line = 1;
      for (size_t i = 0; i < error_at_; ++i) {
        if (text_[i] == '\n') {
          ++line;
          line_start = i + 1;
        }
      }
      return fail(Errc::kInvalidRequest, "{} at line {} column {}", message_, line, error_at_ - line_start);
    }
    return value;
  }

 private:
  // The error is at the byte that would be read next (position after it), or at the bytes already read.
  bool fail_here(const char* message) { return fail_at(message, std::min(text_.size(), at_ + 1)); }
  bool fail_read(const char* message) { return fail_at(message, at_); }
  bool fail_at(const char* message, size_t position) {
    message_ = message;
    error_at_ = position;
    return false;
  }

  void skip_space() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
      ++at_;
    }
  }
  bool at_end() const { return at_ >= text_.size(); }
  char peek_or_null() const { return at_end() ? '\0' : text_[at_]; }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  bool parse_value(Json& out, int depth_left) {
    skip_space();
    if (at_end()) return fail_here("EOF while parsing a value");
    switch (const char c = text_[at_]) {
      case 'n':
        return parse_word("null") && (out = Json(), true);
      case 't':
        return parse_word("true") && (out = Json(true), true);
      case 'f':
        return parse_word("false") && (out = Json(false), true);
      case '"': {
        ++at_;
        std::string text;
        if (!parse_string(text)) return false;
        out = Json(std::move(text));
        return true;
      }
      case '[':
      case '{':
        if (depth_left == 0) return fail_here("recursion limit exceeded");
        ++at_;
        return c == '[' ? parse_array(out, depth_left - 1) : parse_object(out, depth_left - 1);
      default:
        if (c == '-' || is_digit(c)) return parse_number(out);
        return fail_here("expected value");
    }
  }

  bool parse_word(std::string_view word) {
    ++at_;
    for (const char expected : word.substr(1)) {
      if (at_end()) return fail_read("EOF while parsing a value");
      if (text_[at_++] != expected) return fail_read("expected ident");
    }
    return true;
  }

  bool parse_array(Json& out, int depth_left) {
    Json::Array items;
    for (bool first = true;; first = false) {
      skip_space();
      if (at_end()) return fail_here("EOF while parsing a list");
      if (text_[at_] == ']') break;
      if (!first) {
        if (text_[at_] != ',') return fail_here("expected `,` or `]`");
        ++at_;
        skip_space();
        if (at_end()) return fail_here("EOF while parsing a value");
        if (text_[at_] == ']') return fail_here("trailing comma");
      }
      if (!parse_value(items.emplace_back(), depth_left)) return false;
    }
    ++at_;
    out = Json(std::move(items));
    return true;
  }

  bool parse_object(Json& out, int depth_left) {
    Json::Object members;
    for (bool first = true;; first = false) {
      skip_space();
      if (at_end()) return fail_here("EOF while parsing an object");
      if (text_[at_] == '}') break;
      if (!first) {
        if (text_[at_] != ',') return fail_here("expected `,` or `}`");
        ++at_;
        skip_space();
        if (at_end()) return fail_here("EOF while parsing a value");
        if (text_[at_] == '}') return fail_here("trailing comma");
      }
      if (text_[at_] != '"') return fail_here("key must be a string");
      ++at_;
      std::string key;
      if (!parse_string(key)) return false;
      skip_space();
      if (at_end()) return fail_here("EOF while parsing an object");
      if (text_[at_] != ':') return fail_here("expected `:`");
      ++at_;
      if (!parse_value(slot(members, std::move(key)), depth_left)) return false;
    }
    ++at_;
    if (members.size() > kLinearKeys) merge_duplicates(members);
    out = Json(std::move(members));
    return true;
  }

  static Json& slot(Json::Object& members, std::string key) {
    if (members.size() <= kLinearKeys) {
      for (JsonMember& member : members) {
        if (member.key == key) return member.value;
      }
    }
    return members.emplace_back(JsonMember{std::move(key), Json()}).value;
  }

  // Big objects are checked once at their end, by sorting, so that hostile key lists do not cost quadratic time.
  static void merge_duplicates(Json::Object& members) {
    std::vector<uint32_t> order(members.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      const int c = members[a].key.compare(members[b].key);
      return c != 0 ? c < 0 : a < b;
    });
    std::vector<bool> dropped(members.size(), false);
    bool any = false;
    for (size_t i = 0; i < order.size();) {
      size_t end = i + 1;
      while (end < order.size() && members[order[end]].key == members[order[i]].key) ++end;
      if (end > i + 1) {
        any = true;
        members[order[i]].value = std::move(members[order[end - 1]].value);
        for (size_t k = i + 1; k < end; ++k) dropped[order[k]] = true;
      }
      i = end;
    }
    if (!any) return;
    size_t kept = 0;
    for (size_t i = 0; i < members.size(); ++i) {
      if (dropped[i]) continue;
      if (kept != i) members[kept] = std::move(members[i]);
      ++kept;
    }
    members.resize(kept);
  }

  bool parse_string(std::string& out) {
    while (true) {
      const size_t start = at_;
      while (at_ < text_.size() && !ends_run(text_[at_])) ++at_;
      out.append(text_, start, at_ - start);
      if (at_end()) return fail_read("EOF while parsing a string");
      const char c = text_[at_++];
      if (c == '"') return true;
      if (c != '\\') return fail_read("control character (\\u0000-\\u001F) found while parsing a string");
      if (!parse_escape(out)) return false;
    }
  }
  static bool ends_run(char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20; }

  bool parse_escape(std::string& out) {
    if (at_end()) return fail_read("EOF while parsing a string");
    switch (text_[at_++]) {
      case '"':
        out.push_back('"');
        return true;
      case '\\':
        out.push_back('\\');
        return true;
      case '/':
        out.push_back('/');
        return true;
      case 'b':
        out.push_back('\b');
        return true;
      case 'f':
        out.push_back('\f');
        return true;
      case 'n':
        out.push_back('\n');
        return true;
      case 'r':
        out.push_back('\r');
        return true;
      case 't':
        out.push_back('\t');
        return true;
      case 'u':
        return parse_unicode_escape(out);
      default:
        return fail_read("invalid escape");
    }
  }

  bool parse_hex(uint32_t& out) {
    if (text_.size() - at_ < 4) {
      at_ = text_.size();
      return fail_read("EOF while parsing a string");
    }
    const char* first = text_.data() + at_;
    at_ += 4;
    out = 0;
    const auto parsed = std::from_chars(first, first + 4, out, 16);
    return parsed.ptr == first + 4 || fail_read("invalid escape");
  }

  bool parse_unicode_escape(std::string& out) {
    uint32_t code = 0;
    if (!parse_hex(code)) return false;
    if (code >= 0xDC00 && code <= 0xDFFF) return fail_read("lone leading surrogate in hex escape");
    if (code >= 0xD800 && code <= 0xDBFF) {
      for (const char expected : {'\\', 'u'}) {
        if (at_end()) return fail_read("EOF while parsing a string");
        if (text_[at_++] != expected) return fail_read("unexpected end of hex escape");
      }
      uint32_t low = 0;
      if (!parse_hex(low)) return false;
      if (low < 0xDC00 || low > 0xDFFF) return fail_read("lone leading surrogate in hex escape");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(out, code);
    return true;
  }

  static void append_utf8(std::string& out, uint32_t code) {
    const auto byte = [&](uint32_t v) { out.push_back(static_cast<char>(v)); };
    if (code < 0x80) {
      byte(code);
    } else if (code < 0x800) {
      byte(0xC0 | (code >> 6));
      byte(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      byte(0xE0 | (code >> 12));
      byte(0x80 | ((code >> 6) & 0x3F));
      byte(0x80 | (code & 0x3F));
    } else {
      byte(0xF0 | (code >> 18));
      byte(0x80 | ((code >> 12) & 0x3F));
      byte(0x80 | ((code >> 6) & 0x3F));
      byte(0x80 | (code & 0x3F));
    }
  }

  bool parse_number(Json& out) {
    const size_t start = at_;
    const bool negative = text_[at_] == '-';
    if (negative) ++at_;
    if (at_end()) return fail_read("EOF while parsing a value");
    const char first = text_[at_++];
    if (!is_digit(first)) return fail_read("invalid number");
    if (first == '0') {
      if (is_digit(peek_or_null())) return fail_here("invalid number");
    } else {
      while (is_digit(peek_or_null())) ++at_;
    }
    bool integer = true;
    if (peek_or_null() == '.') {
      integer = false;
      ++at_;
      if (at_end()) return fail_here("EOF while parsing a value");
      if (!is_digit(text_[at_])) return fail_here("invalid number");
      while (is_digit(peek_or_null())) ++at_;
    }
    if (const char e = peek_or_null(); e == 'e' || e == 'E') {
      integer = false;
      ++at_;
      if (const char sign = peek_or_null(); sign == '+' || sign == '-') ++at_;
      if (at_end()) return fail_read("EOF while parsing a value");
      if (!is_digit(text_[at_++])) return fail_read("invalid number");
      while (is_digit(peek_or_null())) ++at_;
    }
    return convert_number(out, text_.substr(start, at_ - start), integer, negative);
  }

  bool convert_number(Json& out, std::string_view digits, bool integer, bool negative) {
    const char* first = digits.data();
    const char* last = first + digits.size();
    if (integer && negative) {
      int64_t v = 0;
      if (std::from_chars(first, last, v).ec == std::errc() && v < 0) return out = Json(v), true;
    } else if (integer) {
      uint64_t v = 0;
      if (std::from_chars(first, last, v).ec == std::errc()) return out = Json(v), true;
    }
    double v = 0;
    if (std::from_chars(first, last, v).ec != std::errc()) {
      v = std::strtod(std::string(digits).c_str(), nullptr);  // out of range: tells overflow from underflow
      if (std::isinf(v)) return fail_read("number out of range");
    }
    out = Json(v);
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
  const char* message_ = nullptr;
  size_t error_at_ = 0;
};

}  // namespace

Result<Json> parse_json(std::string_view text) {
  if (!simdjson::validate_utf8(text.data(), text.size()))
    return fail(Errc::kInvalidRequest, "the text is not valid UTF-8");
  return Parser(text).run();
}

Result<Json> parse_json_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(Errc::kNotFound, "{}: cannot be opened", path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) return fail(Errc::kUnavailable, "{}: cannot be read", path);
  std::string_view body = text;
  if (body.starts_with("\xEF\xBB\xBF")) body.remove_prefix(3);
  Result<Json> value = parse_json(body);
  if (!value) return fail(Errc::kCorruption, "{}: {}", path, value.error().message);
  return value;
}

std::string describe_json(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::kNull:
      return "null";
    case Json::Kind::kBool:
      return fmt::format("boolean `{}`", value.as_bool());
    case Json::Kind::kInt:
    case Json::Kind::kUint:
      return fmt::format("integer `{}`", to_json(value));
    case Json::Kind::kDouble:
      return fmt::format("floating point `{}`", to_json(value));
    case Json::Kind::kString:
      return fmt::format("string {}", to_json(value));
    case Json::Kind::kArray:
      return "sequence";
    case Json::Kind::kObject:
      return "map";
  }
  return "null";
}

Result<const Json*> json_member(const Json& object, std::string_view key) {
  const Json* member = object.find(key);
  if (member == nullptr) return fail(Errc::kInvalidRequest, "missing field `{}`", key);
  return member;
}

namespace {

template <class T>
Result<T> typed_member(const Json& object, std::string_view key, const char* expected,
                       std::optional<T> (*read)(const Json&)) {
  const Json* member = DI_TRY(json_member(object, key));
  std::optional<T> value = read(*member);
  if (!value) {
    return fail(Errc::kInvalidRequest, "field `{}`: expected {}, found {}", key, expected, describe_json(*member));
  }
  return *std::move(value);
}

}  // namespace

Result<int64_t> json_i64(const Json& object, std::string_view key) {
  return typed_member<int64_t>(object, key, "an integer", [](const Json& v) { return v.to_i64(); });
}
Result<double> json_double(const Json& object, std::string_view key) {
  return typed_member<double>(object, key, "a number", [](const Json& v) { return v.to_double(); });
}
Result<bool> json_bool(const Json& object, std::string_view key) {
  return typed_member<bool>(object, key, "a boolean", [](const Json& v) {
    return v.is_bool() ? std::optional<bool>(v.as_bool()) : std::nullopt;
  });
}
Result<std::string> json_string(const Json& object, std::string_view key) {
  return typed_member<std::string>(object, key, "a string", [](const Json& v) {
    return v.is_string() ? std::optional<std::string>(v.as_string()) : std::nullopt;
  });
}

}  // namespace di
