// Request vectors: body -> conversation, prompt, ids, sampling and parsing options, or the exact error (recipe.md §3).
#include <gtest/gtest.h>

#include "codec/codec.h"
#include "codec/vectors.h"

namespace di::codec {

namespace testing {

CodecOptions options_of(const Json& value) {
  CodecOptions options;
  for (const JsonMember& member : value.as_object()) {
    const Json& v = member.value;
    if (member.key == "default_thinking_mode") options.default_thinking_mode = v.as_bool();
    if (member.key == "reasoning_content_behavior" && v.as_string() == "Reject") {
      options.missing_reasoning = MissingReasoning::kReject;
    }
    const auto search = [&] { return v.as_string() == "Drop" ? WebSearch::kDrop : WebSearch::kReject; };
    if (member.key == "responses_web_search") options.responses_web_search = search();
    if (member.key == "messages_web_search") options.messages_web_search = search();
    const auto bound = [&] { return static_cast<uint32_t>(*v.to_u64()); };
    if (member.key == "thinking_max_tokens_upper_bound") options.thinking_max_tokens_upper_bound = bound();
    if (member.key == "non_thinking_max_tokens_upper_bound") options.non_thinking_max_tokens_upper_bound = bound();
    if (member.key == "aliases") {
      for (const JsonMember& alias : v.as_object()) {
        options.models[alias.key] = alias.value.as_string() == "v4" ? ModelVersion::kV4 : ModelVersion::kV41;
      }
    }
  }
  return options;
}

Api api_of(const Json& c) {
  const std::string& name = text_of(c, "api");
  return name == "chat" ? Api::kChat : name == "responses" ? Api::kResponses : Api::kMessages;
}

}  // namespace testing

namespace {

using testing::api_of;
using testing::options_of;
using testing::read_lines;
using testing::text_of;

void write_tools(JsonWriter& w, const std::vector<ToolDefinition>& tools) {
  w.begin_array();
  for (const ToolDefinition& tool : tools) {
    w.begin_object().key("name").value(tool.name).key("description").value(tool.description);
    w.key("parameters").value(tool.parameters).key("strict").value(tool.strict);
    w.key("defer_loading").value(tool.defer_loading).end_object();
  }
  w.end_array();
}

void write_sources(JsonWriter& w, const std::vector<ImageSource>& sources) {
  constexpr const char* kDetails[] = {"low", "high", "original", "auto"};
  w.begin_array();
  for (const ImageSource& source : sources) {
    const bool url = source.kind == ImageSource::Kind::kUrl;
    w.begin_object().key("kind").value(url ? "url" : "data_url");
    w.key("detail").value(kDetails[static_cast<size_t>(source.detail)]).key("path").value(source.path);
    w.key(url ? "url" : "data_url").value(source.location).end_object();
  }
  w.end_array();
}

void write_message(JsonWriter& w, const Message& message) {
  constexpr const char* kRoles[] = {"system", "user", "assistant", "tool", "latest_reminder"};
  w.begin_object().key("role").value(kRoles[static_cast<size_t>(message.role)]).key("content").value(message.content.text);
  switch (message.role) {
    case Message::Role::kSystem:
      w.key("tools");
      if (message.tools) {
        write_tools(w, *message.tools);
      } else {
        w.null();
      }
      break;
    case Message::Role::kAssistant:
      w.key("reasoning_content").value(message.reasoning_content).key("tool_calls");
      if (message.tool_calls) {
        w.begin_array();
        for (const ToolCall& call : *message.tool_calls) {
          w.begin_object().key("id").value(call.id).key("name").value(call.name);
          w.key("arguments").value(call.arguments).end_object();
        }
        w.end_array();
      } else {
        w.null();
      }
      w.key("prefix").value(message.prefix);
      break;
    case Message::Role::kTool: w.key("tool_call_id").value(message.tool_call_id); break;
    default: break;
  }
  if (!message.image_sources.empty()) {
    w.key("image_sources");
    write_sources(w, message.image_sources);
  }
  w.end_object();
}

std::string conversation_json(const Conversation& c) {
  constexpr const char* kChoices[] = {"auto", "none", "required"};
  constexpr const char* kEfforts[] = {"low", "high", "xhigh", "max"};
  constexpr const char* kFormats[] = {"text", "json_object", "json_schema", "regex"};
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("messages").begin_array();
  for (const Message& message : c.messages) write_message(w, message);
  w.end_array().key("thinking_mode").value(c.thinking_mode).key("tools");
  write_tools(w, c.tools);
  w.key("tool_choice").value(kChoices[static_cast<size_t>(c.tool_choice)]).key("reasoning_effort");
  if (c.reasoning_effort) {
    w.value(kEfforts[static_cast<size_t>(*c.reasoning_effort)]);
  } else {
    w.null();
  }
  w.key("response_format").value(kFormats[static_cast<size_t>(c.response_format.kind)]);
  w.key("response_schema").value(c.response_format.schema).key("response_regex");
  if (c.response_format.kind == ResponseFormat::Kind::kRegex) {
    w.value(c.response_format.regex);
  } else {
    w.null();
  }
  w.end_object();
  return out;
}

std::string parsing_json(const ParsingOptions& p) {
  constexpr const char* kStages[] = {"ReasoningStart", "ReasoningContinuation", "ContentContinuation"};
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("parse_tool_calls").value(p.parse_tool_calls);
  w.key("starts_in_tool_calls").value(p.starts_in_tool_calls).key("parse_json_output").value(p.parse_json_output);
  w.key("thinking_initial_stage");
  if (p.thinking_start) {
    w.value(kStages[static_cast<size_t>(*p.thinking_start)]);
  } else {
    w.null();
  }
  w.key("stop_sequences").begin_array();
  for (const std::string& stop : p.stop_sequences) w.value(stop);
  w.end_array().end_object();
  return out;
}

void expect_sampling(const SamplingOptions& s, const Json& expected, const std::string& id) {
  const auto number = [&](const char* key) { return expected.find_value(key); };
  EXPECT_EQ(s.max_tokens ? std::optional<uint64_t>(*s.max_tokens) : std::nullopt,
            number("max_tokens") != nullptr ? number("max_tokens")->to_u64() : std::nullopt)
      << id;
  EXPECT_EQ(s.temperature, static_cast<float>(*number("temperature")->to_double())) << id;
  EXPECT_EQ(s.top_p, static_cast<float>(*number("top_p")->to_double())) << id;
  EXPECT_EQ(s.logprobs, number("logprobs")->as_bool()) << id;
  EXPECT_EQ(s.top_logprobs ? std::optional<uint64_t>(*s.top_logprobs) : std::nullopt,
            number("top_logprobs") != nullptr ? number("top_logprobs")->to_u64() : std::nullopt)
      << id;
  EXPECT_EQ(s.seed, number("seed") != nullptr ? number("seed")->to_u64() : std::nullopt) << id;
  const Json* constraint = number("output_constraint");
  ASSERT_EQ(s.constraint.has_value(), constraint != nullptr) << id;
  if (constraint != nullptr) {
    EXPECT_EQ(to_string(s.constraint->kind), text_of(*constraint, "kind")) << id;
    EXPECT_EQ(s.constraint->schema, text_of(*constraint, "schema")) << id;
  }
}

void expect_request(const Json& c) {
  const std::string& id = text_of(c, "id");
  const Json& result = *c.find("result");
  const CodecOptions options = options_of(*c.find("options"));
  const auto request = convert_request(api_of(c), text_of(c, "body"), options);
  ASSERT_TRUE(request) << id << ": " << request.error().message;
  EXPECT_EQ(request->version == ModelVersion::kV4 ? "v4" : "v41", text_of(result, "model_version")) << id;
  EXPECT_EQ(request->stream, result.find("stream")->as_bool()) << id;
  EXPECT_EQ(*parse_json(conversation_json(request->conversation)), *result.find("conversation"))
      << id << "\n" << conversation_json(request->conversation) << "\n" << to_json(*result.find("conversation"));
  expect_sampling(request->sampling, *result.find("inference_options"), id);
  EXPECT_EQ(parsing_json(request->parsing), to_json(*result.find("parsing_options"))) << id;
  const RenderedPrompt prompt = render_conversation(request->conversation, request->version, options.special);
  EXPECT_EQ(prompt.text, text_of(result, "prompt")) << id;
  std::string sources;
  JsonWriter w(sources);
  write_sources(w, prompt.image_sources);
  EXPECT_EQ(sources, to_json(*result.find("image_sources"))) << id;
  const auto ids = encode_prompt(prompt, *testing::vector_tokenizer(request->version == ModelVersion::kV41));
  ASSERT_TRUE(ids) << id << ids.error().message;
  EXPECT_EQ(*ids, testing::ids_of(*result.find("ids"))) << id;
  for (const Json& row : result.find("resolve_max_tokens")->as_array()) {
    const Json::Array& r = row.as_array();
    const auto tokens = resolve_max_tokens(*request, *r[0].to_u64(), *r[1].to_u64());
    EXPECT_EQ(tokens.has_value(), !r[2].is_null()) << id;
    if (tokens) {
      EXPECT_EQ(*tokens, r[2].to_u64()) << id;
    } else {
      EXPECT_EQ(tokens.error().message, r[3].as_string()) << id;
    }
  }
  if (const Json* map = result.find("namespace_tool_map")) {
    Json found{Json::Object()};
    for (const auto& [name, target] : *request->echo.namespaces) {
      Json& entry = found.set(name, Json());
      entry.push_back(Json(target.first));
      entry.push_back(Json(target.second));
    }
    EXPECT_EQ(found, *map) << id;
  }
}

TEST(Requests, ConvertsEveryVector) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  for (const char* file : {"requests.jsonl", "fuzz_requests.jsonl"}) {
    for (const Json& c : read_lines(file)) expect_request(c);
  }
}

TEST(Requests, RejectsEveryVectorWithItsError) {
  SKIP_WITHOUT_RECIPE_VECTORS();
  size_t bodies = 0;
  size_t messages = 0;
  for (const char* file : {"rejected.jsonl", "fuzz_rejected.jsonl"}) {
    for (const Json& c : read_lines(file)) {
      const std::string& id = text_of(c, "id");
      const Json& result = *c.find("result");
      const auto request = convert_request(api_of(c), text_of(c, "body"), options_of(*c.find("options")));
      ASSERT_FALSE(request) << id << " was accepted";
      const ApiError& error = request.error();
      EXPECT_EQ(error.message, text_of(result, "message")) << id;
      EXPECT_EQ(error.stage == ApiError::Stage::kParse ? "parse" : "convert", text_of(result, "stage")) << id;
      ++messages;
      if (const Json* body = result.find_value("body")) {
        ++bodies;
        EXPECT_EQ(error.body(), body->as_string()) << id;
        EXPECT_EQ(error.http_status, *result.find("status_code")->to_i64()) << id;
      }
    }
  }
  std::printf("rejected: %zu messages compared, %zu of them with the whole body\n", messages, bodies);
}

}  // namespace
}  // namespace di::codec
