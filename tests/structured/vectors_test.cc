// The reference cases with the real vocabulary (structured-output.md §9.2), read where they lie.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "structured/conformance.h"
#include "support/folders.h"
#include "support/sanitizers.h"

namespace di::structured {
namespace {

std::string vectors() {
  return di::test::kVectors;
}

Limits patient() {
  Limits limits;
  limits.mask_cpu_ms = di::test::kPatientMs;
  return limits;
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

class Vectors : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(vectors() + "/structured"))
      GTEST_SKIP() << "no reference vectors at " << vectors() << "/structured";
  }
  static std::vector<CaseOutcome> run(const char* file, bool masks) {
    return run_structured_file(vectors() + "/structured/" + file, deepseek_vocabulary(), {masks, patient()});
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
  SuiteTotals t;
  for (const CaseOutcome& o : outcomes) t.add(o);
  std::printf("real: %s\n", t.text().c_str());
  EXPECT_GE(t.compiled * 10, t.cases * 9);
  EXPECT_EQ(t.tier1_compiled, t.tier1);
  EXPECT_EQ(t.invalid_accepted, 0);
  EXPECT_GE(t.valid_accepted * 1000.0, (t.valid_accepted + t.valid_refused) * 998.0);
}

// Each token of the vocabulary is tried on its own where the mask was made by slices and shared steps.
TEST_F(Vectors, MasksOfRealSchemasEqualBruteForce) {
  std::ifstream in(vectors() + "/structured/real.jsonl");
  const VocabularyRef& v = deepseek_vocabulary();
  std::vector<uint32_t> row(v->mask_words());
  int states = 0;
  int number = 0;
  for (std::string line; std::getline(in, line) && states < 24; ++number) {
    if (number % 23 != 0) continue;
    const Json c = parse_json(line).value();
    ConstraintSpec spec;
    spec.payload = to_json(*c.find("schema"));
    const auto compiled = compile(v, spec, patient());
    if (!compiled || c.find("tests")->size() == 0) continue;
    Matcher m(*compiled);
    const auto tokens = v->encode_greedy(c.find("tests")->as_array()[0].find("text")->as_string(), false);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i % 17 == static_cast<size_t>(number) % 17) {
        ASSERT_TRUE(m.fill_mask(row));
        int wrong = 0;
        for (TokenId t = 0; t < v->size(); ++t) {
          const auto u = static_cast<uint32_t>(t);
          wrong += (((row[u >> 5U] >> (u & 31U)) & 1U) != 0) == m.allowed(t) ? 0 : 1;
        }
        EXPECT_EQ(wrong, 0) << *c.find("id")->if_string() << " at token " << i;
        ++states;
      }
      if (!m.accept(tokens[i])) break;
    }
  }
  EXPECT_GE(states, 20);
}

TEST_F(Vectors, SchemaTestSuiteIsSound) {
  for (const CaseOutcome& o : run("jsts.jsonl", false)) {
    EXPECT_EQ(o.invalid_accepted, 0) << o.id;
    EXPECT_TRUE(o.compiled || !o.code.empty()) << o.id;
  }
}

}  // namespace
}  // namespace di::structured
