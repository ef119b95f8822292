// Lowering with continuations: lower(node, rest) is the language of all that follows from the node's start to the end
// of the text, so that `$` and look-aheads are intersections with what follows (structured-output.md §5).
#include "structured/regex/pattern.h"

#include <fmt/format.h>

#include <algorithm>

#include "structured/regex/syntax.h"

namespace di::structured {
namespace {

// What is known of the character before a position.
enum class Before : uint8_t { kStart, kWord, kOther, kUnknown };

class Lowering {
 public:
  Lowering(Arena& arena, const SyntaxTree& tree) : arena_(arena), tree_(tree) {
    word_ = utf8_class(arena, word_set());
    other_ = utf8_class(arena, word_set().complement());
  }

  Expected<NodeId> run(PatternUse use) {
    NodeId out = kNothing;
    if (use == PatternUse::kWhole) {
      out = lower(tree_.root, kEmptyText, Before::kStart);
    } else {
      out = search();
    }
    if (!error_.empty()) return refuse("unsupported_regex_feature", error_);
    return out;
  }

 private:
  const Syntax& at(uint32_t n) const { return tree_.nodes[n]; }

  bool holds(uint32_t n, SyntaxKind kind) const {
    std::vector<uint32_t> stack{n};
    while (!stack.empty()) {
      const Syntax& s = at(stack.back());
      stack.pop_back();
      if (s.plain) continue;
      if (s.kind == kind) return true;
      stack.insert(stack.end(), s.kids.begin(), s.kids.end());
    }
    return false;
  }

  NodeId search() {
    const NodeId any = arena_.any_text();
    const bool start = holds(tree_.root, SyntaxKind::kTextStart);
    const bool behind = holds(tree_.root, SyntaxKind::kLookBehind);
    const bool border = holds(tree_.root, SyntaxKind::kWordBorder);
    if (behind) return search_behind();
    if (border) {
      return arena_.alt({lower(tree_.root, any, Before::kStart),
                         arena_.concat({any, word_, lower(tree_.root, any, Before::kWord)}),
                         arena_.concat({any, other_, lower(tree_.root, any, Before::kOther)})});
    }
    if (!start) return arena_.concat(any, lower(tree_.root, any, Before::kUnknown));
    return arena_.alt(lower(tree_.root, any, Before::kStart),
                      arena_.concat({arena_.any_char(), any, lower(tree_.root, any, Before::kUnknown)}));
  }

  // Only (?<=X)Y and (?<!X)Y with the look-behind first.
  NodeId search_behind() {
    const NodeId any = arena_.any_text();
    const Syntax& root = at(tree_.root);
    const uint32_t first = root.kind == SyntaxKind::kConcat ? root.kids[0] : tree_.root;
    if (at(first).kind != SyntaxKind::kLookBehind) return unsupported("a look-behind that is not at the start");
    const uint32_t looked = at(first).kids[0];
    for (const SyntaxKind k : {SyntaxKind::kTextEnd, SyntaxKind::kWordBorder, SyntaxKind::kLookAhead}) {
      if (holds(looked, k)) return unsupported("an assertion about what follows within a look-behind");
    }
    std::vector<uint32_t> behind;
    if (first != tree_.root) behind.assign(root.kids.begin() + 1, root.kids.end());
    for (const uint32_t kid : behind) {
      if (holds(kid, SyntaxKind::kLookBehind)) return unsupported("a second look-behind");
    }
    // At the start of the text nothing is before; elsewhere at least one character is.
    const NodeId some = arena_.concat(arena_.any_char(), any);
    NodeId before = arena_.alt(lower(looked, kEmptyText, Before::kStart),
                               arena_.concat(some, lower(looked, kEmptyText, Before::kUnknown)));
    if (at(first).negated) before = arena_.other_text(before);
    const NodeId at_start = arena_.nullable(before) ? lower_concat(behind, any, Before::kStart) : kNothing;
    return arena_.alt(at_start, arena_.concat(arena_.both(before, some), lower_concat(behind, any, Before::kUnknown)));
  }

  NodeId unsupported(std::string_view what) {
    if (error_.empty()) error_ = fmt::format("{} is not supported", what);
    return kNothing;
  }

  // A node without assertions as it stands.
  NodeId plain(uint32_t n) {
    const Syntax& s = at(n);
    switch (s.kind) {
      case SyntaxKind::kClass:
        return utf8_class(arena_, tree_.sets[s.set]);
      case SyntaxKind::kConcat: {
        NodeId r = kEmptyText;
        for (size_t i = s.kids.size(); i > 0; --i) r = arena_.concat(plain(s.kids[i - 1]), r);
        return r;
      }
      case SyntaxKind::kAlt: {
        std::vector<NodeId> parts;
        for (const uint32_t k : s.kids) parts.push_back(plain(k));
        return arena_.alt(std::move(parts));
      }
      case SyntaxKind::kRepeat:
        return arena_.repeat(plain(s.kids[0]), s.min, s.max);
      default:
        return kEmptyText;
    }
  }

  // Whether a node can match without reading.
  bool can_be_empty(uint32_t n) const {
    const Syntax& s = at(n);
    auto empty = [&](uint32_t k) { return can_be_empty(k); };
    switch (s.kind) {
      case SyntaxKind::kClass:
        return false;
      case SyntaxKind::kConcat:
        return std::ranges::all_of(s.kids, empty);
      case SyntaxKind::kAlt:
        return std::ranges::any_of(s.kids, empty);
      case SyntaxKind::kRepeat:
        return s.min == 0 || can_be_empty(s.kids[0]);
      default:
        return true;
    }
  }

  bool only_empty(uint32_t n) const { return at(n).kind == SyntaxKind::kEmpty || at(n).kind >= SyntaxKind::kTextStart; }

  // The set of last characters of a plain node that reads something: word, other, or mixed.
  Before last_of(uint32_t n) const {
    const Syntax& s = at(n);
    switch (s.kind) {
      case SyntaxKind::kClass:
        if (tree_.sets[s.set].subset_of(word_set())) return Before::kWord;
        return tree_.sets[s.set].disjoint(word_set()) ? Before::kOther : Before::kUnknown;
      case SyntaxKind::kConcat:
        for (size_t i = s.kids.size(); i > 0; --i) {
          if (only_empty(s.kids[i - 1])) continue;
          const Before b = last_of(s.kids[i - 1]);
          if (!can_be_empty(s.kids[i - 1]) || b == Before::kUnknown) return b;
          for (size_t j = i - 1; j > 0; --j) {
            if (last_of(s.kids[j - 1]) != b) return Before::kUnknown;
          }
          return b;
        }
        return Before::kUnknown;
      case SyntaxKind::kAlt: {
        const Before b = last_of(s.kids[0]);
        return std::ranges::all_of(s.kids, [&](uint32_t k) { return last_of(k) == b; }) ? b : Before::kUnknown;
      }
      case SyntaxKind::kRepeat:
        return last_of(s.kids[0]);
      default:
        return Before::kUnknown;
    }
  }

  NodeId lower(uint32_t n, NodeId rest, Before before) {
    const Syntax& s = at(n);
    if (s.plain) return arena_.concat(plain(n), rest);
    const NodeId any = arena_.any_text();
    switch (s.kind) {
      case SyntaxKind::kTextStart:
        return before == Before::kStart ? rest : kNothing;
      case SyntaxKind::kTextEnd:
        return arena_.nullable(rest) ? kEmptyText : kNothing;
      case SyntaxKind::kLookAhead: {
        const NodeId ahead = lower(s.kids[0], any, before);
        return s.negated ? arena_.both(rest, arena_.complement(ahead)) : arena_.both(rest, ahead);
      }
      case SyntaxKind::kWordBorder:
        return word_border(rest, before, s.negated);
      case SyntaxKind::kLookBehind:
        return unsupported("a look-behind that is not at the start");
      case SyntaxKind::kAlt: {
        std::vector<NodeId> parts;
        for (const uint32_t k : s.kids) parts.push_back(lower(k, rest, before));
        return arena_.alt(std::move(parts));
      }
      case SyntaxKind::kConcat:
        return lower_concat(s.kids, rest, before);
      case SyntaxKind::kRepeat:
        return lower_repeat(s, rest, before);
      default:
        return arena_.concat(plain(n), rest);
    }
  }

  NodeId word_border(NodeId rest, Before before, bool negated) {
    if (before == Before::kUnknown) return unsupported("a word border after characters of both kinds");
    const NodeId any = arena_.any_text();
    const bool want_word = (before == Before::kWord) == negated;
    return arena_.both(rest,
                       want_word ? arena_.concat(word_, any) : arena_.alt(kEmptyText, arena_.concat(other_, any)));
  }

  NodeId lower_concat(const std::vector<uint32_t>& kids, NodeId rest, Before before) {
    // Splits where an item may or may not read: what follows then stands at the start of the text or not.
    std::vector<Before> state(kids.size() + 1, before);
    for (size_t i = 0; i < kids.size(); ++i) {
      if (only_empty(kids[i])) {
        state[i + 1] = state[i];
      } else if (!can_be_empty(kids[i])) {
        state[i + 1] = at(kids[i]).plain ? last_of(kids[i]) : Before::kUnknown;
      } else if (follows(kids, i + 1)) {
        return split_at(kids, i, rest, before);
      } else {
        state[i + 1] = Before::kUnknown;
      }
    }
    for (size_t i = kids.size(); i > 0; --i) rest = lower(kids[i - 1], rest, state[i - 1]);
    return rest;
  }

  // Whether anything from item i on looks at what stands before it.
  bool follows(const std::vector<uint32_t>& kids, size_t i) const {
    for (; i < kids.size(); ++i) {
      if (holds(kids[i], SyntaxKind::kTextStart) || holds(kids[i], SyntaxKind::kWordBorder)) return true;
    }
    return false;
  }

  NodeId split_at(const std::vector<uint32_t>& kids, size_t i, NodeId rest, Before before) {
    if (!at(kids[i]).plain || ++splits_ > 64)
      return unsupported("an assertion behind an optional group with assertions");
    const std::vector<uint32_t> head(kids.begin(), kids.begin() + static_cast<std::ptrdiff_t>(i));
    const std::vector<uint32_t> tail(kids.begin() + static_cast<std::ptrdiff_t>(i) + 1, kids.end());
    Before at_item = before;
    for (const uint32_t k : head) {
      if (!only_empty(k)) at_item = at(k).plain ? last_of(k) : Before::kUnknown;
    }
    const NodeId skipped = lower_concat(tail, rest, at_item);
    const NodeId text = arena_.both(plain(kids[i]), arena_.concat(arena_.any_char(), arena_.any_text()));
    const NodeId read = arena_.concat(text, lower_concat(tail, rest, last_of(kids[i])));
    return lower_concat(head, arena_.alt(skipped, read), before);
  }

  NodeId lower_repeat(const Syntax& s, NodeId rest, Before before) {
    // ((?!X)c)* : no position of the text read begins with X.
    const Syntax& body = at(s.kids[0]);
    if (s.max == kNoLimit) {
      if (s.min <= 1 && body.kind == SyntaxKind::kConcat && body.kids.size() == 2 && rest_is_everything(rest)) {
        const Syntax& look = at(body.kids[0]);
        if (look.kind == SyntaxKind::kLookAhead && look.negated && at(body.kids[1]).kind == SyntaxKind::kClass &&
            at(look.kids[0]).plain && rest == kEmptyText) {
          const NodeId any = arena_.any_text();
          const NodeId found = arena_.concat({any, plain(look.kids[0]), any});
          return arena_.both(arena_.repeat(plain(body.kids[1]), s.min, kNoLimit), arena_.complement(found));
        }
      }
      return unsupported("an assertion inside an unbounded repeat");
    }
    if (s.max > 100) return unsupported("an assertion inside a repeat of more than 100 times");
    // Unrolled from the last repetition to the first; before is known only for the first one.
    NodeId out = rest;
    for (uint32_t i = s.max; i > 0; --i) {
      const NodeId one = lower(s.kids[0], out, i == 1 ? before : Before::kUnknown);
      out = i > s.min ? arena_.alt(rest, one) : one;
    }
    return out;
  }

  bool rest_is_everything(NodeId rest) const { return rest == kEmptyText || rest == arena_.any_text(); }

  Arena& arena_;
  const SyntaxTree& tree_;
  NodeId word_ = kNothing;
  NodeId other_ = kNothing;
  int splits_ = 0;
  std::string error_;
};

}  // namespace

Expected<NodeId> compile_pattern(Arena& arena, std::string_view pattern, PatternUse use, const PatternLimits& limits) {
  auto tree = parse_pattern(pattern, use, limits);
  if (!tree) return std::unexpected(tree.error());
  return Lowering(arena, *tree).run(use);
}

}  // namespace di::structured
