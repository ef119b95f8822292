#include "model/engram.h"

#include <numeric>
#include <random>
#include <set>

#include "support.h"
#include "support/folders.h"
#include "support/token_texts.h"

namespace di::model::tests {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig flash() {
  return *load_config(std::string(di::test::kData) + "/model/config_v41_flash.json");
}

template <class T>
std::vector<T> values(const Safetensors& file, std::string_view name) {
  const TensorView* t = file.find(name);
  EXPECT_NE(t, nullptr) << name;
  std::vector<T> out(static_cast<size_t>(t->bytes) / sizeof(T));
  std::memcpy(out.data(), t->data, static_cast<size_t>(t->bytes));
  return out;
}

TEST(Engram, PrimesOfTheRealConfig) {
  const std::vector<EngramLayer> layers = engram_layers(flash());
  ASSERT_EQ(layers.size(), 2U);
  EXPECT_EQ(layers[0].rows, 384006168);
  EXPECT_EQ(layers[1].rows, 384016682);
  EXPECT_EQ(layers[0].primes.size(), 24U);
  EXPECT_EQ(layers[0].primes[0], 16000057);
  EXPECT_EQ(layers[0].primes[1], 16000079);
  EXPECT_EQ(layers[0].primes[2], 16000081);
  EXPECT_EQ(layers[0].primes[23], 16000463);
  EXPECT_EQ(layers[1].primes[0], 16000477);
  EXPECT_EQ(layers[1].primes[23], 16000889);
  std::set<int64_t> distinct(layers[0].primes.begin(), layers[0].primes.end());
  distinct.insert(layers[1].primes.begin(), layers[1].primes.end());
  EXPECT_EQ(distinct.size(), 48U);
  EXPECT_EQ(layers[0].offsets[0], 0);
  EXPECT_EQ(layers[0].offsets[2], 16000057 + 16000079);
}

TEST(Engram, MultipliersOfTheRealConfig) {
  EXPECT_THAT(engram_multipliers(1, 99092, 4),
              ElementsAre(76632096046245, 4839876093313, 35959672319349, 73987337458391));
  EXPECT_THAT(engram_multipliers(14, 99092, 4),
              ElementsAre(67716810739261, 51510806800915, 30921347202721, 82619226485591));
}

TEST(Engram, MultipliersAreOddAndKeepProductsInside63Bits) {
  for (const int32_t vocab : {1, 2, 96, 3443, 99092, 1 << 24}) {
    for (int32_t layer = 0; layer < 50; ++layer) {
      for (const int64_t m : engram_multipliers(layer, vocab, 8)) {
        EXPECT_EQ(m % 2, 1);
        EXPECT_GT(m, 0);
        EXPECT_LE(m, INT64_MAX / vocab);
      }
    }
  }
}

TEST(Engram, HashesMatchTheReference) {
  const std::string path = vectors_dir() + "/model/mod_engram.safetensors";
  DI_NEED_VECTORS(path);
  const Result<Safetensors> file = Safetensors::open(path);
  ASSERT_TRUE(file) << file.error().message;
  const std::vector<EngramLayer> layers = engram_layers(flash());
  const auto primes = values<int32_t>(*file, "primes");
  const auto offsets = values<int32_t>(*file, "offsets");
  const auto multipliers = values<int64_t>(*file, "multipliers");
  const auto grams = values<int32_t>(*file, "ngram_token_ids");
  const auto hash = values<int32_t>(*file, "hash");
  std::vector<int64_t> rows(64 * 24);
  for (size_t l = 0; l < 2; ++l) {
    for (size_t i = 0; i < 24; ++i) {
      EXPECT_EQ(layers[l].primes[i], primes[l * 24 + i]);
      EXPECT_EQ(layers[l].offsets[i], offsets[l * 24 + i]);
    }
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(layers[l].multipliers[i], multipliers[l * 4 + i]);
    engram_hash(layers[l], 4, grams, rows);
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], hash[l * rows.size() + i]) << l << " " << i;
  }
}

TEST(Engram, SmallModelsHashTheirPromptAsTheReference) {
  for (const char* name : {"v41_tiny_a", "v41_tiny_b"}) {
    const std::string folder = vectors_dir() + "/model/" + name;
    DI_NEED_VECTORS(folder);
    SCOPED_TRACE(name);
    const ModelConfig config = *load_config(folder);
    const Result<EngramTables> tables = make_engram_tables(config, {});
    ASSERT_TRUE(tables) << tables.error().message;
    const Result<Safetensors> file = Safetensors::open(folder + "/expected_plain.safetensors");
    ASSERT_TRUE(file) << file.error().message;
    const auto ids64 = file->find("input_ids")->dtype == StoredType::kI64 ? values<int64_t>(*file, "input_ids")
                                                                          : std::vector<int64_t>();
    std::vector<int32_t> ids(ids64.begin(), ids64.end());
    if (ids.empty()) ids = values<int32_t>(*file, "input_ids");
    const TensorView& expected = *file->find("prefill.engram_hash");  // [T, layers, columns]
    const auto tokens = static_cast<size_t>(expected.shape[0]);
    const size_t layers = config.engram_layer_ids.size();
    const auto columns = static_cast<size_t>(tables->columns);
    ASSERT_EQ(shape_text(expected.shape),
              shape_text(std::vector<int64_t>{expected.shape[0], static_cast<int64_t>(layers), tables->columns}));
    std::vector<int64_t> hash;
    if (expected.dtype == StoredType::kI64) {
      hash = values<int64_t>(*file, "prefill.engram_hash");
    } else {
      const auto narrow = values<int32_t>(*file, "prefill.engram_hash");
      hash.assign(narrow.begin(), narrow.end());
    }
    std::vector<int64_t> rows(tokens * columns);
    for (size_t l = 0; l < layers; ++l) {
      engram_rows(*tables, static_cast<int32_t>(l), std::span(ids).first(tokens), 0, rows);
      for (size_t t = 0; t < tokens; ++t) {
        for (size_t c = 0; c < columns; ++c)
          ASSERT_EQ(rows[t * columns + c], hash[(t * layers + l) * columns + c]) << t << " " << c;
      }
    }
  }
}

TEST(Engram, EverySplitOfASequenceGivesTheSameRows) {
  ModelConfig config = config_of(kSmallV41);
  const EngramTables tables = *make_engram_tables(config, {});
  std::mt19937 random(7);
  std::vector<int32_t> ids(40);
  for (int32_t& id : ids) id = random() % 5 == 0 ? config.image_token_id : static_cast<int32_t>(random() % 96);
  const auto columns = static_cast<size_t>(tables.columns);
  std::vector<int64_t> whole(ids.size() * columns);
  engram_rows(tables, 0, ids, 0, whole);
  for (size_t chunk = 1; chunk <= 9; ++chunk) {
    std::vector<int64_t> parts(whole.size());
    for (size_t at = 0; at < ids.size(); at += chunk) {
      const size_t n = std::min(chunk, ids.size() - at);
      const size_t history = std::min<size_t>(at, static_cast<size_t>(tables.lookback()));
      engram_rows(tables, 0, std::span(ids).subspan(at - history, history + n), static_cast<int32_t>(history),
                  std::span(parts).subspan(at * columns, n * columns));
    }
    EXPECT_EQ(parts, whole) << "chunks of " << chunk;
  }
}

TEST(Engram, LookBackEndsAtTheStartAndAtImages) {
  const ModelConfig config = config_of(kSmallV41);
  const EngramTables tables = *make_engram_tables(config, {});
  const int32_t image = config.image_token_id;
  const std::vector<int32_t> ids = {10, 11, image, 12, 13};
  const std::vector<int32_t> grams = {10, 2, 2, 2, 11, 10, 2, 2, 2, 2, 2, 2, 12, 2, 2, 2, 13, 12, 2, 2};
  const auto columns = static_cast<size_t>(tables.columns);
  std::vector<int64_t> rows(5 * columns);
  std::vector<int64_t> expected(5 * columns);
  engram_rows(tables, 1, ids, 0, rows);
  engram_hash(tables.layers[1], 4, grams, expected);
  EXPECT_EQ(rows, expected);
}

std::string key(std::string_view text) {
  return engram_key(TokenText{std::string(text), "spelling"});
}

TEST(Engram, KeysFoldAsTheRuleSays) {
  EXPECT_EQ(key("Hello"), "hello");
  EXPECT_EQ(key(" Hello"), "hello");
  EXPECT_EQ(key("\t \r\nword \n\n next "), "word next");
  EXPECT_EQ(key(" "), " ");       // exactly one space is kept
  EXPECT_EQ(key("\n\t  "), " ");  // a run of blanks is one space
  EXPECT_EQ(key("\u00a0"), " ");  // NFKC: no-break space
  EXPECT_EQ(key("\u3000\u3000"), " ");
  EXPECT_EQ(key("Café"), "cafe");
  EXPECT_EQ(key("\u0301"), "\u0301");    // nothing is left: the text itself
  EXPECT_EQ(key("\u200b"), "\u200b");    // zero-width space is no white space
  EXPECT_EQ(key("\u2028x\u0085"), "x");  // trimmed, though not blanks
  EXPECT_EQ(key("a\u2028b"), "a\u2028b");
  EXPECT_EQ(key("\u000b"), "\u000b");  // trimmed to nothing
  EXPECT_EQ(key("ﬁ½Ａ"), "fi1⁄2a");
  EXPECT_EQ(key("İstanbul"), "istanbul");
  EXPECT_EQ(key("ΣΟΦΟΣ"), "σοφοσ");
  EXPECT_EQ(key("ẞ"), "ß");
  EXPECT_EQ(key("ЁЖИК"), "ежик");
  EXPECT_EQ(key("한글"), "\u1112\u1161\u11ab\u1100\u1173\u11af");
  EXPECT_EQ(key("हिन्दी"), "हनद");  // vowel signs and virama are marks
  EXPECT_EQ(key("\ufffd"), "spelling");
  EXPECT_EQ(key("a\ufffdb"), "spelling");
  EXPECT_EQ(key("\xc3"), "spelling");  // no UTF-8 at all
  EXPECT_EQ(key(""), "");
  EXPECT_EQ(key(std::string_view("\0", 1)), std::string(1, '\0'));
}

TEST(Engram, CompressedIdsCountFirstAppearances) {
  const std::vector<TokenText> tokens = {{"a", "a"}, {"B", "B"},      {" A", "ĠA"}, {"\ufffd", "Ã"},
                                         {"b", "b"}, {"\ufffd", "Â"}, {"c", "c"}};
  const CompressedVocabulary v = compress_vocabulary(tokens);
  EXPECT_THAT(v.map, ElementsAre(0, 1, 0, 2, 1, 3, 4));
  EXPECT_EQ(v.size, 5);
}

TEST(Engram, TheMapMustHaveTheSizeOfTheConfig) {
  Json root = parse(kSmallV41);
  edit(root, "engram_compressed_vocab_size", "3");
  const ModelConfig config = *parse_config(root, "config.json");
  std::vector<TokenText> tokens = {{"a", "a"}, {"A", "A"}, {"<pad>", "<pad>"}, {"b", "b"}};
  const Result<EngramTables> tables = make_engram_tables(config, tokens);
  ASSERT_TRUE(tables) << tables.error().message;
  EXPECT_EQ(tables->pad, 1);
  tokens.push_back({"c", "c"});
  const Result<EngramTables> wrong = make_engram_tables(config, tokens);
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message,
              HasSubstr("engram_compressed_vocab_size: expected 4, the size of the tokenizer's compressed "
                        "vocabulary (5 ids), found 3"));
  EXPECT_FALSE(make_engram_tables(config, {}));
}

TEST(Engram, ReproducesThePublishedMap) {
  const std::string vectors = vectors_dir();
  DI_NEED_VECTORS(vectors);
  const Result<std::vector<TokenText>> tokens = test::token_texts(vectors + "/recipe/tokenizer.json");
  ASSERT_TRUE(tokens) << tokens.error().message;
  const Result<Safetensors> file = Safetensors::open(vectors + "/model/engram_vocab_map.safetensors");
  ASSERT_TRUE(file) << file.error().message;
  const auto expected = values<int32_t>(*file, "old2new");
  const CompressedVocabulary v = compress_vocabulary(*tokens);
  EXPECT_EQ(v.size, 99092);
  // The map is as long as the embedding; ids without a token are not the tokenizer's.
  ASSERT_LE(v.map.size(), expected.size());
  size_t wrong = 0;
  for (size_t i = 0; i < v.map.size(); ++i) {
    if (v.map[i] == expected[i]) continue;
    if (++wrong <= 10)
      ADD_FAILURE() << "id " << i << " \"" << (*tokens)[i].text << "\": " << v.map[i] << ", expected " << expected[i];
  }
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(v.map.size(), expected.size());
}

TEST(Engram, DerivesTheMapOfTheTrainedModel) {
  const std::string folder = vectors_dir() + "/model/v41_trained";
  DI_NEED_VECTORS(folder);
  const ModelConfig config = *load_config(folder);
  const Result<std::vector<TokenText>> tokens = test::token_texts(folder);
  ASSERT_TRUE(tokens) << tokens.error().message;
  const Result<EngramTables> tables = make_engram_tables(config, *tokens);
  ASSERT_TRUE(tables) << tables.error().message;
  EXPECT_EQ(tables->vocab_map.size(), 4096U);
  EXPECT_EQ(*std::max_element(tables->vocab_map.begin(), tables->vocab_map.end()), 3442);
}

}  // namespace
}  // namespace di::model::tests
