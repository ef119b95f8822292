// The web page's side of the server: its files, the feed of figures, and where both stand when the server ends.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // inside <regex> of g++ 12, with the sanitizers
#endif

#include <atomic>
#include <cmath>
#include <regex>

#include "server/ui_feed.h"
#include "server/web_assets.h"
#include "support.h"

namespace di::server {
namespace {

class Ui : public ServerTest {};

TEST(MetricsText, IsReadBackWithLabelsAndEscapes) {
  const std::vector<MetricSample> samples = parse_metrics_text(
      "# HELP a b\n# TYPE a counter\na 3\nb{x=\"1\",y=\"q\\\"},\\\\z\"} 2.5 1700000000\n\nc{le=\"+Inf\"} "
      "4\nbroken{x=\"1 9\nalone\n");
  ASSERT_EQ(samples.size(), 3U);
  EXPECT_EQ(samples[0].name, "a");
  EXPECT_EQ(samples[0].value, 3);
  EXPECT_EQ(samples[1].label("x"), "1");
  EXPECT_EQ(samples[1].label("y"), "q\"},\\z");
  EXPECT_EQ(samples[1].label("z"), "");
  EXPECT_EQ(samples[1].value, 2.5);
  EXPECT_EQ(samples[2].label("le"), "+Inf");
}

TEST(MetricsText, HoldsEverySampleOfARegistry) {
  MetricRegistry registry;
  registry.counter("a_total", "help", {{"code", "200"}}).add(7);
  registry.gauge("g", "with \"quotes\"\nand lines", {{"path", "a\"b\\c\nd"}}).set(-1.5);
  registry.histogram("h", "help", {1, 2}).observe(1.5);
  const std::vector<MetricSample> samples = parse_metrics_text(registry.text());
  double sum = 0;
  for (const MetricSample& sample : samples) {
    if (sample.name == "a_total") {
      EXPECT_EQ(sample.value, 7);
    }
    if (sample.name == "g") {
      EXPECT_EQ(sample.label("path"), "a\"b\\c\nd");
    }
    if (sample.name == "h_bucket") sum += sample.value;
  }
  EXPECT_EQ(sum, 2);  // 0 up to 1, 1 up to 2, 1 in all
}

TEST(Quantile, IsLinearWithinABucket) {
  const std::vector<double> bounds = {1, 2, 4};
  EXPECT_DOUBLE_EQ(histogram_quantile(0.5, bounds, {0, 10, 0, 0}), 1.5);
  EXPECT_DOUBLE_EQ(histogram_quantile(0.9, bounds, {10, 0, 0, 0}), 0.9);
  EXPECT_DOUBLE_EQ(histogram_quantile(0.75, bounds, {5, 0, 5, 0}), 3);
  EXPECT_DOUBLE_EQ(histogram_quantile(0.99, bounds, {0, 0, 0, 8}), 4);  // beyond the last bound
  EXPECT_DOUBLE_EQ(histogram_quantile(0.5, bounds, {0, 0, 0, 0}), 0);
}

// What a subscriber was sent.
class Recorder final : public Exchange {
 public:
  const HttpRequest& request() const override { return request_; }
  void replace_body(std::string body) override { request_.body = std::move(body); }
  void rename(std::string id) override { request_.id = std::move(id); }
  void reply(HttpResponse) override {}
  void begin_stream(HttpResponse response, std::string) override {
    const std::lock_guard lock(mutex_);
    type = response.content_type;
  }
  bool write(std::string_view bytes) override {
    const std::lock_guard lock(mutex_);
    if (gone) return false;
    text_ += bytes;
    changed_.notify_all();
    return true;
  }
  void end_stream() override {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  void on_disconnect(std::function<void()>) override {}

  // Data of the n-th event of that name (from 0), waited for.
  Json wait_event(std::string_view name, size_t n) {
    std::unique_lock lock(mutex_);
    const std::string mark = "event: " + std::string(name) + "\ndata: ";
    size_t at = 0;
    changed_.wait(lock, [&] {
      at = text_.find(mark);
      for (size_t i = 0; i < n && at != std::string::npos; ++i) at = text_.find(mark, at + 1);
      return at != std::string::npos;
    });
    at += mark.size();
    return parse_json(std::string_view(text_).substr(at, text_.find("\n\n", at) - at)).value();
  }
  bool ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

  std::string type;
  std::atomic<bool> gone{false};

 private:
  HttpRequest request_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::string text_;
  bool ended_ = false;
};

double at(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value == nullptr ? std::nan("") : value->to_double().value_or(std::nan(""));
}

TEST(UiFeed, KeepsAHistoryAndSendsAFrameASecond) {
  ManualClock clock;
  ServerMetrics metrics("m");
  UiFeed feed(clock, {.metrics = [&] { return metrics.text(); },
                      .write_state = [](JsonWriter& w) { w.key("phase").value("ready"); },
                      .unix_ms = [&] { return clock.now_ns() / kNsPerMs; }});
  const auto early = std::make_shared<Recorder>();
  ASSERT_TRUE(feed.subscribe(early));
  EXPECT_TRUE(early->type.starts_with("text/event-stream"));
  EXPECT_EQ(early->wait_event("history", 0).find("t")->size(), 0U);
  feed.start();
  const Json first = early->wait_event("frame", 0);
  EXPECT_EQ(first.find("state")->find("phase")->as_string(), "ready");
  EXPECT_EQ(at(*first.find("charted"), "vllm:generation_tokens_total{engine=\"0\"}"), 0);
  EXPECT_TRUE(first.find("latency")->find("ttft")->find("60")->find("p50")->is_null());
  clock.wait_for_sleepers(1);

  // Between two frames: 5 tokens, two answers of two routes and two first tokens, one fast, one slow.
  metrics.generation_tokens.add(5);
  metrics.request_done("/a", 200, 0.1);
  metrics.request_done("/b", 200, 0.1);
  metrics.request_done("/b", 404, 0.1);
  metrics.time_to_first_token.observe(0.015);
  metrics.time_to_first_token.observe(0.9);
  clock.advance(kNsPerSecond);
  const Json second = early->wait_event("frame", 1);
  EXPECT_EQ(at(second, "t") - at(first, "t"), 1000);
  EXPECT_EQ(at(*second.find("charted"), "vllm:generation_tokens_total{engine=\"0\"}"), 5);
  EXPECT_EQ(at(*second.find("charted"), "deepinfer:http_requests_total{code=\"200\"}"), 2);
  EXPECT_EQ(at(*second.find("series"), "deepinfer:http_requests_total{route=\"/b\",code=\"404\"}"), 1);
  const Json& minute = *second.find("latency")->find("ttft")->find("60");
  EXPECT_EQ(at(minute, "count"), 2);
  EXPECT_EQ(at(minute, "p50"), 0.02);           // the whole bucket from 0.01 to 0.02
  EXPECT_NEAR(at(minute, "p99"), 0.995, 1e-9);  // in the bucket from 0.75 to 1
  clock.wait_for_sleepers(1);

  const auto late = std::make_shared<Recorder>();
  ASSERT_TRUE(feed.subscribe(late));
  const Json history = late->wait_event("history", 0);
  ASSERT_EQ(history.find("t")->size(), 2U);
  const Json::Array& names = history.find("names")->as_array();
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string row = to_json(history.find("values")->as_array()[i]);
    if (names[i].as_string() == "vllm:generation_tokens_total{engine=\"0\"}") {
      EXPECT_EQ(row, "[0.0,5.0]");
    }
    if (names[i].as_string() == "deepinfer:http_requests_total{code=\"404\"}") {
      EXPECT_EQ(row, "[null,1.0]");
    }
  }
  EXPECT_EQ(at(late->wait_event("frame", 0), "t"), at(second, "t"));

  // Old observations leave the window of a minute and stay in that of five.
  early->gone = true;
  for (size_t i = 1; i <= 70; ++i) {
    clock.wait_for_sleepers(1);
    clock.advance(kNsPerSecond);
    late->wait_event("frame", i);
  }
  EXPECT_EQ(at(*late->wait_event("frame", 70).find("latency")->find("ttft")->find("60"), "count"), 0);
  EXPECT_EQ(at(*late->wait_event("frame", 70).find("latency")->find("ttft")->find("300"), "count"), 2);
  EXPECT_TRUE(early->ended());
  feed.close_streams();
  EXPECT_TRUE(late->ended());
  EXPECT_FALSE(feed.subscribe(std::make_shared<Recorder>()));
}

TEST(UiFeed, KeepsFifteenMinutesAndAFixedNumberOfReaders) {
  ManualClock clock;
  std::atomic<int> ticks{0};
  UiFeed feed(clock, {.metrics =
                          [&] {
                            ++ticks;
                            ticks.notify_all();
                            return std::string("vllm:num_requests_running 1\n");
                          },
                      .write_state = [](JsonWriter&) {},
                      .unix_ms = [&] { return clock.now_ns() / kNsPerMs; }});
  feed.start();
  for (int i = 0; i < 1000; ++i) {
    ticks.wait(i);
    clock.wait_for_sleepers(1);
    clock.advance(kNsPerSecond);
  }
  ticks.wait(1000);
  clock.wait_for_sleepers(1);
  const auto reader = std::make_shared<Recorder>();
  ASSERT_TRUE(feed.subscribe(reader));
  EXPECT_EQ(reader->wait_event("history", 0).find("t")->size(), static_cast<size_t>(UiFeed::kKeptSeconds + 1));
  for (size_t i = 1; i < UiFeed::kMaxSubscribers; ++i) EXPECT_TRUE(feed.subscribe(std::make_shared<Recorder>()));
  EXPECT_FALSE(feed.subscribe(std::make_shared<Recorder>()));
}

TEST_F(Ui, ThePageComesFromTheProgramAndNamesNothingElsewhere) {
  TestServer server;
  const Answer page = server.ask(get("/"));
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_TRUE(page.headers.at("content-security-policy").starts_with("default-src 'self';"));
  size_t bytes = 0;
  for (const WebAsset& asset : web_assets()) {
    bytes += asset.bytes.size();
    const Answer answer = server.ask(get("/ui/" + std::string(asset.name)));
    EXPECT_EQ(answer.status, 200) << asset.name;
    EXPECT_EQ(answer.body, asset.bytes) << asset.name;
    EXPECT_EQ(answer.headers.at("content-type"), asset.content_type);
    const std::string text = std::regex_replace(
        answer.body, std::regex(R"(http://www\.w3\.org/2000/svg|https\?:|http://, |https?://\.\.\.)"), "");
    EXPECT_FALSE(std::regex_search(text, std::regex(R"(https?://[a-z0-9]|@import|\burl\(|\beval\(|innerHTML)")))
        << asset.name;
  }
  EXPECT_LE(bytes, 300'000U);
  EXPECT_EQ(server.ask(get("/ui/nothing.js")).status, 404);
  EXPECT_EQ(server.ask(get("/ui")).headers.at("location"), "./");
  EXPECT_EQ(server.ask(get("/ui/")).headers.at("location"), "../");
  const Answer again =
      server.ask("GET / HTTP/1.1\r\nHost: x\r\nIf-None-Match: " + page.headers.at("etag") + "\r\n\r\n");
  EXPECT_EQ(again.status, 304);
  EXPECT_EQ(again.body, "");
}

TEST_F(Ui, AnOpenDashboardDoesNotHoldUpTheEnd) {
  TestServer server;
  server.use_manual();
  server.app().feed().start();
  Client client(server.port());
  client.send(get("/ui/feed"));
  EXPECT_EQ(read_head(client).status, 200);
  EXPECT_NE(client.read_until("event: frame").find("event: history"), std::string::npos);
  EXPECT_EQ(server.http().open_exchanges(), 1);
  server.app().refuse_new();
  EXPECT_TRUE(server.http().wait_until_idle(60'000));
  EXPECT_EQ(server.ask(get("/ui/feed")).status, 503);
}

TEST_F(Ui, ARequestLeavesATimeline) {
  TestServer server;
  ManualEngine& engine = server.use_manual();
  Client client(server.port());
  client.send(post(chat_body("hi"), "X-Request-Id: mine\r\n"));
  engine.give(0, {5});
  const Answer running = server.ask(get("/admin/requests/mine"));
  EXPECT_EQ(running.status, 200);
  engine.give(0, {6, 7}, engine::FinishReason::kStop);
  EXPECT_EQ(read_answer(client).status, 200);
  const Json line = server.ask(get("/admin/requests/mine?format=json")).json();
  EXPECT_EQ(line.find("phase")->as_string(), "done");
  EXPECT_EQ(at(line, "output_tokens"), 3);
  EXPECT_EQ(at(line, "total_steps"), 2);
  EXPECT_GT(at(line, "prompt_tokens"), 0);
  EXPECT_EQ(server.ask(get("/admin/requests/mine?format=chrome")).json().find("displayTimeUnit")->as_string(), "ms");
  EXPECT_EQ(server.ask(get("/admin/requests/mine?format=pdf")).status, 400);
  EXPECT_EQ(server.ask(get("/admin/requests/other")).status, 404);
  EXPECT_EQ(server.ask(get("/admin/requests?limit=1")).json().find("requests")->size(), 1U);
  for (const char* limit : {"0", "1001", "x", "1x", ""})
    EXPECT_EQ(server.ask(get("/admin/requests?limit=" + std::string(limit))).status, 400) << limit;

  // Refused requests have one too.
  EXPECT_EQ(server.ask(post("{}", "X-Request-Id: bad\r\n")).status, 400);
  const Json refused = server.ask(get("/admin/requests/bad")).json();
  EXPECT_EQ(at(refused, "code"), 400);
  EXPECT_EQ(refused.find("finish")->as_string(), "error");
}

}  // namespace
}  // namespace di::server
