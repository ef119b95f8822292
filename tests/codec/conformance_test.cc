// Every reference vector of the codec: requests, rejections, streams, tokenizer cases, tool call ids.
#include "codec/conformance/conformance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "codec/vectors.h"

namespace di::codec {
namespace {

using testing::recipe_dir;

void expect_all(const ConformanceResult& result, int at_least) {
  for (const std::string& failure : result.failures) ADD_FAILURE() << failure;
  EXPECT_EQ(result.failed, 0);
  EXPECT_GE(result.passed, at_least);
  for (const auto& [what, n] : result.compared) std::printf("  %d %s\n", n, what.c_str());
}

TEST(Conformance, TokenizerVectors) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  expect_all(run_tokenizer_cases(recipe_dir(), recipe_dir()), 970);
}

TEST(Conformance, RecipeVectors) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  expect_all(run_recipe_cases(recipe_dir(), recipe_dir()), 1400);
}

class Folder {
 public:
  explicit Folder(const char* name) : path_(std::filesystem::temp_directory_path() / name) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  void write(const char* file, const std::string& text) const { std::ofstream(path_ / file) << text; }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(Conformance, CountsWhatIsWrongAndWhatCannotRun) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  const Folder folder("di_codec_conformance_test");
  folder.write("any_name.jsonl",
               "{\"id\":\"good\",\"text\":\"a\",\"full_ids\":[67],\"n_full\":1}\n"
               "{\"id\":\"wrong\",\"text\":\"a\",\"full_ids\":[68]}\n"
               "{\"id\":\"odd\",\"text\":5,\"full_ids\":[68]}\n"
               "not json\n"
               "{\"id\":\"d\",\"ids\":[67],\"text\":\"b\"}\n");
  folder.write("other.json", "{\"classes\":{\"L\":[[65,66]]}}");
  const ConformanceResult result = run_tokenizer_cases(folder.path(), recipe_dir());
  EXPECT_EQ(result.passed, 1);
  EXPECT_EQ(result.failed, 5);
  EXPECT_THAT(result.failures, ::testing::Contains(::testing::HasSubstr("expected `68`, found `67`")));
  EXPECT_THAT(result.failures, ::testing::Contains(::testing::HasSubstr("odd: the case cannot run")));
  EXPECT_THAT(result.failures, ::testing::Contains(::testing::HasSubstr("U+0043")));
  folder.write("r.jsonl", "{\"id\":\"r\",\"api\":\"chat\",\"body\":\"{}\",\"result\":{\"ok\":true}}\n");
  const ConformanceResult recipe = run_recipe_cases(folder.path(), recipe_dir());
  EXPECT_EQ(recipe.passed, 0);
  EXPECT_EQ(recipe.failed, 2);
  EXPECT_THAT(recipe.failures,
              ::testing::Contains(::testing::HasSubstr("r: refused: invalid request body: missing field")));
}

}  // namespace
}  // namespace di::codec
