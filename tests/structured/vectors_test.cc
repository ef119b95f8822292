// The reference cases with the real vocabulary (structured-output.md §9.2), read where they lie.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "structured/conformance.h"

namespace di::structured {
namespace {

std::string vectors() {
  return DI_TEST_VECTORS;
}

const VocabularyRef& deepseek_vocabulary() {
  static const VocabularyRef vocabulary = [] {
    std::ifstream in(vectors() + "/recipe/tokenizer.json");
    std::stringstream text;
    text << in.rdbuf();
    auto v = Vocabulary::from_tokenizer_json(text.str());
    EXPECT_TRUE(v.has_value()) << (v ? "" : v.error().text());
    return v ? *v : nullptr;
  }();
  return vocabulary;
}

struct Totals {
  int cases = 0, compiled = 0, tier1 = 0, tier1_compiled = 0;
  int valid_accepted = 0, valid_in_order = 0, valid_refused = 0, invalid_accepted = 0;
};

Totals sum(const std::vector<CaseOutcome>& outcomes) {
  Totals t;
  for (const CaseOutcome& o : outcomes) {
    ++t.cases;
    t.compiled += o.compiled ? 1 : 0;
    t.tier1 += o.tier == 1 ? 1 : 0;
    t.tier1_compiled += o.tier == 1 && o.compiled ? 1 : 0;
    t.valid_accepted += o.valid_accepted;
    t.valid_in_order += o.valid_in_order;
    t.valid_refused += o.valid_refused;
    t.invalid_accepted += o.invalid_accepted;
  }
  return t;
}

class Vectors : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(vectors() + "/structured"))
      GTEST_SKIP() << "no reference vectors at " << vectors() << "/structured";
  }
  static std::vector<CaseOutcome> run(const char* file, bool masks) {
    return run_structured_file(vectors() + "/structured/" + file, deepseek_vocabulary(), {masks});
  }
  static void all_pass(const char* file) {
    for (const CaseOutcome& o : run(file, true)) {
      for (const std::string& f : o.failures) ADD_FAILURE() << o.id << ": " << f;
      EXPECT_TRUE(o.passed) << o.id;
    }
  }
};

TEST_F(Vectors, Bugs) {
  all_pass("bugs.jsonl");
}
TEST_F(Vectors, Scenarios) {
  all_pass("scenarios.jsonl");
}
TEST_F(Vectors, Hostile) {
  all_pass("hostile.jsonl");
}

TEST_F(Vectors, RealSchemas) {
  const auto outcomes = run("real.jsonl", false);
  const Totals t = sum(outcomes);
  std::printf("real: %d of %d compiled, tier 1 %d of %d; valid accepted %d (%d in the schema's order) of %d\n",
              t.compiled, t.cases, t.tier1_compiled, t.tier1, t.valid_accepted, t.valid_in_order,
              t.valid_accepted + t.valid_refused);
  EXPECT_GE(t.compiled * 10, t.cases * 9);
  EXPECT_EQ(t.tier1_compiled, t.tier1);
  EXPECT_EQ(t.invalid_accepted, 0);
  EXPECT_GE(t.valid_accepted * 1000.0, (t.valid_accepted + t.valid_refused) * 998.0);
}

TEST_F(Vectors, SchemaTestSuiteIsSound) {
  for (const CaseOutcome& o : run("jsts.jsonl", false)) {
    EXPECT_EQ(o.invalid_accepted, 0) << o.id;
    EXPECT_TRUE(o.compiled || !o.code.empty()) << o.id;
  }
}

}  // namespace
}  // namespace di::structured
