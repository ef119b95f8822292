// Faults around speculation and constraints that users of other serving systems reported, each as a test of the right
// behaviour; the number is that of the report. The draft module here proposes what the script says, also what must not
// be accepted. Reports that show at the API are in tests/e2e/test_field_reports*.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/json.h"
#include "engine/collector.h"
#include "engine/engine.h"
#include "engine/toy_runner.h"
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

constexpr int32_t kDrafts = 5;
const std::vector<int32_t> kPrompt = {1, 2, 3};

// The target would like to write `wish`, the draft module proposes `drafts`: tokens by their place in the output, then
// the end.
class WishRunner final : public Runner {
 public:
  WishRunner(std::vector<int32_t> wish, std::vector<int32_t> drafts)
      : wish_(std::move(wish)), drafts_(std::move(drafts)) {
    info_.vocab_size = byte_vocabulary()->size();
    info_.eos_token_id = kEos;
    info_.max_positions = 400;
    info_.block_tokens = 4;
    info_.n_blocks = 200;
    info_.n_slots = 5;
    info_.max_drafts = kDrafts;
  }
  const RunnerInfo& info() const override { return info_; }

  Result<LogitsView> forward(std::span<const model::SequenceChunk> chunks, std::span<const SequenceTag>) override {
    logits_.clear();
    for (const model::SequenceChunk& c : chunks) {
      for (int32_t p = std::max(c.begin, c.logits_begin); p < c.begin + c.count; ++p)
        append(logits_, wish_, p + 1 - static_cast<int32_t>(kPrompt.size()));
    }
    return view(logits_);
  }
  Result<void> draft(std::span<const DraftStart> starts) override {
    at_.clear();
    // The anchor stands behind the context, the first draft behind the anchor.
    for (const DraftStart& s : starts) at_.push_back(s.context_position + 2 - static_cast<int32_t>(kPrompt.size()));
    return {};
  }
  Result<LogitsView> draft_step(int32_t step, std::span<const int32_t>, std::span<float> confidences) override {
    draft_logits_.clear();
    for (const int32_t at : at_) append(draft_logits_, drafts_, at + step);
    std::ranges::fill(confidences, 0.9F);
    return view(draft_logits_);
  }

 private:
  void append(std::vector<float>& logits, const std::vector<int32_t>& wish, int32_t at) const {
    const auto i = static_cast<size_t>(at);
    const size_t row = logits.size();
    logits.resize(row + static_cast<size_t>(info_.vocab_size), -10.0F);
    logits[row + static_cast<size_t>(i < wish.size() ? wish[i] : kEos)] = 0.0F;
  }
  LogitsView view(std::vector<float>& logits) const {
    return {logits.data(), static_cast<int64_t>(logits.size()) / info_.vocab_size, info_.vocab_size};
  }

  RunnerInfo info_;
  std::vector<int32_t> wish_;
  std::vector<int32_t> drafts_;
  std::vector<int32_t> at_;
  std::vector<float> logits_;
  std::vector<float> draft_logits_;
};

EngineOptions engine_options(bool speculate, int32_t seqs) {
  EngineOptions options;
  options.max_num_seqs = seqs;
  options.speculation.mode = speculate ? SpeculationMode::kFixed : SpeculationMode::kOff;
  options.speculation.length = kDrafts;
  return options;
}

GenerateRequest request(structured::CompiledRef constraint, int64_t max_tokens = 100) {
  GenerateRequest r;
  r.prompt = kPrompt;
  r.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  r.constraint = std::move(constraint);
  return r;
}

struct Ran {
  OutputCollector::Choice choice;
  SpeculationStats speculation;
};

Ran run(std::unique_ptr<Runner> runner, const GenerateRequest& r, bool speculate) {
  const SystemClock clock;
  const auto engine = Engine::create(std::move(runner), engine_options(speculate, 4), clock).value();
  OutputCollector collector;
  EXPECT_TRUE(engine->submit(r, collector.sink()));
  Ran out;
  out.choice = collector.wait();
  out.speculation = engine->stats().speculation;
  return out;
}

Ran run_wish(const std::vector<int32_t>& wish, const std::vector<int32_t>& drafts, const GenerateRequest& r,
             bool speculate) {
  return run(std::make_unique<WishRunner>(wish, drafts), r, speculate);
}

std::vector<int32_t> joined(std::string_view before, std::vector<int32_t> middle, std::string_view after) {
  std::vector<int32_t> out = bytes(before);
  out.insert(out.end(), middle.begin(), middle.end());
  const std::vector<int32_t> tail = bytes(after);
  out.insert(out.end(), tail.begin(), tail.end());
  return out;
}

// The context ends in the middle of a window of drafts.
TEST(FieldReports, B042_TheLastPositionsAreTheSameWithDrafts) {
  for (int32_t context = 30; context < 40; ++context) {
    ToyOptions toy;
    toy.max_positions = context;
    GenerateRequest r = request(nullptr, 500);
    r.prompt = {3, 4, 5};
    r.ignore_eos = true;
    r.sampling.logprobs = true;
    r.sampling.top_logprobs = 2;
    const Ran plain = run(std::make_unique<ToyRunner>(toy), r, false);
    const Ran drafted = run(std::make_unique<ToyRunner>(toy), r, true);
    EXPECT_GT(drafted.speculation.accepted, 0U);
    EXPECT_EQ(drafted.choice.tokens, plain.choice.tokens);
    // The last token of all needs no position of its own.
    EXPECT_EQ(plain.choice.tokens.size(), static_cast<size_t>(context) - r.prompt.size() + 1);
    EXPECT_EQ(to_string(drafted.choice.last.finish), to_string(FinishReason::kLength));
    for (size_t i = 0; i < plain.choice.detail.size(); ++i) {
      EXPECT_FLOAT_EQ(drafted.choice.detail[i].logprob, plain.choice.detail[i].logprob) << i;
      EXPECT_LE(drafted.choice.detail[i].logprob, 0.0F);
    }
  }
}

void expect_document(const std::string& answer) {
  const size_t end = answer.find("</think>");
  ASSERT_NE(end, std::string::npos) << answer;
  const auto json = parse_json(std::string_view(answer).substr(end + 8));
  ASSERT_TRUE(json) << answer;
  ASSERT_EQ(json->size(), 4U) << answer;
  EXPECT_TRUE(json->find("answer")->is_string()) << answer;
  const std::optional<int64_t> count = json->find("count")->to_i64();
  EXPECT_TRUE(count && *count >= 0 && *count <= 99) << answer;
  EXPECT_TRUE(json->find("valid")->is_bool()) << answer;
  const std::string& label = json->find("label")->as_string();
  EXPECT_TRUE(label == "red" || label == "blue") << answer;
}

ToyOptions wide_toy() {
  ToyOptions toy;
  toy.vocab = byte_vocabulary()->size();
  toy.eos = kEos;
  toy.eos_logit = -8;
  toy.max_positions = 4000;
  toy.n_blocks = 6000;
  toy.n_slots = 17;
  return toy;
}

TEST(FieldReports, B043_ADocumentAfterThinkingIsValidWithDrafts) {
  const auto schema = compiled(
      ConstraintKind::kJsonSchema,
      R"({"type":"object","properties":{"answer":{"type":"string","maxLength":6},"count":{"type":"integer","minimum":0,
      "maximum":99},"valid":{"type":"boolean"},"label":{"enum":["red","blue"]}},
      "required":["answer","count","valid","label"],"additionalProperties":false})",
      {}, true);
  const SystemClock clock;
  const auto engine = Engine::create(std::make_unique<ToyRunner>(wide_toy()), engine_options(true, 16), clock).value();
  std::vector<std::unique_ptr<OutputCollector>> collectors;
  for (uint64_t seed = 0; seed < 25; ++seed) {
    GenerateRequest r = request(schema, 2000);
    r.n = 4;
    r.sampling.temperature = 1;
    r.sampling.seed = 1000 * seed;
    r.sampling.logit_bias = {{kThinkEnd, 4.0F}};
    collectors.push_back(std::make_unique<OutputCollector>(r.n));
    ASSERT_TRUE(engine->submit(r, collectors.back()->sink()));
  }
  for (const auto& collector : collectors) {
    for (int32_t choice = 0; choice < 4; ++choice) {
      const OutputCollector::Choice& c = collector->wait(choice);
      EXPECT_EQ(to_string(c.last.finish), to_string(FinishReason::kStop)) << c.last.error.message;
      expect_document(text_of(c.tokens));
    }
  }
  EXPECT_GT(engine->stats().speculation.accepted, 100U);

  GenerateRequest greedy = request(schema, 2000);
  greedy.sampling.bad_words = {};
  greedy.sampling.logit_bias = {{kThinkEnd, 8.0F}};
  const Ran plain = run(std::make_unique<ToyRunner>(wide_toy()), greedy, false);
  const Ran drafted = run(std::make_unique<ToyRunner>(wide_toy()), greedy, true);
  EXPECT_EQ(text_of(drafted.choice.tokens), text_of(plain.choice.tokens));
  expect_document(text_of(plain.choice.tokens));
}

// How often each of four answers is drawn, with drafts and without.
std::map<std::string, int> frequencies(bool speculate) {
  const SystemClock clock;
  const auto engine =
      Engine::create(std::make_unique<ToyRunner>(wide_toy()), engine_options(speculate, 16), clock).value();
  const auto choice = compiled(ConstraintKind::kChoice, R"(["p0","p1","q0","q1"])", {}, true);
  std::vector<std::unique_ptr<OutputCollector>> collectors;
  for (uint64_t i = 0; i < 150; ++i) {
    GenerateRequest r = request(choice, 2000);
    r.n = 8;
    r.sampling.temperature = 1;
    r.sampling.seed = 7 + 100 * i + (speculate ? 1'000'000 : 0);
    r.sampling.logit_bias = {{kThinkEnd, 6.0F}};
    collectors.push_back(std::make_unique<OutputCollector>(r.n));
    EXPECT_TRUE(engine->submit(r, collectors.back()->sink()));
  }
  std::map<std::string, int> out;
  for (const auto& collector : collectors) {
    for (int32_t c = 0; c < 8; ++c) {
      const std::string text = text_of(collector->wait(c).tokens);
      ++out[text.substr(text.find("</think>") + 8)];
    }
  }
  return out;
}

TEST(FieldReports, B043_AnswersAfterThinkingAreDistributedAsWithoutDrafts) {
  const std::map<std::string, int> plain = frequencies(false);
  std::map<std::string, int> drafted = frequencies(true);
  ASSERT_EQ(plain.size(), 4U);
  double chi_square = 0;
  for (const auto& [text, n] : plain) {
    const double difference = n - drafted[text];
    chi_square += difference * difference / (n + drafted[text]);
  }
  EXPECT_EQ(drafted.size(), 4U);
  EXPECT_LT(chi_square, 21.1);  // three degrees of freedom, 1 in 10,000; the seeds are fixed
}

TEST(FieldReports, B044_DraftsAfterTheEndOfThinkingAreMasked) {
  const GenerateRequest r = request(compiled(ConstraintKind::kChoice, R"(["no","yes"])", {}, true));
  // The window after the first token: b, end of thinking, and three tokens that the answer may not hold.
  const std::vector<int32_t> wish = joined("aab", {kThinkEnd}, "xyz");
  for (const bool speculate : {false, true}) {
    const Ran ran = run_wish(wish, wish, r, speculate);
    EXPECT_EQ(text_of(ran.choice.tokens), "aab</think>no");
    EXPECT_EQ(to_string(ran.choice.last.finish), to_string(FinishReason::kStop)) << ran.choice.last.error.message;
    EXPECT_GE(ran.speculation.accepted, speculate ? 3U : 0U);
  }
}

TEST(FieldReports, B045_ToolMarkupInADraftDoesNotEndThinking) {
  structured::SpecOptions options;
  options.tool_choice = structured::ToolChoice::kRequired;
  const auto tools = compiled(
      ConstraintKind::kToolCalls,
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}])", options, true);
  const GenerateRequest r = request(tools, 120);
  const std::vector<int32_t> wish = joined("let me think about it", {kThinkEnd}, "zz");
  const std::vector<int32_t> drafts = joined("let me ", {'\n', '\n', '<', kDsml, ' ', 'c', 'a', 'l', 'l', 's'}, "");
  const Ran plain = run_wish(wish, drafts, r, false);
  const Ran drafted = run_wish(wish, drafts, r, true);
  EXPECT_EQ(text_of(drafted.choice.tokens), text_of(plain.choice.tokens));
  EXPECT_TRUE(text_of(plain.choice.tokens).starts_with("let me think about it</think>"))
      << text_of(plain.choice.tokens);
  EXPECT_GT(drafted.speculation.accepted, 0U);
  EXPECT_LT(drafted.speculation.accepted, drafted.speculation.verified);
}

TEST(FieldReports, B046_NothingIsAskedOfTheGrammarAfterItsEnd) {
  // After the first token the window is a, end, and what is behind the end.
  const std::vector<int32_t> wish = joined("xa", {kEos}, "bcd");
  for (const char* grammar : {R"(root ::= "a")", R"(root ::= "xa")"}) {
    const GenerateRequest r = request(compiled(ConstraintKind::kEbnf, grammar));
    const Ran plain = run_wish(wish, wish, r, false);
    const Ran drafted = run_wish(wish, wish, r, true);
    EXPECT_EQ(text_of(plain.choice.tokens),
              std::string_view(grammar).find("xa") == std::string_view::npos ? "a" : "xa");
    EXPECT_EQ(drafted.choice.tokens, plain.choice.tokens);
    EXPECT_EQ(to_string(drafted.choice.last.finish), to_string(FinishReason::kStop))
        << drafted.choice.last.error.message;
  }
}

TEST(FieldReports, B047_PenaltiesCountWithDrafts) {
  GenerateRequest r = request(nullptr, 60);
  r.prompt = {3, 4, 5};
  const Ran free = run(std::make_unique<ToyRunner>(ToyOptions{}), r, false);
  r.sampling.presence_penalty = 2.0;
  r.sampling.frequency_penalty = 2.0;
  const Ran plain = run(std::make_unique<ToyRunner>(ToyOptions{}), r, false);
  const Ran drafted = run(std::make_unique<ToyRunner>(ToyOptions{}), r, true);
  EXPECT_NE(plain.choice.tokens, free.choice.tokens);
  EXPECT_EQ(drafted.choice.tokens, plain.choice.tokens);
  EXPECT_GT(drafted.speculation.accepted, 0U);
}

}  // namespace
}  // namespace di::engine
