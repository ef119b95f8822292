// Regular expressions over bytes as hash-consed nodes with derivatives: equal languages written alike have equal ids,
// and a node is at the same time a state of the lazily built automaton (its row of 256 successors is made on first
// use).
//
// Closed under intersection and complement, which JSON Schema needs (structured-output.md §2.2). A node that holds an
// intersection, a complement or a remainder automaton may denote the empty language without being kNothing; rows never
// lead to such a node: every successor is checked and replaced by kNothing when no text can complete it.
// Strings of JSON are wrapped (json_string): the inner expression speaks of decoded UTF-8, the wrapper of the escaped
// text.
//
// Not thread-safe; the owner locks. Work is bounded by a Budget; when it is used up, operations return kNothing and
// budget().exhausted() says so: the caller must then discard the results.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "structured/budget.h"
#include "structured/regex/byte_set.h"

namespace di::structured {

using NodeId = uint32_t;
constexpr NodeId kNothing = 0;    // no text at all
constexpr NodeId kEmptyText = 1;  // the empty text
constexpr NodeId kAllBytes = 2;   // every byte string
constexpr uint32_t kNoLimit = UINT32_MAX;

enum class NodeKind : uint8_t {
  kNever,
  kEmpty,
  kAnything,
  kBytes,
  kConcat,
  kAlt,
  kAnd,
  kNot,
  kRepeat,
  kRemainder,
  kJsonString
};

struct Node {
  NodeKind kind = NodeKind::kNever;
  bool nullable = false;  // the empty text matches
  bool boolean = false;   // holds kAnd, kNot or kRemainder: emptiness must be looked for
  uint32_t a = 0;    // kConcat, kNot, kRepeat, kJsonString: first child; kAlt, kAnd: offset of children; kBytes: set;
                     // kRemainder: divisor
  uint32_t b = 0;    // kConcat: second child; kAlt, kAnd: number of children; kRemainder: remainder so far, low half
  uint32_t min = 0;  // kRepeat: bound; kJsonString, kRemainder: phase
  uint32_t max = 0;  // kRepeat: bound; kRemainder: high half
  // Of its texts, in characters that begin in them (continuation bytes count nothing):
  uint32_t min_chars = 0;         // no text has fewer
  uint32_t max_chars = kNoLimit;  // no text has more
  uint32_t shortest = kNoLimit;   // some text has no more; kNoLimit: not known
  uint32_t ends = kNoLimit;       // from each place in a text, some end is no farther; kNoLimit: not known
};

// Of kRemainder: numbers whose value times 10^digits is a multiple of `modulus`.
struct Divisor {
  uint64_t modulus = 1;
  uint32_t digits = 0;
  uint64_t whole = 1;  // whole numbers are multiples of this
  friend bool operator==(const Divisor&, const Divisor&) = default;
};
// What is known after a part of a number: its digits so far modulo the divisor, and which part it is.
struct Remainder {
  uint64_t value = 0;
  uint32_t phase = 0;
};
constexpr uint64_t kMaxModulus = 1'000'000'000'000'000'000;

class Arena {
 public:
  explicit Arena(Budget& budget);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  NodeId bytes(const ByteSet& set);
  NodeId byte(uint8_t b) { return bytes(ByteSet::of(b)); }
  NodeId literal(std::string_view text);
  // The union of many texts, shared as a trie.
  NodeId literals(std::vector<std::string> texts);
  NodeId concat(NodeId a, NodeId b);
  NodeId concat(std::initializer_list<NodeId> parts);
  NodeId alt(NodeId a, NodeId b);
  NodeId alt(std::vector<NodeId> parts);
  NodeId both(NodeId a, NodeId b);
  NodeId both(std::vector<NodeId> parts);
  // All byte strings that are not in a.
  NodeId complement(NodeId a);
  NodeId repeat(NodeId a, uint32_t min, uint32_t max);
  NodeId star(NodeId a) { return repeat(a, 0, kNoLimit); }
  NodeId optional(NodeId a) { return alt(kEmptyText, a); }
  // Plain decimal texts (-?digits[.digits]) whose value times 10^digits is a whole multiple of `modulus`, 1 to
  // kMaxModulus. States are made as they are met, and of large moduli arithmetic says whether anything can follow.
  NodeId multiple_of(uint64_t modulus, uint32_t digits);
  // A conjunction with multiples of a large divisor: the other parts, and where its texts stand.
  struct Multiple {
    NodeId others = kAllBytes;
    Divisor divisor;
    Remainder at;
  };
  std::optional<Multiple> multiple(NodeId id);
  // Whether some text of `others` goes on to a multiple.
  bool multiple_fits(NodeId others, const Divisor& divisor, Remainder at);
  static std::optional<Remainder> after(const Divisor& divisor, Remainder at, uint8_t byte);
  // `text` (decoded UTF-8) as the inside of a JSON string and its closing quote, canonically escaped (§4.5).
  NodeId json_string(NodeId text);
  // One code point of UTF-8, and any number of them.
  NodeId any_char() const { return any_char_; }
  NodeId any_text() const { return any_text_; }
  // any_text without those of a.
  NodeId other_text(NodeId a) { return both(any_text_, complement(a)); }

  const Node& node(NodeId id) const { return nodes_[id]; }
  bool nullable(NodeId id) const { return nodes_[id].nullable; }
  std::span<const NodeId> children(NodeId id) const;
  // Successors by byte; kNothing where no text can go on. The span lives as long as the arena.
  const NodeId* row(NodeId id);
  // The same for one byte; texts that begin with a byte of a set need no row.
  NodeId step(NodeId id, uint8_t byte) {
    const ByteSet* first = begins_with(id);
    if (first == nullptr) return row(id)[byte];
    return first->has(byte) && !is_nothing(nodes_[id].b) ? nodes_[id].b : kNothing;
  }
  // A concatenation whose first part is one byte of this set; else null. Good until the arena changes.
  const ByteSet* begins_with(NodeId id) const {
    const Node& n = nodes_[id];
    if (n.kind != NodeKind::kConcat || nodes_[n.a].kind != NodeKind::kBytes) return nullptr;
    return &sets_[nodes_[n.a].a];
  }
  // The bytes that some text goes on with.
  ByteSet live(NodeId id);
  // Whether the language is empty (exact; may explore).
  bool is_nothing(NodeId id);
  // Every text of a is in b.
  bool included(NodeId a, NodeId b) { return is_nothing(both(a, complement(b))); }
  bool matches(NodeId id, std::string_view text);

  Budget& budget() { return budget_; }
  size_t size() const { return nodes_.size(); }

 private:
  enum class Life : uint8_t { kUnknown, kLive, kDead };
  struct Row {
    NodeId next[256];
    ByteSet live;  // not kNothing
  };

  NodeId intern(Node n, std::span<const NodeId> kids);
  void measure(Node& n) const;
  bool fits_length(const Node& n) const;
  NodeId derive(NodeId id, uint8_t byte);
  NodeId derive_anew(NodeId id, uint8_t byte);
  bool alternatives_row(NodeId id, Row& row);
  NodeId derive_json(const Node& n, uint8_t byte);
  void first_sets(NodeId id, std::vector<ByteSet>& sets);
  // Successors not yet checked for emptiness.
  const NodeId* raw_row(NodeId id);
  // remainder.cc
  NodeId remainder(uint32_t divisor, Remainder at);
  NodeId derive_remainder(const Node& n, uint8_t byte);
  void merge_divisors(std::vector<NodeId>& parts);
  std::optional<bool> no_multiple(NodeId id);
  const std::vector<uint8_t>& digit_counts(NodeId texts);
  bool least_text(NodeId texts, uint32_t point, std::string& digits);
  bool some_number(NodeId texts, uint32_t length, uint32_t point, uint64_t value, uint64_t modulus);
  NodeId json_phase(NodeId text, uint32_t phase);
  void merge_alternatives(std::vector<NodeId>& parts);
  void add_live_path(const std::vector<std::pair<NodeId, uint32_t>>& visited, uint32_t at);

  Budget& budget_;
  std::vector<Node> nodes_;
  std::vector<NodeId> kids_;
  std::vector<ByteSet> sets_;
  std::vector<Divisor> divisors_;
  bool large_divisors_ = false;
  std::unordered_map<NodeId, std::vector<uint8_t>> digit_counts_;
  std::vector<uint32_t> slots_;  // open addressing over nodes, 0 = free (node 0 is never looked up)
  std::vector<uint64_t> hashes_;
  std::vector<Life> life_;
  std::vector<std::unique_ptr<Row>> raw_;
  std::vector<std::unique_ptr<Row>> rows_;  // only where it differs from raw_
  std::vector<bool> same_row_;              // known not to differ
  // Kept for their memory.
  std::vector<ByteSet> first_sets_;
  std::vector<ByteSet> classes_;
  std::vector<NodeId> stack_;
  NodeId any_char_ = kNothing;
  NodeId any_text_ = kNothing;
};

}  // namespace di::structured
