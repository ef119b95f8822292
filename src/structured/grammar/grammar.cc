#include "structured/grammar/grammar.h"

#include <algorithm>

namespace di::structured {

RuleId Grammar::add_rule(bool nesting) {
  const auto id = static_cast<RuleId>(rules.size());
  rules.push_back({0, nesting});
  rules[id].start = add_state(id);
  return id;
}

StateId Grammar::add_state(RuleId rule) {
  states.emplace_back();
  states.back().rule = rule;
  return static_cast<StateId>(states.size() - 1);
}

void Grammar::lexeme(StateId from, NodeId node, StateId to, uint32_t op) {
  if (node == kNothing) return;
  if (node == kEmptyText) {
    skip(from, to, op);
    return;
  }
  states[from].edges.push_back({EdgeKind::kLexeme, node, to, op});
}

void Grammar::call(StateId from, RuleId rule, StateId to, uint32_t op) {
  states[from].edges.push_back({EdgeKind::kCall, rule, to, op});
}

void Grammar::tokens(StateId from, std::vector<TokenId> set, StateId to) {
  std::ranges::sort(set);
  token_sets.push_back(std::move(set));
  states[from].edges.push_back({EdgeKind::kTokens, static_cast<uint32_t>(token_sets.size() - 1), to, kNone});
}

void Grammar::skip(StateId from, StateId to, uint32_t op) {
  states[from].edges.push_back({EdgeKind::kSkip, 0, to, op});
}

uint32_t Grammar::add_op(const Operation& op) {
  ops.push_back(op);
  return static_cast<uint32_t>(ops.size() - 1);
}

uint32_t Grammar::add_set(std::vector<uint64_t> bits) {
  sets.push_back(std::move(bits));
  return static_cast<uint32_t>(sets.size() - 1);
}

bool Grammar::trim(Arena& arena) {
  // A state is live when it is final or a live edge leads to a live state; a call is live when the rule's start is.
  struct User {
    StateId from;
    size_t edge;
  };
  std::vector<std::vector<User>> into(states.size());
  std::vector<std::vector<User>> callers(rules.size());
  std::vector<bool> live(states.size(), false);
  live_rules_.assign(rules.size(), false);
  std::vector<StateId> work;
  for (StateId s = 0; s < states.size(); ++s) {
    auto& edges = states[s].edges;
    std::erase_if(edges, [&](const Edge& e) {
      return (e.kind == EdgeKind::kLexeme && arena.is_nothing(e.what)) ||
             (e.kind == EdgeKind::kTokens && token_sets[e.what].empty());
    });
    for (size_t i = 0; i < edges.size(); ++i) {
      into[edges[i].to].push_back({s, i});
      if (edges[i].kind == EdgeKind::kCall) callers[edges[i].what].push_back({s, i});
    }
    if (states[s].final) {
      live[s] = true;
      work.push_back(s);
    }
  }
  auto visit = [&](const User& u) {
    const Edge& e = states[u.from].edges[u.edge];
    if (live[u.from] || !live[e.to] || (e.kind == EdgeKind::kCall && !live_rules_[e.what])) return;
    live[u.from] = true;
    work.push_back(u.from);
  };
  while (!work.empty()) {
    const StateId s = work.back();
    work.pop_back();
    for (const User& u : into[s]) visit(u);
    const RuleId r = states[s].rule;
    if (rules[r].start == s && !live_rules_[r]) {
      live_rules_[r] = true;
      for (const User& u : callers[r]) visit(u);
    }
  }
  for (State& s : states) {
    std::erase_if(s.edges,
                  [&](const Edge& e) { return !live[e.to] || (e.kind == EdgeKind::kCall && !live_rules_[e.what]); });
  }
  return live_rules_[root];
}

int64_t Grammar::bytes() const {
  size_t n = states.size() * sizeof(State) + rules.size() * sizeof(Rule) + ops.size() * sizeof(Operation);
  for (const State& s : states) n += s.edges.capacity() * sizeof(Edge);
  for (const auto& t : token_sets) n += t.size() * sizeof(TokenId);
  return static_cast<int64_t>(n);
}

}  // namespace di::structured
