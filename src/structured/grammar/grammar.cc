#include "structured/grammar/grammar.h"

#include <algorithm>
#include <bit>

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
  do {
    keep_live(arena);
  } while (drop_hopeless());
  return live_rules_[root];
}

// Edges whose check wants more of the frame than any way there can bring: counts, found items, members that were seen.
// Upper bounds are left aside, so that what is dropped is never passed. Whether any was dropped.
bool Grammar::drop_hopeless() {
  const auto wants = [](const Operation& op) { return op.min_count > 0 || op.min_found > 0 || op.required != kNone; };
  if (std::ranges::none_of(ops, wants)) return false;
  struct Most {
    bool reached = false;
    uint32_t count = 0;
    uint32_t found = 0;
    uint32_t raised = 0;
  };
  constexpr uint32_t kTurns = 64;  // raised that often: as if there were no bound
  std::vector<Most> most(states.size());
  std::vector<std::vector<uint64_t>> marked(rules.size());
  std::vector<bool> counts_more(rules.size(), false);  // than each marked index once
  std::vector<StateId> work;
  for (const Rule& rule : rules) {
    most[rule.start].reached = true;
    work.push_back(rule.start);
  }
  const Operation nothing;
  const auto plus = [](uint32_t n, bool one) { return n == kNoLimit ? n : n + uint32_t{one}; };
  while (!work.empty()) {
    const StateId from = work.back();
    work.pop_back();
    for (const Edge& e : states[from].edges) {
      const Operation& op = e.op == kNone ? nothing : ops[e.op];
      const RuleId rule = states[from].rule;
      if (op.add_count && !op.mark) counts_more[rule] = true;
      if (op.mark && op.not_seen != kNone) {
        std::vector<uint64_t>& bits = marked[rule];
        if (bits.size() <= op.not_seen / 64) bits.resize(op.not_seen / 64 + 1);
        bits[op.not_seen / 64] |= uint64_t{1} << (op.not_seen % 64);
      }
      Most& to = most[e.to];
      const uint32_t count = plus(most[from].count, op.add_count);
      const uint32_t found = plus(most[from].found, op.add_found);
      if (to.reached && count <= to.count && found <= to.found) continue;
      to.reached = true;
      const bool endless = ++to.raised > kTurns;
      to.count = endless && count > to.count ? kNoLimit : std::max(to.count, count);
      to.found = endless && found > to.found ? kNoLimit : std::max(to.found, found);
      work.push_back(e.to);
    }
  }
  const auto unmarked = [&](const Operation& op, const std::vector<uint64_t>& bits) {
    if (op.required == kNone) return false;
    const std::vector<uint64_t>& set = sets[op.required];
    for (size_t i = 0; i < set.size(); ++i) {
      if ((set[i] & ~(i < bits.size() ? bits[i] : 0)) != 0) return true;
    }
    return false;
  };
  size_t dropped = 0;
  for (StateId s = 0; s < states.size(); ++s) {
    dropped += std::erase_if(states[s].edges, [&](const Edge& e) {
      if (e.op == kNone || !most[s].reached) return false;
      const Operation& op = ops[e.op];
      const std::vector<uint64_t>& bits = marked[states[s].rule];
      uint64_t most_count = most[s].count;
      if (!counts_more[states[s].rule]) {
        uint64_t once = 0;
        for (const uint64_t word : bits) once += static_cast<uint64_t>(std::popcount(word));
        most_count = std::min(most_count, once);
      }
      return op.min_count > most_count || op.min_found > most[s].found || unmarked(op, bits);
    });
  }
  return dropped > 0;
}

void Grammar::keep_live(Arena& arena) {
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
}

int64_t Grammar::bytes() const {
  size_t n = states.size() * sizeof(State) + rules.size() * sizeof(Rule) + ops.size() * sizeof(Operation);
  for (const State& s : states) n += s.edges.capacity() * sizeof(Edge);
  for (const auto& t : token_sets) n += t.size() * sizeof(TokenId);
  return static_cast<int64_t>(n);
}

}  // namespace di::structured
