// The C interface over the C++ one: handles are structs that hold the C++ objects, every entry is wrapped so that no
// exception (of the standard library; ours are values) crosses.
#include <cstdlib>
#include <exception>
#include <new>

#include "codec/api/describe.h"
#include "codec/c_api/deepinfer_codec.h"
#include "codec/codec.h"
#include "codec/image/layout.h"

using di::Errc;
using di::Json;
using di::Result;
namespace codec = di::codec;

struct di_codec_error {
  di_codec_error_kind kind = DI_CODEC_ERROR_INTERNAL;
  int http_status = 500;
  std::string message;
  std::string body;
  std::string param;
};

struct di_codec_tokenizer {
  codec::TokenizerRef tokenizer;
};
struct di_codec_options {
  codec::CodecOptions options;
};
struct di_codec_request {
  codec::ConvertedRequest request;
  codec::SpecialSpellings special;
};
struct di_codec_prompt {
  codec::RenderedPrompt prompt;
  std::vector<di_codec_range> ranges;
  std::string images;
};
struct di_codec_result {
  std::string text;
  std::vector<int32_t> ids;
};
struct di_codec_output {
  codec::OutputProcessor processor;
  std::vector<codec::StreamEvent> events;
};

namespace {

static_assert(std::is_same_v<di::TokenId, int32_t>);

di_codec_bytes view(std::string_view text) {
  return {text.data(), text.size()};
}

std::string_view text_of(const char* data, size_t size) {
  return data == nullptr ? std::string_view() : std::string_view(data, size);
}

// What an entry's body returns on failure.
using Failure = std::unexpected<di_codec_error>;
template <class T>
using Outcome = std::expected<T, di_codec_error>;

di_codec_error error_of(const di::Error& error) {
  const bool caller = error.code != Errc::kInternal;
  return {caller ? DI_CODEC_ERROR_ARGUMENT : DI_CODEC_ERROR_INTERNAL, caller ? 400 : 500, error.message, {}, {}};
}

di_codec_error error_of(const codec::ApiError& error) {
  const bool parse = error.stage == codec::ApiError::Stage::kParse;
  return {parse ? DI_CODEC_ERROR_PARSE : DI_CODEC_ERROR_CONVERT, error.http_status, error.message, error.body(),
          error.param};
}

template <class E>
Failure failed(const E& error) {
  return Failure(error_of(error));
}

void store(di_codec_error** target, di_codec_error error) {
  if (target != nullptr) *target = new (std::nothrow) di_codec_error(std::move(error));
}

// Runs body() -> Outcome<T>; `on_failure` is what the C function returns then.
template <class T, class Body>
T guarded(di_codec_error** error, T on_failure, const Body& body) noexcept {
  if (error != nullptr) *error = nullptr;
  try {
    Outcome<T> outcome = body();
    if (outcome) return *outcome;
    store(error, std::move(outcome.error()));
  } catch (const std::exception& e) {
    try {
      store(error, {DI_CODEC_ERROR_INTERNAL, 500, e.what(), {}, {}});
    } catch (...) {  // no memory for the message either: the return value still says that it failed
    }
  } catch (...) {
    try {
      store(error, {DI_CODEC_ERROR_INTERNAL, 500, "unknown error", {}, {}});
    } catch (...) {
    }
  }
  return on_failure;
}

template <class T, class Body>
T* made(di_codec_error** error, const Body& body) noexcept {
  return guarded<T*>(error, nullptr, body);
}

template <class Body>
di_codec_status done(di_codec_error** error, const Body& body) noexcept {
  return guarded<di_codec_status>(error, DI_CODEC_FAILED, [&]() -> Outcome<di_codec_status> {
    const auto outcome = body();
    if (!outcome) return failed(outcome.error());
    return DI_CODEC_OK;
  });
}

Result<codec::TokenizerOptions> renames_of(const char* json) {
  codec::TokenizerOptions options;
  if (json == nullptr) return options;
  const Json map = DI_TRY(di::parse_json(json));
  if (!map.is_object()) {
    return di::fail(Errc::kInvalidRequest, "renames: expected a map, found {}", di::describe_json(map));
  }
  for (const di::JsonMember& member : map.as_object()) {
    char* end = nullptr;
    const long id = std::strtol(member.key.c_str(), &end, 10);
    if (member.key.empty() || *end != '\0' || id < 0 || id > INT32_MAX || !member.value.is_string()) {
      return di::fail(Errc::kInvalidRequest, "renames: expected ids with their spellings, found `{}`: {}", member.key,
                      di::describe_json(member.value));
    }
    options.rename_added[static_cast<di::TokenId>(id)] = member.value.as_string();
  }
  return options;
}

template <class Load>
di_codec_tokenizer* load_tokenizer(const char* renames_json, di_codec_error** error, const Load& load) {
  return made<di_codec_tokenizer>(error, [&]() -> Outcome<di_codec_tokenizer*> {
    const Result<codec::TokenizerOptions> options = renames_of(renames_json);
    if (!options) return failed(options.error());
    Result<codec::TokenizerRef> tokenizer = load(*options);
    if (!tokenizer) return failed(tokenizer.error());
    return new di_codec_tokenizer{std::move(*tokenizer)};
  });
}

Result<codec::ResponseInfo> info_of(std::string_view settings) {
  codec::ResponseInfo info;
  if (settings.empty()) return info;
  const Json json = DI_TRY(di::parse_json(settings));
  if (!json.is_object()) {
    return di::fail(Errc::kInvalidRequest, "settings: expected a map, found {}", di::describe_json(json));
  }
  for (const di::JsonMember& member : json.as_object()) {
    if (member.value.is_null()) continue;
    const std::string& key = member.key;
    if (key == "id") {
      info.id = DI_TRY(di::json_string(json, key));
    } else if (key == "model") {
      info.model = DI_TRY(di::json_string(json, key));
    } else if (key == "signature") {
      info.signature = DI_TRY(di::json_string(json, key));
    } else if (key == "created") {
      info.created = DI_TRY(di::json_i64(json, key));
    } else if (key == "tool_id_seed") {
      info.tool_id_seed = static_cast<uint64_t>(DI_TRY(di::json_i64(json, key)));
    } else {
      return di::fail(Errc::kInvalidRequest, "`{}` is no setting of an output", key);
    }
  }
  return info;
}

}  // namespace

int di_codec_abi_version(void) {
  return di_codec_abi;
}

di_codec_error_kind di_codec_error_get_kind(const di_codec_error* error) {
  return error->kind;
}
di_codec_bytes di_codec_error_message(const di_codec_error* error) {
  return view(error->message);
}
int di_codec_error_http_status(const di_codec_error* error) {
  return error->http_status;
}
di_codec_bytes di_codec_error_body(const di_codec_error* error) {
  return view(error->body);
}
di_codec_bytes di_codec_error_param(const di_codec_error* error) {
  return view(error->param);
}
void di_codec_error_free(di_codec_error* error) {
  delete error;
}

di_codec_bytes di_codec_result_text(const di_codec_result* result) {
  return view(result->text);
}
di_codec_ids di_codec_result_ids(const di_codec_result* result) {
  return {result->ids.data(), result->ids.size()};
}
void di_codec_result_free(di_codec_result* result) {
  delete result;
}

di_codec_tokenizer* di_codec_tokenizer_load(const char* path, const char* renames_json, di_codec_error** error) {
  return load_tokenizer(renames_json, error,
                        [&](const auto& options) { return codec::Tokenizer::load(path, options); });
}
di_codec_tokenizer* di_codec_tokenizer_from_json(const char* json, size_t size, const char* renames_json,
                                                 di_codec_error** error) {
  return load_tokenizer(renames_json, error, [&](const auto& options) {
    return codec::Tokenizer::from_json(text_of(json, size), "tokenizer", options);
  });
}
void di_codec_tokenizer_free(di_codec_tokenizer* tokenizer) {
  delete tokenizer;
}
int32_t di_codec_tokenizer_vocab_size(const di_codec_tokenizer* tokenizer) {
  return tokenizer->tokenizer->vocab_size();
}
size_t di_codec_tokenizer_memory(const di_codec_tokenizer* tokenizer) {
  return tokenizer->tokenizer->memory_bytes();
}

di_codec_result* di_codec_encode_plain(const di_codec_tokenizer* tokenizer, const char* text, size_t size,
                                       di_codec_error** error) {
  return made<di_codec_result>(error, [&]() -> Outcome<di_codec_result*> {
    return new di_codec_result{{}, tokenizer->tokenizer->encode_plain(text_of(text, size))};
  });
}
di_codec_result* di_codec_encode_full(const di_codec_tokenizer* tokenizer, const char* text, size_t size,
                                      di_codec_error** error) {
  return made<di_codec_result>(error, [&]() -> Outcome<di_codec_result*> {
    return new di_codec_result{{}, tokenizer->tokenizer->encode_full(text_of(text, size))};
  });
}
di_codec_result* di_codec_decode(const di_codec_tokenizer* tokenizer, const int32_t* ids, size_t count,
                                 int skip_special, di_codec_error** error) {
  return made<di_codec_result>(error, [&]() -> Outcome<di_codec_result*> {
    return new di_codec_result{tokenizer->tokenizer->decode(std::span(ids, count), skip_special != 0), {}};
  });
}

di_codec_options* di_codec_options_new(const char* json, size_t size, di_codec_error** error) {
  return made<di_codec_options>(error, [&]() -> Outcome<di_codec_options*> {
    Json value;
    if (json != nullptr) {
      Result<Json> parsed = di::parse_json(text_of(json, size));
      if (!parsed) return failed(parsed.error());
      value = std::move(*parsed);
    }
    Result<codec::CodecOptions> options = codec::options_from_json(value);
    if (!options) return failed(options.error());
    return new di_codec_options{std::move(*options)};
  });
}
void di_codec_options_free(di_codec_options* options) {
  delete options;
}

di_codec_request* di_codec_convert(di_codec_api api, const char* body, size_t size, const di_codec_options* options,
                                   di_codec_error** error) {
  return made<di_codec_request>(error, [&]() -> Outcome<di_codec_request*> {
    const codec::CodecOptions& used = options != nullptr ? options->options : codec::CodecOptions();
    auto request = codec::convert_request(static_cast<codec::Api>(api), text_of(body, size), used);
    if (!request) return failed(request.error());
    return new di_codec_request{std::move(*request), used.special};
  });
}
void di_codec_request_free(di_codec_request* request) {
  delete request;
}
di_codec_result* di_codec_request_describe(const di_codec_request* request, di_codec_error** error) {
  return made<di_codec_result>(error, [&]() -> Outcome<di_codec_result*> {
    return new di_codec_result{codec::request_json(request->request), {}};
  });
}
int di_codec_request_is_v41(const di_codec_request* request) {
  return request->request.version == codec::ModelVersion::kV41 ? 1 : 0;
}
di_codec_status di_codec_resolve_max_tokens(const di_codec_request* request, uint64_t prompt_tokens,
                                            uint64_t context_limit, uint32_t* out, di_codec_error** error) {
  return done(error, [&] {
    auto tokens = codec::resolve_max_tokens(request->request, prompt_tokens, context_limit);
    if (tokens) *out = *tokens;
    return tokens;
  });
}
di_codec_result* di_codec_encode_request(const di_codec_request* request, const di_codec_tokenizer* tokenizer,
                                         di_codec_error** error) {
  return made<di_codec_result>(error, [&]() -> Outcome<di_codec_result*> {
    auto ids = codec::encode_conversation(request->request.conversation, request->request.version,
                                          *tokenizer->tokenizer, request->special);
    if (!ids) return failed(ids.error());
    return new di_codec_result{{}, std::move(*ids)};
  });
}

di_codec_prompt* di_codec_render(const di_codec_request* request, di_codec_error** error) {
  return made<di_codec_prompt>(error, [&]() -> Outcome<di_codec_prompt*> {
    auto prompt = std::make_unique<di_codec_prompt>();
    prompt->prompt =
        codec::render_conversation(request->request.conversation, request->request.version, request->special);
    for (const auto& [begin, end] : prompt->prompt.special_ranges) prompt->ranges.push_back({begin, end});
    prompt->images = codec::sources_json(prompt->prompt.image_sources);
    return prompt.release();
  });
}
void di_codec_prompt_free(di_codec_prompt* prompt) {
  delete prompt;
}
di_codec_bytes di_codec_prompt_text(const di_codec_prompt* prompt) {
  return view(prompt->prompt.text);
}
size_t di_codec_prompt_ranges(const di_codec_prompt* prompt, const di_codec_range** ranges) {
  *ranges = prompt->ranges.data();
  return prompt->ranges.size();
}
di_codec_bytes di_codec_prompt_images(const di_codec_prompt* prompt) {
  return view(prompt->images);
}

di_codec_status di_codec_image_token_count(uint32_t width, uint32_t height, uint32_t* out, di_codec_error** error) {
  return done(error, [&] {
    auto count = codec::image_token_count(width, height);
    if (count) *out = *count;
    return count;
  });
}

di_codec_output* di_codec_output_new(const di_codec_request* request, const di_codec_tokenizer* tokenizer,
                                     const char* settings_json, size_t size, di_codec_error** error) {
  return made<di_codec_output>(error, [&]() -> Outcome<di_codec_output*> {
    Result<codec::ResponseInfo> info = info_of(text_of(settings_json, size));
    if (!info) return failed(info.error());
    codec::TokenizerRef kept = tokenizer != nullptr ? tokenizer->tokenizer : nullptr;
    return new di_codec_output{codec::OutputProcessor(request->request, std::move(kept), std::move(*info)), {}};
  });
}
void di_codec_output_free(di_codec_output* output) {
  delete output;
}
di_codec_status di_codec_output_ready(di_codec_output* output, uint32_t prompt_tokens, uint32_t cache_hit_tokens,
                                      const char* fingerprint, di_codec_error** error) {
  return done(error, [&]() -> Result<void> {
    output->events.clear();
    std::optional<std::string> text;
    if (fingerprint != nullptr) text = fingerprint;
    output->processor.ready({prompt_tokens, cache_hit_tokens}, std::move(text), output->events);
    return {};
  });
}
di_codec_status di_codec_output_tokens(di_codec_output* output, const int32_t* ids, size_t count,
                                       const di_codec_logprob* logprobs, size_t logprob_count, di_codec_error** error) {
  return done(error, [&]() -> Result<void> {
    output->events.clear();
    std::vector<codec::TokenLogprob> list;
    for (size_t i = 0; logprobs != nullptr && i < logprob_count; ++i) {
      codec::TokenLogprob& entry = list.emplace_back();
      entry.logprob = logprobs[i].logprob;
      for (size_t k = 0; k < logprobs[i].top_count; ++k) {
        entry.top.emplace_back(logprobs[i].top[k].id, logprobs[i].top[k].logprob);
      }
    }
    std::optional<std::span<const codec::TokenLogprob>> given;
    if (logprobs != nullptr) given = list;
    return output->processor.tokens(std::span(ids, count), given, output->events);
  });
}
di_codec_status di_codec_output_text(di_codec_output* output, const char* text, size_t size, uint32_t token_count,
                                     di_codec_error** error) {
  return done(error, [&]() -> Result<void> {
    output->events.clear();
    return output->processor.text(text_of(text, size), token_count, output->events);
  });
}
di_codec_status di_codec_output_finish(di_codec_output* output, di_codec_finish_reason reason, di_codec_error** error) {
  return done(error, [&]() -> Result<void> {
    output->events.clear();
    output->processor.finish(static_cast<codec::FinishReason>(reason), output->events);
    return {};
  });
}
di_codec_status di_codec_output_close(di_codec_output* output, di_codec_error** error) {
  return done(error, [&]() -> Result<void> {
    output->events.clear();
    output->processor.close(output->events);
    return {};
  });
}
size_t di_codec_output_event_count(const di_codec_output* output) {
  return output->events.size();
}
di_codec_event di_codec_output_event(const di_codec_output* output, size_t index) {
  const codec::StreamEvent& event = output->events[index];
  return {view(event.name), view(event.data)};
}
int di_codec_output_done(const di_codec_output* output) {
  return output->processor.done() ? 1 : 0;
}
di_codec_result* di_codec_output_body(const di_codec_output* output, di_codec_error** error) {
  return made<di_codec_result>(
      error, [&]() -> Outcome<di_codec_result*> { return new di_codec_result{output->processor.body(), {}}; });
}
di_codec_bytes di_codec_output_end_of_stream(const di_codec_output* output) {
  return view(output->processor.end_of_stream().value_or(std::string_view()));
}
