// The scanner against the three regular expressions of the tokenizer file, run by PCRE2 one after the other.
#include "codec/tokenizer/pretokenize.h"

#include <gtest/gtest.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

namespace di::codec {
namespace {

class Regex {
 public:
  explicit Regex(const char* pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error,
                          &offset, nullptr);
    EXPECT_NE(code_, nullptr) << pattern;
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
  }
  ~Regex() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // "Isolated": every match and every stretch between matches becomes a piece.
  std::vector<std::string> split(const std::vector<std::string>& pieces) const {
    std::vector<std::string> out;
    for (const std::string& piece : pieces) {
      size_t at = 0;
      while (at < piece.size()) {
        const int found =
            pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(piece.data()), piece.size(), at, 0, match_, nullptr);
        if (found < 0) break;
        const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match_);
        if (range[0] > at) out.push_back(piece.substr(at, range[0] - at));
        out.push_back(piece.substr(range[0], range[1] - range[0]));
        at = range[1];
      }
      if (at < piece.size()) out.push_back(piece.substr(at));
    }
    return out;
  }

 private:
  pcre2_code* code_ = nullptr;
  pcre2_match_data* match_ = nullptr;
};

TEST(Pretokenize, SplitsAsTheThreeRegularExpressions) {
  const Regex numbers("\\p{N}{1,3}");
  const Regex ideographs("[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+");
  const Regex words(
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
      "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+");
  // Characters of every class, old enough that PCRE2's Unicode version knows them; one of each kind of white space
  // (U+180E is left out: PCRE2 counts it as \s, the tokenizer's engine does not).
  const std::vector<std::string> alphabet = {
      " ",      " ",      " ",      "\n",     "\r", "\t", "\x0B", "\u0085", "\u00A0",
      "\u2028", "\u3000", "a",      "Z",      "é",  "ß",  "я",    "ع",      "ก",
      "한",     "\u0301", "\u0903", "\u20DD", "0",  "7",  "½",    "②",      "٣",
      "Ⅻ",      ".",      "'",      "-",      "_",  "«",  "、",   "$",      "+",
      "^",      "€",      "😀",     "©",      "中", "国", "龥",   "\u9FA6", "ひ",
      "カ",     "・",     "゛",     "\u3099", "々", "〇", "ｱ",    "\x01",   std::string("\0", 1),
      "\u200B", "\uFEFF", "\u200D", "\uE000", "<",  "｜", "\x7F"};
  std::mt19937 random(23);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    const int n = std::uniform_int_distribution<int>(1, 24)(random);
    for (int i = 0; i < n; ++i) text += alphabet[std::uniform_int_distribution<size_t>(0, alphabet.size() - 1)(random)];
    std::vector<std::string> found;
    for_each_piece(text, [&](std::string_view piece) { found.emplace_back(piece); });
    ASSERT_EQ(found, words.split(ideographs.split(numbers.split({text})))) << "round " << round << ": " << text;
  }
}

TEST(Pretokenize, KeepsInvalidBytes) {
  std::mt19937 random(29);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 20; ++i) text.push_back(static_cast<char>(std::uniform_int_distribution<int>(0, 255)(random)));
    std::string joined;
    for_each_piece(text, [&](std::string_view piece) {
      EXPECT_FALSE(piece.empty());
      joined += piece;
    });
    ASSERT_EQ(joined, text);
  }
}

}  // namespace
}  // namespace di::codec
