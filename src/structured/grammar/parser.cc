#include "structured/grammar/parser.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "structured/regex/json_content.h"

namespace di::structured {
namespace {

uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15ULL + (h << 6U) + (h >> 2U);
  return h * 0xff51afd7ed558ccdULL;
}

struct PositionHash {
  size_t operator()(const Item& i) const { return mix(mix(i.to, i.origin), i.aux); }
};

}  // namespace

// A set under construction; one is kept for its memory. Positions use the members to, origin and aux of Item.
struct Parser::Build {
  struct {
    std::vector<Item> lexemes;
    std::vector<Item> waiting;
    std::vector<Item> tokens;
    bool accepting = false;
    uint32_t level = 0;
  } set;
  std::vector<Item> work;
  std::vector<Item> few;  // seen; moved to `many` when they are more than a look through them is worth
  std::unordered_set<Item, PositionHash> many;
  std::vector<RuleId> predicted;
  std::vector<RuleId> empty_rules;  // completed without reading

  void clear() {
    set.lexemes.clear();
    set.waiting.clear();
    set.tokens.clear();
    set.accepting = false;
    set.level = 0;
    work.clear();
    few.clear();
    if (!many.empty()) many.clear();
    predicted.clear();
    empty_rules.clear();
  }

  void push(StateId to, SetId origin, AuxId aux) {
    const Item p{0, to, origin, aux};
    if (!first_time(p)) return;
    work.push_back(p);
  }

  bool first_time(const Item& p) {
    constexpr size_t kFew = 24;
    if (!many.empty()) return many.insert(p).second;
    if (std::ranges::find(few, p) != few.end()) return false;
    few.push_back(p);
    if (few.size() > kFew) many.insert(few.begin(), few.end());
    return true;
  }
};

Parser::~Parser() = default;

Parser::Parser(Arena& arena, Grammar& grammar, const Limits& limits, const VocabularyImpl& vocabulary)
    : arena_(arena), grammar_(grammar), limits_(limits), vocabulary_(vocabulary), draft_(vocabulary.no_mask) {
  sets_.push_back(new_set());
  sets_[0]->live = {};
  slots_.assign(256, 0);
  aux_.emplace_back();
  free_content_ = json_content(arena);
  scratch_ = std::make_unique<Build>();
}

SetId Parser::start() {
  if (start_ == kUnknownSet) {
    Build& b = *scratch_;
    b.clear();
    b.push(grammar_.rules[grammar_.root].start, kRoot, 0);
    close(b);
    start_ = intern(b);
  }
  return start_;
}

AuxId Parser::intern_aux(AuxValue v) {
  uint64_t h = mix(v.count, v.found);
  for (const uint64_t w : v.seen) h = mix(h, w);
  const auto [from, to] = aux_by_hash_.equal_range(h);
  for (auto it = from; it != to; ++it) {
    if (aux_[it->second] == v) return it->second;
  }
  const auto id = static_cast<AuxId>(aux_.size());
  bytes_ += static_cast<int64_t>(sizeof(AuxValue) + v.seen.size() * 8 + 48);
  aux_.push_back(std::move(v));
  aux_by_hash_.emplace(h, id);
  return id;
}

bool Parser::check(const Operation& op, const AuxValue& v) const {
  if (v.count < op.min_count || v.count > op.max_count || v.found < op.min_found || v.found > op.max_found)
    return false;
  if (op.room != kNoLimit) {
    const uint32_t missing = op.found_goal > v.found ? op.found_goal - v.found : 0;
    if (uint64_t{v.count} + missing > op.room) return false;
  }
  auto has = [&](uint32_t i) { return i / 64 < v.seen.size() && ((v.seen[i / 64] >> (i % 64)) & 1U) != 0; };
  if (op.not_seen != kNone && has(op.not_seen)) return false;
  auto missing_of = [&](uint32_t set) {
    uint32_t n = 0;
    const auto& want = grammar_.sets[set];
    for (size_t w = 0; w < want.size(); ++w) {
      n += static_cast<uint32_t>(__builtin_popcountll(want[w] & ~(w < v.seen.size() ? v.seen[w] : 0)));
    }
    return n;
  };
  if (op.required != kNone && missing_of(op.required) != 0) return false;
  if (op.missing_of != kNone && uint64_t{v.count} + missing_of(op.missing_of) > op.missing_room) return false;
  if (op.not_all_seen > 0) {
    uint32_t n = 0;
    for (const uint64_t w : v.seen) n += static_cast<uint32_t>(__builtin_popcountll(w));
    if (n >= op.not_all_seen) return false;
  }
  return true;
}

bool Parser::apply(uint32_t op_id, AuxId in, AuxId& out) {
  out = in;
  if (op_id == kNone) return true;
  const Operation& op = grammar_.ops[op_id];
  if (!check(op, aux_[in])) return false;
  if (!op.add_count && !op.add_found && !op.mark) return true;
  AuxValue v = aux_[in];
  if (op.add_count) v.count = std::min(v.count + 1, op.count_cap);
  if (op.add_found) v.found = std::min(v.found + 1, op.found_cap);
  if (op.mark) {
    if (v.seen.size() <= op.not_seen / 64) v.seen.resize(op.not_seen / 64 + 1, 0);
    v.seen[op.not_seen / 64] |= uint64_t{1} << (op.not_seen % 64);
  }
  out = intern_aux(std::move(v));
  return true;
}

uint32_t Parser::level_of(const Build& b, SetId origin, StateId state) const {
  const uint32_t own = grammar_.rules[grammar_.states[state].rule].nesting ? 1 : 0;
  if (origin == kRoot) return own;
  return own + (origin == kHere ? b.set.level : sets_[origin]->level);
}

void Parser::complete(Build& b, RuleId rule, SetId origin) {
  if (origin == kRoot) {
    b.set.accepting = true;
    return;
  }
  if (origin == kHere) {
    if (std::ranges::find(b.empty_rules, rule) != b.empty_rules.end()) return;
    b.empty_rules.push_back(rule);
    for (size_t i = 0; i < b.set.waiting.size(); ++i) {
      const Item w = b.set.waiting[i];
      if (w.what == rule) b.push(w.to, w.origin, w.aux);
    }
    return;
  }
  const auto& waiting = sets_[origin]->waiting;
  for (auto it = std::ranges::lower_bound(waiting, rule, {}, &Item::what); it != waiting.end() && it->what == rule;
       ++it) {
    b.push(it->to, it->origin == kHere ? origin : it->origin, it->aux);
  }
}

void Parser::visit(Build& b, const Item& p) {
  const State& state = grammar_.states[p.to];
  if (state.final) complete(b, state.rule, p.origin);
  for (const Edge& e : grammar_.states[p.to].edges) {
    AuxId aux = 0;
    if (!apply(e.op, p.aux, aux)) continue;
    switch (e.kind) {
      case EdgeKind::kSkip:
        b.push(e.to, p.origin, aux);
        break;
      case EdgeKind::kLexeme:
        b.set.lexemes.push_back({e.what, e.to, p.origin, aux});
        if (arena_.nullable(e.what)) b.push(e.to, p.origin, aux);
        break;
      case EdgeKind::kTokens:
        b.set.tokens.push_back({e.what, e.to, p.origin, aux});
        break;
      case EdgeKind::kCall: {
        const uint32_t level = level_of(b, p.origin, p.to);
        if (grammar_.rules[e.what].nesting && level >= limits_.max_output_nesting) break;
        if (p.origin != kHere) b.set.level = std::max(b.set.level, level);
        b.set.waiting.push_back({e.what, e.to, p.origin, aux});
        if (std::ranges::find(b.empty_rules, e.what) != b.empty_rules.end()) b.push(e.to, p.origin, aux);
        if (std::ranges::find(b.predicted, e.what) == b.predicted.end()) {
          b.predicted.push_back(e.what);
          b.push(grammar_.rules[e.what].start, kHere, 0);
        }
        break;
      }
    }
  }
}

void Parser::close(Build& b) {
  while (!b.work.empty()) {
    const Item p = b.work.back();
    b.work.pop_back();
    visit(b, p);
    if (b.set.lexemes.size() + b.set.waiting.size() > limits_.max_items || !arena_.budget().step()) {
      failed_ = true;
      return;
    }
  }
}

SetId Parser::intern(Build& b) {
  auto tidy = [](std::vector<Item>& items) {
    std::ranges::sort(items);
    items.erase(std::unique(items.begin(), items.end()), items.end());
  };
  auto& s = b.set;
  tidy(s.lexemes);
  tidy(s.waiting);
  tidy(s.tokens);
  if (failed_ || (s.lexemes.empty() && s.tokens.empty() && !s.accepting)) return kDeadSet;
  uint64_t h = s.accepting ? 7 : 3;
  for (const auto* items : {&s.lexemes, &s.waiting, &s.tokens}) {
    h = mix(h, items->size());
    for (const Item& i : *items) h = mix(mix(mix(mix(h, i.what), i.to), i.origin), i.aux);
  }
  size_t at = h & (slots_.size() - 1);
  for (; slots_[at] != 0; at = (at + 1) & (slots_.size() - 1)) {
    const ItemSet& o = *sets_[slots_[at]];
    if (o.hash == h && o.accepting == s.accepting && std::ranges::equal(o.lexemes, s.lexemes) &&
        std::ranges::equal(o.waiting, s.waiting) && std::ranges::equal(o.tokens, s.tokens)) {
      return slots_[at];
    }
  }
  bytes_ += static_cast<int64_t>(sizeof(ItemSet) + 16 +
                                 sizeof(Item) * (s.lexemes.size() + s.waiting.size() + s.tokens.size()));
  if (sets_.size() >= limits_.max_states || bytes_ > limits_.state_bytes) {
    failed_ = true;
    return kDeadSet;
  }
  const auto id = static_cast<SetId>(sets_.size());
  ItemSet* made = new_set();
  made->lexemes = keep(s.lexemes);
  made->waiting = keep(s.waiting);
  made->tokens = keep(s.tokens);
  made->accepting = s.accepting;
  made->level = s.level;
  made->hash = h;
  sets_.push_back(made);
  slots_[at] = id;
  if (sets_.size() * 2 > slots_.size()) {
    slots_.assign(slots_.size() * 2, 0);
    for (SetId i = 1; i < sets_.size(); ++i) {
      size_t p = sets_[i]->hash & (slots_.size() - 1);
      while (slots_[p] != 0) p = (p + 1) & (slots_.size() - 1);
      slots_[p] = i;
    }
  }
  return id;
}

ItemSet* Parser::new_set() {
  constexpr size_t kBlock = 32;
  if (sets_.size() % kBlock == 0) set_blocks_.push_back(std::make_unique<ItemSet[]>(kBlock));
  return &set_blocks_.back()[sets_.size() % kBlock];
}

std::span<const Item> Parser::keep(std::span<const Item> items) {
  constexpr size_t kBlock = 256;
  if (items.size() > item_room_.size()) {
    const size_t n = std::max(kBlock, items.size());
    item_blocks_.push_back(std::make_unique<Item[]>(n));
    item_room_ = {item_blocks_.back().get(), n};
  }
  std::ranges::copy(items, item_room_.begin());
  const auto kept = item_room_.first(items.size());
  item_room_ = item_room_.subspan(items.size());
  return kept;
}

// The set with these items alone; their frames must be those of other sets.
SetId Parser::only(std::span<const Item> items) {
  Build& b = *scratch_;
  b.clear();
  b.set.lexemes.assign(items.begin(), items.end());
  return intern(b);
}

SetId Parser::compute(SetId from, int byte, TokenId token, bool use_byte) {
  Build& b = *scratch_;
  b.clear();
  const ItemSet& s = *sets_[from];
  auto here = [&](SetId origin) { return origin == kHere ? from : origin; };
  if (use_byte) {
    for (const Item& i : s.lexemes) {
      const NodeId rest = arena_.step(i.what, static_cast<uint8_t>(byte));
      if (rest == kNothing) continue;
      if (rest != kEmptyText) b.set.lexemes.push_back({rest, i.to, here(i.origin), i.aux});
      if (arena_.nullable(rest)) b.push(i.to, here(i.origin), i.aux);
    }
  }
  if (token >= 0) {
    for (const Item& i : s.tokens) {
      if (std::ranges::binary_search(grammar_.token_sets[i.what], token)) b.push(i.to, here(i.origin), i.aux);
    }
  }
  if (arena_.budget().exhausted()) failed_ = true;
  if (failed_) return kDeadSet;
  if (b.set.lexemes.empty() && b.work.empty()) return kDeadSet;
  close(b);
  return intern(b);
}

// Which bytes go on, and a place for where they lead.
void Parser::open(ItemSet& s) {
  ByteSet live;
  for (const Item& i : s.lexemes) live |= arena_.live(i.what);
  if (arena_.budget().exhausted()) {
    failed_ = true;
    return;
  }
  s.live = live;
  size_t n = 0;
  for (const uint64_t w : live.words) n += static_cast<size_t>(std::popcount(w));
  if (n <= kFewSteps) {
    for (size_t w = 0; w < live.words.size(); ++w) {
      for (uint64_t bits = live.words[w]; bits != 0; bits &= bits - 1) {
        s.few_to[s.few] = kUnknownSet;
        s.few_bytes[s.few++] = static_cast<uint8_t>(w * 64 + static_cast<size_t>(std::countr_zero(bits)));
      }
    }
    return;
  }
  s.next = std::make_unique<std::array<SetId, 256>>();
  s.next->fill(kUnknownSet);
  bytes_ += 1024;
}

SetId Parser::step_slow(SetId from, uint8_t byte) {
  ItemSet& s = *sets_[from];
  if (s.next == nullptr && s.few == 0) {
    open(s);
    if (failed_ || !s.live.has(byte)) return kDeadSet;
  }
  const SetId to = compute(from, byte, -1, true);
  if (failed_) return kDeadSet;
  share_step(s, byte, to);
  return to;
}

// Bytes that every lexeme treats alike lead to the same set: they are found by comparison, not by building it again.
void Parser::share_step(ItemSet& s, uint8_t byte, SetId to) {
  constexpr size_t kRows = 64;
  std::array<const NodeId*, kRows> rows{};
  size_t n = 0;
  ByteSet alike{{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};
  for (const Item& i : s.lexemes) {
    if (const ByteSet* first = arena_.begins_with(i.what)) {
      const uint64_t turned = first->has(byte) ? 0 : UINT64_MAX;
      for (size_t w = 0; w < alike.words.size(); ++w) alike.words[w] &= first->words[w] ^ turned;
      continue;
    }
    const NodeId* row = arena_.row(i.what);
    const auto* end = rows.begin() + n;
    if (std::find(rows.cbegin(), end, row) != end) continue;
    if (n == kRows) {
      alike = {};
      break;
    }
    rows[n++] = row;
  }
  alike.add(byte);
  auto same = [&](size_t b) {
    return std::all_of(rows.begin(), rows.begin() + n, [&](const NodeId* r) { return r[b] == r[byte]; });
  };
  for (size_t i = 0; i < s.few; ++i) {
    if (alike.has(s.few_bytes[i]) && same(s.few_bytes[i])) s.few_to[i] = to;
  }
  if (s.next == nullptr) return;
  std::array<SetId, 256>& next = *s.next;
  for (size_t w = 0; w < alike.words.size(); ++w) {
    for (uint64_t bits = alike.words[w] & s.live.words[w]; bits != 0; bits &= bits - 1) {
      const size_t b = w * 64 + static_cast<size_t>(std::countr_zero(bits));
      if (next[b] == kUnknownSet && same(b)) next[b] = to;
    }
  }
}

SetId Parser::step_bytes(SetId from, std::string_view bytes) {
  for (const char c : bytes) {
    from = step(from, static_cast<uint8_t>(c));
    if (from == kDeadSet) break;
  }
  return from;
}

SetId Parser::step_token(SetId from, TokenId id) {
  if (id < 0 || static_cast<size_t>(id) >= vocabulary_.tokens.size()) return kDeadSet;
  const Vocabulary::Token& t = vocabulary_.tokens[static_cast<size_t>(id)];
  if (t.bytes.empty()) return kDeadSet;
  const auto& named = sets_[from]->tokens;
  const bool by_name = std::ranges::any_of(
      named, [&](const Item& i) { return std::ranges::binary_search(grammar_.token_sets[i.what], id); });
  if (!by_name) return t.special ? kDeadSet : step_bytes(from, t.bytes);
  const uint64_t key = (uint64_t{from} << 32U) | static_cast<uint32_t>(id);
  if (const auto it = token_steps_.find(key); it != token_steps_.end()) return it->second;
  // An ordinary token that the grammar also names: both ways at once are followed only for one-byte tokens; longer ones
  // count as named, which is what a grammar that names them means.
  const bool both = !t.special && t.bytes.size() == 1;
  const SetId to = compute(from, both ? static_cast<uint8_t>(t.bytes[0]) : 0, id, both);
  if (!failed_) token_steps_.emplace(key, to);
  return to;
}

bool Parser::takes_everything(SetId id) const {
  return std::ranges::any_of(sets_[id]->lexemes, [](const Item& i) { return i.what == kAllBytes; });
}

}  // namespace di::structured
