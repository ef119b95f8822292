// Stream vectors: request + model output -> protocol events and the full response (recipe.md §4-6).
#include <gtest/gtest.h>

#include <random>
#include <regex>

#include "codec/codec.h"
#include "codec/parser/output_parser.h"
#include "codec/vectors.h"

namespace di::codec {

namespace testing {
CodecOptions options_of(const Json& value);
Api api_of(const Json& c);
}  // namespace testing

namespace {

using testing::ids_of;
using testing::read_lines;
using testing::text_of;

// The masks of the vectors' README.
std::string mask(std::string text) {
  static const std::regex kCall("call_([0-9]{2,})_(ET_)?[A-Za-z0-9]{20}[0-9]{4}");
  static const std::regex kTime("\"(created|created_at|completed_at)\":[0-9]+");
  text = std::regex_replace(text, kCall, "call_$1_$2*");
  return std::regex_replace(text, kTime, "\"$1\":0");
}

std::string describe(const std::vector<StreamEvent>& events) {
  std::string out;
  for (const StreamEvent& event : events) out += std::string(event.name) + " " + mask(event.data) + "\n";
  return out;
}

std::string expected_events(const Json& list) {
  std::string out;
  for (const Json& event : list.as_array()) {
    const Json::Array& pair = event.as_array();
    out += (pair[0].is_null() ? "" : pair[0].as_string()) + " " + pair[1].as_string() + "\n";
  }
  return out;
}

std::vector<TokenLogprob> logprobs_of(const Json& list) {
  std::vector<TokenLogprob> out;
  for (const Json& entry : list.as_array()) {
    if (entry.is_null()) continue;
    TokenLogprob logprob;
    logprob.logprob = static_cast<float>(*entry.as_array()[0].to_double());
    for (const Json& top : entry.as_array()[1].as_array()) {
      logprob.top.emplace_back(static_cast<TokenId>(*top.as_array()[0].to_i64()),
                               static_cast<float>(*top.as_array()[1].to_double()));
    }
    out.push_back(logprob);
  }
  return out;
}

Result<void> feed(OutputProcessor& output, const Json& input, std::vector<StreamEvent>& events) {
  const Json::Array& parts = input.as_array();
  const std::string& kind = parts[0].as_string();
  if (kind == "ready") {
    PromptUsage usage;
    const auto count = [&](const char* key) {
      const Json* value = parts[1].find_value(key);
      return value != nullptr ? static_cast<uint32_t>(value->to_u64().value_or(0)) : 0U;
    };
    usage.prompt_tokens = count("prompt_tokens");
    usage.cache_hit_tokens = count("prompt_cache_hit_tokens");
    std::optional<std::string> fingerprint;
    if (const Json* text = parts[1].find_value("system_fingerprint")) fingerprint = text->as_string();
    output.ready(usage, fingerprint, events);
    return {};
  }
  if (kind == "text") {
    return output.text(parts[1].as_string(), static_cast<uint32_t>(*parts[2].to_u64()), events);
  }
  if (kind == "tokens") {
    const std::vector<TokenLogprob> logprobs = parts.size() > 2 ? logprobs_of(parts[2]) : std::vector<TokenLogprob>();
    return output.tokens(ids_of(parts[1]), logprobs, events);
  }
  const std::string& reason = parts[1].as_string();
  output.finish(reason == "Stop"     ? FinishReason::kStop
                : reason == "Length" ? FinishReason::kLength
                                     : FinishReason::kContentFilter,
                events);
  return {};
}

OutputProcessor make_processor(const Json& c, const ConvertedRequest& request, bool deltas = true) {
  ResponseInfo info;
  info.id = text_of(c, "response_id");
  info.model = text_of(c, "model");
  info.deltas = deltas;
  if (const Json* signature = c.find_value("signature")) info.signature = signature->as_string();
  const Json* with = c.find("with_tokenizer");
  TokenizerRef tokenizer = testing::vector_tokenizer(request.version == ModelVersion::kV41);
  if (with != nullptr && !with->as_bool()) tokenizer = nullptr;
  return OutputProcessor(request, tokenizer, info);
}

void expect_stream(const Json& c) {
  const std::string& id = text_of(c, "id");
  const Json& result = *c.find("result");
  const auto request = convert_request(testing::api_of(c), text_of(c, "request"), testing::options_of(*c.find("options")));
  ASSERT_TRUE(request) << id << ": " << request.error().message;
  OutputProcessor output = make_processor(c, *request);
  const Json::Array& inputs = c.find("inputs")->as_array();
  const Json::Array& outputs = result.find("outputs")->as_array();
  const auto consumed = static_cast<size_t>(*result.find("consumed")->to_u64());
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<StreamEvent> events;
    const Result<void> fed = feed(output, inputs[i], events);
    if (!fed) {
      ASSERT_NE(result.find_value("stream_error"), nullptr) << id << fed.error().message;
      EXPECT_EQ(fed.error().message, text_of(result, "stream_error")) << id;
      EXPECT_EQ(i, consumed) << id;
      return;
    }
    ASSERT_LT(i, outputs.size()) << id;
    ASSERT_EQ(describe(events), expected_events(outputs[i])) << id << " input " << i;
  }
  std::vector<StreamEvent> events;
  output.close(events);
  EXPECT_EQ(describe(events), expected_events(*result.find("finish_outputs"))) << id;
  EXPECT_EQ(mask(output.body()), text_of(result, "accumulated")) << id;
  const Json* done = result.find_value("sse_done");
  EXPECT_EQ(output.end_of_stream().has_value(), done != nullptr) << id;
  EXPECT_EQ(result.find_value("stream_error"), nullptr) << id;
}

TEST(Streams, GiveEveryVector) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  for (const char* file : {"streams.jsonl", "fuzz_streams.jsonl"}) {
    for (const Json& c : read_lines(file)) expect_stream(c);
  }
}

}  // namespace
}  // namespace di::codec
