#include "structured/text_grammar.h"

#include <fmt/format.h>

#include <algorithm>

namespace di::structured {
namespace {

constexpr uint32_t kMostUnrolled = 2'000;

class Lowering {
 public:
  Lowering(Build& b, const TextGrammar& g, std::string_view text) : b_(b), g_(g), text_(text) {}

  Expected<RuleId> run(const std::string& root) {
    for (size_t i = 0; i < g_.rules.size(); ++i) {
      if (!index_.emplace(g_.rules[i].name, i).second) {
        return refuse("invalid_grammar", fmt::format("{}: rule \"{}\" is defined twice",
                                                     place_in(text_, g_.rules[i].offset), g_.rules[i].name));
      }
    }
    for (const GrammarExpr& e : g_.exprs) {
      if (e.kind == GrammarExpr::Kind::kReference && !index_.contains(e.name)) {
        return refuse("invalid_grammar",
                      fmt::format("{}: rule \"{}\" is not defined", place_in(text_, e.offset), e.name));
      }
    }
    const auto it = index_.find(root);
    if (it == index_.end()) return refuse("invalid_grammar", fmt::format("there is no rule \"{}\"", root));
    find_lexical();
    if (!error_.empty()) return refuse("constraint_too_complex", error_);
    rules_.assign(g_.rules.size(), kNone);
    const RuleId rule = rule_of(it->second);
    while (!work_.empty() && error_.empty() && !b_.arena.budget().exhausted()) {
      const size_t next = work_.back();
      work_.pop_back();
      const StateId end = b_.grammar.add_state(rules_[next]);
      b_.grammar.states[end].final = true;
      emit(g_.rules[next].expr, b_.grammar.rules[rules_[next]].start, end);
    }
    if (!error_.empty()) return refuse("constraint_too_complex", error_);
    return rule;
  }

 private:
  using Kind = GrammarExpr::Kind;

  // A rule all of whose references are lexical is lexical; what recursion reaches never is.
  void find_lexical() {
    lexical_.assign(g_.rules.size(), kNone);
    for (bool changed = true; changed && error_.empty();) {
      changed = false;
      for (size_t i = 0; i < g_.rules.size(); ++i) {
        if (lexical_[i] != kNone) continue;
        const NodeId node = node_of(g_.rules[i].expr);
        if (node == kNone) continue;
        lexical_[i] = node;
        changed = true;
      }
    }
  }

  // The expression as one regular expression, or kNone. Recursive over the nesting that the readers bound.
  NodeId node_of(uint32_t id) {
    const GrammarExpr& e = g_.exprs[id];
    switch (e.kind) {
      case Kind::kNode:
        return e.node;
      case Kind::kReference:
        return lexical_[index_.at(e.name)];
      case Kind::kRepeat: {
        const NodeId body = node_of(e.kids[0]);
        return body == kNone ? kNone : b_.arena.repeat(body, e.min, e.max);
      }
      default: {
        std::vector<NodeId> parts;
        for (const uint32_t k : e.kids) {
          parts.push_back(node_of(k));
          if (parts.back() == kNone) return kNone;
        }
        if (e.kind == Kind::kChoice) return b_.arena.alt(std::move(parts));
        NodeId r = kEmptyText;
        for (size_t i = parts.size(); i > 0; --i) r = b_.arena.concat(parts[i - 1], r);
        return r;
      }
    }
  }

  RuleId rule_of(size_t i) {
    if (rules_[i] == kNone) {
      rules_[i] = b_.grammar.add_rule();
      work_.push_back(i);
    }
    return rules_[i];
  }

  void emit(uint32_t id, StateId from, StateId to) {
    const GrammarExpr& e = g_.exprs[id];
    const RuleId rule = b_.grammar.states[from].rule;
    if (const NodeId node = node_of(id); node != kNone) {
      b_.grammar.lexeme(from, node, to);
      return;
    }
    switch (e.kind) {
      case Kind::kReference:
        b_.grammar.call(from, rule_of(index_.at(e.name)), to);
        break;
      case Kind::kChoice:
        for (const uint32_t k : e.kids) emit(k, from, to);
        break;
      case Kind::kSequence:
        for (size_t i = 0; i < e.kids.size(); ++i) {
          const StateId next = i + 1 == e.kids.size() ? to : b_.grammar.add_state(rule);
          emit(e.kids[i], from, next);
          from = next;
        }
        break;
      default:
        emit_repeat(e, from, to, rule);
        break;
    }
  }

  void emit_repeat(const GrammarExpr& e, StateId from, StateId to, RuleId rule) {
    const uint32_t unrolled = e.max == kNoLimit ? e.min : e.max;
    total_ += unrolled;
    if (unrolled > kMostUnrolled || total_ > 100'000) {
      error_ =
          fmt::format("{}: a repeat of a recursive group may be at most {}", place_in(text_, e.offset), kMostUnrolled);
      return;
    }
    for (uint32_t i = 0; i < unrolled; ++i) {
      if (i >= e.min) b_.grammar.skip(from, to);
      const StateId next = b_.grammar.add_state(rule);
      emit(e.kids[0], from, next);
      from = next;
    }
    if (e.max == kNoLimit) {
      const StateId loop = b_.grammar.add_state(rule);
      b_.grammar.skip(from, loop);
      emit(e.kids[0], loop, loop);
      from = loop;
    }
    b_.grammar.skip(from, to);
  }

  Build& b_;
  const TextGrammar& g_;
  std::string_view text_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<NodeId> lexical_;
  std::vector<RuleId> rules_;
  std::vector<size_t> work_;
  uint64_t total_ = 0;
  std::string error_;
};

}  // namespace

std::string place_in(std::string_view text, size_t offset) {
  offset = std::min(offset, text.size());
  const auto head = text.substr(0, offset);
  const auto line = std::ranges::count(head, '\n') + 1;
  const size_t start = head.rfind('\n') == std::string_view::npos ? 0 : head.rfind('\n') + 1;
  return fmt::format("line {} column {}", line, offset - start + 1);
}

Expected<RuleId> lower_grammar(Build& b, const TextGrammar& grammar, const std::string& root, std::string_view text) {
  return Lowering(b, grammar, text).run(root);
}

}  // namespace di::structured
