// Requests between two engines (engine/transfer.h): the transfer alone, then two engines on a runner that sees every
// byte in a wrong place. Aborts, failures and lost engines: transfer_reports_test.cc; the bundled model:
// transfer_model_test.cc.
#include "engine/transfer.h"

#include <gtest/gtest.h>

#include <chrono>

#include "engine/scripted.h"
#include "engine/transfer_support.h"

namespace di::engine {
namespace {

using namespace test;
using std::chrono::steady_clock;
using std::chrono_literals::operator""ms;

Transfer::Bytes bytes_of(std::initializer_list<int> values) {
  Transfer::Bytes out;
  for (const int v : values) out.push_back(static_cast<std::byte>(v));
  return out;
}

TransferCommit commit_with(int32_t token) {
  TransferCommit out;
  out.first.token = token;
  return out;
}

// ---- the transfer alone ----

TEST(Transfer, GoesThroughItsStages) {
  const ManualClock clock;
  Transfer t(7, clock, kNsPerSecond);
  int sender = 0;
  int receiver = 0;
  t.on_change(Transfer::Side::kSender, [&] { ++sender; });
  t.on_change(Transfer::Side::kReceiver, [&] { ++receiver; });
  EXPECT_EQ(t.stage(), TransferStage::kBootstrapping);
  EXPECT_FALSE(t.write(0, bytes_of({1}))) << "nobody has room for it yet";
  t.prepare({{}, 3, 1});
  EXPECT_EQ(t.stage(), TransferStage::kWaiting);
  EXPECT_EQ(sender, 1);
  EXPECT_EQ(t.target()->first_needed, 1);
  EXPECT_FALSE(t.commit(commit_with(5))) << "nothing is written";
  EXPECT_TRUE(t.write(1, bytes_of({1, 2})));
  EXPECT_EQ(t.stage(), TransferStage::kTransferring);
  EXPECT_TRUE(t.write_state(bytes_of({9})));
  EXPECT_TRUE(t.commit(commit_with(5)));
  EXPECT_EQ(receiver, 1);
  EXPECT_EQ(t.poll(), Transfer::Progress::kIncomplete) << "block 2 is missing";
  EXPECT_TRUE(t.write(2, bytes_of({3})));
  EXPECT_EQ(t.poll(), Transfer::Progress::kReady);
  EXPECT_TRUE(t.accept());
  EXPECT_EQ(t.stage(), TransferStage::kSuccess);
  EXPECT_EQ(sender, 2);
  EXPECT_EQ(t.committed().first.token, 5);
  EXPECT_EQ(t.block(1).size(), 2U);
  EXPECT_EQ(t.state().size(), 1U);
  t.abort({Error{Errc::kInternal, "too late"}, false, false});
  EXPECT_EQ(t.stage(), TransferStage::kSuccess);
}

TEST(Transfer, RefusesWhatComesAfterItWasGivenUp) {
  const ManualClock clock;
  Transfer t(7, clock, kNsPerSecond);
  t.prepare({{}, 2, 0});
  EXPECT_TRUE(t.write(0, bytes_of({1})));
  t.abort({Error{Errc::kUnavailable, "gone"}, true, false});
  t.abort({Error{Errc::kUnavailable, "again"}, false, false});
  EXPECT_EQ(t.failure()->error.message, "gone");
  EXPECT_TRUE(t.failure()->retry);
  EXPECT_FALSE(t.write(1, bytes_of({2})));
  EXPECT_FALSE(t.write_state(bytes_of({2})));
  EXPECT_FALSE(t.commit(commit_with(1)));
  EXPECT_EQ(t.poll(), Transfer::Progress::kFailed);
  EXPECT_FALSE(t.accept());
}

TEST(Transfer, FailsWhenItsTimeIsOver) {
  ManualClock clock;
  Transfer t(7, clock, 3 * kNsPerSecond);
  t.prepare({{}, 1, 0});
  clock.advance(3 * kNsPerSecond - 1);
  EXPECT_FALSE(t.expire());
  clock.advance(1);
  EXPECT_TRUE(t.expire());
  EXPECT_EQ(t.failure()->error.code, Errc::kUnavailable);
}

TEST(Transfer, ItsFaultsAreLateWrongOrderAndDamage) {
  ManualClock clock;
  const auto fill = [&](Transfer& t, const TransferFault& fault) {
    t.inject(fault);
    t.prepare({{}, 2, 0});
    EXPECT_TRUE(t.write(0, bytes_of({1})));
    EXPECT_TRUE(t.write(1, bytes_of({2})));
    EXPECT_TRUE(t.write_state(bytes_of({3})));
    EXPECT_TRUE(t.commit(commit_with(4)));
  };
  Transfer late(1, clock, kNsPerSecond);
  fill(late, {.late_ns = 5 * kNsPerMs});
  EXPECT_EQ(late.poll(), Transfer::Progress::kIncomplete);
  clock.advance(5 * kNsPerMs);
  EXPECT_EQ(late.poll(), Transfer::Progress::kReady);
  Transfer order(2, clock, kNsPerSecond);
  fill(order, {.wrong_order = true});
  EXPECT_EQ(order.poll(), Transfer::Progress::kIncomplete) << "the commit is there, a block is not";
  clock.advance(20 * kNsPerMs);
  EXPECT_EQ(order.poll(), Transfer::Progress::kReady);
  Transfer damaged(3, clock, kNsPerSecond);
  fill(damaged, {.damage = true});
  EXPECT_EQ(damaged.poll(), Transfer::Progress::kFailed);
  EXPECT_TRUE(damaged.failure()->retry);
}

// ---- two engines ----

TEST(TransferBetweenEngines, GivesTheTokensOfOneEngine) {
  Pair p;
  Gate open;
  const auto alone = make_engine({}, kBlocks, 0, open, {}, p.clock);
  for (const int32_t n : {1, 7, 8, 9, 23, 64, 100}) {
    for (const double temperature : {0.0, 1.0}) {
      GenerateRequest r = request(prompt_of(n, n), 30);
      r.sampling.temperature = temperature;
      r.sampling.seed = 11;
      r.sampling.repetition_penalty = 1.1;
      EXPECT_EQ(tokens_of(*p.pair, r), tokens_of(*alone, r)) << n << " tokens at " << temperature;
    }
  }
  EXPECT_TRUE(soon([&] { return p.idle(); }));
  const EngineStats prefill = p.prefill->stats();
  const EngineStats decode = p.decode->stats();
  EXPECT_EQ(prefill.generated_tokens, 0U);
  EXPECT_EQ(decode.prompt_tokens, 0U);
  EXPECT_EQ(prefill.transfers_sent, 14U);
  EXPECT_EQ(decode.transfers_received, 14U);
  EXPECT_EQ(prefill.transfers_failed + decode.transfers_failed, 0U);
}

TEST(TransferBetweenEngines, ManyAtOnceWithLittleMemoryGiveTheSameTokens) {
  PairSetup setup;
  setup.decode_blocks = 24;  // answers are preempted, and computed again where they are
  setup.prefill_blocks = 20;
  Pair p(setup);
  Gate open;
  const auto alone = make_engine({}, kBlocks, 0, open, {}, p.clock);
  std::vector<GenerateRequest> requests;
  std::vector<std::unique_ptr<Collector>> collectors;
  for (int32_t i = 0; i < 40; ++i) {
    requests.push_back(request(prompt_of(5 + i * 3 % 50, i % 9), 20 + i % 30));
    requests.back().sampling.seed = static_cast<uint64_t>(i);
    requests.back().tenant = i % 2 == 0 ? "a" : "b";
    collectors.push_back(std::make_unique<Collector>());
    ASSERT_TRUE(p.pair->submit(requests.back(), collectors.back()->sink()));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(collectors[i]->wait().tokens, tokens_of(*alone, requests[i])) << i;
  }
  EXPECT_GT(p.decode->stats().preemptions, 0U);
  EXPECT_TRUE(soon([&] { return p.idle(); }));
}

TEST(TransferBetweenEngines, ChoicesPromptLogprobsAndPromptsAloneWork) {
  Pair p;
  Gate open;
  const auto alone = make_engine({}, kBlocks, 0, open, {}, p.clock);
  GenerateRequest r = request(prompt_of(30, 4), 9);
  r.n = 3;
  r.sampling.seed = 5;
  r.sampling.logprobs = true;
  r.prompt_logprobs = 2;
  Collector together(3);
  Collector expected(3);
  ASSERT_TRUE(p.pair->submit(r, together.sink()));
  ASSERT_TRUE(alone->submit(r, expected.sink()));
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(together.wait(i).tokens, expected.wait(i).tokens) << i;
  ASSERT_EQ(together.wait().prompt.size(), 29U);
  for (size_t i = 0; i < 29; ++i) EXPECT_EQ(together.wait().prompt[i].logprob, expected.wait().prompt[i].logprob);
  EXPECT_EQ(together.wait().detail.front().logprob, expected.wait().detail.front().logprob);
  r.n = 1;
  r.max_tokens = 0;
  Collector only_prompt;
  ASSERT_TRUE(p.pair->submit(r, only_prompt.sink()));
  EXPECT_EQ(only_prompt.wait().finish, FinishReason::kLength);
  EXPECT_EQ(only_prompt.wait().prompt.size(), 29U);
  EXPECT_TRUE(soon([&] { return p.idle(); }));
}

TEST(TransferBetweenEngines, OnlyTheBlocksThatAreNotThereTravel) {
  const SystemClock clock;
  const auto make = [&] {
    ScriptedOptions script;
    script.block_tokens = script.window = kBlock;
    script.scripts.push_back({{}, {7, 8, 9, 10, 11, 12, 13, 14, 15, 16}});
    EngineOptions options;
    options.reuse.replay = true;
    return Engine::create(make_scripted_runner(std::move(script), clock), options, clock).value();
  };
  const auto pair = EnginePair::create(make(), make(), {}, clock).value();
  std::vector<int32_t> prompt = prompt_of(64, 1);
  const auto sent = [&](uint64_t requests) {
    EXPECT_TRUE(soon([&] { return pair->stats().transfers_sent == requests; }));
    return pair->stats().transfer_bytes / sizeof(int32_t);
  };
  const std::vector<int32_t> answer = tokens_of(*pair, request(prompt));
  EXPECT_EQ(sent(1), 64U + 1);
  EXPECT_EQ(tokens_of(*pair, request(prompt)), answer);
  EXPECT_EQ(sent(2), 64U + 1 + 1) << "the state only";
  // The next turn: its beginning, and the answer that was made there, are known.
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  prompt.resize(80, 5);
  EXPECT_EQ(tokens_of(*pair, request(prompt)), answer);
  EXPECT_EQ(sent(3), 64U + 1 + 1 + 8 + 1);
  EXPECT_EQ(pair->stats().leased_blocks, 0);
}

TEST(TransferBetweenEngines, RefusesEnginesThatCannotReadEachOther) {
  const SystemClock clock;
  ScriptedOptions small;
  small.block_tokens = 64;
  auto a = Engine::create(make_scripted_runner({}, clock), {}, clock).value();
  auto b = Engine::create(make_scripted_runner(small, clock), {}, clock).value();
  EXPECT_NE(a->info().transfer_compat, b->info().transfer_compat);
  // Without the pair's check: the sender refuses at the first message, and nothing is computed.
  GenerateRequest r = request({1, 2, 3}, 5);
  r.send = r.receive = nullptr;
  GenerateRequest to = r;
  GenerateRequest from = r;
  to.send = from.receive = std::make_shared<Transfer>(1, clock, 10 * kNsPerSecond);
  Collector sender;
  Collector receiver;
  ASSERT_TRUE(a->submit(to, sender.sink()));
  ASSERT_TRUE(b->submit(from, receiver.sink()));
  EXPECT_NE(receiver.wait().error.message.find("not the same"), std::string::npos);
  EXPECT_FALSE(receiver.wait().last.transfer_failed) << "another attempt would not do better";
  EXPECT_EQ(sender.wait().finish, FinishReason::kError);
  EXPECT_EQ(a->stats().prompt_tokens, 0U);
  const auto pair = EnginePair::create(std::move(a), std::move(b), {}, clock);
  ASSERT_FALSE(pair);
  EXPECT_NE(pair.error().message.find("not the same"), std::string::npos);
}

// ---- scripts ----

std::unique_ptr<EnginePair> scripted_pair(ScriptedFault fault, int64_t late_ns, const EnginePairOptions& options,
                                          const Clock& clock) {
  const auto make = [&] {
    ScriptedOptions script;
    script.block_tokens = kBlock;
    script.answer = [=](std::span<const int32_t>) {
      auto answer = std::make_shared<ScriptedAnswer>();
      for (const int32_t token : {7, 8, 9}) answer->tokens.push_back({token, 0, {}, 0});
      answer->fault = fault;
      answer->late_ns = late_ns;
      return answer;
    };
    return Engine::create(make_scripted_runner(std::move(script), clock), {}, clock).value();
  };
  return EnginePair::create(make(), make(), options, clock).value();
}

TEST(TransferScripts, ALateEndAndAWrongOrderAreWaitedFor) {
  const SystemClock clock;
  for (const ScriptedFault fault : {ScriptedFault::kNone, ScriptedFault::kLateCompletion, ScriptedFault::kWrongOrder}) {
    const auto pair = scripted_pair(fault, 30 * kNsPerMs, {}, clock);
    const auto begin = steady_clock::now();
    EXPECT_EQ(tokens_of(*pair, request(prompt_of(40, 3))), (std::vector<int32_t>{7, 8, 9}));
    const auto least = fault == ScriptedFault::kLateCompletion ? 30ms
                       : fault == ScriptedFault::kWrongOrder   ? 20ms
                                                               : 0ms;
    EXPECT_GE(steady_clock::now() - begin, least);
    EXPECT_EQ(pair->stats().transfers_failed, 0U);
  }
}

TEST(TransferScripts, DamageIsTriedOnceMoreAndThenAnError) {
  const SystemClock clock;
  const auto pair = scripted_pair(ScriptedFault::kDamage, 0, {}, clock);
  Collector collector;
  ASSERT_TRUE(pair->submit(request(prompt_of(40, 3)), collector.sink()));
  EXPECT_NE(collector.wait().error.message.find("damaged"), std::string::npos);
  EXPECT_TRUE(collector.wait().tokens.empty());
  EXPECT_EQ(pair->stats().transfers_failed, 2U);
}

}  // namespace
}  // namespace di::engine
