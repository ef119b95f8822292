#include "server/timeline.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/json.h"

namespace di::server {
namespace {

constexpr int64_t kMs = kNsPerMs;

Json parsed(const std::string& text) {
  Result<Json> json = parse_json(text);
  EXPECT_TRUE(json.has_value()) << text;
  return json.value_or(Json());
}
double number(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  EXPECT_NE(value, nullptr) << key;
  return value == nullptr ? -1 : value->to_double().value_or(-1);
}

TEST(Timeline, HoldsWhatWasNotedRelativeToTheStart) {
  ManualClock clock(1'000);
  clock.advance(500 * kMs);
  Timelines lines(clock);
  const TimelineRef line = lines.start({"req-1", "team", "/v1/chat/completions", clock.now_ns() - 20 * kMs});
  const int64_t t0 = clock.now_ns() - 20 * kMs;
  EXPECT_EQ(parsed(line->json(clock.now_ns())).find("phase")->as_string(), "parse");
  line->span(Stage::kParse, t0, t0 + kMs);
  line->prompt_tokens(100);
  EXPECT_EQ(parsed(line->json(clock.now_ns())).find("phase")->as_string(), "queue");
  line->span(Stage::kQueue, t0 + kMs, t0 + 3 * kMs);
  EXPECT_EQ(parsed(line->json(clock.now_ns())).find("phase")->as_string(), "prefill");
  line->span(Stage::kKvFetch, t0 + 3 * kMs, t0 + 4 * kMs, 40, "host");
  line->cache({.device_tokens = 10, .host_tokens = 40, .store_tokens = 0, .miss_reason = "evicted"});
  line->tokens(t0 + 9 * kMs, 1);
  line->tokens(t0 + 12 * kMs, 3);
  line->work(Stage::kSocket, 250'000);
  line->work(Stage::kSocket, 250'000);
  line->workers("p0", "d3");
  EXPECT_EQ(parsed(line->json(clock.now_ns())).find("phase")->as_string(), "decode");
  line->finish({.code = 200, .finish = "stop"}, t0 + 13 * kMs);
  line->tokens(t0 + 15 * kMs, 7);  // too late to count

  const Json json = parsed(line->json(clock.now_ns()));
  EXPECT_EQ(json.find("phase")->as_string(), "done");
  EXPECT_EQ(json.find("tenant")->as_string(), "team");
  EXPECT_EQ(number(json, "received_unix_ms"), 1'000'000 - 20);
  EXPECT_EQ(number(json, "ttft_ms"), 9);
  EXPECT_EQ(number(json, "duration_ms"), 13);
  EXPECT_EQ(number(json, "output_tokens"), 4);
  EXPECT_EQ(number(json, "cached_tokens"), 50);
  EXPECT_EQ(number(*json.find("cache"), "computed_tokens"), 50);
  EXPECT_EQ(json.find("cache")->find("miss_reason")->as_string(), "evicted");
  EXPECT_EQ(json.find("workers")->find("decode")->as_string(), "d3");
  const Json::Array& stages = json.find("stages")->as_array();
  ASSERT_EQ(stages.size(), 3U);
  EXPECT_EQ(stages[2].find("detail")->as_string(), "host");
  EXPECT_EQ(number(stages[2], "begin_ms"), 3);
  EXPECT_EQ(number(*json.find("work")->find("socket"), "ms"), 0.5);
  EXPECT_EQ(number(*json.find("work")->find("socket"), "pieces"), 2);
  EXPECT_EQ(to_json(*json.find("steps")), "[[9.0,1],[12.0,3]]");
}

TEST(Timeline, IsBoundedAndLosesNoTokens) {
  ManualClock clock;
  Timelines lines(clock);
  const TimelineRef line = lines.start({"long", "default", "/v1/completions", 0});
  constexpr int64_t kSteps = 100'003;
  for (int64_t i = 1; i <= kSteps; ++i) line->tokens(i * kMs, 2);
  for (int64_t i = 0; i < 1'000; ++i) line->span(Stage::kPrefill, i, i + 1);
  const Json json = parsed(line->json(0));
  const Json::Array& steps = json.find("steps")->as_array();
  EXPECT_LE(steps.size(), RequestTimeline::kMaxSteps);
  int64_t tokens = 0;
  double last = 0;
  for (const Json& step : steps) {
    tokens += step.as_array()[1].to_i64().value();
    EXPECT_GT(step.as_array()[0].to_double().value(), last);
    last = step.as_array()[0].to_double().value();
  }
  EXPECT_EQ(tokens, 2 * kSteps);
  EXPECT_EQ(last, kSteps);
  EXPECT_EQ(number(json, "total_steps"), kSteps);
  EXPECT_EQ(json.find("stages")->size(), RequestTimeline::kMaxSpans);
  EXPECT_EQ(number(json, "dropped_stages"), 1'000 - RequestTimeline::kMaxSpans);
}

TEST(Timeline, ReadsAsATraceOfCompleteEvents) {
  ManualClock clock;
  Timelines lines(clock);
  const TimelineRef line = lines.start({"x", "default", "/v1/messages", 0});
  line->span(Stage::kKvFetch, 2'000, 5'000, 7, "store");
  line->tokens(6'000, 1);
  line->tokens(9'000, 4);
  line->finish({.code = 200, .finish = "stop"}, 10'000);
  const Json trace = parsed(line->chrome_json(0));
  std::vector<std::string> seen;
  for (const Json& event : trace.find("traceEvents")->as_array()) {
    if (event.find("ph")->as_string() != "X") continue;
    seen.push_back(event.find("name")->as_string() + " " + to_json(*event.find("ts")) + "+" +
                   to_json(*event.find("dur")));
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"/v1/messages 0.0+10.0", "kv_fetch store 2.0+3.0", "decode 6.0+3.0"}));
}

TEST(Timelines, KeepTheLastOnesNewestFirst) {
  ManualClock clock;
  Timelines lines(clock, 3);
  EXPECT_EQ(lines.list_json(10), R"({"requests":[]})");
  for (int i = 0; i < 5; ++i) lines.start({"r" + std::to_string(i), "default", "/x", 0});
  std::vector<std::string> ids;
  for (const TimelineRef& line : lines.recent(10)) ids.push_back(line->id());
  EXPECT_EQ(ids, (std::vector<std::string>{"r4", "r3", "r2"}));
  EXPECT_EQ(lines.recent(1).size(), 1U);
  EXPECT_EQ(lines.find("r0"), nullptr);
  const TimelineRef again = lines.start({"r4", "other", "/x", 0});
  EXPECT_EQ(lines.find("r4"), again);
  EXPECT_EQ(parsed(lines.list_json(10)).find("requests")->size(), 3U);
}

TEST(Timelines, TakeRequestsFromSeveralThreadsWhileBeingRead) {
  const SystemClock clock;
  Timelines lines(clock, 16);
  {
    std::vector<std::jthread> writers;
    for (int t = 0; t < 3; ++t) {
      writers.emplace_back([&] {
        for (int i = 0; i < 300; ++i) {
          const TimelineRef line = lines.start({"r", "default", "/x", clock.now_ns()});
          line->span(Stage::kParse, clock.now_ns(), clock.now_ns());
          line->tokens(clock.now_ns(), 1);
          line->finish({.code = 200, .finish = "stop"}, clock.now_ns());
        }
      });
    }
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(parse_json(lines.list_json(16)).has_value());
  }
  for (const TimelineRef& line : lines.recent(16))
    EXPECT_EQ(parsed(line->summary_json(clock.now_ns())).find("phase")->as_string(), "done");
}

}  // namespace
}  // namespace di::server
