// An engine on the toy model with and without speculation, and what has to be equal between the two.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/collector.h"
#include "engine/engine.h"
#include "engine/toy_runner.h"

namespace di::engine::test {

using Choice = OutputCollector::Choice;

enum class Mode { kOff, kFixed, kVariable };

struct Case {  // of speculation
  Mode mode = Mode::kOff;
  bool async = true;
  int32_t length = 0;
  ToyOptions toy = {};
  EngineOptions engine = {.mask_patience_ns = 60 * kNsPerSecond};  // no step is sat out on a busy machine
  // So slow that no step of a loaded machine is slower: verify lengths then depend on this curve alone.
  CostCurve curve = CostCurve::create({{1, 1e4}, {6, 1.2e4}, {12, 1.5e4}, {24, 2.5e4}, {48, 5e4}}).value();
};

inline std::unique_ptr<Engine> make_engine(const Case& setup, const Clock& clock) {
  EngineOptions options = setup.engine;
  options.max_num_seqs = std::min(options.max_num_seqs, setup.toy.n_slots - 1);
  options.async_scheduling = setup.async;
  options.speculation.mode = setup.mode == Mode::kOff     ? SpeculationMode::kOff
                             : setup.mode == Mode::kFixed ? SpeculationMode::kFixed
                                                          : SpeculationMode::kVariable;
  options.speculation.length = setup.length;
  options.speculation.curve = setup.curve;
  return Engine::create(std::make_unique<ToyRunner>(setup.toy), options, clock).value();
}

inline GenerateRequest request(std::vector<int32_t> prompt, int64_t max_tokens, double temperature = 0) {
  GenerateRequest r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.temperature = temperature;
  return r;
}

struct Ran {
  std::vector<Choice> choices;
  EngineStats stats;
};

// All requests at once; the choices of each, one after the other.
inline Ran run(const Case& setup, const std::vector<GenerateRequest>& requests) {
  const SystemClock clock;
  const auto engine = make_engine(setup, clock);
  std::vector<std::unique_ptr<OutputCollector>> collectors;
  for (const GenerateRequest& r : requests) {
    collectors.push_back(std::make_unique<OutputCollector>(r.n));
    EXPECT_TRUE(engine->submit(r, collectors.back()->sink()));
  }
  Ran out;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (int32_t c = 0; c < requests[i].n; ++c) out.choices.push_back(collectors[i]->wait(c));
  }
  out.stats = engine->stats();
  return out;
}

inline const std::vector<Case> kSpeculative = {{.mode = Mode::kFixed, .async = false},
                                               {.mode = Mode::kFixed, .async = true},
                                               {.mode = Mode::kVariable, .async = false},
                                               {.mode = Mode::kVariable, .async = true},
                                               {.mode = Mode::kFixed, .async = true, .length = 2}};

// Runs the requests without and with every kind of speculation and compares tokens, ends and log-probabilities.
inline void expect_equal(const std::vector<GenerateRequest>& requests, const std::function<void(Case&)>& change = {},
                         const std::vector<Case>& cases = kSpeculative) {
  Case plain;
  if (change) change(plain);
  const Ran expected = run(plain, requests);
  EXPECT_EQ(expected.stats.speculation.verified, 0U);
  for (Case setup : cases) {
    if (change) change(setup);
    const Ran found = run(setup, requests);
    ASSERT_EQ(found.choices.size(), expected.choices.size());
    for (size_t i = 0; i < expected.choices.size(); ++i) {
      const Choice& a = expected.choices[i];
      const Choice& b = found.choices[i];
      EXPECT_EQ(b.tokens, a.tokens) << "choice " << i << " async " << setup.async << " mode "
                                    << static_cast<int>(setup.mode) << " length " << setup.length;
      EXPECT_EQ(to_string(b.last.finish), to_string(a.last.finish)) << b.last.error.message;
      ASSERT_EQ(b.detail.size(), a.detail.size());
      for (size_t t = 0; t < a.detail.size(); ++t) {
        EXPECT_FLOAT_EQ(b.detail[t].logprob, a.detail[t].logprob);
        ASSERT_EQ(b.detail[t].top.size(), a.detail[t].top.size());
        for (size_t k = 0; k < a.detail[t].top.size(); ++k) {
          EXPECT_EQ(b.detail[t].top[k].token, a.detail[t].top[k].token);
        }
      }
    }
    EXPECT_GT(found.stats.speculation.verified, 0U) << "mode " << static_cast<int>(setup.mode);
    EXPECT_GT(found.stats.speculation.accepted, 0U);
    EXPECT_EQ(to_string(found.stats.speculation.state), "active");
  }
}

inline std::vector<int32_t> prompt(int32_t seed, int32_t length) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<int32_t> out;
  for (int32_t i = 0; i < length; ++i) out.push_back(1 + static_cast<int32_t>(random() % 11));
  return out;
}

inline std::vector<GenerateRequest> mixed(int32_t n, int64_t max_tokens) {
  std::vector<GenerateRequest> out;
  for (int32_t i = 0; i < n; ++i) out.push_back(request(prompt(i, 1 + i % 9), max_tokens + 3 * i));
  return out;
}

}  // namespace di::engine::test
