// The grammar of a constraint: rules as automata whose edges read a lexeme (regular expression), call a rule, read a
// special token, or do nothing; an edge may carry an operation on the frame's counter or set (§2.1, §2.3).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "structured/regex/arena.h"
#include "structured/structured.h"

namespace di::structured {

using RuleId = uint32_t;
using StateId = uint32_t;
constexpr uint32_t kNone = UINT32_MAX;

// What a frame carries: two counters and a set of seen indices. Interned; an Aux is an index, 0 = all zero.
using AuxId = uint32_t;
struct AuxValue {
  uint32_t count = 0;
  uint32_t found = 0;
  std::vector<uint64_t> seen;
  friend bool operator==(const AuxValue&, const AuxValue&) = default;
};

// Checked and applied in this order; an edge whose check fails is not there.
struct Operation {
  uint32_t min_count = 0;         // count >= min_count
  uint32_t max_count = kNoLimit;  // count <= max_count
  uint32_t min_found = 0;
  uint32_t max_found = kNoLimit;
  uint32_t room = kNoLimit;  // count + missing found (min_found_goal - found) <= room
  uint32_t found_goal = 0;
  uint32_t not_seen = kNone;         // this index is not in the set
  uint32_t required = kNone;         // all of sets[required] are seen
  uint32_t missing_room = kNoLimit;  // count + number of sets[missing_of] not seen <= missing_room
  uint32_t missing_of = kNone;
  uint32_t not_all_seen = 0;  // fewer than this many indices are seen, when > 0
  bool add_count = false;
  uint32_t count_cap = kNoLimit;  // the counter stops there (no upper bound needs it)
  bool add_found = false;
  uint32_t found_cap = kNoLimit;
  bool mark = false;  // not_seen becomes seen
};

enum class EdgeKind : uint8_t { kSkip, kLexeme, kCall, kTokens };

struct Edge {
  EdgeKind kind = EdgeKind::kSkip;
  uint32_t what = 0;  // node, rule, token set
  StateId to = 0;
  uint32_t op = kNone;
};

struct State {
  RuleId rule = 0;
  bool final = false;
  std::vector<Edge> edges;
};

struct Rule {
  StateId start = 0;
  bool nesting = false;  // counts towards the nesting of the output
};

struct Grammar {
  std::vector<Rule> rules;
  std::vector<State> states;
  std::vector<Operation> ops;
  std::vector<std::vector<uint64_t>> sets;       // required members
  std::vector<std::vector<TokenId>> token_sets;  // sorted
  RuleId root = 0;

  RuleId add_rule(bool nesting = false);
  StateId add_state(RuleId rule);
  void lexeme(StateId from, NodeId node, StateId to, uint32_t op = kNone);
  void call(StateId from, RuleId rule, StateId to, uint32_t op = kNone);
  void tokens(StateId from, std::vector<TokenId> set, StateId to);
  void skip(StateId from, StateId to, uint32_t op = kNone);
  uint32_t add_op(const Operation& op);
  uint32_t add_set(std::vector<uint64_t> bits);

  // Removes edges that no complete text can use, as far as that shows without running through values of the counters.
  // False when the root has no text at all.
  bool trim(Arena& arena);
  bool productive(RuleId rule) const { return rule < live_rules_.size() && live_rules_[rule]; }
  int64_t bytes() const;

 private:
  void keep_live(Arena& arena);
  bool drop_hopeless();

  std::vector<bool> live_rules_;
};

}  // namespace di::structured
