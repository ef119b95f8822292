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
  // How many characters of slice k can always be read from here, 255 = without end; valid where known. Second half:
  // after the rest of a character that has begun.
  std::array<uint8_t, 2 * kSlices> reach{};
  std::array<bool, 2 * kSlices> reach_known{};
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

  uint32_t reach(SetId id, size_t slice, uint32_t pending);
  uint8_t reach_node(NodeId node, size_t slice, int depth);
  uint8_t reach_of(NodeId node, size_t slice, int depth);
  bool holds_class(NodeId node, size_t slice);
  const std::vector<NodeId>* after_char(NodeId node, size_t slice);
  bool can_read(NodeId node, size_t slice, uint32_t chars);
  bool has_length_bound(NodeId id) const;
  void walk(const Trie& trie, SetId from, int slice);
  int pick_slice(SetId from);
  bool walk_all(SetId from);
  // mask_shortcuts.cc: masks made from those of a vocabulary or of a simpler set. False: not one of these cases.
  bool mask_in_string(SetId id);
  bool mask_of_bounded(SetId id);
  bool mask_near_wide(SetId id);
  void walk_difference(SetId from, SetId other);
  void walk_counted(SetId id, SetId loose, uint32_t room, uint32_t ends);
  NodeId without_exceptions(NodeId lexeme);
  SetId single(const Item& item);

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
  std::array<NodeId, kSlices> slice_chars_{};
  std::array<std::unordered_map<NodeId, uint8_t>, kSlices> reach_memo_;
  std::array<std::unordered_map<NodeId, bool>, kSlices> class_memo_;
  std::array<std::unordered_map<NodeId, std::vector<NodeId>>, kSlices> after_char_;
  struct Readable {
    uint8_t yes = 0;   // so many characters can be read
    uint8_t no = 255;  // so many cannot
  };
  std::array<std::unordered_map<NodeId, Readable>, kSlices> readable_;
  std::unique_ptr<Build> scratch_;
  MaskDraft draft_;
  SetId start_ = kUnknownSet;
  bool failed_ = false;
  int64_t bytes_ = 0;
};

}  // namespace di::structured
