// Speculation with models/tiny and the real draft module: greedy output equals that without it, and after any pattern
// of refused drafts the caches hold the bytes of a run without speculation.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <random>
#include <thread>

#include "base/thread_pool.h"
#include "engine/collector.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "kernels/cpu/cpu.h"
#include "model/fixture.h"
#include "structured/compiled.h"
#include "support/folders.h"
#include "support/token_texts.h"

namespace di::engine {
namespace {

std::string tiny() {
  return std::string(di::test::kModels) + "/tiny";
}

struct Backend {
  ThreadPool pool{2};
  kernels::cpu::StreamPtr stream = kernels::cpu::make_stream(pool);
  std::unique_ptr<device::Device> device = device::make_host_device();
  ModelBackend view() { return {kernels::cpu::ops(kernels::cpu::best_isa()), *stream, *device}; }
};

struct Ran {
  std::vector<std::vector<int32_t>> tokens;
  EngineStats stats;
};

// at_work: called while the requests run.
Ran run(const std::vector<GenerateRequest>& requests, SpeculationMode mode, bool async,
        const std::function<void(OutputCollector&)>& at_work = {}) {
  Backend backend;
  const SystemClock clock;
  ModelRunnerOptions options;
  options.max_num_seqs = 4;
  options.max_model_len = 1024;
  options.speculation = mode != SpeculationMode::kOff;
  auto runner = load_model_runner(tiny(), options, backend.view(), [] { return test::token_texts(tiny()).value(); });
  EXPECT_TRUE(runner) << runner.error().message;
  EngineOptions engine_options;
  engine_options.max_num_seqs = 4;
  engine_options.max_num_batched_tokens = 96;
  engine_options.async_scheduling = async;
  engine_options.speculation.mode = mode;
  engine_options.speculation.pause_under_load = false;  // the curve below is not this machine's
  engine_options.speculation.curve = CostCurve::create({{1, 1.0}, {4, 1.4}, {8, 2.0}, {16, 3.2}, {24, 4.5}}).value();
  const auto engine = Engine::create(std::move(*runner), engine_options, clock).value();
  std::vector<std::unique_ptr<OutputCollector>> collectors;
  for (const GenerateRequest& r : requests) {
    collectors.push_back(std::make_unique<OutputCollector>());
    EXPECT_TRUE(engine->submit(r, collectors.back()->sink()));
  }
  if (at_work) at_work(*collectors[0]);
  Ran out;
  for (const auto& c : collectors) out.tokens.push_back(c->wait().tokens);
  out.stats = engine->stats();
  return out;
}

// Prompts longer than the window and than a chunk among them; the model writes something on any text.
std::vector<GenerateRequest> prompts(int32_t n) {
  std::mt19937 random(11);
  const codec::TokenizerRef tokenizer = codec::Tokenizer::load(tiny()).value();
  const std::vector<std::string> texts = {
      "Once upon a time there was a small fox who lived near the river. Every morning the fox",
      "Copy: red blue green red blue green red blue green. Answer: red blue green red", "The capital of France is",
      "2 + 3 = 5. 4 + 4 = 8. 7 + 1 ="};
  std::vector<GenerateRequest> out;
  for (int32_t i = 0; i < n; ++i) {
    GenerateRequest r;
    std::string text;
    for (int32_t k = 0; k <= i % 3 * 4; ++k) text += texts[static_cast<size_t>(i + k) % texts.size()] + " ";
    r.prompt = tokenizer->encode_plain(text);
    r.max_tokens = 24 + i;
    r.ignore_eos = true;
    r.sampling.temperature = 0;
    out.push_back(std::move(r));
  }
  return out;
}

TEST(SpeculationOnTheModel, GreedyOutputIsThatWithoutIt) {
  const std::vector<GenerateRequest> requests = prompts(6);
  const Ran plain = run(requests, SpeculationMode::kOff, true);
  EXPECT_EQ(plain.stats.speculation.verified, 0U);
  for (const SpeculationMode mode : {SpeculationMode::kFixed, SpeculationMode::kVariable}) {
    const Ran speculative = run(requests, mode, mode == SpeculationMode::kVariable);
    EXPECT_EQ(speculative.tokens, plain.tokens);
    EXPECT_GT(speculative.stats.speculation.verified, 30U);
    EXPECT_GT(speculative.stats.speculation.accepted, 10U);
    EXPECT_EQ(to_string(speculative.stats.speculation.state), "active");
    EXPECT_LT(speculative.stats.steps, plain.stats.steps);
  }
}

// A constraint that is locked for a while, at any place of the text: steps are sat out and their rows computed again.
TEST(SpeculationOnTheModel, LateMasksChangeNoText) {
  std::ifstream file(tiny() + "/tokenizer.json");
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  const auto vocabulary = structured::Vocabulary::from_tokenizer_json(json).value();
  std::vector<GenerateRequest> requests = prompts(3);
  for (size_t i = 0; i < 2; ++i) {
    requests[i].constraint =
        structured::compile(
            vocabulary,
            {.kind = structured::ConstraintKind::kRegex, .payload = "[^\\x00]*", .options = {}, .or_tools = {}})
            .value();
  }
  std::mutex& mutex = requests[0].constraint->impl().mutex;
  for (const auto& [mode, async] : {std::pair{SpeculationMode::kOff, true}, std::pair{SpeculationMode::kFixed, false},
                                    std::pair{SpeculationMode::kFixed, true}}) {
    const Ran expected = run(requests, mode, async);
    const Ran ran = run(requests, mode, async, [&](OutputCollector& first) {
      for (size_t n = 0; n < 20; n += 5) {
        first.wait_for_tokens(n);
        const std::lock_guard lock(mutex);
        const SystemClock clock;
        const int64_t until = clock.now_ns() + 40 * kNsPerMs;
        while (clock.now_ns() < until) std::this_thread::yield();
      }
    });
    EXPECT_EQ(ran.tokens, expected.tokens);
  }
}

}  // namespace
}  // namespace di::engine
