// What the fuzzers of structured output share: a constraint compiled within small limits, then walked at random while
// the ways to ask a matcher are compared with each other. The input's first byte chooses options, the rest is the text.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "structured/structured.h"

namespace di::structured::fuzzing {

// The single bytes, some tokens that straddle lexemes, five control tokens.
inline const VocabularyRef& vocabulary() {
  static const VocabularyRef made = [] {
    std::vector<Vocabulary::Token> tokens;
    for (int b = 0; b < 256; ++b) tokens.push_back({std::string(1, static_cast<char>(static_cast<uint8_t>(b))), false});
    for (const char* text :
         {"\": ", "\",", "\"}",  "{\"", "true", "null", "abc",    "ab",   "12",    "123",     "\xe6\x97",
          "\n\n", "</",  ", \"", "}}",  "]]",   "the ", " calls", "name", "\\u00", "aaaaaaaa"})
      tokens.push_back({text, false});
    for (const char* text : {"<eos>", "<think>", "</think>",
                             "\xef\xbd\x9c"
                             "DSML"
                             "\xef\xbd\x9c",
                             "<other>"})
      tokens.push_back({text, true});
    const auto at = static_cast<TokenId>(tokens.size()) - 5;
    return Vocabulary::create(std::move(tokens), {at, at + 1, at + 2, at + 3});
  }();
  return made;
}

inline Limits small_limits() {
  Limits limits;
  limits.compile_cpu_ms = 1'000;
  limits.compile_bytes = 64 << 20;
  limits.max_nodes = 200'000;
  limits.max_states = 4'000;
  limits.state_bytes = 64 << 20;
  limits.max_items = 4'000;
  limits.mask_cpu_ms = 200;
  return limits;
}

inline bool bit(const std::vector<uint32_t>& row, TokenId id) {
  const auto i = static_cast<uint32_t>(id);
  return ((row[i >> 5U] >> (i & 31U)) & 1U) != 0;
}

class Walk {
 public:
  Walk(const CompiledRef& compiled, uint64_t seed) : matcher_(compiled), seed_(seed) {}

  void run() {
    const auto size = static_cast<uint64_t>(vocabulary()->size());
    std::vector<uint32_t> row(vocabulary()->mask_words());
    std::vector<TokenId> taken;
    const Matcher start = matcher_;
    for (int step = 0; step < 20 && !matcher_.terminated(); ++step) {
      if (!matcher_.fill_mask(row)) return;  // a limit: the sequence ends
      const std::vector<TokenId> some = {static_cast<TokenId>(next() % size), static_cast<TokenId>(next() % size)};
      for (const TokenId id : some) {
        const bool one = matcher_.allowed(id);
        DI_CHECK(one == bit(row, id), "token {}: mask {}, matcher {}", id, bit(row, id), one);
      }
      DI_CHECK(matcher_.accepting() == bit(row, vocabulary()->specials().eos));
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < vocabulary()->size(); ++id) {
        if (bit(row, id)) allowed.push_back(id);
      }
      DI_CHECK(!allowed.empty(), "no token is allowed after {}", taken.size());
      forced(row);
      const TokenId id = allowed[next() % allowed.size()];
      const bool accepted = matcher_.accept(id);
      if (matcher_.failed()) return;
      DI_CHECK(accepted, "token {} is in the mask and refused", id);
      taken.push_back(id);
    }
    back_and_forth(start, taken);
  }

 private:
  uint64_t next() {
    seed_ += kSplitMixGamma;
    return split_mix64(seed_);
  }

  // Forced text begins with a byte that the mask allows.
  void forced(const std::vector<uint32_t>& row) {
    const std::string text = matcher_.forced_text(8);
    if (!text.empty()) DI_CHECK(bit(row, static_cast<TokenId>(static_cast<uint8_t>(text[0]))));
  }

  void back_and_forth(Matcher again, const std::vector<TokenId>& taken) {
    const size_t words = vocabulary()->mask_words();
    std::vector<uint32_t> rows((taken.size() + 1) * words);
    const size_t prefix = again.fill_masks_along(taken, rows);
    if (again.failed()) return;
    DI_CHECK(prefix == taken.size() && again.tokens() == 0 && again.validate(taken) == taken.size());
    std::vector<uint32_t> row(words);
    for (size_t n = taken.size();; --n) {
      if (!matcher_.fill_mask(row)) return;
      DI_CHECK(std::equal(row.begin(), row.end(), rows.begin() + static_cast<std::ptrdiff_t>(n * words)),
               "the mask after {} tokens differs", n);
      if (n == 0) break;
      DI_CHECK(matcher_.rollback(1));
    }
    DI_CHECK(!matcher_.rollback(1) && matcher_.state() == again.state());
  }

  Matcher matcher_;
  uint64_t seed_;
};

inline SpecOptions options_of(uint8_t byte) {
  SpecOptions options;
  options.whitespace = static_cast<Whitespace>(byte % 3);
  options.property_order = (byte & 4U) != 0 ? PropertyOrder::kAny : PropertyOrder::kSchema;
  options.lenient = (byte & 8U) != 0;
  options.close_objects = (byte & 16U) != 0;
  return options;
}

inline void compile_and_walk(ConstraintKind kind, const SpecOptions& options, std::string_view text,
                             bool reasoning = false) {
  ConstraintSpec spec;
  spec.kind = kind;
  spec.payload = text;
  spec.options = options;
  spec.reasoning = reasoning;
  const auto compiled = compile(vocabulary(), spec, small_limits());
  if (!compiled) {
    DI_CHECK(!compiled.error().code.empty() && !compiled.error().message.empty());
    return;
  }
  uint64_t seed = text.size();
  for (const char c : text) seed = seed * 31 + static_cast<uint8_t>(c);
  Walk(*compiled, seed).run();
}

}  // namespace di::structured::fuzzing
