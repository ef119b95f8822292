// A server on a real port with an engine under the test's control, and a client that reads and writes bytes.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include "base/json.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/scripted.h"
#include "server/app.h"
#include "server/constraint.h"
#include "support/folders.h"

namespace di::server {

// The bundled model's tokenizer, else that of the reference vectors; null when neither is there.
inline codec::TokenizerRef test_tokenizer() {
  static const codec::TokenizerRef tokenizer = [] {
    for (const std::string& folder :
         {std::string(di::test::kModels) + "/tiny", std::string(di::test::kVectors) + "/model/v41_trained"}) {
      if (std::filesystem::exists(folder + "/tokenizer.json")) return codec::Tokenizer::load(folder).value();
    }
    return codec::TokenizerRef();
  }();
  return tokenizer;
}

inline structured::VocabularyRef test_vocabulary() {
  static const structured::VocabularyRef vocabulary = make_vocabulary(*test_tokenizer());
  return vocabulary;
}

// One socket, blocking.
class Client {
 public:
  explicit Client(uint16_t port, int receive_buffer = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    timeval limit{60, 0};  // a test that hangs fails instead
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;  // NOLINT: the socket API
    EXPECT_TRUE(connected_) << "cannot connect";
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { close(); }

  int fd() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void reset() {
    const linger hard{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }
  void half_close() { ::shutdown(fd_, SHUT_WR); }

  // What the other side takes; less than all when it closes.
  size_t send(std::string_view bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
    return sent;
  }
  // False at the end of the connection.
  bool fill() {
    char block[65536];
    const ssize_t n = ::recv(fd_, block, sizeof block, 0);
    if (n <= 0) return false;
    buffer_.append(block, static_cast<size_t>(n));
    return true;
  }
  // Everything up to and with the mark; what there was when the connection ended before.
  std::string read_until(std::string_view mark) {
    size_t at;
    while ((at = buffer_.find(mark)) == std::string::npos) {
      if (!fill()) return std::exchange(buffer_, {});
    }
    std::string out = buffer_.substr(0, at + mark.size());
    buffer_.erase(0, at + mark.size());
    return out;
  }
  std::string read_exactly(size_t n) {
    while (buffer_.size() < n && fill()) {
    }
    std::string out = buffer_.substr(0, n);
    buffer_.erase(0, n);
    return out;
  }
  std::string read_to_end() {
    while (fill()) {
    }
    return std::exchange(buffer_, {});
  }
  bool at_end() { return buffer_.empty() && !fill(); }

 private:
  int fd_ = -1;
  bool connected_ = false;
  std::string buffer_;
};

struct Answer {
  int status = 0;
  std::map<std::string, std::string> headers;  // lower-case names
  std::string body;

  Json json() const { return parse_json(body).value_or(Json()); }
  // The error object, or null.
  Json error() const {
    const Json all = json();
    const Json* found = all.find("error");
    return found == nullptr ? Json() : *found;
  }
  std::string error_code() const {
    const Json e = error();
    const Json* code = e.find_value("code");
    return code == nullptr ? "" : code->as_string();
  }
};

inline Answer read_head(Client& client) {
  Answer answer;
  const std::string head = client.read_until("\r\n\r\n");
  if (head.size() < 12) return answer;
  answer.status = std::stoi(head.substr(9, 3));
  for (size_t at = head.find("\r\n") + 2; at + 2 < head.size();) {
    const size_t end = head.find("\r\n", at);
    const std::string line = head.substr(at, end - at);
    at = end + 2;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string name = line.substr(0, colon);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    answer.headers[name] = line.substr(line.find_first_not_of(' ', colon + 1));
  }
  return answer;
}

// One chunk; empty at the end of the body or of the connection.
inline std::string read_chunk(Client& client) {
  const std::string size_line = client.read_until("\r\n");
  const size_t size = size_line.empty() ? 0 : std::stoul(size_line, nullptr, 16);
  std::string data = client.read_exactly(size);
  client.read_exactly(2);
  return data;
}

inline Answer read_answer(Client& client) {
  Answer answer = read_head(client);
  while (answer.status == 100) answer = read_head(client);
  if (answer.headers.contains("transfer-encoding")) {
    for (std::string chunk = read_chunk(client); !chunk.empty(); chunk = read_chunk(client)) answer.body += chunk;
  } else if (answer.headers.contains("content-length")) {
    answer.body = client.read_exactly(std::stoul(answer.headers["content-length"]));
  }
  return answer;
}

// Data of the events of a stream, comments left out.
inline std::vector<std::string> events_of(const std::string& body) {
  std::vector<std::string> out;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos) break;
    const std::string event = body.substr(at, end - at);
    if (event.starts_with("data: ")) out.push_back(event.substr(6));
    at = end + 2;
  }
  return out;
}

// Concatenated content deltas of one choice.
inline std::string content_of(const std::vector<std::string>& events, int64_t choice = 0) {
  std::string out;
  for (const std::string& event : events) {
    const Json chunk = parse_json(event).value_or(Json());
    const Json* choices = chunk.find("choices");
    if (choices == nullptr || choices->size() == 0 || choices->as_array()[0].find("index")->to_i64() != choice)
      continue;
    const Json* content = choices->as_array()[0].find("delta")->find_value("content");
    if (content != nullptr) out += content->as_string();
  }
  return out;
}

inline std::string post(std::string_view body, std::string_view more = "",
                        std::string_view path = "/v1/chat/completions") {
  return fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}",
                     path, body.size(), more, body);
}
inline std::string get(std::string_view path) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", path);
}

// A chat body without thinking; `more` is further members with a leading comma.
inline std::string chat_body(std::string_view text, std::string_view more = "") {
  std::string out =
      R"({"model":"test","temperature":0,"thinking":{"type":"disabled"},"messages":[{"role":"user","content":)";
  append_json_string(out, text);
  return out + "}]" + std::string(more) + "}";
}

// An engine that does what the test says: requests are recorded, outputs are given by hand.
class ManualEngine final : public engine::EngineApi {
 public:
  explicit ManualEngine(int32_t vocab_size) {
    info_.vocab_size = vocab_size;
    info_.max_model_len = 1 << 20;
  }
  struct Entry {
    engine::GenerateRequest request;
    engine::OutputSink sink;
    bool cancelled = false;
    std::vector<int32_t> cancelled_choices;
  };

  const engine::EngineInfo& info() const override { return info_; }
  std::expected<engine::RequestId, engine::Rejection> submit(engine::GenerateRequest request,
                                                             engine::OutputSink sink) override {
    const std::lock_guard lock(mutex_);
    if (rejection) return std::unexpected(*rejection);
    entries_.push_back(std::make_unique<Entry>(Entry{std::move(request), std::move(sink), false, {}}));
    changed_.notify_all();
    return engine::RequestId{entries_.size()};
  }
  void cancel(engine::RequestId id) override {
    const std::lock_guard lock(mutex_);
    entries_[id.v - 1]->cancelled = true;
    changed_.notify_all();
  }
  void cancel(engine::RequestId id, int32_t choice) override {
    const std::lock_guard lock(mutex_);
    entries_[id.v - 1]->cancelled_choices.push_back(choice);
    changed_.notify_all();
  }
  engine::EngineStats stats() const override { return {}; }
  void flush_cache() override {}
  void look_up(const engine::GenerateRequest&, std::function<void(engine::CacheLookup)> done) override { done({}); }
  void watch_kv(std::function<void(engine::KvEvents)>) override {}

  // Waits for the n-th request (from 0).
  Entry& wait_request(size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return entries_.size() > n; });
    return *entries_[n];
  }
  bool cancelled(size_t n) {
    const std::lock_guard lock(mutex_);
    return entries_.at(n)->cancelled;
  }
  void wait_cancelled(size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return entries_.size() > n && entries_[n]->cancelled; });
  }
  void wait_cancelled_choice(size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return entries_.size() > n && !entries_[n]->cancelled_choices.empty(); });
  }
  void give(size_t n, const std::vector<int32_t>& tokens, engine::FinishReason finish = engine::FinishReason::kNone,
            Error error = {}, int32_t choice = 0) {
    Entry& entry = wait_request(n);
    engine::Output out;
    out.choice = choice;
    for (const int32_t token : tokens) out.tokens.push_back({token, -0.5F, {}});
    out.finish = finish;
    out.error = std::move(error);
    out.prompt_tokens = static_cast<int64_t>(entry.request.prompt.size());
    entry.sink(std::move(out));
  }

  std::optional<engine::Rejection> rejection;

 private:
  engine::EngineInfo info_;
  std::mutex mutex_;  // guards entries_
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Entry>> entries_;
};

// Taken down in the order that app.h asks for.
class TestServer {
 public:
  explicit TestServer(ServerConfig config = {})
      : app_(prepared(std::move(config)), clock_),
        http_(app_.config().http, [this](const ExchangeRef& e) { app_.handle(e); }, clock_) {
    EXPECT_TRUE(http_.start("127.0.0.1", 0));
  }
  ~TestServer() {
    http_.stop();
    app_.stop_workers();
    constraints_.reset();
    manual_.reset();
    engine_.reset();
  }

  // An engine of which the test is the model.
  ManualEngine& use_manual() {
    manual_ = std::make_unique<ManualEngine>(test_tokenizer()->vocab_size());
    ready(*manual_);
    return *manual_;
  }
  engine::Engine& use_scripted(engine::ScriptedOptions script, const engine::EngineOptions& options = {}) {
    script.vocab_size = test_tokenizer()->vocab_size();
    engine_ = engine::Engine::create(engine::make_scripted_runner(std::move(script), clock_), options, clock_).value();
    ready(*engine_);
    return *engine_;
  }

  structured::CompilePoolOptions pool_options;  // for engines used afterwards

  uint16_t port() const { return http_.port(); }
  App& app() { return app_; }
  HttpServer& http() { return http_; }
  Answer ask(std::string_view bytes) {
    Client client(port());
    client.send(bytes);
    return read_answer(client);
  }

 private:
  static ServerConfig prepared(ServerConfig config) {
    configure_log({log_levels(LogLevel::kError), false});
    config.served_model_names = {"test"};
    return config;
  }
  void ready(engine::EngineApi& engine) {
    Service service;
    service.engine = &engine;
    constraints_ = std::make_unique<structured::CompilePool>(test_vocabulary(), pool_options, clock_);
    service.constraints = constraints_.get();
    service.tokenizer = test_tokenizer();
    service.codec.policy = codec::ApiPolicy::kExtended;
    service.codec.special = codec::SpecialSpellings::for_tokenizer(*service.tokenizer);
    service.codec.models = {{"test", codec::ModelVersion::kV41}};
    service.system_fingerprint = "fp_test";
    service.vision = true;
    app_.set_ready(std::move(service));
  }

  SystemClock clock_;
  App app_;
  HttpServer http_;
  std::unique_ptr<ManualEngine> manual_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<structured::CompilePool> constraints_;
};

inline std::vector<int32_t> tokens_of(std::string_view text) {
  return test_tokenizer()->encode_plain(text);
}

// Tests that need a tokenizer.
class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_tokenizer() == nullptr) GTEST_SKIP() << "no tokenizer.json in models/tiny nor in the reference vectors";
  }
};

}  // namespace di::server
