// JSON documents of constraints: key order and the text of numbers are kept (bounds are compared as decimals of any
// size).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "structured/error.h"

namespace di::structured {

struct Value;

struct Value {
  enum class Kind : uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  std::string text;               // kString: decoded; kNumber: as written
  std::vector<Value> items;       // kArray, and the values of kObject
  std::vector<std::string> keys;  // kObject: names, parallel to items; of duplicates the last value at the first place

  bool is_object() const { return kind == Kind::kObject; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_number() const { return kind == Kind::kNumber; }
  bool is_bool() const { return kind == Kind::kBool; }
  // Member of an object, or nullptr.
  const Value* find(std::string_view key) const;
};

// Strict JSON; no recursion. Errors: `code` with line-free byte offsets, constraint_too_complex beyond the nesting
// limit.
Expected<Value> read_document(std::string_view text, uint32_t max_nesting, std::string_view code);

// Equality as JSON Schema has it: numbers by value, objects without order.
bool same_value(const Value& a, const Value& b);

}  // namespace di::structured
