// Conversations, requests and rejections of the vectors: how they are written there, and whether ours are the same.
#include <map>

#include "codec/api/describe.h"
#include "codec/conformance/case_files.h"

namespace di::codec::conformance {

namespace {

std::string to_text(const std::optional<uint64_t>& value) {
  return value ? fmt::format("{}", *value) : "null";
}

// The first sampling option that differs.
std::string sampling_difference(const SamplingOptions& s, const Json& expected) {
  const auto integer = [&](const char* key, std::optional<uint64_t> found) {
    const Json* value = expected.find_value(key);
    return difference(key, to_text(value != nullptr ? value->to_u64() : std::nullopt), to_text(found));
  };
  const auto real = [&](const char* key, float found) {
    const Json* value = expected.find_value(key);
    const float wanted = value != nullptr ? static_cast<float>(value->to_double().value_or(-1)) : 1.0F;
    return wanted == found ? std::string() : fmt::format("{}: expected {}, found {}", key, wanted, found);
  };
  const Json* constraint = expected.find_value("output_constraint");
  std::string wanted = "null";
  if (constraint != nullptr) wanted = to_json(*constraint);
  std::string found = "null";
  if (s.constraint) {
    found.clear();
    JsonWriter(found)
        .begin_object()
        .key("kind")
        .value(to_string(s.constraint->kind))
        .key("schema")
        .value(s.constraint->schema)
        .end_object();
  }
  const Json* logprobs = expected.find_value("logprobs");
  for (const std::string& problem :
       {integer("max_tokens", s.max_tokens), real("temperature", s.temperature), real("top_p", s.top_p),
        difference("logprobs", logprobs == nullptr || *logprobs == Json(false) ? "false" : "true",
                   s.logprobs ? "true" : "false"),
        integer("top_logprobs", s.top_logprobs), integer("seed", s.seed),
        difference("output_constraint", wanted, found)}) {
    if (!problem.empty()) return problem;
  }
  return {};
}

Result<std::string> prompt_difference(const Json& result, const ConvertedRequest& request,
                                      const Tokenizers& tokenizers) {
  const RenderedPrompt prompt = render_conversation(request.conversation, request.version);
  std::string problem = difference("prompt", DI_TRY(text_at(result, "prompt")), prompt.text);
  if (!problem.empty()) return problem;
  std::string ranges;
  JsonWriter w(ranges);
  w.begin_array();
  for (const auto& [begin, end] : prompt.special_ranges) w.begin_array().value(begin).value(end).end_array();
  w.end_array();
  problem = difference("special_byte_ranges", to_json(*DI_TRY(member_at(result, "special_byte_ranges"))), ranges);
  if (!problem.empty()) return problem;
  problem = difference("image_sources", to_json(*DI_TRY(member_at(result, "image_sources"))),
                       sources_json(prompt.image_sources));
  if (!problem.empty()) return problem;
  const Tokenizer& tokenizer = request.version == ModelVersion::kV4 ? *tokenizers.v4 : *tokenizers.v41;
  const std::vector<TokenId> ids = DI_TRY(encode_prompt(prompt, tokenizer));
  const std::vector<TokenId> expected = DI_TRY(ids_at(result, "ids"));
  if (ids == expected) return std::string();
  return difference("ids", fmt::format("{}", fmt::join(expected, ",")), fmt::format("{}", fmt::join(ids, ",")));
}

Result<std::string> limits_difference(const Json& result, const ConvertedRequest& request) {
  const Json* rows = result.find_value("resolve_max_tokens");
  if (rows == nullptr || !rows->is_array()) return std::string();
  for (const Json& row : rows->as_array()) {
    if (row.size() != 4) return fail(Errc::kCorruption, "resolve_max_tokens: expected rows of 4");
    const Json::Array& r = row.as_array();
    const auto tokens = resolve_max_tokens(request, r[0].to_u64().value_or(0), r[1].to_u64().value_or(0));
    const std::string found = tokens ? fmt::format("{}", *tokens) : tokens.error().message;
    const std::string problem = difference(
        "resolve_max_tokens", r[2].is_null() ? r[3].is_string() ? r[3].as_string() : "" : to_json(r[2]), found);
    if (!problem.empty()) return problem;
  }
  return std::string();
}

Result<std::string> request_difference(const Json& c, const Tokenizers& tokenizers) {
  const Json& result = *DI_TRY(member_at(c, "result"));
  const Json* given = c.find_value("options");
  const CodecOptions options = DI_TRY(options_from_json(given != nullptr ? *given : Json()));
  const auto request = convert_request(DI_TRY(api_of(c)), DI_TRY(text_at(c, "body")), options);
  if (!request) return "refused: " + request.error().message;
  std::string problem = difference("model_version", DI_TRY(text_at(result, "model_version")),
                                   request->version == ModelVersion::kV4 ? "v4" : "v41");
  if (problem.empty())
    problem = difference("stream", to_json(*DI_TRY(member_at(result, "stream"))), request->stream ? "true" : "false");
  if (problem.empty())
    problem = difference("conversation", to_json(*DI_TRY(member_at(result, "conversation"))),
                         conversation_json(request->conversation));
  if (problem.empty())
    problem = sampling_difference(request->sampling, *DI_TRY(member_at(result, "inference_options")));
  if (problem.empty())
    problem = difference("parsing_options", to_json(*DI_TRY(member_at(result, "parsing_options"))),
                         parsing_json(request->parsing));
  if (problem.empty()) problem = DI_TRY(prompt_difference(result, *request, tokenizers));
  if (problem.empty()) problem = DI_TRY(limits_difference(result, *request));
  if (!problem.empty()) return problem;
  const Json* map = result.find_value("namespace_tool_map");
  if (map == nullptr) return std::string();
  std::map<std::string, std::pair<std::string, std::string>> sorted;
  for (const auto& tool : request->echo.namespaces) {
    if (!tool.found) sorted[tool.function] = {tool.name_space, tool.name};
  }
  Json found{Json::Object()};
  for (const auto& [name, target] : sorted) {
    Json& entry = found.set(name, Json());
    entry.push_back(Json(target.first));
    entry.push_back(Json(target.second));
  }
  return found == *map ? std::string() : difference("namespace_tool_map", to_json(*map), to_json(found));
}

Result<std::string> rejection_difference(const Json& c, ConformanceResult& counts) {
  const Json& result = *DI_TRY(member_at(c, "result"));
  const Json* given = c.find_value("options");
  const CodecOptions options = DI_TRY(options_from_json(given != nullptr ? *given : Json()));
  const auto request = convert_request(DI_TRY(api_of(c)), DI_TRY(text_at(c, "body")), options);
  const std::string_view message = DI_TRY(text_at(result, "message"));
  if (request) return fmt::format("accepted, expected `{}`", message);
  const ApiError& error = request.error();
  std::string problem = difference("stage", DI_TRY(text_at(result, "stage")),
                                   error.stage == ApiError::Stage::kParse ? "parse" : "convert");
  if (problem.empty()) problem = difference("message", message, error.message);
  const Json* body = result.find_value("body");
  if (problem.empty() && body != nullptr && body->is_string()) {
    problem = difference("body", body->as_string(), error.body());
    if (problem.empty())
      problem = difference("status_code", to_json(*DI_TRY(member_at(result, "status_code"))),
                           fmt::format("{}", error.http_status));
  }
  ++counts.compared[body != nullptr ? "rejections with their whole body" : "rejections with their message"];
  return problem;
}

}  // namespace

std::string check_request(const Json& c, const Tokenizers& tokenizers) {
  const Result<std::string> problem = request_difference(c, tokenizers);
  return problem ? *problem : "the case cannot run: " + problem.error().message;
}

std::string check_rejection(const Json& c, ConformanceResult& result) {
  const Result<std::string> problem = rejection_difference(c, result);
  return problem ? *problem : "the case cannot run: " + problem.error().message;
}

}  // namespace di::codec::conformance
