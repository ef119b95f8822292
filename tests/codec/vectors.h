// Reading of the reference vectors (JSON Lines) for the codec's tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "codec/conversation.h"
#include "codec/tokenizer/tokenizer.h"
#include "support/folders.h"

namespace di::codec::testing {

// `make soak` runs the long form of some tests.
inline bool soak() {
  return std::getenv("DEEPINFER_SOAK") != nullptr;
}

inline std::string recipe_dir() {
  return std::string(di::test::kVectors) + "/recipe";
}
inline bool have_recipe_vectors() {
  return std::filesystem::exists(recipe_dir() + "/tokenizer.json");
}

#define SKIP_WITHOUT_RECIPE_VECTORS()               \
  if (!::di::codec::testing::have_recipe_vectors()) \
  GTEST_SKIP() << "reference vectors are absent: " << ::di::codec::testing::recipe_dir()

inline std::vector<Json> read_lines(const std::string& file) {
  std::ifstream in(recipe_dir() + "/" + file);
  std::vector<Json> lines;
  for (std::string line; std::getline(in, line);) {
    Result<Json> value = parse_json(line);
    EXPECT_TRUE(value) << file << ": " << value.error().message;
    if (value) lines.push_back(*std::move(value));
  }
  EXPECT_FALSE(lines.empty()) << file;
  return lines;
}

inline std::vector<TokenId> ids_of(const Json& list) {
  std::vector<TokenId> ids;
  for (const Json& id : list.as_array()) ids.push_back(static_cast<TokenId>(*id.to_i64()));
  return ids;
}

inline const std::string& text_of(const Json& object, std::string_view key) {
  return object.find(key)->as_string();
}

// The V4 tokenizer of the vectors, loaded once; with `v41` the one with the renames of tokenizer_v41_patch.json.
inline TokenizerRef vector_tokenizer(bool v41 = false) {
  static const auto load = [](bool patched) {
    TokenizerOptions options;
    if (patched) {
      const Json patch = *parse_json_file(recipe_dir() + "/tokenizer_v41_patch.json");
      for (const JsonMember& m : patch.find("rename_added_tokens")->as_object()) {
        options.rename_added[std::stoi(m.key)] = m.value.as_string();
      }
    }
    Result<TokenizerRef> tokenizer = Tokenizer::load(recipe_dir(), options);
    EXPECT_TRUE(tokenizer) << tokenizer.error().message;
    return *tokenizer;
  };
  static const TokenizerRef v4 = load(false);
  static const TokenizerRef patched = load(true);
  return v41 ? patched : v4;
}

// The `conversation` member of a request vector as the type it describes.
Conversation conversation_of(const Json& value);

}  // namespace di::codec::testing
