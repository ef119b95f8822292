// What the tests of this folder share: a small byte vocabulary with a few longer tokens and control tokens, and texts
// through matchers. Expectations with the real vocabulary are in vectors_test.cc.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "structured/structured.h"
#include "support/sanitizers.h"

namespace di::structured::testing {

constexpr TokenId kEos = 300;
constexpr TokenId kThinkBegin = 301;
constexpr TokenId kThinkEnd = 302;
constexpr TokenId kDsml = 303;

// Tokens 0-255 are the single bytes, from 256 on some that straddle lexemes, 300-303 control tokens, 304-310 unused.
inline const VocabularyRef& byte_vocabulary() {
  static const VocabularyRef vocabulary = [] {
    std::vector<Vocabulary::Token> tokens(311);
    for (size_t b = 0; b < 256; ++b) tokens[b].bytes = std::string(1, static_cast<char>(static_cast<uint8_t>(b)));
    const char* longer[] = {"\": ", "\",", "\"}", "{\"",      "true",         "false", "null",   "abc",
                            "ab",   "12",  "123", "\xf0\x9f", "\xe6\x97\xa5", "\n\n",  "</",     ", \"",
                            "\":",  "aa",  "ba",  "}}",       "]]",           "the ",  " calls", "name"};
    size_t at = 256;
    for (const char* t : longer) tokens[at++].bytes = t;
    tokens[kEos] = {"<eos>", true};
    tokens[kThinkBegin] = {"<think>", true};
    tokens[kThinkEnd] = {"</think>", true};
    tokens[kDsml] = {
        "\xef\xbd\x9c"
        "DSML\xef\xbd\x9c",
        true};
    return Vocabulary::create(std::move(tokens), {kEos, kThinkBegin, kThinkEnd, kDsml});
  }();
  return vocabulary;
}

// A text as single bytes, and tokens as text.
inline std::vector<TokenId> bytes(std::string_view text) {
  std::vector<TokenId> out;
  for (const char c : text) out.push_back(static_cast<uint8_t>(c));
  return out;
}

inline std::string text_of(const std::vector<TokenId>& tokens) {
  std::string out;
  for (const TokenId t : tokens) out += byte_vocabulary()->bytes(t);
  return out;
}

// As by default, but for processor time: these tests run on slow machines and under sanitizers, too.
inline Limits patient() {
  Limits limits;
  limits.compile_cpu_ms = di::test::kPatientMs;
  limits.mask_cpu_ms = di::test::kPatientMs;
  return limits;
}

inline Expected<CompiledRef> compile_spec(ConstraintKind kind, std::string_view payload, SpecOptions options = {},
                                          bool reasoning = false, const Limits& limits = patient()) {
  ConstraintSpec spec;
  spec.kind = kind;
  spec.payload = payload;
  spec.options = std::move(options);
  spec.reasoning = reasoning;
  return compile(byte_vocabulary(), spec, limits);
}

inline CompiledRef compiled(ConstraintKind kind, std::string_view payload, SpecOptions options = {},
                            bool reasoning = false) {
  auto c = compile_spec(kind, payload, std::move(options), reasoning);
  EXPECT_TRUE(c.has_value()) << payload << ": " << (c ? "" : c.error().text());
  return c ? *c : nullptr;
}

inline CompiledRef schema(std::string_view text) {
  return compiled(ConstraintKind::kJsonSchema, text);
}

// The whole text and then the end.
inline bool takes(const CompiledRef& c, std::string_view text) {
  if (c == nullptr) return false;
  Matcher m(c);
  const auto tokens = byte_vocabulary()->encode_greedy(text, true);
  if (tokens.empty() != text.empty()) return false;
  return m.accept(tokens) == tokens.size() && m.accept(kEos) && m.terminated();
}

inline std::string code_of(ConstraintKind kind, std::string_view payload, const Limits& limits = patient()) {
  auto c = compile_spec(kind, payload, {}, false, limits);
  return c ? "compiled" : c.error().code;
}

}  // namespace di::structured::testing
