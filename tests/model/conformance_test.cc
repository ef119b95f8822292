// The forward pass against vectors/model: every layer of the small models, logits, draft rounds and selections of the
// trained one. Prints the table of cases with their errors.
#include "model/conformance.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "support/folders.h"
#include "support/sanitizers.h"
#include "support/token_texts.h"

namespace di::model {
namespace {

// In debug builds the plain reference takes minutes for the long prompts; they run with the fast operators.
ConformanceReport run(const std::string& folder, const kernels::Ops& ops, int32_t max_prompt) {
  ThreadPool pool;
  const auto stream = kernels::cpu::make_stream(pool);
  const auto device = device::make_host_device();
  ConformanceOptions options;
  options.max_prompt = max_prompt;
  return run_model_folders(folder, {ops, *stream, *device}, test::token_texts, options);
}

void expect_all_pass(const ConformanceReport& report) {
  EXPECT_FALSE(report.cases.empty());
  for (const ConformanceCase& c : report.cases) {
    std::printf("%-78s %10.3g <= %8.3g %s\n", c.name.c_str(), c.error, c.bound, c.passed ? "ok" : "FAILED");
    EXPECT_TRUE(c.passed) << c.name << ": error " << c.error << " > " << c.bound << "\n  " << c.detail;
  }
}

// The folder of reference values, or the copy that travels with the tests, or nothing.
std::string find_folder(const std::string& name) {
  for (const std::string& root :
       {std::string(di::test::kVectors) + "/model/", std::string(di::test::kData) + "/model/"}) {
    if (std::filesystem::exists(root + name)) return root + name;
  }
  return "";
}

class SmallModels : public testing::TestWithParam<const char*> {};

TEST_P(SmallModels, ReferenceOperatorsReproduceEveryValue) {
  const std::string folder = find_folder(GetParam());
  if (folder.empty()) GTEST_SKIP() << "vectors/model is not beside the checkout";
  expect_all_pass(run(folder, kernels::cpu::reference_ops(), 1 << 20));
}

TEST_P(SmallModels, FastOperatorsReproduceEveryValue) {
  const std::string folder = find_folder(GetParam());
  if (folder.empty()) GTEST_SKIP() << "vectors/model is not beside the checkout";
  expect_all_pass(run(folder, kernels::cpu::ops(kernels::cpu::best_isa()), 1 << 20));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, SmallModels, testing::Values("v41_tiny_a", "v41_tiny_b", "v4_tiny_a"));

TEST(TrainedModel, ReferenceOperatorsReproduceShortPrompts) {
  if (test::kSanitized) GTEST_SKIP() << "a matter of arithmetic; the small models take every path of these operators";
  const std::string folder = find_folder("v41_trained");
  if (folder.empty()) GTEST_SKIP() << "vectors/model is not beside the checkout";
  expect_all_pass(run(folder, kernels::cpu::reference_ops(), 130));
}

// The long prompts are the business of `deepinfer-conformance model` over the same folder, which the suite runs too.
TEST(TrainedModel, FastOperatorsReproducePrompts) {
  const std::string folder = find_folder("v41_trained");
  if (folder.empty()) GTEST_SKIP() << "vectors/model is not beside the checkout";
  expect_all_pass(run(folder, kernels::cpu::ops(kernels::cpu::best_isa()), test::kSanitized ? 130 : 320));
}

}  // namespace
}  // namespace di::model
