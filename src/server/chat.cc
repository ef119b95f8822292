// Chat Completions: from the body of a request to its answer under way (server.md §4). chat_job.h is the other half.
#include <algorithm>

#include "base/rng.h"
#include "server/app.h"
#include "server/chat_extras.h"
#include "server/chat_job.h"
#include "server/constraint.h"

namespace di::server {
namespace {

ApiFailure from_api_error(const codec::ApiError& error) {
  ApiFailure failure{ErrorKind::kInvalidRequest, error.message, error.code, error.param, 0};
  if (error.http_status >= 500) failure = {ErrorKind::kInternal, "internal error", {}, {}, 0};
  if (error.message.starts_with("Invalid json schema")) failure.code = "invalid_json_schema";
  if (error.code == "model_not_found") failure.kind = ErrorKind::kModelNotFound;
  if (error.code == "context_length_exceeded") failure.kind = ErrorKind::kContextLength;
  return failure;
}

std::optional<ApiFailure> over_limit(std::string_view field, size_t found, int64_t limit) {
  if (static_cast<int64_t>(found) <= limit) return std::nullopt;
  return ApiFailure{ErrorKind::kInvalidRequest,
                    fmt::format("{}: {} are given, at most {} are accepted", field, found, limit),
                    {},
                    std::string(field),
                    0};
}

// Sizes that only this server bounds (server.md §2).
std::optional<ApiFailure> check_limits(const Json& body, const codec::ConvertedRequest& request,
                                       const ServerConfig& config) {
  const auto members = [&](std::string_view key) {
    const Json* value = body.find_value(key);
    return value == nullptr ? size_t{0} : value->size();
  };
  if (auto failure = over_limit("messages", members("messages"), config.max_messages)) return failure;
  if (auto failure = over_limit("tools", members("tools"), config.max_tools)) return failure;
  if (auto failure = over_limit("n", request.sampling.n, config.max_n)) return failure;
  for (const std::string& stop : request.parsing.stop_sequences) {
    if (static_cast<int64_t>(stop.size()) > config.max_stop_bytes) {
      return ApiFailure{
          ErrorKind::kInvalidRequest,
          fmt::format("stop: a stop string has {} bytes, at most {} are accepted", stop.size(), config.max_stop_bytes),
          {},
          "stop",
          0};
    }
  }
  return std::nullopt;
}

engine::SamplingParams sampling_params(const codec::SamplingOptions& options, const ChatExtras& extras) {
  engine::SamplingParams p;
  p.temperature = static_cast<double>(options.temperature);
  p.top_p = static_cast<double>(options.top_p);
  p.top_k = options.top_k <= 0 ? -1 : options.top_k;
  p.min_p = static_cast<double>(options.min_p);
  p.seed = options.seed ? *options.seed : random_u64();
  p.repetition_penalty = extras.repetition_penalty;
  p.frequency_penalty = static_cast<double>(options.frequency_penalty);
  p.presence_penalty = static_cast<double>(options.presence_penalty);
  p.logit_bias.assign(options.logit_bias.begin(), options.logit_bias.end());
  p.allowed_token_ids = extras.allowed_token_ids;
  p.bad_words = extras.bad_words;
  p.logprobs = options.logprobs;
  p.top_logprobs = options.top_logprobs.value_or(0);
  return p;
}

// The body as JSON. What is wrong with it, the codec words best.
std::expected<Json, ApiFailure> parse_body(std::string_view body, const codec::CodecOptions& options) {
  if (body.starts_with("\xEF\xBB\xBF")) body.remove_prefix(3);
  if (Result<Json> json = parse_json(body)) return std::move(*json);
  const auto error = codec::convert_request(codec::Api::kChat, body, options);
  if (error)
    return std::unexpected(ApiFailure{ErrorKind::kInvalidRequest, "the body is not valid JSON", "invalid_json", {}, 0});
  return std::unexpected(from_api_error(error.error()));
}

struct Prepared {
  codec::ConvertedRequest request;
  engine::GenerateRequest generate;
  std::optional<WantedConstraint> constraint;
};

std::expected<Prepared, ApiFailure> prepare(App& app, const Service& service, const HttpRequest& http,
                                            RequestTimeline& timeline) {
  const int64_t begun = app.clock().now_ns();
  const Json body = DI_TRY(parse_body(http.body, service.codec));
  const std::optional<Json> plain = without_structural_tag(body);
  auto converted = codec::convert_parsed_request(codec::Api::kChat, plain ? *plain : body, service.codec);
  if (!converted) return std::unexpected(from_api_error(converted.error()));
  if (auto failure = check_limits(body, *converted, app.config())) return std::unexpected(*failure);
  const ChatExtras extras = DI_TRY(read_chat_extras(body, *service.tokenizer));

  const int64_t parsed = app.clock().now_ns();
  timeline.span(Stage::kParse, begun, parsed);
  Result<std::vector<TokenId>> prompt = codec::encode_conversation(converted->conversation, converted->version,
                                                                   *service.tokenizer, service.codec.special);
  if (!prompt) return std::unexpected(from_error(prompt.error()));
  timeline.span(Stage::kTokenize, parsed, app.clock().now_ns(), static_cast<int64_t>(prompt->size()));
  timeline.prompt_tokens(static_cast<int64_t>(prompt->size()));
  const auto context = static_cast<uint64_t>(service.engine->info().max_model_len);
  const auto max_tokens = codec::resolve_max_tokens(*converted, prompt->size(), context);
  if (!max_tokens) return std::unexpected(from_api_error(max_tokens.error()));

  Prepared out;
  engine::GenerateRequest& g = out.generate;
  g.id = http.id;
  g.prompt = std::move(*prompt);
  g.sampling = sampling_params(converted->sampling, extras);
  g.n = static_cast<int32_t>(converted->sampling.n);
  g.max_tokens = *max_tokens;
  g.min_tokens = extras.min_tokens;
  g.ignore_eos = extras.ignore_eos;
  g.stop_token_ids = extras.stop_token_ids;
  out.constraint = DI_TRY(read_constraint(body, *converted));
  if (service.constraints != nullptr)
    g.constrained_prompt_tokens = constrained_prompt_tokens(*converted, *service.constraints->vocabulary(), g.prompt);
  const int64_t now = app.clock().now_ns();
  if (app.config().max_queue_wait_ms > 0) g.queue_deadline_ns = now + app.config().max_queue_wait_ms * kNsPerMs;
  if (app.config().request_timeout_ms > 0) g.deadline_ns = now + app.config().request_timeout_ms * kNsPerMs;
  out.request = std::move(*converted);
  return out;
}

}  // namespace

void handle_chat_completions(App& app, const ExchangeRef& exchange) {
  if (const std::optional<ApiFailure> refusal = app.refusal()) return app.reply_error(*exchange, *refusal);
  const Service& service = *app.service();
  const HttpRequest& http = exchange->request();
  const TimelineRef timeline = app.timelines().start({http.id, "default", http.path, http.received_ns});
  const auto refuse = [&app, exchange, timeline](const ApiFailure& failure) {
    timeline->finish({http_status(failure.kind), "error"}, app.clock().now_ns());
    app.reply_error(*exchange, failure);
  };
  auto prepared = prepare(app, service, http, *timeline);
  if (!prepared) return refuse(prepared.error());
  std::optional<WantedConstraint> constraint = std::move(prepared->constraint);
  const auto job = std::make_shared<ChatJob>(app, service, exchange, std::move(prepared->request), timeline);
  if (!constraint) return job->start(std::move(prepared->generate));
  // The answer's head waits for the verdict; this thread does not.
  const auto generate = std::make_shared<engine::GenerateRequest>(std::move(prepared->generate));
  compile_constraint(app, service, std::move(*constraint), [refuse, job, generate](const ConstraintVerdict& verdict) {
    if (!verdict) return refuse(verdict.error());
    generate->constraint = *verdict;
    job->start(std::move(*generate));
  });
}

}  // namespace di::server
