#include <future>

#include "support.h"

namespace di::server {
namespace {

using engine::FinishReason;
class Chat : public ServerTest {};

engine::ScriptedOptions saying(const std::string& text) {
  engine::ScriptedOptions script;
  script.scripts = {{{}, tokens_of(text)}};
  return script;
}

std::string finish_reason(const Json& object) {
  return object.find("choices")->as_array()[0].find("finish_reason")->as_string();
}

TEST_F(Chat, AnswersInOnePieceAndAsAStreamWithTheSameText) {
  TestServer server;
  const std::string text = "Owls hunt at night: 猫頭鷹 🦉.";
  server.use_scripted(saying(text));
  const Answer whole = server.ask(post(chat_body("What is an owl?")));
  ASSERT_EQ(whole.status, 200) << whole.body;
  const Json object = whole.json();
  EXPECT_EQ(object.find("choices")->as_array()[0].find("message")->find("content")->as_string(), text);
  EXPECT_EQ(finish_reason(object), "stop");
  EXPECT_EQ(object.find("usage")->find("completion_tokens")->to_i64(), static_cast<int64_t>(tokens_of(text).size()));
  EXPECT_EQ(object.find("system_fingerprint")->as_string(), "fp_test");
  EXPECT_TRUE(whole.headers.contains("server-timing"));

  const Answer stream = server.ask(post(chat_body("What is an owl?", R"(,"stream":true)")));
  ASSERT_EQ(stream.status, 200);
  EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream; charset=utf-8");
  const std::vector<std::string> events = events_of(stream.body);
  EXPECT_EQ(content_of(events), text);
  EXPECT_EQ(events.back(), "[DONE]");
  const Json last = parse_json(events[events.size() - 2]).value();
  EXPECT_EQ(finish_reason(last), "stop");
  EXPECT_EQ(*last.find("usage"), *object.find("usage"));
}

TEST_F(Chat, IncludeUsageAddsAChunkWithoutChoices) {
  TestServer server;
  server.use_scripted(saying("Hello."));
  const std::vector<std::string> events =
      events_of(server.ask(post(chat_body("Hi", R"(,"stream":true,"stream_options":{"include_usage":true})"))).body);
  const Json usage = parse_json(events[events.size() - 2]).value();
  EXPECT_EQ(usage.find("choices")->size(), 0U);
  EXPECT_EQ(*usage.find("usage"), *parse_json(events[events.size() - 3]).value().find("usage"));
}

TEST_F(Chat, AStopStringEndsTheSequenceInTheEngine) {
  TestServer server;
  ManualEngine& engine = server.use_manual();
  Client client(server.port());
  client.send(post(chat_body("Count.", R"(,"stop":["four"])")));
  engine.give(0, tokens_of("one two three four"));
  const Answer answer = read_answer(client);
  EXPECT_EQ(answer.json().find("choices")->as_array()[0].find("message")->find("content")->as_string(),
            "one two three ");
  EXPECT_EQ(finish_reason(answer.json()), "stop");
  engine.wait_cancelled_choice(0);
  engine.give(0, {}, FinishReason::kAborted);  // what the engine says then is no news
  EXPECT_EQ(server.ask(get("/livez")).status, 200);
}

TEST_F(Chat, ChoicesAreJoinedAndUsageIsTheirSum) {
  TestServer server;
  ManualEngine& engine = server.use_manual();
  const auto give = [&](size_t n) {
    engine.give(n, tokens_of("one"), FinishReason::kNone, {}, 0);
    engine.give(n, tokens_of("two"), FinishReason::kStop, {}, 1);
    engine.give(n, tokens_of(" more"), FinishReason::kLength, {}, 0);
  };
  const auto completion =
      static_cast<int64_t>(tokens_of("one").size() + tokens_of("two").size() + tokens_of(" more").size());
  Client client(server.port());
  client.send(post(chat_body("Hi", R"(,"n":2)")));
  EXPECT_EQ(engine.wait_request(0).request.n, 2);
  give(0);
  const Json whole = read_answer(client).json();
  const Json::Array& choices = whole.find("choices")->as_array();
  ASSERT_EQ(choices.size(), 2U);
  EXPECT_EQ(choices[0].find("message")->find("content")->as_string(), "one more");
  EXPECT_EQ(choices[0].find("finish_reason")->as_string(), "length");
  EXPECT_EQ(choices[1].find("index")->to_i64(), 1);
  EXPECT_EQ(choices[1].find("message")->find("content")->as_string(), "two");
  EXPECT_EQ(whole.find("usage")->find("completion_tokens")->to_i64(), completion);

  client.send(post(chat_body("Hi", R"(,"n":2,"stream":true)")));
  give(1);
  const std::vector<std::string> events = events_of(read_answer(client).body);
  EXPECT_EQ(content_of(events, 0), "one more");
  EXPECT_EQ(content_of(events, 1), "two");
  int with_usage = 0;
  for (const std::string& event : events) {
    const Json chunk = parse_json(event).value_or(Json());
    const Json* usage = chunk.find_value("usage");
    if (usage == nullptr) continue;
    ++with_usage;
    EXPECT_EQ(usage->find("completion_tokens")->to_i64(), completion);
    EXPECT_EQ(&event, &events[events.size() - 2]);
  }
  EXPECT_EQ(with_usage, 1);
}

TEST_F(Chat, ASequenceThatLostItsMemoryHasItsOwnFinishReason) {
  TestServer server;
  ManualEngine& engine = server.use_manual();
  Client client(server.port());
  client.send(post(chat_body("Hi")));
  engine.give(0, tokens_of("Hel"), FinishReason::kPreempted);
  EXPECT_EQ(finish_reason(read_answer(client).json()), "insufficient_system_resource");
  client.send(post(chat_body("Hi", R"(,"stream":true)")));
  engine.give(1, tokens_of("Hel"), FinishReason::kPreempted);
  const std::vector<std::string> events = events_of(read_answer(client).body);
  EXPECT_EQ(finish_reason(parse_json(events[events.size() - 2]).value()), "insufficient_system_resource");
}

TEST_F(Chat, EngineErrorsBecomeStatusesBeforeAndEventsAfterTheStreamBegan) {
  TestServer server;
  ManualEngine& engine = server.use_manual();
  struct Case {
    Errc code;
    int status;
    const char* wire_code;
  };
  size_t n = 0;
  for (const Case& c :
       {Case{Errc::kInternal, 500, "internal_error"}, Case{Errc::kDeadlineExceeded, 504, "request_timeout"},
        Case{Errc::kResourceExhausted, 503, "queue_timeout"}, Case{Errc::kUnavailable, 503, "draining"}}) {
    Client client(server.port());
    client.send(post(chat_body("Hi")));
    engine.give(n++, {}, FinishReason::kError, Error{c.code, "secret detail"});
    const Answer whole = read_answer(client);
    EXPECT_EQ(whole.status, c.status);
    EXPECT_EQ(whole.error_code(), c.wire_code);
    EXPECT_EQ(whole.body.find("secret") == std::string::npos, c.code == Errc::kInternal);
    EXPECT_EQ(whole.headers.contains("retry-after"), c.status == 503);

    client.send(post(chat_body("Hi", R"(,"stream":true)")));
    engine.give(n, tokens_of("Hel"));
    engine.give(n++, {}, FinishReason::kError, Error{c.code, "secret detail"});
    const Answer stream = read_answer(client);
    EXPECT_EQ(stream.status, 200);
    const std::vector<std::string> events = events_of(stream.body);
    ASSERT_GE(events.size(), 2U);
    EXPECT_EQ(events.back(), "[DONE]");
    EXPECT_EQ(parse_json(events[events.size() - 2]).value().find("error")->find("code")->as_string(), c.wire_code);
    for (const std::string& event : events)
      EXPECT_EQ(event.find("\"finish_reason\":\""), std::string::npos) << "no clean end";
  }
}

TEST_F(Chat, AFullQueueIs503WithRetryAfter) {
  TestServer server;
  ManualEngine& engine = server.use_manual();
  engine.rejection =
      engine::Rejection{engine::RejectReason::kQueueFull, Error{Errc::kResourceExhausted, "the queue is full"}, 7};
  const Answer answer = server.ask(post(chat_body("Hi", R"(,"stream":true)")));
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.headers.at("retry-after"), "7");
  EXPECT_EQ(answer.headers.at("x-should-retry"), "true");
  EXPECT_EQ(answer.error_code(), "overloaded");
  EXPECT_NE(server.ask(get("/metrics")).body.find("reason=\"queue_full\"} 1"), std::string::npos);
}

TEST_F(Chat, SamplingFieldsReachTheEngine) {
  TestServer server;
  ManualEngine& engine = server.use_manual();
  Client client(server.port());
  client.send(post(chat_body(
      "Hi", R"(,"temperature":0.5,"seed":77,"max_tokens":9,"min_tokens":2,"ignore_eos":true,"stop_token_ids":[5,6.0],
      "repetition_penalty":1.25,"bad_words":["cat"],"allowed_token_ids":[1,2,3],"logprobs":true,"top_logprobs":2)")));
  const engine::GenerateRequest& r = engine.wait_request(0).request;
  EXPECT_EQ(r.sampling.temperature, 0.5);
  EXPECT_EQ(r.sampling.seed, 77U);
  EXPECT_EQ(r.max_tokens, 9);
  EXPECT_EQ(r.min_tokens, 2);
  EXPECT_TRUE(r.ignore_eos);
  EXPECT_EQ(r.stop_token_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(r.sampling.repetition_penalty, 1.25);
  EXPECT_EQ(r.sampling.bad_words, (std::vector<std::vector<int32_t>>{tokens_of("cat"), tokens_of(" cat")}));
  EXPECT_EQ(r.sampling.allowed_token_ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_TRUE(r.sampling.logprobs);
  EXPECT_EQ(r.sampling.top_logprobs, 2);
  engine.give(0, tokens_of("x"), FinishReason::kStop);
  const Json answer = read_answer(client).json();
  const Json* logprobs = answer.find("choices")->as_array()[0].find("logprobs")->find("content");
  ASSERT_NE(logprobs, nullptr);
  EXPECT_EQ(logprobs->as_array()[0].find("logprob")->to_double(), -0.5);
}

TEST_F(Chat, WrongFieldsAreNamed) {
  TestServer server;
  server.use_scripted(saying("x"));
  const std::pair<const char*, const char*> cases[] = {{R"(,"stop_token_ids":"x")", "stop_token_ids"},
                                                       {R"(,"stop_token_ids":[1.5])", "stop_token_ids[0]"},
                                                       {R"(,"ignore_eos":1)", "ignore_eos"},
                                                       {R"(,"min_tokens":-1)", "min_tokens"},
                                                       {R"(,"repetition_penalty":0)", "repetition_penalty"},
                                                       {R"(,"bad_words":[""])", "bad_words[0]"},
                                                       {R"(,"prompt_logprobs":-2)", "prompt_logprobs"},
                                                       {R"(,"guided_regex":1)", "guided_regex"},
                                                       {R"(,"n":17)", "n"},
                                                       {R"(,"allowed_token_ids":[-1])", "allowed_token_ids[0]"}};
  for (const auto& [member, field] : cases) {
    const Answer answer = server.ask(post(chat_body("Hi", member)));
    EXPECT_EQ(answer.status, 400) << member;
    EXPECT_EQ(answer.error().find("param")->as_string(), field) << answer.body;
  }
  EXPECT_EQ(server.ask(post(chat_body("Hi", R"(,"prompt_logprobs":null,"echo":false,"guided_json":null)"))).status,
            200);
}

TEST_F(Chat, LineSeparatorsAreEscapedInEvents) {
  TestServer server;
  ManualEngine& engine = server.use_manual();
  Client client(server.port());
  client.send(post(chat_body("Hi", R"(,"stream":true)")));
  const std::string text = "a\u2028b\u2029c\u2027d";
  engine.give(0, tokens_of(text), FinishReason::kStop);
  const std::string body = read_answer(client).body;
  EXPECT_EQ(body.find("\u2028"), std::string::npos);
  EXPECT_EQ(body.find("\u2029"), std::string::npos);
  EXPECT_EQ(content_of(events_of(body)), text);
}

TEST_F(Chat, MetricsCountWhatWasServed) {
  TestServer server;
  server.use_scripted(saying("one two three"));
  const Json usage = *server.ask(post(chat_body("Hi"))).json().find("usage");
  const std::string text = server.ask(get("/metrics")).body;
  const auto value = [&](const std::string& series) {
    const size_t at = text.find("\n" + series);
    return at == std::string::npos ? -1.0 : std::stod(text.substr(text.find("} ", at) + 2));
  };
  EXPECT_EQ(value("vllm:prompt_tokens_total"), *usage.find("prompt_tokens")->to_double());
  EXPECT_EQ(value("vllm:generation_tokens_total"), *usage.find("completion_tokens")->to_double());
  EXPECT_EQ(value("vllm:request_success_total{model_name=\"test\",engine=\"0\",finished_reason=\"stop\"}"), 1);
  EXPECT_EQ(value("vllm:time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(value("vllm:num_requests_running"), 0);
  EXPECT_GE(value("vllm:iteration_tokens_total_count"), 1);
}

TEST_F(Chat, WhileLoadingItSaysSo) {
  TestServer server;
  server.app().set_progress(0.25, "weights");
  EXPECT_EQ(server.ask(get("/livez")).status, 200);
  const Answer ready = server.ask(get("/readyz"));
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(ready.json().find("status")->as_string(), "loading");
  EXPECT_EQ(ready.json().find("progress")->to_double(), 0.25);
  EXPECT_EQ(ready.json().find("reason")->as_string(), "weights");
  EXPECT_EQ(server.ask(get("/health")).status, 503);
  const Answer chat = server.ask(post(chat_body("Hi")));
  EXPECT_EQ(chat.status, 503);
  EXPECT_EQ(chat.error_code(), "not_ready");
  EXPECT_TRUE(chat.headers.contains("retry-after"));
  EXPECT_EQ(server.ask(get("/v1/models")).json().find("status")->as_string(), "loading");
  EXPECT_EQ(server.ask(get("/metrics")).status, 200);
  server.use_scripted(saying("x"));
  EXPECT_EQ(server.ask(get("/readyz")).status, 200);
  EXPECT_EQ(server.ask(post(chat_body("Hi"))).status, 200);
}

// Looks at the requests under way at the moment in which the client sees the head of its stream.
class HeadWatcher final : public Exchange {
 public:
  explicit HeadWatcher(App& app) : app_(app) {
    request_.method = "POST";
    request_.path = "/v1/chat/completions";
    request_.id = "watched";
    request_.body = chat_body("Hi", R"(,"stream":true)");
  }
  const HttpRequest& request() const override { return request_; }
  void replace_body(std::string body) override { request_.body = std::move(body); }
  void rename(std::string id) override { request_.id = std::move(id); }
  void reply(HttpResponse response) override { EXPECT_EQ(response.status, 200) << response.body; }
  void begin_stream(HttpResponse, std::string) override {
    for (const auto& job : app_.jobs()) known_ = known_ || job->record().id == request_.id;
  }
  bool write(std::string_view) override { return true; }
  void end_stream() override { ended_.set_value(known_); }
  void on_disconnect(std::function<void()>) override {}
  bool known_at_head() { return ended_.get_future().get(); }

 private:
  App& app_;
  HttpRequest request_;
  bool known_ = false;
  std::promise<bool> ended_;
};

TEST_F(Chat, AStreamCanBeCancelledFromItsHeadOn) {
  TestServer server;
  server.use_scripted(saying("x"));
  const auto exchange = std::make_shared<HeadWatcher>(server.app());
  server.app().handle(exchange);
  EXPECT_TRUE(exchange->known_at_head());
}

TEST_F(Chat, DrainLetsRunningOnesEndAndRefusesNewOnes) {
  TestServer server;
  ManualEngine& engine = server.use_manual();
  Client finishing(server.port());
  finishing.send(post(chat_body("Hi", R"(,"stream":true)")));
  Client hanging(server.port());
  engine.wait_request(0);
  hanging.send(post(chat_body("Hi", R"(,"stream":true)")));
  engine.wait_request(1);
  server.app().announce_drain();
  EXPECT_EQ(server.ask(get("/readyz")).json().find("status")->as_string(), "draining");
  EXPECT_EQ(server.ask(get("/livez")).status, 200);
  server.app().refuse_new();
  const Answer refused = server.ask(post(chat_body("Hi")));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.error_code(), "draining");
  engine.give(0, tokens_of("done"), FinishReason::kStop);
  EXPECT_EQ(events_of(read_answer(finishing).body).back(), "[DONE]");
  EXPECT_FALSE(server.http().wait_until_idle(0));
  server.app().abort_all();
  const std::vector<std::string> events = events_of(read_answer(hanging).body);
  EXPECT_EQ(parse_json(events[events.size() - 2]).value().find("error")->find("code")->as_string(), "draining");
  engine.wait_cancelled(1);
  EXPECT_TRUE(server.http().wait_until_idle(60'000));
}

}  // namespace
}  // namespace di::server
