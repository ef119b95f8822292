// The token codec in one header: API request -> conversation -> prompt text -> token ids, and token ids -> API events
// (recipe.md). A server needs four calls per request:
//
//   auto request = convert_request(Api::kChat, body, options);            // ConvertedRequest or ApiError
//   auto prompt = encode_conversation(request->conversation, request->version, *tokenizer, options.special);
//   auto max_tokens = resolve_max_tokens(*request, prompt_tokens, context_limit);
//   OutputProcessor output(*request, tokenizer, info);
//   output.ready(usage, events); output.tokens(ids, {}, events); output.finish(reason, events); output.close(events);
//
// Everything here is safe to call from several threads at once; one OutputProcessor belongs to one thread at a time.
// The library's default policy is `official`: byte for byte what the official service does.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "codec/conversation.h"
#include "codec/prompt/prompt.h"
#include "codec/token.h"
#include "codec/tokenizer/tokenizer.h"

namespace di::codec {

enum class Api : uint8_t { kChat, kResponses, kMessages };

// Official: verdicts, messages and events of recipe.md. Extended: also accepts what server.md §2.0 lists.
enum class ApiPolicy : uint8_t { kOfficial, kExtended };

enum class MissingReasoning : uint8_t { kFillEmpty, kReject };
enum class WebSearch : uint8_t { kDrop, kReject };

struct CodecOptions {
  ApiPolicy policy = ApiPolicy::kOfficial;
  bool default_thinking_mode = true;
  MissingReasoning missing_reasoning = MissingReasoning::kFillEmpty;
  // kReject: turns whose own tokens the caller has (ReplayStore::knows) lack nothing. May be empty.
  std::function<bool(const Message&)> knows_turn;
  WebSearch responses_web_search = WebSearch::kDrop;
  WebSearch messages_web_search = WebSearch::kReject;
  // Accepted model names (case-sensitive). A server adds its served names here.
  std::map<std::string, ModelVersion, std::less<>> models = {{"DeepSeek-V4-Pro", ModelVersion::kV4},
                                                             {"DeepSeek-V4.1-Flash", ModelVersion::kV41}};
  // Extended policy: temperature, top_p and penalties as requested, in thinking mode too (server.md §4.1).
  bool open_sampling = false;
  uint32_t thinking_max_tokens_upper_bound = 393216;
  uint32_t non_thinking_max_tokens_upper_bound = 393216;
  SpecialSpellings special;
};

// Why a request was refused. `message` is the text of recipe.md §3; an HTTP layer puts it into its own envelope.
struct ApiError {
  enum class Stage : uint8_t { kParse, kConvert };
  Stage stage = Stage::kConvert;
  int http_status = 400;  // 400, or 500 for internal
  std::string message;
  // invalid_json, json_too_deep, missing_field, invalid_type, invalid_value, model_not_found, context_length_exceeded,
  // internal_error: what server.md §2.3 calls the code.
  std::string code = "invalid_value";
  std::string param;  // the field at fault where it is known, else empty

  // The official body: {"error":{"message":..,"type":..,"param":null,"code":..}}.
  std::string body() const;
};

template <class T>
using ApiResult = std::expected<T, ApiError>;

// What the constrained decoder must enforce (recipe.md §3.0, "Output constraint").
struct OutputConstraint {
  enum class Kind : uint8_t { kJson, kRegex, kToolCall, kToolCallRequired };
  Kind kind = Kind::kJson;
  std::string schema;  // JSON schema text ("" = any JSON), the regex, or the JSON list of tools
};
std::string_view to_string(OutputConstraint::Kind kind);

// Values for the sampler, after the rules of recipe.md §3.0 "Sampling".
struct SamplingOptions {
  std::optional<uint32_t> max_tokens;  // as requested; see resolve_max_tokens
  float temperature = 1.0F;
  float top_p = 1.0F;
  bool logprobs = false;
  std::optional<uint8_t> top_logprobs;
  std::optional<uint64_t> seed;
  std::optional<OutputConstraint> constraint;
  // Extended policy, outside thinking mode or with open sampling; neutral otherwise.
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  int32_t top_k = -1;
  float min_p = 0.0F;
  std::map<TokenId, float> logit_bias;
  uint32_t n = 1;
};

// Where the model's output begins (recipe.md §4.2).
enum class ThinkingStart : uint8_t { kReasoningStart, kReasoningContinuation, kContentContinuation };

struct ParsingOptions {
  bool parse_tool_calls = false;
  bool starts_in_tool_calls = false;
  bool parse_json_output = false;
  // Tool call tags count also when their ｜DSML｜ is spelled with ordinary tokens, with these or with ASCII bars
  // (extended policy). Text that quotes such a tag is then read as a call.
  bool lenient_dsml = false;
  std::optional<ThinkingStart> thinking_start;  // absent outside thinking mode
  std::vector<std::string> stop_sequences;
  bool include_stop_text = false;  // the stop sequence that matched is content too (extended policy)
};

// Settings of a Responses request that its response repeats, and how its tools are named (recipe.md §3.2, §6.3).
struct ResponsesEcho {
  std::optional<std::string> instructions;
  std::optional<uint32_t> max_output_tokens;
  std::optional<std::string> effort;
  std::optional<std::string> summary;
  std::optional<float> temperature;
  std::optional<float> top_p;
  Json text_format;  // re-serialized
  std::optional<std::string> verbosity;
  Json tool_choice;  // re-serialized
  Json tools;        // re-serialized
  std::optional<uint8_t> top_logprobs;
  std::optional<std::string> user;
  // The functions that stand for members of namespaces; a call of one is answered with its namespace and own name.
  struct NamespaceTool {
    std::string function;
    std::string name_space;
    std::string name;
    bool found = false;  // by a search in the history, not declared by the request
  };
  std::vector<NamespaceTool> namespaces;
  std::vector<std::string> custom_tools;
  bool client_tool_search = false;
  // Members of the response that repeat the request or what a server knows of it, instead of their defaults (extended
  // policy): metadata, previous_response_id, store and the like. An object.
  Json repeated = Json(Json::Object{});
};

struct ConvertedRequest {
  Api api = Api::kChat;
  ModelVersion version = ModelVersion::kV41;
  std::string model;  // as requested
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // Chat, extended policy: every chunk carries the usage so far
  Conversation conversation;
  SamplingOptions sampling;
  ParsingOptions parsing;
  uint32_t max_tokens_bound = 393216;
  // Largest id that logit_bias names, where it has no effect (thinking) too: whoever knows the vocabulary checks it.
  TokenId largest_biased_id = -1;
  // Extended policy: a tool call was forced while thinking is on. The prompt is that of `auto`; the constraint (kind
  // tool_call_required) begins after the thinking part.
  bool forced_call_after_thinking = false;
  ResponsesEcho echo;                 // Responses only
  std::vector<std::string> warnings;  // things dropped that the caller may want to know (extended policy)
};

// Reads a request body (JSON text).
ApiResult<ConvertedRequest> convert_request(Api api, std::string_view body, const CodecOptions& options);
// The same from a parsed body, for callers that looked into it before.
ApiResult<ConvertedRequest> convert_parsed_request(Api api, const Json& body, const CodecOptions& options);

// How many tokens may be generated. prompt_tokens includes images (encode_conversation adds the adjustment when told
// the image sizes). The error is the official context-length message.
ApiResult<uint32_t> resolve_max_tokens(const ConvertedRequest& request, uint64_t prompt_tokens, uint64_t context_limit);

struct PromptUsage {
  uint32_t prompt_tokens = 0;
  uint32_t cache_hit_tokens = 0;
};

// Drafts of speculative decoding that the answer took (server.md §4.2, --usage-details).
struct SpeculationUsage {
  uint64_t verified_tokens = 0;  // drafts that were looked at
  uint64_t accepted_tokens = 0;  // of these, kept
};

struct Usage {
  PromptUsage prompt;
  uint32_t completion_tokens = 0;
  std::optional<uint32_t> reasoning_tokens;
  std::optional<SpeculationUsage> speculation;  // absent: not reported
  std::optional<uint32_t> cache_write_tokens;   // prompt tokens newly kept beyond memory; absent: not reported
};

enum class FinishReason : uint8_t { kStop, kLength, kContentFilter };

struct TokenLogprob {
  float logprob = 0.0F;
  std::vector<std::pair<TokenId, float>> top;
};

struct ResponseInfo {
  std::string id;                        // chatcmpl-…, resp_…, msg_…
  std::string model;                     // the name to report
  int64_t created = 0;                   // Unix seconds
  std::function<int64_t()> clock;        // Unix seconds at completion (Responses: completed_at); absent: `created`
  std::optional<std::string> signature;  // Messages: of thinking blocks; absent: the response id
  uint32_t choice_index = 0;             // Chat, n > 1
  bool deltas = true;                    // false: no stream events are made, only body()
  bool extra_members = false;            // members beside the official ones: those of server.md §4.2, §6, §7
  bool reasoning_alias = false;          // Chat: `reasoning` beside `reasoning_content`, with the same text
  bool tokens_as_ids = false;            // tokens of log probabilities are `token_id:N`, not their text
  uint64_t tool_id_seed = 0;             // 0: seeded from the system
};

struct StreamEvent {
  std::string_view name;  // SSE event name; empty for Chat
  std::string data;       // JSON on one line
};

// Model output -> protocol events -> full response, for one choice of one request (recipe.md §4-6).
class OutputProcessor {
 public:
  // The tokenizer may be null when only text() is used.
  OutputProcessor(const ConvertedRequest& request, TokenizerRef tokenizer, ResponseInfo info);
  ~OutputProcessor();
  OutputProcessor(OutputProcessor&&) noexcept;
  OutputProcessor& operator=(OutputProcessor&&) noexcept;

  // Prompt usage, before the first output: the start events go out now. Later calls have no effect, as officially.
  void ready(const PromptUsage& usage, std::optional<std::string> system_fingerprint, std::vector<StreamEvent>& out);
  // Corrects the usage that the final event and body() report (a server learns late how much the prefix cache gave).
  void correct_usage(const PromptUsage& usage);
  // From here on the usage reports these.
  void set_speculation(const SpeculationUsage& usage);
  // One step's ids, without the end-of-sequence id. `logprobs`, when given, has one entry per id.
  Result<void> tokens(std::span<const TokenId> ids, std::optional<std::span<const TokenLogprob>> logprobs,
                      std::vector<StreamEvent>& out);
  // Text that was decoded elsewhere.
  Result<void> text(std::string_view content, uint32_t token_count, std::vector<StreamEvent>& out);
  // The engine's end of this choice.
  void finish(FinishReason reason, std::vector<StreamEvent>& out);
  // The input ends here, with or without finish(); idempotent.
  void close(std::vector<StreamEvent>& out);

  // True once a stop sequence matched, the output was finished or an error was returned: nothing more is read.
  bool done() const;
  // A stop sequence matched: the engine may stop this sequence.
  bool stopped_by_sequence() const;

  // The data line that ends the stream ("[DONE]" for Chat), if the API has one.
  std::optional<std::string_view> end_of_stream() const;
  // The non-streaming response; complete after close().
  std::string body() const;
  // One Chat choice object of body(), for callers that join several choices.
  std::string chat_choice() const;
  Usage usage() const;
  // stop | length | content_filter | tool_calls of Chat; empty before the end.
  std::string_view chat_finish_reason() const;
  // Calls named so far: id, name, arguments text.
  const std::vector<ToolCall>& tool_calls() const;
  // What was emitted so far as content and as reasoning; the content is kept only where tool calls are parsed.
  const std::string& content_text() const;
  const std::string& reasoning_text() const;
  // Bytes held back because they may begin a marker or a character.
  size_t held_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The usage object of Chat for `usage` (recipe.md §6.1).
std::string chat_usage_json(const Usage& usage);

}  // namespace di::codec
