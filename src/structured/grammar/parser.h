// The parser: sets of items in Earley's way over the lazily built lexeme automata. A set is immutable and hash-consed,
// so a position in a text is one number: clone and rollback are free, and equal situations share successors and masks.
//
// An item says: in the frame opened at set `origin` of a rule, with the counters `aux`, lexeme `rest` is still to be
// read, then the rule goes on at state `to`. Not thread-safe; the owner locks.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "structured/grammar/grammar.h"
#include "structured/grammar/mask_draft.h"
#include "structured/vocabulary.h"

namespace di::structured {

using SetId = uint32_t;
constexpr SetId kDeadSet = 0;
constexpr SetId kUnknownSet = UINT32_MAX;
constexpr SetId kHere = UINT32_MAX - 1;  // an origin: the set itself
constexpr SetId kRoot = UINT32_MAX - 2;  // the origin of the root rule

struct Item {
  uint32_t what = 0;  // rest of a lexeme; rule waited for; token set
  StateId to = 0;
  SetId origin = kHere;
  AuxId aux = 0;
  friend auto operator<=>(const Item&, const Item&) = default;
};

// Any text of such characters, of at most `limit`, can be read, with a way on after each.
struct Loop {
  TextKind chars;
  uint32_t limit = kNoLimit;
};

constexpr size_t kFewSteps = 6;

struct ItemSet {
  std::span<const Item> lexemes;
  std::span<const Item> waiting;  // sorted by rule
  std::span<const Item> tokens;
  bool accepting = false;
  uint32_t level = 0;  // nesting of the output here
  // Bytes that some lexeme goes on with; all until the set is opened. Most sets have few: these keep no table.
  ByteSet live{{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};
  uint8_t few = 0;
  std::array<uint8_t, kFewSteps> few_bytes{};
  std::array<SetId, kFewSteps> few_to{};
  std::unique_ptr<std::array<SetId, 256>> next;
  // Allowed ordinary and special tokens, without stop tokens, made on demand: those of `base` (the vocabulary's or
  // `dense`; none: no token) but for `changed`, which are turned over.
  bool mask_made = false;
  const std::vector<uint32_t>* base = nullptr;
  std::unique_ptr<std::vector<uint32_t>> dense;
  std::vector<TokenId> changed;
  uint64_t hash = 0;
  // What can always be read from here; made on demand.
  bool loops_made = false;
  uint8_t slices = 0;  // bit k: all texts of slice k
  std::vector<Loop> loops;
};

class Parser {
 public:
  Parser(Arena& arena, Grammar& grammar, const Limits& limits, const VocabularyImpl& vocabulary);
  ~Parser();
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  SetId start();
  const ItemSet& set(SetId id) const { return *sets_[id]; }
  SetId step(SetId from, uint8_t byte) {
    const ItemSet& s = *sets_[from];
    if (!s.live.has(byte)) return kDeadSet;
    SetId to = kUnknownSet;
    if (s.next != nullptr) {
      to = (*s.next)[byte];
    } else {
      for (size_t i = 0; i < s.few; ++i) {
        if (s.few_bytes[i] == byte) to = s.few_to[i];
      }
    }
    return to != kUnknownSet ? to : step_slow(from, byte);
  }
  SetId step_bytes(SetId from, std::string_view bytes);
  // A token as the model emits it: its bytes, or by name where the grammar names it.
  SetId step_token(SetId from, TokenId id);
  // Fills the set's mask unless it is there. False when a limit was reached.
  bool make_mask(SetId id);
  // Writes a mask that make_mask() has made.
  void read_mask(SetId id, std::span<uint32_t> row) const;
  bool takes_everything(SetId id) const;

  bool failed() const { return failed_; }
  // A limit that ended one piece of work need not end the next.
  void clear_failure() { failed_ = false; }
  int64_t bytes() const { return bytes_; }
  size_t size() const { return sets_.size(); }

 private:
  struct Build;
  SetId step_slow(SetId from, uint8_t byte);
  void open(ItemSet& s);
  void share_step(ItemSet& s, uint8_t byte, SetId to);
  SetId compute(SetId from, int byte, TokenId token, bool use_byte);
  void close(Build& b);
  void visit(Build& b, const Item& position);
  void complete(Build& b, RuleId rule, SetId origin);
  bool apply(uint32_t op, AuxId in, AuxId& out);
  bool check(const Operation& op, const AuxValue& v) const;
  AuxId intern_aux(AuxValue v);
  SetId intern(Build& b);
  ItemSet* new_set();
  std::span<const Item> keep(std::span<const Item> items);
  uint32_t level_of(const Build& b, SetId origin, StateId state) const;

  // mask_loops.cc
  const ItemSet& with_loops(SetId id);
  const std::vector<Loop>& loops_of(NodeId lexeme);
  void add_loops(NodeId id, bool in_string, int depth, std::vector<Loop>& out);
  const TextKind& chars_of(NodeId body);
  TextKind returning(NodeId id);
  Loop common_loop(NodeId id);
  bool wide_chars_return(NodeId lexeme);
  bool takes(const ItemSet& s, const Trie& trie, const TrieNode& n) const;
  void walk(const Trie& trie, SetId from, int slice, bool whole_slice);
  int pick_slice(SetId from);
  bool walk_all(SetId from);
  // mask_shortcuts.cc: masks made from those of a vocabulary or of a simpler set. False: not one of these cases.
  bool mask_in_string(SetId id);
  bool mask_of_bounded(SetId id);
  bool mask_near_wide(SetId id);
  bool mask_of_multiple(SetId id);
  void walk_difference(const Trie& trie, SetId from, SetId other);
  bool same_inside(NodeId lexeme) const;
  bool plain_name(NodeId lexeme) const;
  void walk_counted(SetId id, SetId loose, uint32_t room, uint32_t ends, bool from_nothing);
  bool fits_room(NodeId text, uint32_t room, uint32_t ends, SetId bounded, TokenId token);
  NodeId without_exceptions(NodeId lexeme);
  SetId only(std::span<const Item> items);

  Arena& arena_;
  Grammar& grammar_;
  const Limits& limits_;
  const VocabularyImpl& vocabulary_;
  std::vector<ItemSet*> sets_;
  std::vector<std::unique_ptr<ItemSet[]>> set_blocks_;
  std::vector<std::unique_ptr<Item[]>> item_blocks_;
  std::span<Item> item_room_;
  std::vector<SetId> slots_;  // open addressing over sets, 0 = free (the dead set is never looked up)
  std::vector<AuxValue> aux_;
  std::unordered_multimap<uint64_t, AuxId> aux_by_hash_;
  std::unordered_map<uint64_t, SetId> token_steps_;  // set << 32 | token
  NodeId free_content_ = kNothing;
  NodeId wide_ = kNothing;  // one of wide_chars(), made on demand
  std::unordered_map<NodeId, std::vector<Loop>> loops_;
  std::unordered_map<NodeId, TextKind> chars_of_;
  std::unique_ptr<Build> scratch_;
  MaskDraft draft_;
  SetId start_ = kUnknownSet;
  bool failed_ = false;
  int64_t bytes_ = 0;
};

}  // namespace di::structured
