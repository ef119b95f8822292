// A JSON Schema document: unfolds subschemas into Lang values and combines them. Used by the emitter only, one
// compilation on one thread.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "structured/schema/document.h"
#include "structured/schema/lang.h"
#include "structured/structured.h"

namespace di::structured {

class Schema {
 public:
  Schema(Arena& arena, const Value& root, const SpecOptions& options, const Limits& limits,
         std::vector<std::string>& warnings);

  ExprId root_expr();
  ExprId schema(const Value& node);
  ExprId constant(const Value& value);
  ExprId all(std::vector<ExprId> parts);
  ExprId none(ExprId a);
  // Valid until the next call of anything here only by value; the reference stays (memoised).
  const Lang& unfold(ExprId id);
  // Whether no value belongs to it; looks `depth` levels down, false when in doubt.
  bool is_empty(ExprId id, int depth);
  // The value allowed for a name that the shape does not declare.
  ExprId undeclared(const ObjectShape& shape, const std::string& name);

  bool failed() const { return error_.has_value() || arena_.budget().exhausted(); }
  const std::optional<CompileError>& error() const { return error_; }
  // The innermost subschema found to allow nothing, for the error of an unsatisfiable whole.
  const std::string& unsatisfiable_at() const { return unsatisfiable_; }
  // Where a limit of the budget was reached: pointer and keyword, empty when that was not while a subschema was read.
  const std::pair<std::string, std::string>& exhausted_at() const { return exhausted_at_; }
  // What is written for a number part.
  NodeId number_text(const NumberPart& part);
  void fail(std::string_view code, const Value* at, std::string_view keyword, std::string message);
  // A keyword that cannot be enforced: an error (false), or in lenient mode a warning (true).
  bool cannot(const Value& node, std::string_view keyword, std::string message);
  bool cannot(Origin origin, std::string_view keyword, std::string message) {
    return cannot(origin.at != nullptr ? *origin.at : root_, keyword, std::move(message));
  }
  std::string pointer_to(const Value* v) const;
  // From now on the keywords that a rule reads are recorded; visited(): their pointers, each once, in no order.
  void record_visits() { record_ = true; }
  std::vector<std::string> visited() const;

 private:
  enum class Kind : uint8_t { kAny, kNever, kSchema, kAll, kNot, kConstant };
  struct Expr {
    Kind kind = Kind::kAny;
    const Value* value = nullptr;
    std::vector<ExprId> kids;
  };
  struct Place {
    const Value* parent = nullptr;
    size_t index = 0;
    const Value* resource = nullptr;  // the nearest schema above with an identifier, or the root
  };

  ExprId intern(Expr e);
  void index();
  const Value* resolve(const Value& from, const std::string& ref);
  const Value* follow(const Value* from, std::string_view pointer) const;

  // A keyword as a rule reads it: every rule gets its keywords from here, so that what no rule reads can be told.
  const Value* keyword_of(const Value& node, std::string_view name);
  void visit(const Value& node, std::string_view name) {
    last_keyword_ = name;
    if (record_) visited_.emplace(&node, name);
  }

  // Keywords of one subschema; reader.cc and applicators.cc.
  Lang read(const Value& node);
  void read_types(const Value& node, Lang& lang);
  void read_values(const Value& node, Lang& lang);
  void read_numbers(const Value& node, Lang& lang);
  void read_strings(const Value& node, Lang& lang);
  void read_arrays(const Value& node, Lang& lang);
  void read_objects(const Value& node, Lang& lang);
  void read_rest(const Value& node, ObjectShape& shape);
  void apply_keyword(const Value& node, const std::string& key, const Value& value, Lang& lang);
  void apply_dependencies(const Value& node, const std::string& key, const Value& value, Lang& lang);
  void apply_one_of(const Value& node, const Value& branches, Lang& lang);
  void apply_if(const Value& node, Lang& lang);
  void apply_unevaluated(const Value& node, Lang& lang);
  void apply_reference(const Value& node, const std::string& key, const Value& value, Lang& lang);
  std::optional<uint64_t> count_of(const Value& node, std::string_view keyword);
  const Value* typed(const Value& node, std::string_view keyword, Value::Kind kind, std::string_view expected);

  // lang_ops.cc
  Lang everything();
  Lang of_constant(const Value& value);
  // most: alternatives of arrays, and of objects, that may come of it; 0: Limits::max_shapes.
  void intersect(Lang& a, const Lang& b, size_t most = 0);
  void unite(Lang& a, const Lang& b);
  // Names: properties whose presence may be used to violate it.
  // names: members that tell the two apart where only those are looked at; null: any member may.
  Lang complement(const Lang& a, const std::vector<std::string>* names);
  void add_witnesses(const ObjectShape& shape, std::vector<ObjectShape>& ways);
  void place_witnesses(Lang& lang);
  void complement_objects(const Lang& a, const std::vector<std::string>* names, Lang& out);
  void complement_arrays(const Lang& a, Lang& out);
  ArrayShape meet(const ArrayShape& a, const ArrayShape& b);
  ObjectShape meet(const ObjectShape& a, const ObjectShape& b);
  bool shape_empty(const ObjectShape& s, int depth);
  bool shape_empty(const ArrayShape& s, int depth);
  bool lang_empty(const Lang& lang, int depth);
  bool disjoint(const Lang& a, const Lang& b);
  const std::vector<std::string>& property_names(const Lang& lang, std::vector<std::string>& store);

  Arena& arena_;
  const Value& root_;
  const SpecOptions& options_;
  const Limits& limits_;
  std::vector<std::string>& warnings_;
  std::vector<Expr> exprs_;
  std::unordered_multimap<uint64_t, ExprId> by_hash_;
  std::vector<std::unique_ptr<Lang>> langs_;
  std::vector<bool> in_progress_;
  std::vector<bool> cut_;  // reached again while in progress
  std::unordered_map<const Value*, Place> places_;
  std::unordered_map<std::string, const Value*> anchors_;  // "resource-address#name", identifiers
  std::unordered_map<std::string, std::vector<const Value*>> dynamic_anchors_;
  std::vector<std::unique_ptr<Lang>> temporary_;
  std::optional<CompileError> error_;
  std::string unsatisfiable_;
  bool unsatisfiable_known_ = false;
  const Value* reading_ = nullptr;  // the innermost subschema that is being read …
  std::string_view last_keyword_;   // … and what a rule read last
  std::pair<std::string, std::string> exhausted_at_;
  bool record_ = false;
  std::set<std::pair<const Value*, std::string>> visited_;
  uint32_t cuts_ = 0;  // references cut because they reach themselves, see unfold()
  uint32_t depth_ = 0;
  uint64_t total_shapes_ = 0;
  NodeId plain_ = kNothing;
  NodeId all_numbers_ = kNothing;
  NodeId integers_ = kNothing;
  NodeId wholes_ = kNothing;
};

}  // namespace di::structured
