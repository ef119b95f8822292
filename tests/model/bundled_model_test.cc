// models/tiny: the C++ forward pass against the logits of the program that trained it, its Engram tables against its
// config.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "model/expected.h"
#include "model/fixture.h"
#include "support/folders.h"
#include "support/sanitizers.h"
#include "support/token_texts.h"

namespace di::model {
namespace {

TEST(BundledModel, LogitsEqualThoseOfTheTrainingProgram) {
  const auto model = FixtureModel::load(std::string(di::test::kModels) + "/tiny", test::token_texts);
  ASSERT_TRUE(model) << model.error().message;
  const auto expected = Expected::open(std::string(di::test::kData) + "/tiny_logits.safetensors", "tiny_logits");
  ASSERT_TRUE(expected) << expected.error().message;
  ThreadPool pool;
  const auto stream = kernels::cpu::make_stream(pool);
  const auto device = device::make_host_device();
  ConformanceReport report;
  for (const std::string& name : expected->names()) {
    if (!name.ends_with(".input_ids")) continue;
    const std::string id = name.substr(0, name.size() - std::string(".input_ids").size());
    const std::vector<int32_t> ids = expected->ints(name);
    const auto n = static_cast<int32_t>(ids.size());
    if (n > test::kLongestPrompt) continue;
    const std::vector<int32_t> positions = expected->ints(id + ".positions");
    FixtureOptions options;
    options.max_tokens = n;
    auto run = FixtureRun::create(**model, {kernels::cpu::ops(kernels::cpu::best_isa()), *stream, *device}, options);
    ASSERT_TRUE(run) << run.error().message;
    const auto logits = (*run)->feed(ids, 0, n, positions.front());
    ASSERT_TRUE(logits) << logits.error().message;
    compare(report, id, expected->floats(id + ".logits"), *logits, 1e-3);
  }
  if (test::kSanitized) {
    EXPECT_FALSE(report.cases.empty());
  } else {
    EXPECT_EQ(report.cases.size(), 20U);
  }
  for (const ConformanceCase& c : report.cases) {
    std::printf("%-40s %10.3g <= %8.3g\n", c.name.c_str(), c.error, c.bound);
    EXPECT_TRUE(c.passed) << c.name << ": " << c.error << "\n  " << c.detail;
  }
}

TEST(BundledModel, EngramTablesFollowFromConfigAndTokenizer) {
  const auto model = FixtureModel::load(std::string(di::test::kModels) + "/tiny", test::token_texts);
  ASSERT_TRUE(model) << model.error().message;
  const ModelConfig& config = (*model)->config;
  const EngramTables& tables = *(*model)->engram;
  ASSERT_EQ(tables.layers.size(), config.engram_num_embeddings.size());
  for (size_t i = 0; i < tables.layers.size(); ++i) EXPECT_EQ(tables.layers[i].rows, config.engram_num_embeddings[i]);
  EXPECT_EQ(*std::max_element(tables.vocab_map.begin(), tables.vocab_map.end()) + 1,
            config.engram_compressed_vocab_size);
  EXPECT_TRUE((*model)->weights.unknown_tensors.empty());
}

// The switches that show what a part is worth: each changes the logits where that part is at work, and none does where
// it has nothing to choose (few entries).
TEST(BundledModel, AblationsActWhereThePartIsAtWork) {
  if (test::kSanitized) GTEST_SKIP() << "needs a prompt of more than " << test::kLongestPrompt << " tokens";
  const auto model = FixtureModel::load(std::string(di::test::kModels) + "/tiny", test::token_texts);
  ASSERT_TRUE(model) << model.error().message;
  const ModelConfig& config = (*model)->config;
  ThreadPool pool;
  const auto stream = kernels::cpu::make_stream(pool);
  const auto device = device::make_host_device();
  const auto logits = [&](int32_t n, const Ablation& ablation) {
    std::vector<int32_t> ids(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) ids[static_cast<size_t>(i)] = i == 0 ? 0 : 300 + (i * 37 + i / 90) % 3000;
    FixtureOptions options;
    options.max_tokens = n;
    options.ablation = ablation;
    auto run = FixtureRun::create(**model, {kernels::cpu::ops(kernels::cpu::best_isa()), *stream, *device}, options);
    return run.value()->feed(ids, 0, n, n - 1).value();
  };
  const int32_t few = config.index_topk;  // every entry of ratio 1 is selected
  // More blocks than candidates, and candidates older than the newest ones.
  const int32_t many = config.candidate_topk_blocks * config.candidate_block_size * 3 / 2;
  const std::vector<float> few_all = logits(few, {});
  const std::vector<float> many_all = logits(many, {});
  EXPECT_NE(few_all, logits(few, {.engram = false}));
  EXPECT_EQ(few_all, logits(few, {.selection = false, .candidates = false, .candidate_scores = false}));
  EXPECT_NE(many_all, logits(many, {.selection = false}));
  EXPECT_NE(many_all, logits(many, {.candidate_scores = false}));
}

}  // namespace
}  // namespace di::model
