#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/conformance.h"
#include "support/folders.h"

namespace di::engine {
namespace {

// The formula of speculative.md §1.4 in double; the operator itself is run by `deepinfer-conformance dspark`.
std::vector<float> confidence_head(const ConfidenceInputs& in) {
  std::vector<float> out;
  for (size_t r = 0; r < in.hidden.size(); ++r) {
    double logit = 0;
    const size_t d = in.hidden[r].size();
    for (size_t i = 0; i < d; ++i) logit += static_cast<double>(in.hidden[r][i]) * static_cast<double>(in.weight[i]);
    for (size_t i = 0; i < in.embedding[r].size(); ++i) {
      logit += static_cast<double>(in.embedding[r][i]) * static_cast<double>(in.weight[d + i]);
    }
    logit = std::clamp(logit / static_cast<double>(in.temperature), -60.0, 60.0);
    out.push_back(static_cast<float>(1.0 / (1.0 + std::exp(-logit))));
  }
  return out;
}

TEST(DsparkVectors, AllAreEqual) {
  const std::string dir = std::string(di::test::kVectors) + "/dspark";
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << "no reference vectors at " << dir;
  const std::vector<CaseResult> results = run_dspark_cases(dir, confidence_head);
  EXPECT_GT(results.size(), 80U);
  for (const CaseResult& r : results) {
    for (const std::string& f : r.failures) ADD_FAILURE() << r.name << ": " << f;
  }
}

}  // namespace
}  // namespace di::engine
