#include <sys/resource.h>

#include <thread>

#include "server/routes.h"
#include "support.h"

namespace di::server {
namespace {

using engine::FinishReason;
class Http : public ServerTest {};

TEST(Paths, OnlyThoseThatNormalisingLeavesAloneAreServed) {
  for (const char* path : {"/", "/v1/models", "/v1/models/a.b-c"}) EXPECT_TRUE(is_normal_path(path)) << path;
  for (const char* path : {"", "v1", "//v1", "/v1//models", "/v1/./x", "/v1/../x", "/v1/..", "/v1/.", "/%76", "/v1%00"})
    EXPECT_FALSE(is_normal_path(path)) << path;
}

TEST(Routes, TellWrongMethodsFromUnknownPaths) {
  const auto decide = [](const char* method, const char* path) {
    HttpRequest request;
    request.method = method;
    request.path = path;
    return find_route(request);
  };
  EXPECT_NE(decide("GET", "/v1/models/x").route, nullptr);
  EXPECT_NE(decide("HEAD", "/livez").route, nullptr);
  EXPECT_EQ(decide("GET", "/v1/models/x/y").failure->kind, ErrorKind::kNotFound);
  EXPECT_EQ(decide("GET", "/v1/models/").failure->kind, ErrorKind::kNotFound);
  const RouteDecision wrong = decide("GET", "/v1/chat/completions");
  EXPECT_EQ(wrong.failure->kind, ErrorKind::kMethodNotAllowed);
  EXPECT_EQ(wrong.allow, "POST");
  EXPECT_EQ(decide("BREW", "/livez").allow, "GET, HEAD");
}

TEST(Errors, HaveTheEnvelopeOfTheirFamily) {
  const ApiFailure failure{ErrorKind::kOverloaded, "busy", {}, {}, 3};
  EXPECT_EQ(error_body(failure, ErrorFamily::kOpenAi, "r"),
            R"({"error":{"message":"busy","type":"server_error","param":null,"code":"overloaded"}})");
  EXPECT_EQ(error_body(failure, ErrorFamily::kAnthropic, "r"),
            R"({"type":"error","error":{"type":"overloaded_error","message":"busy"},"request_id":"r"})");
  EXPECT_EQ(http_status(ErrorKind::kOverloaded, ErrorFamily::kAnthropic), 529);
  EXPECT_EQ(error_family("/v1/messages"), ErrorFamily::kAnthropic);
  EXPECT_EQ(error_family("/v1/messagesx"), ErrorFamily::kOpenAi);
  const std::string body = error_body({ErrorKind::kInvalidRequest, std::string(999, 'a') + "é and more", {}, {}, 0},
                                      ErrorFamily::kOpenAi, "");
  EXPECT_EQ(parse_json(body).value().find("error")->find("message")->as_string(), std::string(999, 'a'));
}

TEST_F(Http, MalformedRequestsAreRefusedAndTheNextOneWorks) {
  TestServer server;
  server.use_manual();
  const char* const bad[] = {
      "hello\r\n\r\n",
      "GET /livez\r\n\r\n",
      "GET /livez HTTP/9.9\r\n\r\n",
      "GET /livez HTTP/1.1\r\nno colon\r\n\r\n",
      "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
      "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
      "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n"};
  for (const char* bytes : bad) {
    Client client(server.port());
    client.send(bytes);
    const Answer answer = read_answer(client);
    EXPECT_EQ(answer.status, 400) << bytes;
    EXPECT_FALSE(answer.error().is_null()) << bytes;
    EXPECT_TRUE(client.at_end()) << bytes;
  }
  EXPECT_EQ(server.ask(get("/livez")).status, 200);
  EXPECT_EQ(server.http().counters().malformed.load(), std::size(bad));
}

TEST_F(Http, SizesHaveLimits) {
  ServerConfig config;
  config.http.body_bytes = 100'000;
  config.http.header_bytes = 4096;
  TestServer server(config);
  server.use_manual();
  EXPECT_EQ(server.ask(post(std::string(100'000, ' '))).status, 400) << "read, and no JSON";
  for (const std::string& request :
       {post(std::string(100'001, ' ')), std::string("POST /x HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n"),
        "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1ffff\r\n" + std::string(0x1ffff, 'x') +
            "\r\n0\r\n\r\n"}) {
    const Answer answer = server.ask(request);
    EXPECT_EQ(answer.status, 413);
    EXPECT_EQ(answer.error_code(), "request_too_large");
  }
  EXPECT_EQ(server.ask("GET /livez HTTP/1.1\r\nX: " + std::string(5000, 'x') + "\r\n\r\n").status, 431);
  std::string many = "GET /livez HTTP/1.1\r\n";
  for (int i = 0; i < 101; ++i) many += fmt::format("A{}: b\r\n", i);
  EXPECT_EQ(server.ask(many + "\r\n").status, 431);
}

TEST_F(Http, AFullSizedBodyIsRead) {
  TestServer server;
  ManualEngine& engine = server.use_manual();
  std::string body = chat_body("Hi");
  body.insert(body.size() - 1, std::string((48 << 20) - body.size(), ' '));
  Client client(server.port());
  client.send(post(body));
  engine.give(0, tokens_of("x"), FinishReason::kStop);
  EXPECT_EQ(read_answer(client).status, 200);
}

TEST_F(Http, ARequestThatDoesNotArriveInTimeIsEnded) {
  ServerConfig config;
  config.http.header_timeout_ms = 50;
  config.http.body_timeout_ms = 50;
  config.http.idle_timeout_ms = 50;
  TestServer server(config);
  server.use_manual();
  Client silent(server.port());
  EXPECT_TRUE(silent.at_end());
  Client half(server.port());
  half.send("GET /livez HTTP/1.1\r\nHo");
  EXPECT_EQ(read_answer(half).status, 408);
  Client body(server.port());
  body.send(post("{}").substr(0, post("{}").size() - 1));
  EXPECT_EQ(read_answer(body).status, 408);
  Client idle(server.port());
  idle.send(get("/livez"));
  EXPECT_EQ(read_answer(idle).status, 200);
  EXPECT_TRUE(idle.at_end());
}

TEST_F(Http, PipelinedRequestsAreAnsweredInOrder) {
  TestServer server;
  ManualEngine& engine = server.use_manual();
  Client client(server.port());
  client.send(post(chat_body("Hi")) + get("/livez") + post("broken") + post(chat_body("Hi", R"(,"stream":true)")) +
              get("/nowhere"));
  engine.give(0, tokens_of("x"), FinishReason::kStop);
  EXPECT_EQ(read_answer(client).status, 200);
  EXPECT_EQ(read_answer(client).body, R"({"status":"ok"})");
  EXPECT_EQ(read_answer(client).status, 400);
  engine.give(1, tokens_of("x"), FinishReason::kStop);
  EXPECT_EQ(events_of(read_answer(client).body).back(), "[DONE]");
  EXPECT_EQ(read_answer(client).status, 404);
}

TEST_F(Http, Http10StreamsToTheEndOfTheConnection) {
  TestServer server;
  ManualEngine& engine = server.use_manual();
  std::string request = post(chat_body("Hi", R"(,"stream":true)"));
  request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0");
  Client client(server.port());
  client.send(request);
  engine.give(0, tokens_of("x"), FinishReason::kStop);
  const Answer head = read_head(client);
  EXPECT_FALSE(head.headers.contains("transfer-encoding"));
  EXPECT_EQ(events_of(client.read_to_end()).back(), "[DONE]");
}

TEST_F(Http, ClientsThatGoCancelTheirRequests) {
  TestServer server;
  ManualEngine& engine = server.use_manual();
  size_t n = 0;
  for (const char* more : {"", R"(,"stream":true)"}) {
    for (const bool reset : {false, true}) {
      for (const bool begun : {false, true}) {
        Client client(server.port());
        client.send(post(chat_body("Hi", more)));
        engine.wait_request(n);
        if (begun) engine.give(n, tokens_of("x"));
        reset ? client.reset() : client.close();
        engine.wait_cancelled(n);
        engine.give(n, {}, FinishReason::kAborted);
        ++n;
      }
    }
  }
  EXPECT_TRUE(server.http().wait_until_idle(60'000));
  const std::string metrics = server.ask(get("/metrics")).body;
  EXPECT_NE(metrics.find("deepinfer:requests_aborted_total{phase=\"queue\",reason=\"disconnect\"} 8"),
            std::string::npos);
}

TEST_F(Http, AHalfCloseIsNoDisconnect) {
  TestServer server;
  ManualEngine& engine = server.use_manual();
  size_t n = 0;
  for (const char* more : {"", R"(,"stream":true)"}) {
    Client client(server.port());
    client.send(post(chat_body("Hi", more)));
    engine.wait_request(n);
    client.half_close();
    // The server has seen the half-close once its probe is here.
    if (n == 0) {
      EXPECT_EQ(read_head(client).status, 100);
    } else {
      read_head(client);
      client.read_until(": keep-alive\n\n");
    }
    engine.give(n, tokens_of("x"), FinishReason::kStop);
    EXPECT_NE((n == 0 ? read_answer(client).body : client.read_to_end()).find("\"stop\""), std::string::npos);
    EXPECT_FALSE(engine.cancelled(n));
    ++n;
  }
}

TEST_F(Http, ASlowReaderLosesItsRequestAndHoldsUpNobody) {
  ServerConfig config;
  config.http.send_buffer_bytes = 256 << 10;
  TestServer server(config);
  ManualEngine& engine = server.use_manual();
  Client slow(server.port(), 4096);
  slow.send(post(chat_body("Hi", R"(,"stream":true)")));
  engine.wait_request(0);
  std::vector<int32_t> words;
  for (int i = 0; i < 5000; ++i) words.push_back(tokens_of(" word")[0]);
  for (int i = 0; i < 400 && !engine.cancelled(0); ++i) {
    engine.give(0, words);
    EXPECT_EQ(server.ask(get("/livez")).status, 200);
  }
  engine.wait_cancelled(0);
  engine.give(0, {}, FinishReason::kAborted);
  EXPECT_TRUE(server.http().wait_until_idle(60'000));
}

TEST_F(Http, AClientThatReadsNothingIsCutAfterItsTime) {
  ServerConfig config;
  config.http.slow_client_timeout_ms = 50;
  config.http.send_buffer_bytes = 64 << 20;
  TestServer server(config);
  ManualEngine& engine = server.use_manual();
  Client slow(server.port(), 4096);
  slow.send(post(chat_body("Hi", R"(,"stream":true)")));
  const std::vector<int32_t> words(100'000, tokens_of(" word")[0]);
  for (int i = 0; i < 32; ++i) engine.give(0, words);  // 16 MB: beyond what the sockets hold
  engine.wait_cancelled(0);
}

TEST_F(Http, SilentStreamsAreKeptAlive) {
  ServerConfig config;
  config.http.keep_alive_ms = 5;
  TestServer server(config);
  ManualEngine& engine = server.use_manual();
  Client client(server.port());
  client.send(post(chat_body("Hi", R"(,"stream":true)")));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client.read_until(": keep-alive\n\n").ends_with(": keep-alive\n\n"));
  engine.give(0, tokens_of("x"), FinishReason::kStop);
  EXPECT_TRUE(client.read_until("[DONE]").ends_with("[DONE]"));
}

TEST_F(Http, AThousandStreamsAllEndWell) {
  constexpr size_t kStreams = 1000;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_max < 2 * kStreams + 200) GTEST_SKIP() << "only " << files.rlim_max << " file descriptors are allowed";
  files.rlim_cur = std::max<rlim_t>(files.rlim_cur, 2 * kStreams + 200);
  setrlimit(RLIMIT_NOFILE, &files);
  TestServer server;
  const std::string text = "Owls hunt at night and sleep by day.";
  engine::ScriptedOptions script;
  script.scripts = {{{}, tokens_of(text)}};
  script.n_slots = 65;
  server.use_scripted(script, {.max_num_seqs = 64, .max_num_batched_tokens = 2048});
  std::vector<std::unique_ptr<Client>> clients;
  const std::string request = post(chat_body("Hi", R"(,"stream":true)"));
  for (size_t i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send(request);
  }
  for (size_t i = 0; i < kStreams; ++i) {
    const std::vector<std::string> events = events_of(read_answer(*clients[i]).body);
    ASSERT_FALSE(events.empty()) << i;
    ASSERT_EQ(events.back(), "[DONE]") << i;
    ASSERT_EQ(content_of(events), text) << i;
  }
  EXPECT_EQ(server.http().counters().connections.load(), static_cast<int64_t>(kStreams));
  clients.clear();
  EXPECT_EQ(server.ask(get("/livez")).status, 200);
}

TEST_F(Http, AStormOfCutConnectionsLeavesNothingBehind) {
  TestServer server;
  engine::ScriptedOptions script;
  script.scripts = {{{}, tokens_of("Owls hunt at night.")}};
  engine::Engine& engine = server.use_scripted(script);
  const std::string request = post(chat_body("Hi", R"(,"stream":true)"));
  for (size_t i = 0; i < 300; ++i) {
    Client client(server.port());
    client.send(std::string_view(request).substr(0, i % 3 == 0 ? i % request.size() : request.size()));
    i % 2 == 0 ? client.reset() : client.close();
  }
  EXPECT_EQ(server.ask(request).status, 200);
  EXPECT_TRUE(server.http().wait_until_idle(60'000));
  while (engine.stats().running + engine.stats().waiting > 0) std::this_thread::yield();
  EXPECT_EQ(engine.stats().used_blocks, 0);
  while (server.http().counters().connections.load() > 1) std::this_thread::yield();
}

TEST_F(Http, ShutsDownWithRequestsUnderWay) {
  Client* client = nullptr;
  {
    TestServer server;
    ManualEngine& engine = server.use_manual();
    client = new Client(server.port());
    client->send(post(chat_body("Hi", R"(,"stream":true)")));
    engine.give(0, tokens_of("x"));
    read_head(*client);
  }
  client->read_to_end();
  EXPECT_TRUE(client->at_end());
  delete client;
}

TEST(Listen, AnAddressInUseIsUnavailable) {
  const SystemClock clock;
  HttpServer first({}, [](const ExchangeRef&) {}, clock);
  ASSERT_TRUE(first.start("127.0.0.1", 0));
  HttpServer second({}, [](const ExchangeRef&) {}, clock);
  const Result<void> taken = second.start("127.0.0.1", first.port());
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Errc::kUnavailable);
  EXPECT_NE(taken.error().message.find(std::to_string(first.port())), std::string::npos);
}

}  // namespace
}  // namespace di::server
