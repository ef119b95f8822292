// Cutting, parallel encoding, and special tokens that text can never become (recipe.md §1.4).
#include <gtest/gtest.h>

#include <random>

#include "codec/prompt/prompt.h"
#include "codec/tokenizer/safe_cut.h"
#include "codec/tokenizer/unicode.h"
#include "codec/vectors.h"

namespace di::codec {
namespace {

using testing::read_lines;
using testing::text_of;
using testing::vector_tokenizer;

std::vector<TokenId> encode_cut(const Tokenizer& tokenizer, std::string_view text, size_t at) {
  std::vector<TokenId> ids = tokenizer.encode_plain(text.substr(0, at));
  tokenizer.encode_plain(text.substr(at), ids);
  return ids;
}

void append_code_point(std::string& out, uint32_t cp) {
  const auto put = [&](uint32_t v) { out.push_back(static_cast<char>(v)); };
  if (cp < 0x80) {
    put(cp);
  } else if (cp < 0x800) {
    put(0xC0 | cp >> 6);
    put(0x80 | (cp & 63));
  } else if (cp < 0x10000) {
    put(0xE0 | cp >> 12);
    put(0x80 | (cp >> 6 & 63));
    put(0x80 | (cp & 63));
  } else {
    put(0xF0 | cp >> 18);
    put(0x80 | (cp >> 12 & 63));
    put(0x80 | (cp >> 6 & 63));
    put(0x80 | (cp & 63));
  }
}

// Text in which every kind of border is frequent.
std::string random_text(std::mt19937& random, int length) {
  const auto pick = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  std::string out;
  for (int i = 0; i < length; ++i) {
    switch (pick(10)) {
      case 0:
        out += "  \n\t \r\n"[pick(7)];
        break;
      case 1:
        out += ' ';
        break;
      case 2:
        out += "0123456789"[pick(10)];
        break;
      case 3:
        append_code_point(out, static_cast<uint32_t>(0x4E00 + pick(300)));
        break;
      case 4:
        append_code_point(out, static_cast<uint32_t>(0x0300 + pick(0x70)));
        break;  // marks
      case 5:
        out += ".,;:!'\"()[]{}<>$+="[pick(18)];
        break;
      case 6: {
        uint32_t cp = static_cast<uint32_t>(pick(0x110000));
        if (cp >= 0xD800 && cp <= 0xDFFF) cp = 0x3042;
        append_code_point(out, cp);
        break;
      }
      case 7:
        append_code_point(out, static_cast<uint32_t>(0x3040 + pick(0xC0)));
        break;
      default:
        out += "etaoinshrdlu"[pick(12)];
        break;
    }
  }
  return out;
}

// Every text at each of its legal cuts by itself, and at all of them at once. The four longest texts have some ten
// thousand cuts: all of them in a soak, 300 of each else.
TEST(SafeCut, EveryLegalCutOfEveryVectorGivesTheSameIds) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const TokenizerRef tokenizer = vector_tokenizer();
  std::mt19937 random(3);
  size_t texts = 0;
  size_t cuts = 0;
  for (const Json& c : read_lines("tokenizer_encode.jsonl")) {
    ++texts;
    const std::string& text = text_of(c, "text");
    const std::vector<TokenId> whole = tokenizer->encode_plain(text);
    std::vector<size_t> legal;
    for (size_t at = next_safe_cut(text, 0); at < text.size(); at = next_safe_cut(text, at + 1)) legal.push_back(at);
    std::vector<TokenId> pieces;
    size_t begin = 0;
    for (const size_t at : legal) {
      tokenizer->encode_plain(std::string_view(text).substr(begin, at - begin), pieces);
      begin = at;
    }
    tokenizer->encode_plain(std::string_view(text).substr(begin), pieces);
    ASSERT_EQ(pieces, whole) << text_of(c, "id") << " at all of its " << legal.size() << " cuts";
    if (!testing::soak() && text.size() > 20000 && legal.size() > 300) {
      std::shuffle(legal.begin(), legal.end(), random);
      legal.resize(300);
    }
    for (const size_t at : legal) {
      ++cuts;
      ASSERT_EQ(encode_cut(*tokenizer, text, at), whole) << text_of(c, "id") << " cut at " << at;
    }
  }
  EXPECT_EQ(texts, 778U);
  EXPECT_GT(cuts, 10000U);
  std::printf("  %zu cuts of %zu texts\n", cuts, texts);
}

TEST(SafeCut, RandomTextsGiveTheSameIdsAtEveryLegalCut) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const TokenizerRef tokenizer = vector_tokenizer();
  std::mt19937 random(11);
  size_t cuts = 0;
  for (int round = 0; round < 10000; ++round) {
    const std::string text = random_text(random, 30);
    const std::vector<TokenId> whole = tokenizer->encode_plain(text);
    ASSERT_EQ(tokenizer->decode(whole), text);
    for (size_t at = next_safe_cut(text, 0); at < text.size(); at = next_safe_cut(text, at + 1)) {
      ++cuts;
      ASSERT_EQ(encode_cut(*tokenizer, text, at), whole) << "round " << round << " cut at " << at << ": " << text;
    }
  }
  EXPECT_GT(cuts, 20000U);
}

TEST(SafeCut, NeverInsideWhiteSpaceRunsDigitsOrBesideMarks) {
  EXPECT_TRUE(is_safe_cut("ab cd", 2));
  EXPECT_TRUE(is_safe_cut("a1", 1));
  EXPECT_TRUE(is_safe_cut("a中", 1));
  EXPECT_FALSE(is_safe_cut("ab  cd", 2));
  EXPECT_FALSE(is_safe_cut("ab  cd", 3));
  EXPECT_FALSE(is_safe_cut("1234", 2));
  EXPECT_FALSE(is_safe_cut("ab .", 2));
  EXPECT_FALSE(is_safe_cut("a\u0301 b", 3));
  EXPECT_FALSE(is_safe_cut("中国", 3));
  EXPECT_FALSE(is_safe_cut("中", 1));
  EXPECT_FALSE(is_safe_cut("a", 0));
  EXPECT_FALSE(is_safe_cut("a", 1));
}

TEST(ParallelEncoding, GivesTheSequentialIds) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const TokenizerRef tokenizer = vector_tokenizer(true);
  ThreadPool pool(3);
  std::mt19937 random(5);
  for (int round = 0; round < 12; ++round) {
    Conversation conversation;
    for (int i = 0; i < 5; ++i) {
      Message message;
      message.role = i % 2 == 0 ? Message::Role::kUser : Message::Role::kAssistant;
      message.content = random_text(random, 1 << (8 + (round + i) % 10));
      conversation.messages.push_back(message);
    }
    const RenderedPrompt prompt = render_conversation(conversation, ModelVersion::kV41);
    const auto one = encode_prompt(prompt, *tokenizer);
    const auto many = encode_prompt(prompt, *tokenizer, &pool);
    ASSERT_TRUE(one && many);
    ASSERT_EQ(*one, *many) << "round " << round;
  }
}

// 50 MB of everything (in a soak; 2 MB else), one message after the other on three threads and on one.
TEST(ParallelEncoding, MixedTextOfManyMegabytes) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const TokenizerRef tokenizer = vector_tokenizer(true);
  ThreadPool pool(3);
  std::mt19937 random(23);
  const size_t total = testing::soak() ? size_t{50} << 20 : size_t{2} << 20;
  for (size_t bytes = 0; bytes < total;) {
    RenderedPrompt prompt;
    while (prompt.text.size() < (size_t{1} << 20)) {
      switch (std::uniform_int_distribution<int>(0, 3)(random)) {
        case 0:
          prompt.text += "Prose of ordinary words, with a number such as 1234567 and a name (Ada). ";
          break;
        case 1:
          prompt.text += "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * b[i];\n\t}\n\n";
          break;
        case 2:
          prompt.text += "我们今天学习人工智能，机器学习也很重要。カタカナとひらがな。";
          break;
        default:
          prompt.text +=
              random_text(random, 40) + std::string(std::uniform_int_distribution<size_t>(0, 30)(random), ' ');
          break;
      }
    }
    bytes += prompt.text.size();
    const auto one = encode_prompt(prompt, *tokenizer);
    const auto many = encode_prompt(prompt, *tokenizer, &pool);
    ASSERT_TRUE(one && many);
    ASSERT_EQ(*one, *many) << "before byte " << bytes;
  }
}

// Text salted with every special spelling, whole and cut short, never yields a control token of its own: a million
// strings in a soak, 50,000 else.
TEST(SpecialTokens, TextFromOutsideNeverBecomesOne) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const TokenizerRef tokenizer = vector_tokenizer(true);
  const auto& added = tokenizer->added_tokens();
  std::mt19937 random(17);
  const int rounds = testing::soak() ? 1000000 : 50000;
  for (int round = 0; round < rounds; ++round) {
    std::string text;
    for (int i = 0; i < 4; ++i) {
      const std::string& spelling = added[std::uniform_int_distribution<size_t>(0, added.size() - 1)(random)].text;
      const size_t cut = round % 2 == 0 ? 0 : std::uniform_int_distribution<size_t>(0, spelling.size())(random);
      text += random_text(random, 3) + spelling.substr(cut);
    }
    for (const TokenId id : tokenizer->encode_plain(text)) {
      ASSERT_FALSE(tokenizer->is_added(id)) << text;
    }
  }
  Conversation conversation;
  for (const AddedToken& token : added) {
    Message message;
    message.role = Message::Role::kUser;
    message.content = token.text;
    conversation.messages.push_back(message);
  }
  const auto ids = encode_conversation(conversation, ModelVersion::kV41, *tokenizer);
  ASSERT_TRUE(ids);
  size_t specials = 0;
  for (const TokenId id : *ids) specials += tokenizer->is_added(id) ? 1 : 0;
  EXPECT_EQ(specials, 5U);  // BOS, System, User, Assistant, <think>
}

}  // namespace
}  // namespace di::codec
