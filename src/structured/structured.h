// Structured output: from a constraint (JSON Schema, regex, grammar, choice, structural tags, tool calls) to bit masks
// over a vocabulary. Rules: structured-output.md. A library of its own over base/.
//
//   Vocabulary (once per model)  ->  compile(spec) -> CompiledRef (immutable to its users, shared)  ->  Matcher (per
//   sequence)
//
// Threads: a Vocabulary and a CompiledRef may be used by many threads at once (the automaton inside is made lazily
// under a lock of its own); a Matcher belongs to one thread at a time. Nothing here throws, aborts or recurses without
// bound on input; every unbounded growth is under a limit (Limits).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "structured/error.h"

namespace di::structured {

using TokenId = int32_t;

// structured-output.md §2.7.
struct Limits {
  size_t max_schema_bytes = 1U << 20U;
  size_t max_regex_bytes = 32U << 10U;
  size_t max_choices = 10'000;
  uint32_t max_document_nesting = 256;
  uint32_t max_subschemas = 50'000;
  uint32_t max_properties = 20'000;
  uint32_t max_enum_values = 50'000;
  uint32_t max_repeat = 1'000'000;
  int64_t max_nodes = 2'000'000;
  int64_t compile_cpu_ms = 2'000;
  int64_t compile_bytes = 256LL << 20U;
  uint32_t max_states = 250'000;       // parser states made lazily, a constraint
  int64_t state_bytes = 512LL << 20U;  // bytes of them with their masks
  uint32_t max_items = 50'000;         // parser items of one state
  // One mask, one token, on one thread: whoever shares the step waits no longer for a costly one. Ten times what the
  // costliest of the reference schemas takes; slow builds (sanitizers) have to ask for more.
  int64_t mask_cpu_ms = 20;
  uint32_t max_output_nesting = 200;
  uint32_t max_shapes = 256;            // alternatives of one subschema after distribution
  uint32_t max_alternatives = 400'000;  // of all subschemas together
};

enum class ConstraintKind : uint8_t {
  kJsonObject,     // payload unused
  kJsonSchema,     // payload: the schema as JSON text
  kRegex,          // payload: the pattern
  kChoice,         // payload: JSON array of strings
  kEbnf,           // payload: GBNF text
  kLark,           // payload: Lark text
  kGrammar,        // payload: EBNF, or Lark when its rules are written with ':'
  kStructuralTag,  // payload: the structural tag as JSON text
  kToolCalls,      // payload: JSON array of Chat function tools
  kNone,           // free text; only together with reasoning or tools
};

enum class Whitespace : uint8_t { kFlexible, kCompact, kAny, kPattern };
enum class PropertyOrder : uint8_t { kSchema, kAny };
enum class ToolChoice : uint8_t { kAuto, kRequired, kNone };

struct SpecOptions {
  Whitespace whitespace = Whitespace::kFlexible;
  std::string whitespace_pattern;  // with kPattern
  PropertyOrder property_order = PropertyOrder::kSchema;
  bool lenient = false;          // what cannot be enforced becomes a warning
  bool close_objects = false;    // objects that do not state additionalProperties are closed
  bool numeric_formats = false;  // int32 and int64 bound integers
  bool refuse_unknown_formats = false;
  // Tool calls (§7.2).
  ToolChoice tool_choice = ToolChoice::kAuto;
  bool parallel_tool_calls = true;
  std::string tool_name;  // only this function may be called
};

struct ConstraintSpec {
  ConstraintKind kind = ConstraintKind::kJsonSchema;
  std::string payload;
  SpecOptions options;
  // A thinking part stands first: any ordinary token until </think> (§7.1).
  bool reasoning = false;
  // JSON array of Chat function tools: instead of the constrained text, free text with calls of them may follow. Not
  // with kToolCalls.
  std::string or_tools;
};

// Control tokens by role; -1 where a vocabulary has none.
struct SpecialTokens {
  TokenId eos = -1;
  TokenId think_begin = -1;
  TokenId think_end = -1;
  TokenId dsml = -1;
};

class VocabularyImpl;
class Vocabulary {
 public:
  struct Token {
    std::string bytes;     // its text; empty: an unused row, never allowed
    bool special = false;  // never matches by its spelling
  };
  // Row i is token i.
  static std::shared_ptr<const Vocabulary> create(std::vector<Token> tokens, SpecialTokens specials);
  // The same with DeepSeek's names of control tokens looked up among the special ones.
  static std::shared_ptr<const Vocabulary> create(std::vector<Token> tokens);
  // A Hugging Face tokenizer.json of the byte-level kind, with DeepSeek's names of special tokens.
  static Expected<std::shared_ptr<const Vocabulary>> from_tokenizer_json(std::string_view json);

  explicit Vocabulary(std::unique_ptr<VocabularyImpl> impl);
  ~Vocabulary();
  int32_t size() const;
  size_t mask_words() const { return (static_cast<size_t>(size()) + 31) / 32; }
  std::string_view bytes(TokenId id) const;
  bool is_special(TokenId id) const;
  // The special token spelt so, or -1.
  TokenId special(std::string_view spelling) const;
  const SpecialTokens& specials() const;
  // Greedy longest match; special tokens by their spelling when asked. Not the tokenizer's segmentation.
  std::vector<TokenId> encode_greedy(std::string_view text, bool with_special) const;
  const VocabularyImpl& impl() const { return *impl_; }

 private:
  std::unique_ptr<VocabularyImpl> impl_;
};
using VocabularyRef = std::shared_ptr<const Vocabulary>;

class CompiledImpl;
class Compiled {
 public:
  explicit Compiled(std::unique_ptr<CompiledImpl> impl);
  ~Compiled();
  // What lenient mode and unknown formats left unenforced.
  const std::vector<std::string>& warnings() const;
  // Bytes held now: grammar, lazily made states, masks.
  int64_t memory_bytes() const;
  CompiledImpl& impl() const { return *impl_; }

 private:
  std::unique_ptr<CompiledImpl> impl_;
};
using CompiledRef = std::shared_ptr<const Compiled>;

// Runs on the calling thread within the limits.
Expected<CompiledRef> compile(const VocabularyRef& vocabulary, const ConstraintSpec& spec, const Limits& limits = {});

class Matcher {
 public:
  // stop_tokens: allowed where the text may end; the vocabulary's EOS is always one of them.
  explicit Matcher(CompiledRef compiled, std::vector<TokenId> stop_tokens = {});

  // False when every ordinary token is allowed here (free text): the row need not be applied by a sampler that bans
  // control tokens by itself.
  bool needs_mask() const;
  size_t mask_words() const;
  // row: mask_words() words, bit i & 31 of word i >> 5 = token i allowed. After termination: all zero.
  // False when a limit was reached: the sequence must end with constraint_failed.
  bool fill_mask(std::span<uint32_t> row);
  bool allowed(TokenId id) const;
  // Takes tokens until one is refused; returns how many were taken. A refused token changes nothing.
  size_t accept(std::span<const TokenId> ids);
  bool accept(TokenId id) { return accept({&id, 1}) == 1; }
  // All of the bytes as ordinary text, or nothing.
  bool accept_bytes(std::string_view bytes);
  // Longest acceptable prefix; the state stays.
  size_t validate(std::span<const TokenId> ids) const;
  // rows: draft.size() + 1 rows of equal length, mask_words() or more. rows[j] is the mask after draft[0..j); rows
  // 0..valid prefix are filled, the others are all ones. Returns the valid prefix; the state stays.
  size_t fill_masks_along(std::span<const TokenId> draft, std::span<uint32_t> rows);
  // Takes back the last n accepted tokens; false when there are fewer.
  bool rollback(size_t n);
  void reset();
  size_t tokens() const { return history_.size() - 1; }
  Matcher clone() const { return *this; }
  // The same state without the tokens that led to it, at the cost of one token: for texts that are tried and dropped.
  Matcher branch() const;
  // The text may end here / a stop token was accepted / a limit was reached.
  bool accepting() const;
  bool terminated() const { return history_.back().terminated; }
  bool failed() const { return failed_; }
  // The longest text that every continuation shares, at most limit bytes.
  std::string forced_text(size_t limit) const;
  // Equal numbers mean equal states within one compiled constraint.
  uint32_t state() const { return history_.back().state; }

 private:
  struct Entry {
    uint32_t state = 0;
    bool terminated = false;
  };
  explicit Matcher(Entry at) : history_{at} {}
  bool is_stop(TokenId id) const;
  Entry next(Entry from, TokenId id) const;

  CompiledRef compiled_;
  std::vector<TokenId> stop_tokens_;
  std::vector<Entry> history_;
  mutable bool failed_ = false;
};

}  // namespace di::structured
