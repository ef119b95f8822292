// Hand-over between two engines on models/tiny (engine/transfer.h): Block KV, sliding windows, open compressor groups
// and the first token, at every place where a prompt can end, with drafts, prefix reuse and constraints on and off.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "base/thread_pool.h"
#include "codec/tokenizer/tokenizer.h"
#include "engine/engine.h"
#include "engine/engine_pair.h"
#include "engine/model_runner.h"
#include "kernels/cpu/cpu.h"
#include "structured/structured.h"
#include "support/engine_support.h"
#include "support/folders.h"
#include "support/token_texts.h"

namespace di::engine {
namespace {

std::string tiny() {
  return std::string(di::test::kModels) + "/tiny";
}

struct Toggles {
  bool drafts = false;
  bool prefix_cache = false;
  int32_t replay_keep = 0;
};

// An engine with what computes for it.
class Machine {
 public:
  std::unique_ptr<Engine> engine(const Toggles& toggles, bool prompts_only, const Clock& clock) {
    ModelRunnerOptions options;
    options.max_num_seqs = 4;
    options.max_model_len = 1024;
    options.speculation = toggles.drafts;
    auto runner = load_model_runner(tiny(), options, {kernels::cpu::ops(kernels::cpu::best_isa()), *stream_, *device_},
                                    [] { return di::test::token_texts(tiny()).value(); });
    EXPECT_TRUE(runner) << runner.error().message;
    EngineOptions out;
    out.max_num_seqs = 4;
    out.max_num_batched_tokens = 200;
    out.reuse.prefix_cache = toggles.prefix_cache;
    out.reuse.window_memory_bytes = 64 << 20;
    out.reuse.replay_keep = toggles.replay_keep;
    out.speculation.mode = toggles.drafts && !prompts_only ? SpeculationMode::kVariable : SpeculationMode::kOff;
    out.speculation.pause_under_load = false;
    out.speculation.curve = CostCurve::create({{1, 1.0}, {4, 1.4}, {8, 2.0}, {16, 3.2}, {24, 4.5}}).value();
    return Engine::create(std::move(*runner), out, clock).value();
  }

 private:
  ThreadPool pool_{1};
  kernels::cpu::StreamPtr stream_ = kernels::cpu::make_stream(pool_);
  std::unique_ptr<device::Device> device_ = device::make_host_device();
};

// Greedy, unless the seed is given.
std::vector<int32_t> tokens_of(EngineApi& engine, GenerateRequest request) {
  test::Collector collector;
  const auto id = engine.submit(std::move(request), collector.sink());
  EXPECT_TRUE(id) << id.error().error.message;
  EXPECT_NE(collector.wait().finish, FinishReason::kError) << collector.wait().error.message;
  return collector.wait().tokens;
}

std::vector<int32_t> text_of(size_t n) {
  const codec::TokenizerRef tokenizer = codec::Tokenizer::load(tiny()).value();
  std::string text;
  while (text.size() < n * 8) {
    text += "Once upon a time there was a small fox who lived near river " + std::to_string(text.size()) + ". ";
  }
  std::vector<int32_t> tokens = tokenizer->encode_plain(text);
  tokens.resize(n);
  return tokens;
}

GenerateRequest request_of(size_t n, double temperature) {
  GenerateRequest r = test::request(text_of(n), 24);
  r.ignore_eos = true;
  r.sampling.temperature = temperature;
  r.sampling.seed = 9;
  r.sampling.seed_given = true;
  return r;
}

void compare(const Toggles& toggles) {
  const SystemClock clock;
  Machine first;
  Machine second;
  Machine third;
  const auto alone = third.engine(toggles, false, clock);
  const auto pair =
      EnginePair::create(first.engine(toggles, true, clock), second.engine(toggles, false, clock), {}, clock).value();
  // Ends inside the window and behind it, inside a block and at its end, with and without an open group.
  for (const size_t n : std::initializer_list<size_t>{1, 2, 63, 64, 65, 127, 128, 129, 300, 385}) {
    for (const double temperature : {0.0, 1.0}) {
      const GenerateRequest r = request_of(n, temperature);
      EXPECT_EQ(tokens_of(*pair, r), tokens_of(*alone, r)) << n << " tokens at temperature " << temperature;
    }
  }
  const EngineStats stats = pair->stats();
  EXPECT_EQ(stats.transfers_received, 20U);
  EXPECT_EQ(stats.transfers_failed, 0U);
  EXPECT_EQ(stats.leased_blocks, 0);
  EXPECT_GT(stats.transfer_bytes, 0U);
  EXPECT_EQ(stats.speculation.accepted > 0, toggles.drafts);
  EXPECT_EQ(stats.prefix_hits > 0, toggles.prefix_cache);
}

TEST(TransferOnTheModel, GreedyAndSeededTokensAreThoseOfOneEngine) {
  compare({});
}
TEST(TransferOnTheModel, WithDrafts) {
  compare({.drafts = true});
}
TEST(TransferOnTheModel, WithThePrefixCache) {
  compare({.prefix_cache = true});
}
TEST(TransferOnTheModel, WithBoth) {
  compare({.drafts = true, .prefix_cache = true});
}
TEST(TransferOnTheModel, WithATruncatedPrefill) {
  compare({.drafts = true, .replay_keep = 140});
}

TEST(TransferOnTheModel, AConstraintGoesOnWhereTheFirstTokenLeftIt) {
  const SystemClock clock;
  std::ifstream in(tiny() + "/tokenizer.json");
  const std::string json{std::istreambuf_iterator<char>(in), {}};
  const auto vocabulary = structured::Vocabulary::from_tokenizer_json(json).value();
  for (const bool drafts : {false, true}) {
    Machine first;
    Machine second;
    Machine third;
    const Toggles toggles{.drafts = drafts};
    const auto alone = third.engine(toggles, false, clock);
    const auto pair =
        EnginePair::create(first.engine(toggles, true, clock), second.engine(toggles, false, clock), {}, clock).value();
    GenerateRequest r = request_of(100, 0);
    r.ignore_eos = false;
    r.max_tokens = 60;
    r.constraint = structured::compile(vocabulary, {.kind = structured::ConstraintKind::kRegex,
                                                    .payload = "[0-9]{3}-[a-z]{5,9}-(yes|no)[0-9]{4}",
                                                    .options = {},
                                                    .or_tools = {}})
                       .value();
    const std::vector<int32_t> expected = tokens_of(*alone, r);
    EXPECT_EQ(tokens_of(*pair, r), expected);
    EXPECT_FALSE(expected.empty());
  }
}

}  // namespace
}  // namespace di::engine
