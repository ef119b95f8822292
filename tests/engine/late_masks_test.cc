// A mask that is not there in time: its sequence sits steps out, nobody waits for it, and what it writes is the same.
// The slow mask is one whose constraint is locked, so that nothing here depends on how fast the machine is.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "engine/constraint.h"
#include "engine/speculation_cases.h"
#include "structured/compiled.h"
#include "structured/fixture.h"

namespace di::engine {
namespace {

using structured::ConstraintKind;
using structured::testing::byte_vocabulary;
using structured::testing::compiled;
using test::Case;
using test::Mode;

Case byte_case(Mode mode, bool async, int64_t patience_ns) {
  Case c = {.mode = mode, .async = async};
  c.toy.vocab = byte_vocabulary()->size();
  c.toy.eos = structured::testing::kEos;
  c.engine.mask_patience_ns = patience_ns;
  return c;
}

constexpr int64_t kPatient = 60 * kNsPerSecond;
const std::vector<std::pair<Mode, bool>> kModes = {
    {Mode::kOff, false}, {Mode::kOff, true}, {Mode::kFixed, false}, {Mode::kFixed, true}, {Mode::kVariable, true}};

GenerateRequest seeded(const structured::CompiledRef& constraint, uint64_t seed, double temperature) {
  GenerateRequest r = test::request({4, 9, 2, 7}, 40, temperature);
  r.constraint = constraint;
  r.sampling.seed = seed;
  r.sampling.seed_given = true;
  return r;
}

TEST(LateMasks, DelayNobodyAndChangeNoText) {
  const auto slow = compiled(ConstraintKind::kRegex, "[0-9a-f]{24}");
  const auto other =
      compiled(ConstraintKind::kJsonSchema, R"({"type":"array","items":{"enum":["new",3,null]},"minItems":4})");
  for (const auto& [mode, async] : kModes) {
    for (const double temperature : {0.0, 1.0}) {
      std::vector<GenerateRequest> requests = {seeded(slow, 11, temperature), seeded(slow, 12, temperature),
                                               seeded(nullptr, 13, temperature), seeded(other, 14, temperature)};
      requests[1].n = 2;
      const test::Ran expected = test::run(byte_case(mode, async, kPatient), requests);

      const SystemClock clock;
      const auto engine = test::make_engine(byte_case(mode, async, kMaskPatienceNs), clock);
      std::vector<std::unique_ptr<OutputCollector>> collectors;
      std::unique_lock at_work(slow->impl().mutex);
      for (const GenerateRequest& r : requests) {
        collectors.push_back(std::make_unique<OutputCollector>(r.n));
        ASSERT_TRUE(engine->submit(r, collectors.back()->sink()));
      }
      EXPECT_EQ(collectors[2]->wait().tokens, expected.choices[3].tokens);
      EXPECT_EQ(collectors[3]->wait().tokens, expected.choices[4].tokens);
      EXPECT_EQ(collectors[0]->tokens(), 0U);
      EXPECT_EQ(collectors[1]->tokens(), 0U);
      at_work.unlock();
      EXPECT_EQ(collectors[0]->wait().tokens, expected.choices[0].tokens);
      EXPECT_EQ(collectors[1]->wait(0).tokens, expected.choices[1].tokens);
      EXPECT_EQ(collectors[1]->wait(1).tokens, expected.choices[2].tokens);
    }
  }
}

// Whatever is late, at any place of a text: with no patience at all most masks are.
TEST(LateMasks, AtAnyPlaceTheTextIsTheSame) {
  std::vector<GenerateRequest> requests;
  for (uint64_t i = 0; i < 5; ++i) {
    const auto constraint =
        compiled(ConstraintKind::kRegex, i % 2 == 0 ? "([a-f]{2}-)*[0-9]+" : "[^x]*", {}, i % 3 == 0);
    requests.push_back(seeded(constraint, 20 + i, i % 4 == 0 ? 0.0 : 1.0));
    requests.back().prompt.resize(4 + i % 5, 3);
    requests.back().max_tokens = 12;
    requests.back().n = i % 3 == 1 ? 2 : 1;
    requests.back().ignore_eos = i == 3;
  }
  for (const auto& [mode, async] : {kModes[0], kModes[1], kModes[3]}) {
    Case setup = byte_case(mode, async, kPatient);
    setup.toy.block_tokens = 4;  // prompts end at a block's end too
    const test::Ran expected = test::run(setup, requests);
    setup.engine.mask_patience_ns = 0;
    const test::Ran ran = test::run(setup, requests);
    ASSERT_EQ(ran.choices.size(), expected.choices.size());
    for (size_t i = 0; i < ran.choices.size(); ++i) EXPECT_EQ(ran.choices[i].tokens, expected.choices[i].tokens) << i;
  }
}

MaskJob job_of(const structured::Matcher& matcher, const structured::Compiled* constraint,
               std::span<const int32_t> draft = {}) {
  MaskJob job;
  job.matcher = &matcher;
  job.constraint = constraint;
  job.draft = draft;
  return job;
}

// One job, asked for until it is there.
MaskJob until_done(MaskFiller& filler, MaskJob job) {
  for (;;) {
    filler.begin({job});
    const MaskJob& done = filler.finish()[0];
    if (!done.late) return done;
    job.work = done.work;
    std::this_thread::yield();
  }
}

TEST(LateMasks, AreFoundByTheNextStep) {
  const auto c = compiled(ConstraintKind::kRegex, "[ab]{3}c");
  MaskFiller filler(1, byte_vocabulary()->size(), 0);
  const structured::Matcher matcher(c);
  const std::vector<int32_t> draft = {'a', 'c', 'a'};
  MaskJob job = job_of(matcher, c.get(), draft);
  {
    const std::lock_guard at_work(c->impl().mutex);
    filler.begin({job});
    const MaskJob& first = filler.finish()[0];
    EXPECT_TRUE(first.late);
    job.work = first.work;
    EXPECT_TRUE(filler.busy(*c));
    // Another choice of the same constraint would wait for it; one of another constraint does not.
    const auto other = compiled(ConstraintKind::kRegex, "[0-9]+");
    const structured::Matcher others(other);
    const MaskJob free = until_done(filler, job_of(others, other.get()));
    EXPECT_FALSE(free.failed);
    filler.begin({job, job_of(matcher, c.get())});
    const auto again = filler.finish();
    EXPECT_TRUE(again[0].late);
    EXPECT_TRUE(again[1].late);
    EXPECT_EQ(again[1].work, nullptr);
  }
  const MaskJob done = until_done(filler, job);
  EXPECT_FALSE(done.failed);
  EXPECT_EQ(done.valid, 1U);
  structured::Matcher m(c);
  std::vector<uint32_t> row(m.mask_words());
  ASSERT_TRUE(m.fill_mask(row));
  EXPECT_TRUE(std::ranges::equal(done.row(0), row));
  EXPECT_FALSE(filler.busy(*c));
}

TEST(LateMasks, AFailureIsHeardOf) {
  structured::Limits tight;
  tight.max_states = 3;
  const auto c = structured::testing::compile_spec(ConstraintKind::kRegex, "(a[a-z]{30}|b)*", {}, false, tight);
  ASSERT_TRUE(c.has_value());
  MaskFiller filler(1, byte_vocabulary()->size(), 0);
  structured::Matcher matcher(*c);
  ASSERT_TRUE(matcher.accept('a'));
  MaskJob job = job_of(matcher, c->get());
  {
    const std::lock_guard at_work((*c)->impl().mutex);
    filler.begin({job});
    EXPECT_TRUE(filler.finish()[0].late);
    job.work = filler.finish()[0].work;
  }
  while (filler.busy(**c)) std::this_thread::yield();
  filler.begin({job});
  EXPECT_TRUE(filler.finish()[0].failed);
}

}  // namespace
}  // namespace di::engine
