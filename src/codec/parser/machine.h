// The stages of the output grammar (recipe.md §4.2) and their matchers (§4.3): bytes in, segments (action, length) out.
// Every stage has branches, each a marker that ends the stage; all of them watch the bytes at once, so text that may
// begin a marker is held back and nothing else is. Cost is linear in the bytes (KMP), whatever the markers.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codec/codec.h"
#include "codec/parser/stream_decoder.h"

namespace di::codec {

// What happens to a stretch of output.
struct Action {
  enum class Kind : uint8_t {
    kSkip,
    kContent,
    kJsonOpen,  // the bracket that begins a JSON answer: content of a run of its own
    kReasoning,
    kSpace,         // one space of content per source piece
    kStopSequence,  // belongs to the matched stop string
    kCallBegin,
    kName,
    kNameEnd,
    kArgumentRaw,
    kArgumentEscaped,  // becomes the inside of a JSON string
    kArgumentLabel,    // emits `label` once per run
  };
  enum class Label : uint8_t { kNone, kOpen, kNext, kColon, kQuoteOpen, kQuoteClose, kEmptyObject, kClose };
  Kind kind = Kind::kSkip;
  Label label = Label::kNone;

  friend bool operator==(const Action&, const Action&) = default;
};
std::string_view label_text(Action::Label label);

class Machine {
 public:
  Machine(const ParsingOptions& options, const std::string& dsml, const std::string& think_end);

  // Calls emit(action, length) for the segments that `bytes` settles. Lengths count bytes since the last segment.
  template <class Emit>
  void feed(std::string_view bytes, PieceKind kind, const Emit& emit);
  // End of input: what is held back gets the stage's default action.
  template <class Emit>
  void finish(const Emit& emit) {
    if (buffered_ > 0) emit(stage().fallback, buffered_);
    buffered_ = 0;
  }

  // A stop sequence matched (the grammar's other end, after the tool block, is no stop).
  bool stopped() const { return stopped_; }
  // Bytes without a settled action, at most the longest marker with its newlines.
  size_t held_bytes() const { return buffered_; }

 private:
  enum StageId : uint8_t {
    kContentStrip,
    kContentKeep,
    kJson,
    kAfterJson,
    kToolCalls,
    kToolName,
    kArgsFirst,
    kArgsMore,
    kArgName,
    kArgAttr,
    kValueString,
    kValueJson,
    kReasoningStrip,
    kReasoningKeep,
    kFinished,
    kStages,
  };
  struct Symbol {
    char byte;
    bool special;
    friend bool operator==(const Symbol&, const Symbol&) = default;
  };
  enum class Shape : uint8_t { kMarker, kNewlinesMarker, kFirstNewline };
  struct Branch {
    Shape shape = Shape::kMarker;
    StageId next = kFinished;
    Action action;
    std::vector<Symbol> pattern;
    std::vector<uint32_t> failure;  // KMP
  };
  struct Stage {
    bool built = false;
    Action fallback;
    std::vector<Branch> branches;
    // Bytes that may move a matcher from rest, for [kind of piece][byte].
    std::array<std::array<bool, 256>, 3> starts{};
  };
  struct Matcher {
    uint32_t matched = 0;
    uint32_t newlines = 0;
    size_t length() const { return size_t{matched} + newlines; }
  };

  Stage& stage() { return (*stages_)[current_]; }
  void enter(StageId id);
  void build(StageId id);
  void build_text_stage(StageId id, Stage& stage);
  void build_tool_stage(StageId id, Stage& stage);
  std::vector<std::pair<std::string, bool>> dsml_spellings() const;
  void add(Stage& stage, Shape shape, std::vector<Symbol> pattern, StageId next, Action action);
  static bool fits(const Symbol& symbol, char byte, PieceKind kind) {
    return symbol.byte == byte && (kind == PieceKind::kText || (kind == PieceKind::kSpecial) == symbol.special);
  }
  static bool step(const Branch& branch, Matcher& matcher, char byte, PieceKind kind, bool first);

  ParsingOptions options_;
  std::string dsml_;
  std::string think_end_;
  std::unique_ptr<std::array<Stage, kStages>> stages_;
  std::vector<Matcher> matchers_;  // of the current stage's branches
  StageId current_ = kFinished;
  size_t buffered_ = 0;   // bytes of this stage without a segment
  bool at_start_ = true;  // no byte of this stage was read
  bool at_rest_ = true;   // all matchers are at zero
  bool stopped_ = false;
};

template <class Emit>
void Machine::feed(std::string_view bytes, PieceKind kind, const Emit& emit) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (at_rest_ && !at_start_) {  // run over bytes that begin nothing
      const auto& starts = stage().starts[static_cast<size_t>(kind)];
      const size_t begin = i;
      while (i < bytes.size() && !starts[static_cast<unsigned char>(bytes[i])]) ++i;
      buffered_ += i - begin;
      if (i == bytes.size()) break;
    }
    ++buffered_;
    const bool first = at_start_;
    at_start_ = false;
    at_rest_ = true;
    const Stage& now = stage();
    for (size_t b = 0; b < now.branches.size(); ++b) {
      const Branch& branch = now.branches[b];
      Matcher& matcher = matchers_[b];
      if (step(branch, matcher, bytes[i], kind, first)) {
        const size_t length = matcher.length();
        if (length < buffered_) emit(now.fallback, buffered_ - length);
        if (length > 0) emit(branch.action, length);
        if (branch.action.kind == Action::Kind::kStopSequence) stopped_ = true;
        enter(branch.next);
        break;
      }
      if (matcher.length() > 0) at_rest_ = false;
    }
  }
  size_t keep = 0;
  for (const Matcher& matcher : matchers_) keep = std::max(keep, matcher.length());
  if (keep < buffered_) {
    emit(stage().fallback, buffered_ - keep);
    buffered_ = keep;
  }
}

}  // namespace di::codec
