// Every limit of structured-output.md §2.7 is reached by an input, and what the work costs stays within it.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>

#include "structured/fixture.h"
#include "support/sanitizers.h"

namespace di::structured {
namespace {

using testing::code_of;
using testing::compile_spec;

double cpu_ms() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

constexpr std::string_view kCostly = "(?=.*a.{14}b)(?=.*c.{14}d)(?=.*e.{14}f)(?!.*g.{14}h).*";

TEST(Limits, CompileTimeEndsTheWorkInTime) {
  Limits limits;
  limits.compile_cpu_ms = 200;
  const double begun = cpu_ms();
  EXPECT_EQ(code_of(ConstraintKind::kRegex, kCostly, limits), "constraint_compile_timeout");
  const double used = cpu_ms() - begun;
  EXPECT_GE(used, 200);
  // The clock is looked at every 1,024 steps; taking down what was built comes on top.
  EXPECT_LE(used, 200 * 1.1 + 100);
}

TEST(Limits, CompileMemoryEndsTheWork) {
  Limits limits;
  limits.compile_bytes = 4 << 20;
  EXPECT_EQ(code_of(ConstraintKind::kRegex, kCostly, limits), "constraint_too_complex");
  const auto refused = compile_spec(ConstraintKind::kRegex, kCostly, {}, false, limits);
  EXPECT_NE(refused.error().message.find("4194304 bytes"), std::string::npos) << refused.error().message;
}

// In a process of its own, whose largest extent is asked for: what a refused compilation costs beyond one that does
// nothing, in MiB and milliseconds of processor time.
std::pair<double, double> cost_of(const Limits& limits, const char* wanted) {
  auto run = [&](bool work) {
    const pid_t child = fork();
    if (child == 0) _exit(!work || code_of(ConstraintKind::kRegex, kCostly, limits) == wanted ? 0 : 1);
    int status = 1;
    rusage used{};
    EXPECT_EQ(wait4(child, &status, 0, &used), child);
    EXPECT_EQ(status, 0) << "expected " << wanted;
    const auto ms = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_usec) / 1e3;
    };
    return std::pair(static_cast<double>(used.ru_maxrss) / 1024, ms(used.ru_utime) + ms(used.ru_stime));
  };
  testing::byte_vocabulary();
  const auto idle = run(false);
  const auto busy = run(true);
  return {busy.first - idle.first, busy.second - idle.second};
}

TEST(Limits, WhatARefusedCompilationCosts) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  Limits memory;
  memory.compile_bytes = 64 << 20;
  memory.compile_cpu_ms = 60'000;
  const auto [mib, any_ms] = cost_of(memory, "constraint_too_complex");
  EXPECT_LE(mib, 64 * 1.1 + 4);  // and pages of the program itself
  Limits time;
  time.compile_cpu_ms = 300;
  const auto [any_mib, ms] = cost_of(time, "constraint_compile_timeout");
  EXPECT_GE(ms, 250);
  EXPECT_LE(ms, 300 * 1.1 + 3'000);  // what was built is taken down
  EXPECT_LE(any_mib, 256 * 1.1);
}

TEST(Limits, NodesEndTheWork) {
  Limits limits;
  limits.max_nodes = 500;
  const auto refused = compile_spec(ConstraintKind::kRegex, kCostly, {}, false, limits);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, "constraint_too_complex");
  EXPECT_NE(refused.error().message.find("500 nodes"), std::string::npos) << refused.error().message;
}

TEST(Limits, Subschemas) {
  Limits limits;
  limits.max_subschemas = 20;
  std::string schema = R"({"type":"object","properties":{)";
  for (int i = 0; i < 200; ++i) {
    schema += (i > 0 ? "," : "") + std::string("\"p") + std::to_string(i) + R"(":{"type":"integer","minimum":)" +
              std::to_string(i) + "}";
  }
  schema += "}}";
  EXPECT_EQ(code_of(ConstraintKind::kJsonSchema, schema, limits), "constraint_too_complex");
  EXPECT_EQ(code_of(ConstraintKind::kJsonSchema, schema), "compiled");
}

TEST(Limits, CombinationsOfAlternatives) {
  std::string schema = R"({"allOf":[)";
  for (int i = 0; i < 4; ++i) {
    schema += i > 0 ? "," : "";
    schema += R"({"anyOf":[)";
    for (int k = 0; k < 5; ++k) {
      schema += (k > 0 ? "," : "") + std::string(R"({"type":"object","required":["k)") + std::to_string(i * 10 + k) +
                R"("],"minProperties":)" + std::to_string(k + 1) + "}";
    }
    schema += "]}";
  }
  schema += "]}";
  Limits limits;
  limits.max_shapes = 20;
  EXPECT_EQ(code_of(ConstraintKind::kJsonSchema, schema, limits), "constraint_too_complex");
}

TEST(Limits, ItemsOfOneState) {
  Limits limits;
  limits.max_items = 30;
  std::string grammar = "root ::= ";
  for (int i = 0; i < 60; ++i) grammar += (i > 0 ? " | " : "") + std::string("r") + std::to_string(i);
  for (int i = 0; i < 60; ++i)
    grammar += "\nr" + std::to_string(i) + " ::= \"a\" r" + std::to_string(i) + " \"b\" | \"c\"";
  EXPECT_EQ(code_of(ConstraintKind::kEbnf, grammar, limits), "constraint_too_complex");
  EXPECT_EQ(code_of(ConstraintKind::kEbnf, grammar), "compiled");
}

// Decoding: the failure is the matcher's, what is known already goes on, and nothing else is touched.
void fails_while_decoding(const Limits& limits) {
  auto compiled = compile_spec(ConstraintKind::kRegex, "([ab]{1,40}c|[abc]{1,41}d)*", {}, false, limits);
  ASSERT_TRUE(compiled.has_value()) << compiled.error().text();
  Matcher m(*compiled);
  std::vector<uint32_t> row(m.mask_words());
  bool failed = false;
  for (int i = 0; i < 400 && !failed; ++i) failed = !m.fill_mask(row) || !m.accept('a' + i % 2) || m.failed();
  EXPECT_TRUE(failed);
  EXPECT_TRUE(m.failed());
}

TEST(Limits, StatesWhileDecoding) {
  Limits limits;
  limits.max_states = 20;
  fails_while_decoding(limits);
}

TEST(Limits, BytesWhileDecoding) {
  Limits limits;
  limits.state_bytes = 60'000;
  fails_while_decoding(limits);
}

// A grammar in which every text has ever more derivations: sooner or later one token costs more than the limit, on any
// machine. That piece of work ends soon after its millisecond.
TEST(Limits, TimeOfOneMask) {
  Limits limits;
  limits.mask_cpu_ms = 1;
  limits.max_items = 100'000'000;  // the others come later, however fast the machine is
  limits.max_states = 100'000'000;
  auto compiled = compile_spec(ConstraintKind::kEbnf, "root ::= root root root | root root | \"a\"", {}, false, limits);
  ASSERT_TRUE(compiled.has_value()) << compiled.error().text();
  Matcher m(*compiled);
  std::vector<uint32_t> row(m.mask_words());
  bool failed = false;
  double last = 0;
  int tokens = 0;
  for (; tokens < 5'000 && !failed; ++tokens) {
    const double begun = cpu_ms();
    failed = !m.fill_mask(row) || !m.accept('a');
    last = cpu_ms() - begun;
  }
  EXPECT_TRUE(failed);
  EXPECT_TRUE(m.failed());
  EXPECT_GT(tokens, 1);
  EXPECT_GE(last, 1);
  EXPECT_LE(last, 60);
}

// Deeper openings than the limit are no answers.
TEST(Limits, NestingOfTheOutput) {
  for (const ConstraintKind kind : {ConstraintKind::kJsonSchema, ConstraintKind::kJsonObject}) {
    auto compiled = compile_spec(kind, "{}");
    ASSERT_TRUE(compiled.has_value());
    for (const uint32_t limit : {0U, 5U}) {
      Limits limits = testing::patient();
      if (limit > 0) limits.max_output_nesting = limit;
      if (limit > 0) compiled = compile_spec(kind, "{}", {}, false, limits);
      Matcher m(*compiled);
      uint32_t levels = kind == ConstraintKind::kJsonObject ? 1 : 0;
      if (levels > 0) {
        EXPECT_TRUE(m.accept_bytes("{\"a\":"));
      }
      while (levels < 1'000 && m.accept('[')) ++levels;
      EXPECT_EQ(levels, limits.max_output_nesting) << static_cast<int>(kind);
      EXPECT_FALSE(m.failed());
      EXPECT_TRUE(m.accept(']'));
    }
  }
}

TEST(Limits, OnePieceOfWorkThatFailsDoesNotEndTheNext) {
  Limits limits = testing::patient();
  limits.max_states = 40;
  auto compiled = compile_spec(ConstraintKind::kRegex, "ab|c[a-z]{100}", {}, false, limits);
  ASSERT_TRUE(compiled.has_value());
  Matcher costly(*compiled);
  std::vector<uint32_t> row(costly.mask_words());
  for (int i = 0; i < 90 && !costly.failed(); ++i) {
    costly.fill_mask(row);
    if (!costly.accept(i == 0 ? 'c' : 'x')) break;
  }
  EXPECT_TRUE(costly.failed());
  Matcher other(*compiled);  // its states are known
  EXPECT_TRUE(other.accept('c'));
  EXPECT_FALSE(other.failed());
}

}  // namespace
}  // namespace di::structured
