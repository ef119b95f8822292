// JSON values that keep the order of object keys, a strict parser with one-line positions in its errors, and writers.
//
// Rules (recipe.md §2.2, §3.0): object key order = input order; of duplicate keys the later value wins at the first
// key's position; nesting deeper than 127 is an error; lone surrogates and invalid UTF-8 are errors; integers outside
// the i64/u64 range become doubles; "-0" is the double -0.0. Error texts and positions are those of serde_json. Values
// are plain data: copyable, movable, no shared state; reading one value from several threads is safe.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace di {

struct JsonMember;

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<JsonMember>;

  // kInt holds every integer of the i64 range, kUint only those above it.
  enum class Kind : uint8_t { kNull, kBool, kInt, kUint, kDouble, kString, kArray, kObject };

  Json();
  Json(std::nullptr_t);
  Json(bool v);
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  Json(T v);
  Json(double v);
  Json(std::string v);
  Json(std::string_view v);
  Json(const char* v);
  Json(Array v);
  Json(Object v);
  ~Json();
  Json(const Json&);
  Json(Json&&) noexcept;
  Json& operator=(const Json&);
  Json& operator=(Json&&) noexcept;

  Kind kind() const { return static_cast<Kind>(value_.index()); }
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_integer() const { return kind() == Kind::kInt || kind() == Kind::kUint; }
  bool is_number() const { return is_integer() || kind() == Kind::kDouble; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_array() const { return kind() == Kind::kArray; }
  bool is_object() const { return kind() == Kind::kObject; }

  // nullptr when the value is of another kind.
  const bool* if_bool() const { return std::get_if<bool>(&value_); }
  const std::string* if_string() const { return std::get_if<std::string>(&value_); }
  const Array* if_array() const { return std::get_if<Array>(&value_); }
  const Object* if_object() const { return std::get_if<Object>(&value_); }

  // The value must be of that kind (checked).
  bool as_bool() const;
  const std::string& as_string() const;
  const Array& as_array() const;
  const Object& as_object() const;
  std::string& as_string();
  Array& as_array();
  Object& as_object();

  // Integers only, nothing when out of range or of another kind (2.0 is not an integer here).
  std::optional<int64_t> to_i64() const;
  std::optional<uint64_t> to_u64() const;
  // Any number.
  std::optional<double> to_double() const;

  // Member of an object; nullptr when absent or when this is no object. Linear in the number of members.
  const Json* find(std::string_view key) const;
  Json* find(std::string_view key);
  // As find(), but a member that is null counts as absent.
  const Json* find_value(std::string_view key) const;
  // Sets a member of an object (a null value becomes an object first); an existing key keeps its position.
  Json& set(std::string_view key, Json value);
  void push_back(Json value);
  // Elements of an array, members of an object, else 0.
  size_t size() const;

  // Equal kinds and values; objects compare without regard to order, integers by value, doubles by ==.
  friend bool operator==(const Json& a, const Json& b);

 private:
  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object> value_;
};

struct JsonMember {
  std::string key;
  Json value;
};

// Here and not in the class: each of them may have to destroy a vector of JsonMember, which is complete only now.
inline Json::Json() = default;
inline Json::Json(std::nullptr_t) {}
inline Json::Json(bool v) : value_(v) {}
inline Json::Json(double v) : value_(v) {}
inline Json::Json(std::string v) : value_(std::move(v)) {}
inline Json::Json(std::string_view v) : value_(std::string(v)) {}
inline Json::Json(const char* v) : value_(std::string(v)) {}
template <std::integral T>
  requires(!std::same_as<T, bool>)
Json::Json(T v) {
  if constexpr (std::unsigned_integral<T> && sizeof(T) == 8) {
    if (v > static_cast<T>(INT64_MAX)) {
      value_ = uint64_t{v};
      return;
    }
  }
  value_ = static_cast<int64_t>(v);
}

// The whole text must be one value, with JSON white space around it. Errors: kInvalidRequest with a text such as
// "expected `,` or `}` at line 1 column 9" (columns count bytes).
Result<Json> parse_json(std::string_view text);
// Reads a file and parses it; errors name the file. A UTF-8 byte order mark is skipped.
Result<Json> parse_json_file(const std::string& path);

// Typed members of an object, for readers of configuration files. Errors say which key, what was expected, what was
// found.
Result<const Json*> json_member(const Json& object, std::string_view key);
Result<int64_t> json_i64(const Json& object, std::string_view key);
Result<double> json_double(const Json& object, std::string_view key);
Result<bool> json_bool(const Json& object, std::string_view key);
Result<std::string> json_string(const Json& object, std::string_view key);
// "string \"x\"", "integer `7`", "map", ... for error texts.
std::string describe_json(const Json& value);

// kCompact: no spaces. kSpaced: ", " and ": " (Python's json.dumps separators). kPython: kSpaced with Python's
// exponents (recipe.md §2.2).
enum class JsonStyle : uint8_t { kCompact, kSpaced, kPython };
void append_json(std::string& out, const Json& value, JsonStyle style = JsonStyle::kCompact);
std::string to_json(const Json& value, JsonStyle style = JsonStyle::kCompact);

// A string with its quotes; only `"`, `\` and characters below U+0020 are escaped.
void append_json_string(std::string& out, std::string_view text);
// The same without the quotes.
void append_json_escaped(std::string& out, std::string_view text);
// Shortest digits that read back as the same value. Layout of recipe.md §2.2; infinities and NaN are written as null.
void append_json_number(std::string& out, double value);
void append_json_number(std::string& out, float value);

// Writes compact JSON straight into a string, with commas put in by itself:
//   JsonWriter w(out); w.begin_object().key("id").value("x").key("n").value(3).end_object();
// The caller keeps calls balanced; nothing is checked in release builds.
class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view v);
  JsonWriter& value(const char* v) { return value(std::string_view(v)); }
  JsonWriter& value(const std::string& v) { return value(std::string_view(v)); }
  JsonWriter& value(bool v);
  JsonWriter& value(double v);
  JsonWriter& value(float v);
  JsonWriter& value(const Json& v);
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  JsonWriter& value(T v) {
    if constexpr (std::signed_integral<T>) {
      return signed_value(static_cast<int64_t>(v));
    } else {
      return unsigned_value(static_cast<uint64_t>(v));
    }
  }
  JsonWriter& null();
  // An optional is its value or null.
  template <class T>
  JsonWriter& value(const std::optional<T>& v) {
    return v ? value(*v) : null();
  }
  // Text that is JSON already.
  JsonWriter& raw(std::string_view json);

 private:
  JsonWriter& open(char c);
  JsonWriter& close(char c);
  JsonWriter& signed_value(int64_t v);
  JsonWriter& unsigned_value(uint64_t v);
  void separate() {
    if (comma_) out_.push_back(',');
    comma_ = true;
  }

  std::string& out_;
  bool comma_ = false;  // a comma is due before the next value or key
};

}  // namespace di
