// From what a schema allows to rules that write it (structured-output.md §4.5-4.7).
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "structured/grammar/grammar.h"
#include "structured/schema/schema.h"

namespace di::structured {

// How a value may be written: a lexeme for all scalar forms, and rules for arrays and objects.
struct ValueParts {
  NodeId scalar = kNothing;
  std::vector<RuleId> rules;
};

class Emitter {
 public:
  Emitter(Arena& arena, Grammar& grammar, Schema& schema, const SpecOptions& options, const Limits& limits);

  // The rule for a whole value. Call finish() once all rules are asked for.
  RuleId value_rule(ExprId expr);
  const ValueParts& parts(ExprId expr);
  // Only the scalar forms but strings, and rules: what a tool parameter written as JSON may be.
  ValueParts without_strings(ExprId expr);
  // Emits what was put off; nothing recursive happens on the C stack.
  void finish();
  const std::optional<CompileError>& error() const { return error_; }
  NodeId whitespace() const { return space_; }
  // Adds edges that read the value between two states.
  void value_edges(StateId from, StateId to, const ValueParts& parts, uint32_t op = kNone);
  NodeId key_text(const std::string& name) const;

  // A name's class outside the declared members.
  struct NameClass {
    NodeId names = kNothing;
    ExprId value = kAnyExpr;
  };
  std::vector<NameClass> name_classes(const ObjectShape& shape, const std::vector<std::string>& declared);

 private:
  struct Job {
    RuleId rule = 0;
    std::optional<ArrayShape> array;
    std::optional<ObjectShape> object;
  };
  struct Named {
    std::string name;
    ExprId value = kAnyExpr;
    bool required = false;
    bool tail = false;  // required but not declared: behind the declared ones, in any order
  };

  static std::string quoted(std::string_view text);
  NodeId string_text(NodeId text);
  bool is_list(NodeId node) const;
  NodeId scalar_of(const Lang& lang, bool strings);
  void emit_array(RuleId rule, const ArrayShape& shape);
  // Why it cannot be done; empty: done.
  std::string emit_unique(RuleId rule, const ArrayShape& shape);
  void emit_object(RuleId rule, const ObjectShape& shape);
  // Members that are not declared: in the classes of their names, and for each witness the classes it may be of.
  struct Others {
    std::vector<NameClass> rest;
    std::vector<std::vector<NameClass>> witnesses;
  };
  void emit_ordered(RuleId rule, const ObjectShape& shape, const std::vector<Named>& members, const Others& others);
  void emit_any_order(RuleId rule, const ObjectShape& shape, const std::vector<Named>& members, const Others& others);
  // From the state before a member's name to the one behind its value.
  void other_members(StateId from, StateId to, const std::vector<NameClass>& classes, uint32_t op);
  std::vector<Named> members_of(const ObjectShape& shape);
  void item_edges(StateId from, StateId to, ExprId item, const ArrayShape& shape, uint32_t count_cap);
  bool has_endless_repeat(NodeId node) const;
  bool enumerate(NodeId node, size_t limit, std::vector<std::string>& out);
  void refuse_shape(Origin origin, std::string_view code, std::string_view keyword, std::string message);

  Arena& arena_;
  Grammar& grammar_;
  Schema& schema_;
  const SpecOptions& options_;
  const Limits& limits_;
  std::optional<CompileError> error_;
  std::unordered_map<ExprId, ValueParts> parts_;
  std::unordered_map<ExprId, RuleId> value_rules_;
  std::deque<Job> jobs_;
  NodeId space_ = kNothing;
  NodeId free_string_ = kNothing;
  NodeId comma_ = kNothing;
  NodeId colon_ = kNothing;
};

}  // namespace di::structured
