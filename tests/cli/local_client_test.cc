#include "cli/local_client.h"

#include <gtest/gtest.h>

#include <semaphore>

#include "cli/local_model.h"
#include "engine/scripted.h"
#include "support/folders.h"

namespace di::cli {
namespace {

class LocalClient : public ::testing::Test {
 protected:
  void SetUp() override {
    tokenizer_ = codec::Tokenizer::load(std::string(di::test::kModels) + "/tiny").value();
    server::ServerConfig config;
    config.served_model_names = {"test"};
    app_ = std::make_unique<server::App>(config, clock_);
    engine::ScriptedOptions script;
    script.vocab_size = tokenizer_->vocab_size();
    script.scripts = {{{}, tokenizer_->encode_plain("one two three")}};
    engine_ = engine::Engine::create(engine::make_scripted_runner(script, clock_), {}, clock_).value();
    server::Service service;
    service.engine = engine_.get();
    service.tokenizer = tokenizer_;
    service.codec.policy = codec::ApiPolicy::kExtended;
    service.codec.special = codec::SpecialSpellings::for_tokenizer(*tokenizer_);
    service.codec.models = {{"test", codec::ModelVersion::kV41}};
    app_->set_ready(service);
  }
  void TearDown() override {
    if (app_) app_->stop_workers();
  }

  static Json body(const char* model, bool stream) {
    return parse_json(
               fmt::format(
                   R"({{"model":"{}","stream":{},"thinking":{{"type":"disabled"}},"messages":[{{"role":"user","content":"Hi"}}]}})",
                   model, stream))
        .value();
  }

  SystemClock clock_;
  codec::TokenizerRef tokenizer_;
  std::unique_ptr<server::App> app_;
  std::unique_ptr<engine::Engine> engine_;
};

TEST_F(LocalClient, StreamsTheDeltasOfAnAnswer) {
  std::string content;
  const ChatEnd end = stream_chat(*app_, body("test", true), [&](const ChatDelta& delta) {
    content += delta.content;
    return true;
  });
  EXPECT_EQ(end.error, "");
  EXPECT_EQ(content, "one two three");
  EXPECT_EQ(end.finish_reason, "stop");
  EXPECT_GT(end.usage.find("completion_tokens")->to_i64().value(), 0);
}

TEST_F(LocalClient, AnInterruptedStreamFreesItsSlot) {
  const ChatEnd end = stream_chat(*app_, body("test", true), [](const ChatDelta&) { return false; });
  EXPECT_EQ(end.finish_reason, "interrupted");
  const ChatEnd next = stream_chat(*app_, body("test", true), [](const ChatDelta&) { return true; });
  EXPECT_EQ(next.finish_reason, "stop");
}

TEST_F(LocalClient, ErrorsAreTheServersOwn) {
  EXPECT_NE(stream_chat(*app_, body("nobody", true), [](const ChatDelta&) { return true; }).error.find("nobody"),
            std::string::npos);
  std::binary_semaphore done{0};
  LocalAnswer answer;
  post_chat(*app_, to_json(body("nobody", false)), [&](LocalAnswer a) {
    answer = std::move(a);
    done.release();
  });
  done.acquire();
  EXPECT_EQ(answer.status, 404);
  EXPECT_NE(answer.body.find("model_not_found"), std::string::npos);
  EXPECT_EQ(answer.request_id.size(), 32U);
}

TEST(ServedNames, AreTheFoldersOwnAndTheOfficialOnes) {
  ModelOptions options;
  options.folder = "somewhere/tiny";
  EXPECT_EQ(served_names(options)[0], "deepinfer-tiny");
  options.folder = "somewhere/else/";
  EXPECT_EQ(served_names(options).back(), "deepseek-reasoner");
  options.served_model_names = {"mine"};
  EXPECT_EQ(served_names(options), std::vector<std::string>{"mine"});
}

}  // namespace
}  // namespace di::cli
