// Each limit on what is compiled (structured-output.md §2.7), reached by an input of its own with the limits as they
// are by default where that is possible: the refusal names the limit, and what it costs stays within the limits on time
// and memory. In processes of their own, whose processor time and largest extent are asked for.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "structured/fixture.h"
#include "support/sanitizers.h"

namespace di::structured {
namespace {

using testing::compile_spec;

struct Refusal {
  const char* name;
  ConstraintKind kind;
  std::string payload;
  const char* code;
  const char* names;  // part of the message, or of the pointer and keyword before it
  Limits limits = {};
};

std::string repeated(std::string_view text, size_t n, std::string_view between = "") {
  std::string out;
  for (size_t i = 0; i < n; ++i) {
    if (i > 0) out += between;
    out += text;
  }
  return out;
}

// Members "p0": value, …
std::string members(size_t n, std::string_view value) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + "\":" + std::string(value);
  return out;
}

std::string numbers(size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += (i > 0 ? "," : "") + std::to_string(i);
  return out;
}

// Alternatives that none of the others includes, n to a list.
std::string alternatives(size_t lists, size_t n) {
  std::string out;
  for (size_t i = 0; i < lists; ++i) {
    out += i > 0 ? R"(,{"anyOf":[)" : R"({"anyOf":[)";
    for (size_t k = 0; k < n; ++k) {
      out += (k > 0 ? "," : "") + std::string(R"({"type":"object","required":["k)") + std::to_string(i * 100 + k) +
             R"("],"minProperties":)" + std::to_string(k + 1) + "}";
    }
    out += "]}";
  }
  return out;
}

// An object of 2 n members, half of which need one of the others.
std::string dependent(size_t n) {
  std::string out = R"({"type":"object","additionalProperties":false,"properties":{)" + members(2 * n, "true") +
                    R"(},"dependentRequired":{)";
  for (size_t i = 0; i < n; ++i)
    out += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + R"(":["p)" + std::to_string(n + i) + "\"]";
  return out + "}}";
}

// n members, each with the same 256 alternatives below a bound of its own.
std::string many_alternatives(size_t n) {
  std::string out =
      R"({"$defs":{"a":)" + alternatives(1, 16) + R"(,"b":)" + alternatives(1, 16) + R"(},"properties":{)";
  for (size_t i = 0; i < n; ++i) {
    out += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) +
           R"(":{"allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}],"maxProperties":)" + std::to_string(100 + i) + "}";
  }
  return out + "}}";
}

// References that lead through n subschemas without reading anything.
std::string chain(size_t n) {
  std::string out = R"({"$ref":"#/$defs/0","$defs":{)";
  for (size_t i = 0; i < n; ++i) {
    out += "\"" + std::to_string(i) + R"(":{"$ref":"#/$defs/)" + std::to_string(i + 1) + R"("},)";
  }
  return out + "\"" + std::to_string(n) + R"(":{"type":"null"}}})";
}

std::string alternative_rules(size_t n) {
  std::string out = "root ::= ";
  for (size_t i = 0; i < n; ++i) out += (i > 0 ? " | r" : "r") + std::to_string(i);
  for (size_t i = 0; i < n; ++i) {
    const std::string name = "r" + std::to_string(i);
    out += "\n" + name + " ::= \"a\" " + name + " \"b\" | \"c\"";
  }
  return out;
}

Limits with(auto change) {
  Limits limits;
  change(limits);
  return limits;
}

constexpr std::string_view kCostly = "(?=.*a.{14}b)(?=.*c.{14}d)(?=.*e.{14}f)(?!.*g.{14}h).*";
const std::string kCostlySchema =
    R"({"type":"object","properties":{"a":{"type":"string","pattern":")" + std::string(kCostly) + "\"}}}";

std::vector<Refusal> refusals() {
  using K = ConstraintKind;
  const char* large = "constraint_too_large";
  const char* complex = "constraint_too_complex";
  const std::string mib(1U << 20U, 'a');
  const Limits few_items = with([](Limits& l) { l.max_items = 30; });
  return {
      {"text of a schema", K::kJsonSchema, R"({"title":")" + mib + "\"}", large, "at most 1048576 are accepted"},
      {"text of a grammar", K::kEbnf, "root ::= \"" + mib + "\"", large, "at most 1048576 are accepted"},
      {"text of a regex", K::kRegex, std::string((32U << 10U) + 1, 'a'), large, "at most 32768 are accepted"},
      {"text of a pattern", K::kJsonSchema, R"({"pattern":")" + std::string((32U << 10U) + 1, 'a') + "\"}", large,
       "keyword \"pattern\": pattern of 32769 bytes, at most 32768"},
      {"choices", K::kChoice, "[" + repeated("\"a\"", 10'001, ",") + "]", large, "10001 choices, at most 10000"},
      {"bytes of choices", K::kChoice, "[\"" + mib + "\"]", large, "at most 1048576 are accepted"},
      {"nesting of the document", K::kJsonSchema, repeated("{\"not\":", 260) + "{}" + std::string(260, '}'), complex,
       "document nested deeper than 256"},
      {"subschemas", K::kJsonSchema, R"({"anyOf":[)" + repeated(R"({"minimum":1})", 50'001, ",") + "]}", complex,
       "more than 50000 subschemas"},
      {"properties", K::kJsonSchema,
       R"({"properties":{)" + members(10'001, "true") + R"(,"x":{"properties":{)" + members(10'001, "true") + "}}}}",
       complex, "/x, keyword \"properties\": more than 20000 in all"},
      {"values", K::kJsonSchema,
       R"({"anyOf":[{"enum":[)" + numbers(25'001) + R"(]},{"enum":[)" + numbers(25'000) + "]}]}", complex,
       "keyword \"enum\": more than 50000 in all"},
      {"nodes", K::kRegex, std::string(kCostly), complex, "more than 20000 nodes",
       with([](Limits& l) { l.max_nodes = 20'000; })},
      {"nodes of a schema", K::kJsonSchema, kCostlySchema, complex,
       "#/properties/a, keyword \"pattern\": more than 20000 nodes", with([](Limits& l) { l.max_nodes = 20'000; })},
      {"time", K::kRegex, std::string(kCostly), "constraint_compile_timeout", "more than 300 ms",
       with([](Limits& l) { l.compile_cpu_ms = 300; })},
      {"time of a schema", K::kJsonSchema, kCostlySchema, "constraint_compile_timeout",
       "#/properties/a, keyword \"pattern\": compiling took more than 300 ms",
       with([](Limits& l) { l.compile_cpu_ms = 300; })},
      {"memory", K::kRegex, std::string(kCostly), complex, "more than 16777216 bytes",
       with([](Limits& l) { l.compile_bytes = 16 << 20; })},
      {"states of a product", K::kRegex, "(?=.*a.{15}b)(?=.*c.{15}d)(?=.*[^ -~].{15}f)[ -~]*", complex,
       "more than 100000 states", with([](Limits& l) { l.compile_cpu_ms = 60'000; })},
      {"items of the start", K::kEbnf, alternative_rules(60), complex, "more than 30 alternatives", few_items},
      {"repeats of a regex", K::kRegex, "a{1000001}", complex, "above 1000000"},
      {"repeats of EBNF", K::kEbnf, "root ::= \"a\"{1000001}", complex, "above 1000000"},
      {"repeats of Lark", K::kLark, "start: \"a\" ~ 1000001", complex, "above 1000000"},
      {"repeats of recursion", K::kEbnf, "root ::= r{2001}\nr ::= \"a\" r \"b\" | \"c\"", complex, "at most 2000"},
      {"minLength", K::kJsonSchema, R"({"minLength":1000001})", complex, "\"minLength\": at most 1000000"},
      {"minItems", K::kJsonSchema, R"({"minItems":1000001})", complex, "\"minItems\": at most 1000000"},
      {"minProperties", K::kJsonSchema, R"({"minProperties":1000001})", complex, "\"minProperties\": at most 1000000"},
      {"nesting of a regex", K::kRegex, std::string(251, '(') + "a" + std::string(251, ')'), complex,
       "deeper than 250"},
      {"nesting of EBNF", K::kEbnf, "root ::= " + std::string(251, '(') + "\"a\"" + std::string(251, ')'), complex,
       "deeper than 250"},
      {"nesting of Lark", K::kLark, "start: " + std::string(251, '(') + "\"a\"" + std::string(251, ')'), complex,
       "deeper than 250"},
      {"nesting of tags", K::kStructuralTag,
       R"({"type":"structural_tag","format":)" + repeated(R"({"type":"optional","content":)", 110) +
           R"({"type":"any_text"})" + std::string(110, '}') + "}",
       complex, "deeper than 100"},
      {"chain of references", K::kJsonSchema, chain(500), complex, "deeper than 400"},
      {"combinations of allOf", K::kJsonSchema, R"({"allOf":[)" + alternatives(2, 20) + "]}", complex,
       "more than 256 combinations of alternatives"},
      {"alternatives of a complement", K::kJsonSchema, R"({"not":{"anyOf":[)" + alternatives(9, 3) + "]}}", complex,
       "alternatives"},
      {"triggers", K::kJsonSchema, dependent(13), complex, "\"dependentRequired\": more than 12 triggers"},
      {"alternatives in all", K::kJsonSchema, many_alternatives(60), complex, "more than 10000 alternatives in all",
       with([](Limits& l) { l.max_alternatives = 10'000; })},
      {"classes of names", K::kJsonSchema,
       R"({"patternProperties":{"a":{"type":"null"},"b":{"minimum":1},"c":{"minimum":2},"d":{"minimum":3},)"
       R"("e":{"minimum":4},"f":{"minimum":5},"g":{"minimum":6}}})",
       complex, "more than 64 classes"},
      {"divisor", K::kJsonSchema, R"({"type":"integer","multipleOf":1000000000000000007})", complex, "18 digits"},
      {"divisors without a common multiple", K::kJsonSchema,
       R"({"items":{"type":"integer","minimum":1,"multipleOf":999999999999999989,"allOf":[{"multipleOf":999999999999999877}]}})",
       complex, "needs more than 100000 states"},
      {"digits of a bound", K::kJsonSchema, R"({"minimum":1)" + std::string(400, '0') + "}", complex, "400 digits"},
      {"unique items", K::kJsonSchema, R"({"type":"array","uniqueItems":true,"items":{"enum":[)" + numbers(65) + "]}}",
       "unsupported_schema_feature", "64"},
  };
}

struct Cost {
  double mib = 0;
  double ms = 0;
};

// What the work costs beyond that of a process that does nothing.
Cost cost_of(const Refusal& r) {
  const auto run = [&](bool work) {
    const pid_t child = fork();
    if (child == 0) {
      if (work) (void)compile_spec(r.kind, r.payload, {}, false, r.limits);
      _exit(0);
    }
    int status = 1;
    rusage used{};
    EXPECT_EQ(wait4(child, &status, 0, &used), child);
    EXPECT_EQ(status, 0) << r.name;
    const auto ms = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_usec) / 1e3;
    };
    return Cost{static_cast<double>(used.ru_maxrss) / 1024, ms(used.ru_utime) + ms(used.ru_stime)};
  };
  const Cost idle = run(false);
  const Cost busy = run(true);
  return {busy.mib - idle.mib, busy.ms - idle.ms};
}

TEST(RefusalCost, OfEveryLimit) {
  testing::byte_vocabulary();
  const std::vector<Refusal> all = refusals();
  std::vector<Cost> costs;
  if (!di::test::kSanitized) {  // before this process has memory of its own to reuse; sanitizers take some themselves
    for (const Refusal& r : all) costs.push_back(cost_of(r));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const Refusal& r = all[i];
    Limits limits = r.limits;  // on a slow machine, too, the limit that is meant comes first
    if (limits.compile_cpu_ms == Limits{}.compile_cpu_ms) limits.compile_cpu_ms = 120'000;
    const auto refused = compile_spec(r.kind, r.payload, {}, false, limits);
    ASSERT_FALSE(refused.has_value()) << r.name;
    EXPECT_EQ(refused.error().code, r.code) << r.name << ": " << refused.error().text().substr(0, 300);
    EXPECT_NE(refused.error().text().find(r.names), std::string::npos)
        << r.name << ": " << refused.error().text().substr(0, 300);
    if (costs.empty()) continue;
    std::printf("%-28s %8.1f MiB %8.0f ms\n", r.name, costs[i].mib, costs[i].ms);
    EXPECT_LE(costs[i].mib, static_cast<double>(r.limits.compile_bytes >> 20) * 1.1 + 4) << r.name;
    // Taking down what was built comes on top.
    EXPECT_LE(costs[i].ms, static_cast<double>(r.limits.compile_cpu_ms) * 1.1 + 1'000) << r.name;
  }
}

// Right at a limit nothing is refused.
TEST(RefusalCost, TheLimitsThemselvesAreAccepted) {
  using K = ConstraintKind;
  EXPECT_EQ(testing::code_of(K::kRegex, std::string(32U << 10U, 'a')), "compiled");
  EXPECT_EQ(testing::code_of(K::kRegex, "a{1000000}"), "compiled");
  EXPECT_EQ(testing::code_of(K::kChoice, "[" + repeated("\"a\"", 10'000, ",") + "]"), "compiled");
  EXPECT_EQ(testing::code_of(K::kJsonSchema, R"({"type":"string","minLength":1000000})"), "compiled");
  EXPECT_EQ(testing::code_of(K::kJsonSchema, R"({"type":"integer","multipleOf":999999999999999989})"), "compiled");
  EXPECT_EQ(testing::code_of(K::kJsonSchema, R"({"allOf":[)" + alternatives(2, 16) + "]}"), "compiled");
  EXPECT_EQ(testing::code_of(K::kJsonSchema, dependent(12)), "compiled");
  EXPECT_EQ(testing::code_of(K::kEbnf, "root ::= r{2000}\nr ::= \"a\" r \"b\" | \"c\""), "compiled");
}

// Numbers of members are counters: 400 members of which 300 are wanted have no states for each pair of place and count.
TEST(RefusalCost, CountsOfMembersCostNothing) {
  const std::string both = R"({"type":"object","additionalProperties":false,"minProperties":300,"properties":{)" +
                           members(400, "{\"const\":1}") + "}}";
  const auto counted = testing::compiled(ConstraintKind::kJsonSchema, both);
  ASSERT_NE(counted, nullptr);
  const auto text = [](size_t from, size_t n) {
    std::string out;
    for (size_t i = from; i < from + n; ++i) out += (i > from ? ",\"p" : "{\"p") + std::to_string(i) + "\":1";
    return out + "}";
  };
  EXPECT_TRUE(testing::takes(counted, text(100, 300)));
  EXPECT_FALSE(testing::takes(counted, text(0, 299)));
  EXPECT_FALSE(testing::takes(counted, text(101, 299)));
  EXPECT_LT(counted->memory_bytes(), 16 << 20);
}

// Twelve triggers at once: each that is there needs what it names, wherever that stands.
TEST(RefusalCost, TwelveTriggersAreEnforced) {
  const auto c = testing::compiled(ConstraintKind::kJsonSchema, dependent(12));
  ASSERT_NE(c, nullptr);
  EXPECT_TRUE(testing::takes(c, "{}"));
  EXPECT_TRUE(testing::takes(c, R"({"p0":1,"p11":2,"p12":3,"p23":4})"));
  EXPECT_TRUE(testing::takes(c, R"({"p12":3,"p23":4})"));
  EXPECT_FALSE(testing::takes(c, R"({"p0":1,"p11":2,"p12":3})"));
  EXPECT_FALSE(testing::takes(c, R"({"p0":1,"p11":2,"p23":4})"));
}

}  // namespace
}  // namespace di::structured
