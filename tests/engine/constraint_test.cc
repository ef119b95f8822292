// Constrained outputs through the real scheduler and sampler: the script says what the "model" would like to write, the
// constraint what it may.
#include "engine/constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "engine/engine.h"
#include "engine/scripted.h"
#include "structured/fixture.h"

namespace di::engine {
namespace {

using structured::ConstraintKind;
using structured::testing::byte_vocabulary;
using structured::testing::bytes;
using structured::testing::compiled;
using structured::testing::kDsml;
using structured::testing::kEos;
using structured::testing::kThinkEnd;
using structured::testing::text_of;

struct Answer {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kNone;
  Error error;
  bool constraint_failed = false;
  int32_t preemptions = 0;
};

class Answers {
 public:
  explicit Answers(size_t n) : all_(n), open_(n) {}
  OutputSink sink(size_t first = 0) {
    return [this, first](const Output& out) {
      const std::lock_guard lock(mutex_);
      Answer& a = all_[first + static_cast<size_t>(out.choice)];
      for (const OutputToken& t : out.tokens) a.tokens.push_back(t.token);
      a.finish = out.finish;
      a.error = out.error;
      a.constraint_failed = out.constraint_failed;
      a.preemptions = out.preemptions;
      if (out.finish != FinishReason::kNone) --open_;
      changed_.notify_all();
    };
  }
  const std::vector<Answer>& wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_ == 0; });
    return all_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Answer> all_;
  size_t open_;
};

ScriptedOptions wishing(std::string_view text) {
  ScriptedOptions script;
  script.vocab_size = byte_vocabulary()->size();
  script.eos_token_id = kEos;
  script.scripts = {{{}, bytes(text)}};
  return script;
}

std::unique_ptr<Engine> make_engine(ScriptedOptions script, const Clock& clock, const EngineOptions& options = {}) {
  return Engine::create(make_scripted_runner(std::move(script), clock), options, clock).value();
}

GenerateRequest constrained(structured::CompiledRef constraint, int64_t max_tokens = 100) {
  GenerateRequest r;
  r.prompt = {1, 2, 3};
  r.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  r.constraint = std::move(constraint);
  return r;
}

Answer run(Engine& engine, GenerateRequest request) {
  Answers answers(1);
  EXPECT_TRUE(engine.submit(std::move(request), answers.sink()));
  return answers.wait()[0];
}

TEST(Constraint, TheMaskDecidesWhatTheModelMayWrite) {
  SystemClock clock;
  auto engine = make_engine(wishing("yes and more"), clock);
  EXPECT_EQ(text_of(run(*engine, constrained(nullptr)).tokens), "yes and more");
  Answer a = run(*engine, constrained(compiled(ConstraintKind::kChoice, R"(["no","yes"])")));
  EXPECT_EQ(text_of(a.tokens), "yes");
  EXPECT_EQ(a.finish, FinishReason::kStop);
  // The wish is not allowed: the likeliest of what is.
  a = run(*engine, constrained(compiled(ConstraintKind::kRegex, "[0-4]{3}")));
  EXPECT_EQ(text_of(a.tokens), "000");
  EXPECT_EQ(a.finish, FinishReason::kStop);
}

TEST(Constraint, ChoicesOfOneRequestAreIndependent) {
  SystemClock clock;
  auto engine = make_engine(wishing(""), clock);
  GenerateRequest r = constrained(compiled(ConstraintKind::kRegex, "[a-z]{4}-[0-9]{4}"));
  r.n = 8;
  r.sampling.temperature = 1;
  Answers answers(8);
  ASSERT_TRUE(engine->submit(std::move(r), answers.sink()));
  std::vector<std::string> texts;
  for (const Answer& a : answers.wait()) {
    EXPECT_EQ(a.finish, FinishReason::kStop);
    texts.push_back(text_of(a.tokens));
    EXPECT_TRUE(structured::testing::takes(compiled(ConstraintKind::kRegex, "[a-z]{4}-[0-9]{4}"), texts.back()))
        << texts.back();
  }
  std::ranges::sort(texts);
  EXPECT_GT(std::ranges::unique(texts).begin() - texts.begin(), 1);
}

TEST(Constraint, APreemptedChoiceGoesOnWhereItWas) {
  SystemClock clock;
  ScriptedOptions script = wishing(std::string(400, 'a'));
  script.block_tokens = 4;
  script.n_blocks = 42;  // three sequences of 84 tokens do not fit at once
  auto engine = make_engine(std::move(script), clock);
  const auto pattern = compiled(ConstraintKind::kRegex, "a{40}b{40}");
  Answers answers(3);
  for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(engine->submit(constrained(pattern), answers.sink(i)));
  int32_t preemptions = 0;
  for (const Answer& a : answers.wait()) {
    EXPECT_EQ(text_of(a.tokens), std::string(40, 'a') + std::string(40, 'b'));
    EXPECT_EQ(a.finish, FinishReason::kStop);
    preemptions += a.preemptions;
  }
  EXPECT_GT(preemptions, 0);
}

TEST(Constraint, ThinkingComesFirstAndIsFree) {
  SystemClock clock;
  ScriptedOptions script = wishing("hm, let me see");
  script.scripts[0].output.push_back(kThinkEnd);
  for (const int32_t t : bytes("no, or rather yes")) script.scripts[0].output.push_back(t);
  auto engine = make_engine(std::move(script), clock);
  const Answer a = run(*engine, constrained(compiled(ConstraintKind::kChoice, R"(["no","yes"])", {}, true)));
  EXPECT_EQ(text_of(a.tokens), "hm, let me see</think>no");
  EXPECT_EQ(a.finish, FinishReason::kStop);
}

TEST(Constraint, ThePromptMayHoldTheBeginning) {
  SystemClock clock;
  auto engine = make_engine(wishing("zz"), clock);
  const auto pattern = compiled(ConstraintKind::kRegex, "abc");
  GenerateRequest r = constrained(pattern);
  r.prompt = bytes("..ab");
  r.constrained_prompt_tokens = 2;
  EXPECT_EQ(text_of(run(*engine, r).tokens), "c");
  r.constrained_prompt_tokens = 3;
  Answers answers(1);
  const auto refused = engine->submit(r, answers.sink());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, RejectReason::kInvalid);
}

TEST(Constraint, TheEndIsAllowedEarlyWhereNothingElseIs) {
  SystemClock clock;
  auto engine = make_engine(wishing("abbbbbbbbbbbbbbbbbb"), clock);
  GenerateRequest r = constrained(compiled(ConstraintKind::kRegex, "ab{0,3}"));
  r.min_tokens = 50;
  Answer a = run(*engine, r);
  EXPECT_EQ(text_of(a.tokens), "abbb");  // the end waits for as long as there is something else
  EXPECT_EQ(a.finish, FinishReason::kStop);

  // ignore_eos: after the constrained text anything goes.
  r.min_tokens = 0;
  r.ignore_eos = true;
  r.max_tokens = 12;
  a = run(*engine, r);
  EXPECT_EQ(a.tokens.size(), 12U);
  EXPECT_EQ(text_of({a.tokens.begin(), a.tokens.begin() + 5}), "abbb<eos>");
  EXPECT_EQ(a.finish, FinishReason::kLength);
}

TEST(Constraint, StopTokensEndTheTextWhereItMayEnd) {
  SystemClock clock;
  auto engine = make_engine(wishing("12;34"), clock);
  GenerateRequest r = constrained(compiled(ConstraintKind::kRegex, "[0-9]+"));
  r.stop_token_ids = {';'};
  const Answer a = run(*engine, r);
  EXPECT_EQ(text_of(a.tokens), "12");
  EXPECT_EQ(a.finish, FinishReason::kStop);
}

TEST(Constraint, AFailureEndsOnlyThatChoice) {
  SystemClock clock;
  auto engine = make_engine(wishing(std::string(60, 'a')), clock);
  structured::Limits tight;
  tight.max_states = 12;
  auto limited = structured::testing::compile_spec(ConstraintKind::kRegex, "(a[a-z]{30}|b)*", {}, false, tight);
  ASSERT_TRUE(limited.has_value());
  Answers answers(2);
  ASSERT_TRUE(engine->submit(constrained(*limited), answers.sink(0)));
  ASSERT_TRUE(engine->submit(constrained(compiled(ConstraintKind::kRegex, "a{50}")), answers.sink(1)));
  const std::vector<Answer>& all = answers.wait();
  EXPECT_EQ(all[0].finish, FinishReason::kError);
  EXPECT_TRUE(all[0].constraint_failed);
  EXPECT_NE(all[0].error.message.find("constraint"), std::string::npos);
  EXPECT_EQ(all[1].finish, FinishReason::kStop);
  EXPECT_EQ(text_of(all[1].tokens), std::string(50, 'a'));
  EXPECT_FALSE(all[1].constraint_failed);
}

TEST(Constraint, ContradictingParametersAreAFailureOfTheRequest) {
  SystemClock clock;
  auto engine = make_engine(wishing("a"), clock);
  GenerateRequest r = constrained(compiled(ConstraintKind::kRegex, "a+"));
  r.sampling.allowed_token_ids = {'b'};
  const Answer a = run(*engine, r);
  EXPECT_EQ(a.finish, FinishReason::kError);
  EXPECT_TRUE(a.constraint_failed);
}

TEST(Constraint, ControlTokensAreMaskedAndNamedOnesAreNot) {
  SystemClock clock;
  ScriptedOptions script = wishing("x");
  script.scripts[0].output = {kDsml, kThinkEnd, 'x'};
  auto engine = make_engine(std::move(script), clock);
  structured::SpecOptions none;
  none.tool_choice = structured::ToolChoice::kNone;
  const Answer a = run(*engine, constrained(compiled(ConstraintKind::kToolCalls, "[]", none), 3));
  ASSERT_EQ(a.tokens.size(), 3U);
  EXPECT_EQ(std::ranges::count(a.tokens, kDsml), 0);
  EXPECT_EQ(std::ranges::count(a.tokens, kThinkEnd), 0);
  EXPECT_EQ(a.tokens[2], 'x');
}

// Rows of a draft equal the masks found by going step by step.
TEST(Constraint, RowsOfADraftAreTheMasksStepByStep) {
  const auto c = compiled(ConstraintKind::kRegex, "[ab]{3}c");
  const int32_t vocab = byte_vocabulary()->size();
  MaskFiller filler(2, vocab, 60 * kNsPerSecond);
  std::vector<structured::Matcher> matchers(5, structured::Matcher(c));
  const std::vector<std::vector<int32_t>> drafts = {
      {}, {'a'}, {'a', 'b', 'a'}, {'a', 'c', 'a'}, {'a', 'b', 'b', 'c', kEos}};
  std::vector<MaskJob> jobs(5);
  for (size_t i = 0; i < 5; ++i) {
    jobs[i].matcher = &matchers[i];
    jobs[i].constraint = c.get();
    jobs[i].draft = drafts[i];
  }
  filler.begin(jobs);
  const auto done = filler.finish();
  ASSERT_EQ(done.size(), 5U);
  EXPECT_EQ(done[3].valid, 1U);
  EXPECT_EQ(done[4].valid, 5U);
  for (size_t i = 0; i < 5; ++i) {
    structured::Matcher m(c);
    std::vector<uint32_t> row(m.mask_words());
    for (size_t j = 0; j <= done[i].valid; ++j) {
      ASSERT_TRUE(m.fill_mask(row));
      EXPECT_TRUE(std::ranges::equal(done[i].row(j), row)) << i << " " << j;
      if (j < drafts[i].size()) m.accept(drafts[i][j]);
    }
    for (size_t j = done[i].valid + 1; j <= drafts[i].size(); ++j) {
      EXPECT_TRUE(std::ranges::all_of(done[i].row(j), [](uint32_t w) { return w == UINT32_MAX; }));
    }
    EXPECT_EQ(matchers[i].tokens(), 0U);
  }
}

}  // namespace
}  // namespace di::engine
