// What a subschema allows, by JSON type: a union of shapes (structured-output.md §4.1: keywords at one node are a
// conjunction). Children are expressions, unfolded on demand, so recursion costs nothing here.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "structured/regex/arena.h"
#include "structured/schema/document.h"

namespace di::structured {

// A combination of subschemas; see Schema. Equal combinations have equal ids.
using ExprId = uint32_t;
constexpr ExprId kAnyExpr = 0;
constexpr ExprId kNeverExpr = 1;
constexpr uint64_t kUnbounded = UINT64_MAX;

// Where a keyword stands, for error messages; no part of what is allowed.
struct Origin {
  const Value* at = nullptr;
  friend bool operator==(Origin, Origin) { return true; }
};

// Numbers: a set closed by value (decimal.h). `any`: all of them, exponents too. `integer`: only the whole ones.
struct NumberPart {
  NodeId set = kNothing;
  bool integer = false;
  bool any = false;
  friend bool operator==(const NumberPart&, const NumberPart&) = default;
};

struct Contains {
  ExprId item = kAnyExpr;
  uint64_t min = 1;
  uint64_t max = kUnbounded;
  Origin origin;
  friend bool operator==(const Contains&, const Contains&) = default;
};

struct ArrayShape {
  std::vector<ExprId> prefix;
  ExprId rest = kAnyExpr;
  uint64_t min = 0;
  uint64_t max = kUnbounded;
  bool unique = false;
  Origin unique_origin;
  std::vector<Contains> contains;
  bool all_evaluated = false;  // some keyword speaks of every item (unevaluatedItems)
  friend bool operator==(const ArrayShape&, const ArrayShape&) = default;
};

struct Property {
  std::string name;
  ExprId value = kAnyExpr;
  friend bool operator==(const Property&, const Property&) = default;
};

// One subschema's patternProperties and additionalProperties, for names that no shape member declares.
struct RestRule {
  std::vector<std::pair<NodeId, ExprId>> patterns;
  ExprId additional = kAnyExpr;
  Origin origin;
  friend bool operator==(const RestRule&, const RestRule&) = default;
};

// Some member that the shape does not declare has such a name and value (structured-output.md §4.2: `not`).
struct Witness {
  NodeId names = kAllBytes;  // decoded
  ExprId value = kAnyExpr;
  friend bool operator==(const Witness&, const Witness&) = default;
};

struct ObjectShape {
  std::vector<Property> props;        // in the order of emission
  std::vector<RestRule> rest;         // all hold
  std::vector<std::string> required;  // sorted
  NodeId names = kAllBytes;           // propertyNames
  std::vector<Witness> witnesses;     // of several, each is another member
  uint64_t min = 0;
  uint64_t max = kUnbounded;
  // Names judged by additionalProperties or the like: everything is evaluated (unevaluatedProperties).
  bool all_evaluated = false;
  // Members may come in any order whatever the options say (objects given as values).
  bool any_order = false;
  friend bool operator==(const ObjectShape&, const ObjectShape&) = default;
};

struct Lang {
  bool null = false;
  uint8_t bools = 0;  // bit 0: false, bit 1: true
  std::vector<NumberPart> numbers;
  NodeId string = kNothing;  // decoded
  std::vector<ArrayShape> arrays;
  std::vector<ObjectShape> objects;
  // False when values were left out that belong to it: then it must not be complemented.
  bool exact = true;

  bool empty_form() const {
    return !null && bools == 0 && numbers.empty() && string == kNothing && arrays.empty() && objects.empty();
  }
};

}  // namespace di::structured
