// Streams of the vectors: model output in the given chunks -> the same events after each chunk, the same full response.
#include <algorithm>

#include "codec/api/describe.h"
#include "codec/conformance/case_files.h"

namespace di::codec::conformance {

namespace {

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Tool call ids become call_NN_* or call_NN_ET_*; created, created_at and completed_at become 0.
std::string mask(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = std::string_view(text).substr(i);
    if (rest.starts_with("call_")) {
      size_t at = 5;
      while (at < rest.size() && rest[at] >= '0' && rest[at] <= '9') ++at;
      if (at >= 7 && at < rest.size() && rest[at] == '_') {
        const bool empty = rest.substr(at).starts_with("_ET_");
        const size_t random = at + (empty ? 4 : 1);
        size_t end = random;
        while (end < rest.size() && is_word(rest[end])) ++end;
        if (end - random == 24) {
          out.append(rest.substr(0, random)).append("*");
          i += end;
          continue;
        }
      }
    }
    bool masked = false;
    for (const std::string_view key : {"\"created\":", "\"created_at\":", "\"completed_at\":"}) {
      if (!rest.starts_with(key)) continue;
      size_t end = key.size();
      while (end < rest.size() && rest[end] >= '0' && rest[end] <= '9') ++end;
      if (end == key.size()) continue;
      out.append(key).append("0");
      i += end;
      masked = true;
      break;
    }
    if (!masked) out.push_back(text[i++]);
  }
  return out;
}

std::string written(const std::vector<StreamEvent>& events) {
  std::string out;
  for (const StreamEvent& event : events) out.append(event.name).append(" ").append(mask(event.data)).append("\n");
  return out;
}

Result<std::string> expected_events(const Json& list) {
  if (!list.is_array()) return fail(Errc::kCorruption, "expected a list of events");
  std::string out;
  for (const Json& event : list.as_array()) {
    if (event.size() != 2 || !event.as_array()[1].is_string())
      return fail(Errc::kCorruption, "an event must be [name, text]");
    const Json& name = event.as_array()[0];
    if (name.is_string()) out += name.as_string();
    out.append(" ").append(event.as_array()[1].as_string()).append("\n");
  }
  return out;
}

Result<std::vector<TokenLogprob>> logprobs_of(const Json& list) {
  std::vector<TokenLogprob> out;
  if (!list.is_array()) return out;
  for (const Json& entry : list.as_array()) {
    if (entry.is_null()) continue;
    if (entry.size() != 2) return fail(Errc::kCorruption, "a log probability must be [value, top]");
    TokenLogprob logprob;
    logprob.logprob = static_cast<float>(entry.as_array()[0].to_double().value_or(0));
    for (const Json& top : entry.as_array()[1].as_array()) {
      if (top.size() != 2) return fail(Errc::kCorruption, "a top log probability must be [id, value]");
      logprob.top.emplace_back(static_cast<TokenId>(top.as_array()[0].to_i64().value_or(-1)),
                               static_cast<float>(top.as_array()[1].to_double().value_or(0)));
    }
    out.push_back(std::move(logprob));
  }
  return out;
}

// Outer error: the case is malformed. Inner error: the stream failed.
Result<Result<void>> feed(OutputProcessor& output, const Json& input, std::vector<StreamEvent>& events) {
  if (!input.is_array() || input.size() < 2 || !input.as_array()[0].is_string()) {
    return fail(Errc::kCorruption, "an input must be [kind, value, …]");
  }
  const Json::Array& parts = input.as_array();
  const std::string& kind = parts[0].as_string();
  if (kind == "ready") {
    const auto count = [&](const char* key) {
      const Json* value = parts[1].find_value(key);
      return value != nullptr ? static_cast<uint32_t>(value->to_u64().value_or(0)) : 0U;
    };
    std::optional<std::string> fingerprint;
    if (const Json* text = parts[1].find_value("system_fingerprint"); text != nullptr && text->is_string()) {
      fingerprint = text->as_string();
    }
    output.ready({count("prompt_tokens"), count("prompt_cache_hit_tokens")}, fingerprint, events);
    return Result<void>();
  }
  if (kind == "tokens") {
    const std::vector<TokenLogprob> logprobs = DI_TRY(logprobs_of(parts.size() > 2 ? parts[2] : Json()));
    std::optional<std::span<const TokenLogprob>> given;
    if (parts.size() > 2 && parts[2].is_array()) given = logprobs;
    return output.tokens(DI_TRY(ids_of(parts[1])), given, events);
  }
  if (!parts[1].is_string()) return fail(Errc::kCorruption, "the value of `{}` must be a string", kind);
  const std::string& text = parts[1].as_string();
  if (kind == "text") {
    return output.text(text, parts.size() > 2 ? static_cast<uint32_t>(parts[2].to_u64().value_or(0)) : 0, events);
  }
  if (kind != "finish") return fail(Errc::kCorruption, "input kind `{}` is not known", kind);
  if (text == "Stop") output.finish(FinishReason::kStop, events);
  if (text == "Length") output.finish(FinishReason::kLength, events);
  if (text == "ContentFilter") output.finish(FinishReason::kContentFilter, events);
  return Result<void>();
}

Result<std::string> stream_difference(const Json& c, const Tokenizers& tokenizers) {
  const Json& result = *DI_TRY(member_at(c, "result"));
  const Json* given = c.find_value("options");
  const CodecOptions options = DI_TRY(options_from_json(given != nullptr ? *given : Json()));
  const auto request = convert_request(DI_TRY(api_of(c)), DI_TRY(text_at(c, "request")), options);
  if (!request) return "refused: " + request.error().message;
  ResponseInfo info;
  info.id = DI_TRY(text_at(c, "response_id"));
  info.model = DI_TRY(text_at(c, "model"));
  if (const Json* signature = c.find_value("signature")) info.signature = signature->as_string();
  TokenizerRef tokenizer = request->version == ModelVersion::kV4 ? tokenizers.v4 : tokenizers.v41;
  if (const Json* with = c.find_value("with_tokenizer"); with != nullptr && *with == Json(false)) tokenizer = nullptr;
  OutputProcessor output(*request, tokenizer, info);

  const Json& inputs = *DI_TRY(member_at(c, "inputs"));
  const Json& outputs = *DI_TRY(member_at(result, "outputs"));
  const Json* stream_error = result.find_value("stream_error");
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<StreamEvent> events;
    const Result<void> fed = DI_TRY(feed(output, inputs.as_array()[i], events));
    if (!fed) {
      if (stream_error == nullptr) return fmt::format("input {}: {}", i, fed.error().message);
      return difference("stream_error", stream_error->as_string(), fed.error().message) +
             difference("consumed", to_json(*DI_TRY(member_at(result, "consumed"))), fmt::format("{}", i));
    }
    if (i >= outputs.size()) {
      if (stream_error != nullptr) return fmt::format("input {}: no error, expected {}", i, to_json(*stream_error));
      return fail(Errc::kCorruption, "input {} has no outputs", i);
    }
    const std::string problem = difference(fmt::format("events of input {}", i),
                                           DI_TRY(expected_events(outputs.as_array()[i])), written(events));
    if (!problem.empty()) return problem;
  }
  std::vector<StreamEvent> events;
  output.close(events);
  const Json* finish_outputs = DI_TRY(member_at(result, "finish_outputs"));
  std::string problem = difference("finish_outputs", DI_TRY(expected_events(*finish_outputs)), written(events));
  const Json* accumulated = result.find_value("accumulated");
  if (problem.empty() && accumulated != nullptr)
    problem = difference("accumulated", accumulated->as_string(), mask(output.body()));
  const Json* done = result.find_value("sse_done");
  if (problem.empty())
    problem = difference("sse_done", done != nullptr ? done->as_string() : "", output.end_of_stream().value_or(""));
  return problem;
}

}  // namespace

std::string check_stream(const Json& c, const Tokenizers& tokenizers) {
  const Result<std::string> problem = stream_difference(c, tokenizers);
  return problem ? *problem : "the case cannot run: " + problem.error().message;
}

}  // namespace di::codec::conformance
