#include "kv/block_hash.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "kv/conformance.h"
#include "support/folders.h"

namespace di::kv {
namespace {

std::vector<int32_t> counting(int32_t n, int32_t first = 0) {
  std::vector<int32_t> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), first);
  return out;
}

TEST(BlockHash, EqualsThePublishedKeys) {
  const char* set = std::getenv("DEEPINFER_VECTORS");
  const std::string dir = std::string(set != nullptr ? set : di::test::kVectors) + "/kv";
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << "reference vectors not found at " << dir;
  int cases = 0;
  for (const KvCase& c : run_kv_cases(dir)) {
    if (!c.name.starts_with("block_hash")) continue;
    EXPECT_TRUE(c.passed) << c.name << ": " << c.detail;
    ++cases;
  }
  EXPECT_GE(cases, 10);
}

TEST(BlockHash, EveryFieldOfTheRootCounts) {
  RootFields fields;
  fields.model_id = "m";
  fields.weights_digest = std::string(32, 'w');
  fields.layout_digest = std::string(32, 'l');
  fields.numerics = "ds41/1";
  const BlockKey base = root_key(fields);
  const auto differs = [&](auto change) {
    RootFields other = fields;
    change(other);
    return root_key(other) != base;
  };
  EXPECT_TRUE(differs([](RootFields& f) { f.model_id = "n"; }));
  EXPECT_TRUE(differs([](RootFields& f) { f.weights_digest = std::string(32, 'x'); }));
  EXPECT_TRUE(differs([](RootFields& f) { f.layout_digest = std::string(32, 'x'); }));
  EXPECT_TRUE(differs([](RootFields& f) { f.numerics = "ds41/2"; }));
  EXPECT_TRUE(differs([](RootFields& f) { f.adapter_digest = std::string(32, 'a'); }));
  EXPECT_TRUE(differs([](RootFields& f) { f.domain_salt = ""; }));  // empty is not absent
  EXPECT_TRUE(differs([](RootFields& f) { f.block_tokens = 64; }));
  EXPECT_FALSE(differs([](RootFields&) {}));
}

TEST(BlockHash, AChainGrowsBlockByBlock) {
  const std::vector<int32_t> tokens = counting(50);
  const BlockKey root = root_key(RootFields{});
  BlockChain whole(root, 8);
  whole.extend(tokens);
  EXPECT_EQ(whole.blocks(), 6);  // the tail is no block
  BlockChain grown(root, 8);
  for (size_t n = 0; n <= tokens.size(); n += 3) grown.extend(std::span(tokens).first(n));
  grown.extend(tokens);
  EXPECT_TRUE(std::equal(whole.keys().begin(), whole.keys().end(), grown.keys().begin(), grown.keys().end()));

  std::vector<int32_t> other = tokens;
  other[9] = 77;
  BlockChain branched(root, 8);
  branched.extend(other);
  EXPECT_EQ(branched.keys()[0], whole.keys()[0]);
  for (size_t i = 1; i < 6; ++i) EXPECT_NE(branched.keys()[i], whole.keys()[i]) << "block " << i;
}

TEST(BlockHash, AnImageChangesTheBlocksItCoversAndThoseBehind) {
  const std::vector<int32_t> tokens = counting(40);
  const BlockKey root = root_key(RootFields{});
  const MediaSpan image{.start = 12, .length = 10, .digest = sha256("a cat")};
  BlockChain plain(root, 8);
  plain.extend(tokens);
  BlockChain seen(root, 8);
  seen.extend(tokens, {&image, 1});
  EXPECT_EQ(plain.keys()[0], seen.keys()[0]);
  for (size_t i = 1; i < 5; ++i) EXPECT_NE(plain.keys()[i], seen.keys()[i]);
  const MediaSpan other{.start = 12, .length = 10, .digest = sha256("a dog")};
  BlockChain dog(root, 8);
  dog.extend(tokens, {&other, 1});
  EXPECT_NE(seen.keys()[1], dog.keys()[1]);
}

TEST(BlockHash, ATailIsNotAFullBlock) {
  const BlockKey root = root_key(RootFields{});
  const std::vector<int32_t> tokens = counting(8);
  EXPECT_NE(block_key(root, tokens, 0, 8), block_key(root, tokens, 0, 16));
}

}  // namespace
}  // namespace di::kv
