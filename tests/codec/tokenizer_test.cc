#include "codec/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "codec/tokenizer/unicode.h"
#include "codec/vectors.h"
#include "support/folders.h"

namespace di::codec {
namespace {

using testing::ids_of;
using testing::read_lines;
using testing::text_of;
using testing::vector_tokenizer;

TEST(Unicode, ClassTableEqualsTheRanges) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const Json file = *parse_json_file(testing::recipe_dir() + "/unicode_classes.json");
  const std::pair<const char*, uint8_t> classes[] = {{"L", kLetter},      {"M", kMark},   {"N", kNumber},
                                                     {"P", kPunctuation}, {"S", kSymbol}, {"s", kWhiteSpace}};
  for (const auto& [name, bit] : classes) {
    std::vector<bool> expected(0x110000);
    for (const Json& range : file.find("classes")->find(name)->as_array()) {
      for (int64_t cp = *range.as_array()[0].to_i64(); cp <= *range.as_array()[1].to_i64(); ++cp) {
        expected[static_cast<size_t>(cp)] = true;
      }
    }
    size_t wrong = 0;
    for (uint32_t cp = 0; cp < 0x110000; ++cp) wrong += ((char_class(cp) & bit) != 0) != expected[cp] ? 1 : 0;
    EXPECT_EQ(wrong, 0U) << name;
  }
}

TEST(Unicode, LossyTextReplacesMaximalSubparts) {
  const std::pair<std::string, std::string> cases[] = {{"\xF0\x9F\x98", "\uFFFD"},
                                                       {"\xC0\x80", "\uFFFD\uFFFD"},
                                                       {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
                                                       {"\xE4\xBD"
                                                        "A",
                                                        "\uFFFD"
                                                        "A"},
                                                       {"a\x80z", "a\uFFFDz"},
                                                       {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
                                                       {"\xF0\x9F\x98\x80", "\U0001F600"},
                                                       {"\xE4", "\uFFFD"},
                                                       {"\xF5\x80", "\uFFFD\uFFFD"}};
  for (const auto& [bytes, text] : cases) {
    std::string out;
    append_utf8_lossy(out, bytes);
    EXPECT_EQ(out, text);
  }
}

TEST(Tokenizer, EncodesEveryVector) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const TokenizerRef tokenizer = vector_tokenizer();
  size_t compared = 0;
  for (const Json& c : read_lines("tokenizer_encode.jsonl")) {
    const std::string& text = text_of(c, "text");
    const std::vector<TokenId> full = tokenizer->encode_full(text);
    const std::vector<TokenId> plain = tokenizer->encode_plain(text);
    EXPECT_EQ(full.size(), static_cast<size_t>(*c.find("n_full")->to_i64())) << text_of(c, "id");
    EXPECT_EQ(plain.size(), static_cast<size_t>(*c.find("n_plain")->to_i64())) << text_of(c, "id");
    if (const Json* ids = c.find_value("full_ids")) {
      ++compared;
      EXPECT_EQ(full, ids_of(*ids)) << text_of(c, "id");
      const Json* plain_ids = c.find_value("plain_ids");
      EXPECT_EQ(plain, ids_of(plain_ids != nullptr ? *plain_ids : *ids)) << text_of(c, "id");
    }
    EXPECT_EQ(tokenizer->decode(full), text) << text_of(c, "id");
    EXPECT_EQ(tokenizer->decode(plain), text) << text_of(c, "id");
  }
  EXPECT_GT(compared, 700U);
}

TEST(Tokenizer, DecodesEveryVector) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const TokenizerRef tokenizer = vector_tokenizer();
  for (const Json& c : read_lines("tokenizer_decode.jsonl")) {
    const std::vector<TokenId> ids = ids_of(*c.find("ids"));
    EXPECT_EQ(tokenizer->decode(ids), text_of(c, "text")) << text_of(c, "id");
    EXPECT_EQ(tokenizer->decode(ids, true), text_of(c, "text_skip_special")) << text_of(c, "id");
  }
}

TEST(Tokenizer, MergesAsTheSlowTwin) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const TokenizerRef tokenizer = vector_tokenizer();
  std::mt19937 random(7);
  const auto word = [&](int kind) {
    std::string out;
    const auto n = std::uniform_int_distribution<int>(1, kind == 3 ? 300 : 40)(random);
    for (int i = 0; i < n; ++i) {
      if (kind == 0) {
        out.push_back(static_cast<char>(std::uniform_int_distribution<int>(0, 255)(random)));
      } else if (kind == 1) {
        out.push_back("aeinrst"[std::uniform_int_distribution<size_t>(0, 6)(random)]);
      } else if (kind == 2) {
        out += tokenizer->token_bytes(std::uniform_int_distribution<TokenId>(3, 127999)(random));
      } else {
        out.push_back(std::uniform_int_distribution<int>(0, 9)(random) == 0 ? 'b' : 'a');
      }
    }
    return out;
  };
  for (int round = 0; round < 4000; ++round) {
    const std::string text = word(round % 4);
    std::vector<TokenId> expected;
    tokenizer->encode_plain_reference(text, expected);
    ASSERT_EQ(tokenizer->encode_plain(text), expected) << round;
  }
}

TEST(Tokenizer, LongPiecesAreNotQuadratic) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const TokenizerRef tokenizer = vector_tokenizer();
  std::string text;
  for (int i = 0; i < 400000; ++i) text += i % 3 == 0 ? "的" : "龍";  // one piece of 1.2 MB
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(tokenizer->decode(tokenizer->encode_plain(text)), text);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Tokenizer, KnowsItsAddedTokens) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const TokenizerRef v4 = vector_tokenizer();
  const TokenizerRef v41 = vector_tokenizer(true);
  EXPECT_EQ(v4->added_tokens().size(), 1283U);
  EXPECT_EQ(v4->vocab_size(), 129280);
  EXPECT_EQ(v4->added_id("<think>"), 128821);
  EXPECT_EQ(v4->added_id("｜DSML｜"), 128825);
  EXPECT_EQ(v4->added_id("<｜System｜>"), std::nullopt);
  EXPECT_EQ(v41->added_id("<｜System｜>"), 128799);
  EXPECT_EQ(v41->added_id("<｜image｜>"), 129264);
  EXPECT_TRUE(v4->is_added(128000));
  EXPECT_TRUE(v4->is_special(1));
  EXPECT_FALSE(v4->is_special(128821));
  EXPECT_FALSE(v4->is_added(-1));
  EXPECT_EQ(v4->token_bytes(500000), "");
  EXPECT_LT(v4->memory_bytes(), 40U << 20);
}

TEST(Tokenizer, LoadsSmallFilesOfTheSameForm) {
  const std::string path = std::string(di::test::kVectors) + "/model/v41_trained/tokenizer.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "reference vectors are absent: " << path;
  const Result<TokenizerRef> tokenizer = Tokenizer::load(path);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->added_id("<｜deepseek_image｜>"), 4081);
  const std::string text = "Hello world, 12345 你好 \n\n  x";
  EXPECT_EQ((*tokenizer)->decode((*tokenizer)->encode_plain(text)), text);
}

TEST(Tokenizer, RefusesOtherForms) {
  const auto message = [](std::string_view json) {
    const Result<TokenizerRef> tokenizer = Tokenizer::from_json(json, "t.json");
    return tokenizer ? std::string("loaded") : tokenizer.error().message;
  };
  EXPECT_THAT(message("{"), ::testing::HasSubstr("t.json: "));
  EXPECT_THAT(message("[]"), ::testing::HasSubstr("t.json: is not a JSON object"));
  EXPECT_THAT(message(R"({"pre_tokenizer":{"type":"ByteLevel"}})"), ::testing::HasSubstr("`pre_tokenizer` must be"));
  EXPECT_THAT(message(R"({"normalizer":{"type":"NFC"}})"), ::testing::HasSubstr("`normalizer` must be"));
  EXPECT_THAT(message(R"({"model":{"type":"Unigram","vocab":[]}})"), ::testing::HasSubstr("`model.type` must be BPE"));
  EXPECT_THAT(message(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})"),
              ::testing::HasSubstr("entry for byte"));
  EXPECT_THAT(message(R"({"model":{"vocab":{"a":0},"merges":["a b"]}})"), ::testing::HasSubstr("merge 0"));
}

}  // namespace
}  // namespace di::codec
