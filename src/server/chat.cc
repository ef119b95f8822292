// Chat Completions, Responses and Messages: from the body of a request to its answer under way (server.md §4, §6, §7).
// chat_job.h is the other half.
#include <algorithm>
#include <memory>
#include <span>

#include "server/app.h"
#include "server/background.h"
#include "server/chat_job.h"
#include "server/constraint.h"
#include "server/fields.h"
#include "server/prepare.h"
#include "server/responses_store.h"

namespace di::server {
namespace {

struct Prepared {
  engine::GenerateRequest generate;
  RequestRecord record;
  std::optional<WantedConstraint> constraint;
  std::vector<TokenId> answer_start;  // see ChatJob
};

std::expected<void, ApiFailure> check_ids(const codec::SamplingOptions& sampling, int32_t vocab_size) {
  for (const auto& [id, bias] : sampling.logit_bias) {
    if (id < vocab_size) continue;
    return invalid_field("logit_bias",
                         fmt::format("logit_bias: token id {} is outside the vocabulary of {} tokens", id, vocab_size));
  }
  return {};
}

std::string_view id_prefix(codec::Api api) {
  return api == codec::Api::kChat ? "chatcmpl-" : api == codec::Api::kResponses ? "resp_" : "msg_";
}

std::string_view route_of(codec::Api api) {
  return api == codec::Api::kChat        ? "/v1/chat/completions"
         : api == codec::Api::kResponses ? "/v1/responses"
                                         : "/v1/messages";
}

// The prompt's last assistant token and what follows, where the turn may be one to keep (exact replay).
std::vector<TokenId> answer_start(const App& app, const Service& service, const codec::ConvertedRequest& request,
                                  const std::vector<TokenId>& prompt) {
  if (app.turns() == nullptr || !request.parsing.parse_tool_calls) return {};
  const std::optional<TokenId> assistant = service.tokenizer->added_id(service.codec.special.assistant);
  if (!assistant) return {};
  const auto last = std::find(prompt.rbegin(), prompt.rend(), *assistant);
  if (last == prompt.rend()) return {};
  return {last.base() - 1, prompt.end()};
}

// The tools of Responses and Messages as Chat describes them; what is no function is left out.
Json chat_tools(const Json& tools) {
  Json::Array out;
  for (const Json& tool : tools.as_array()) {
    const Json* name = tool.find_value("name");
    if (name == nullptr) continue;
    Json function(Json::Object{});
    function.set("name", *name);
    for (const char* key : {"parameters", "input_schema"}) {
      if (const Json* parameters = tool.find_value(key)) function.set("parameters", *parameters);
    }
    if (const Json* strict = tool.find_value("strict")) function.set("strict", *strict);
    Json wrapped(Json::Object{});
    wrapped.set("type", Json("function"));
    wrapped.set("function", std::move(function));
    out.push_back(std::move(wrapped));
  }
  return Json(std::move(out));
}

// The formats and tools of Responses and Messages in the words of Chat, which the reader of constraints knows.
std::expected<std::optional<WantedConstraint>, ApiFailure> wanted_constraint(codec::Api api, const Json& body,
                                                                             const codec::ConvertedRequest& request) {
  if (api == codec::Api::kChat) return read_constraint(body, request);
  const char* outer_name = api == codec::Api::kResponses ? "text" : "output_config";
  Json view = body;
  view.set("response_format", Json());
  if (const Json* tools = body.find_value("tools"); tools != nullptr && tools->is_array())
    view.set("tools", chat_tools(*tools));
  const Json* outer = body.find_value(outer_name);
  const Json* format = outer == nullptr || !outer->is_object() ? nullptr : outer->find_value("format");
  if (format != nullptr && format->is_object()) {
    Json inner(Json::Object{});
    for (const char* key : {"schema", "strict"}) {
      if (const Json* value = format->find_value(key)) inner.set(key, *value);
    }
    // Responses is strict unless it says otherwise; Messages has no other kind.
    if (api == codec::Api::kMessages || inner.find_value("strict") == nullptr) inner.set("strict", Json(true));
    Json own(Json::Object{});
    if (const Json* type = format->find_value("type")) own.set("type", *type);
    own.set("json_schema", std::move(inner));
    view.set("response_format", std::move(own));
  }
  if (const Json* choice = body.find_value("tool_choice"); choice != nullptr && choice->is_object()) {
    const Json* one = choice->find_value("disable_parallel_tool_use");
    if (one != nullptr && one->is_bool() && one->as_bool()) view.set("parallel_tool_calls", Json(false));
  }
  auto wanted = read_constraint(view, request);
  constexpr std::string_view kChat = "response_format.json_schema";
  if (wanted && *wanted && (*wanted)->param.starts_with(kChat))
    (*wanted)->param = fmt::format("{}.format{}", outer_name, (*wanted)->param.substr(kChat.size()));
  return wanted;
}

// A response that goes into the store.
struct KeptResponse {
  Json input;  // the items that led to it
  bool background = false;
};

// A request on its way to the engine.
struct Call {
  App& app;
  const Service& service;
  ExchangeRef exchange;
  TimelineRef timeline;
  codec::Api api;
  Json body;
  std::vector<std::string> warnings;  // `code;field`, for a header
  std::optional<KeptResponse> kept;
  codec::ConvertedRequest request;
  ChatExtras extras;
  codec::RenderedPrompt rendered;
  int64_t parsed_ns = 0;
};

// Reads the body, as far as it needs no images.
std::expected<void, ApiFailure> read_call(Call& call) {
  const codec::CodecOptions& options = call.service.codec;
  const std::optional<Json> plain = without_structural_tag(call.body);
  call.request =
      DI_TRY(convert_body(call.app, call.exchange->context().tenant, call.api, plain ? *plain : call.body, options));
  if (options.policy == codec::ApiPolicy::kExtended)
    call.extras = DI_TRY(read_chat_extras(call.body, *call.service.tokenizer));
  call.request.parsing.include_stop_text = call.extras.include_stop_text;
  DI_TRY(check_ids(call.request.sampling, call.service.engine->info().vocab_size));
  call.parsed_ns = call.app.clock().now_ns();
  call.timeline->span(Stage::kParse, call.exchange->request().received_ns, call.parsed_ns);
  call.rendered = codec::render_conversation(call.request.conversation, call.request.version, options.special);
  return {};
}

std::expected<Prepared, ApiFailure> prepare(Call& call, std::span<const codec::ResolvedImage> images) {
  App& app = call.app;
  const Service& service = call.service;
  Prepared out;
  out.record = start_record(app, *call.exchange, route_of(call.api), std::string(id_prefix(call.api)) + random_hex32());
  out.record.model = call.request.model;
  out.record.stream = call.request.stream;
  EncodedPrompt prompt = DI_TRY(encode_rendered(call.rendered, *service.tokenizer, service.codec, images));
  const int64_t tokenized = app.clock().now_ns();
  call.timeline->span(Stage::kTokenize, call.parsed_ns, tokenized);
  out.record.parse_ns = call.parsed_ns - call.exchange->request().received_ns;
  out.record.tokenize_ns = tokenized - call.parsed_ns;
  const auto context = static_cast<uint64_t>(service.engine->info().max_model_len);
  const auto max_tokens = codec::resolve_max_tokens(call.request, prompt.ids.size(), context);
  if (!max_tokens) return std::unexpected(from_api_error(max_tokens.error()));

  out.answer_start = answer_start(app, service, call.request, prompt.ids);
  engine::GenerateRequest& g = out.generate;
  g = DI_TRY(engine_request(app, *call.exchange, call.body));
  g.prompt = std::move(prompt.ids);
  g.media = std::move(prompt.media);
  g.sampling = sampling_params(call.request.sampling, call.extras);
  g.n = static_cast<int32_t>(call.request.sampling.n);
  g.max_tokens = *max_tokens;
  g.min_tokens = call.extras.min_tokens;
  g.ignore_eos = call.extras.ignore_eos;
  g.stop_token_ids = call.extras.stop_token_ids;
  if (call.api == codec::Api::kChat) g.prompt_logprobs = call.extras.prompt_logprobs;
  out.constraint = DI_TRY(wanted_constraint(call.api, call.body, call.request));
  if (service.constraints != nullptr)
    g.constrained_prompt_tokens = constrained_prompt_tokens(call.request, *service.constraints->vocabulary(), g.prompt);
  return out;
}

// The header that says what was ignored (server.md §6) and what a constraint leaves open.
void warn(Exchange& exchange, const std::vector<std::string>& warnings) {
  if (warnings.empty()) return;
  exchange.context().answer_headers.emplace_back("deepinfer-warnings",
                                                 header_text(fmt::format("{}", fmt::join(warnings, ", "))));
}

void refuse(const Call& call, const ApiFailure& failure) {
  call.timeline->finish({http_status(failure.kind), "error"}, call.app.clock().now_ns());
  call.app.reply_error(*call.exchange, failure);
}

void submit(const std::shared_ptr<Call>& call, std::span<const codec::ResolvedImage> images) {
  App& app = call->app;
  const Service& service = call->service;
  const ExchangeRef& exchange = call->exchange;
  const TimelineRef& timeline = call->timeline;
  const std::optional<KeptResponse>& kept = call->kept;
  std::vector<std::string>& warnings = call->warnings;
  auto prepared = prepare(*call, images);
  if (!prepared) return refuse(*call, prepared.error());
  timeline->prompt_tokens(static_cast<int64_t>(prepared->generate.prompt.size()));
  warnings.insert(warnings.end(), call->request.warnings.begin(), call->request.warnings.end());
  const std::string id = prepared->record.response_id;
  const bool background = kept && kept->background;
  const auto detached = background ? std::make_shared<BackgroundExchange>(app, exchange, id) : nullptr;
  std::function<void(Json)> on_body;
  if (kept) {
    on_body = [&app, input = kept->input, tenant = exchange->context().tenant, id, background](Json response) {
      if (!background) return app.responses().put(tenant, input, std::move(response));
      response.set("background", Json(true));
      app.responses().update(tenant, id, std::move(response));
    };
  }
  const auto job = std::make_shared<ChatJob>(app, service, background ? detached : exchange, std::move(call->request),
                                             std::move(prepared->record), timeline, std::move(prepared->answer_start),
                                             std::move(on_body), background);
  if (background) app.responses().put(exchange->context().tenant, kept->input, pending_response(job->empty_body()));
  const auto prompts = std::make_shared<std::vector<engine::GenerateRequest>>();
  prompts->push_back(std::move(prepared->generate));
  const auto start = [job, prompts, detached] {
    job->start(std::move(*prompts));
    if (detached) detached->accept();
  };
  if (!prepared->constraint) {
    warn(*exchange, warnings);
    return start();
  }
  warnings.insert(warnings.end(), prepared->constraint->warnings.begin(), prepared->constraint->warnings.end());
  // The answer's head waits for the verdict; this thread does not.
  compile_constraint(app, service, std::move(*prepared->constraint),
                     [call, start, prompts, id, background](const ConstraintVerdict& verdict) {
                       if (verdict) {
                         const std::vector<std::string>& more = (*verdict)->warnings();
                         call->warnings.insert(call->warnings.end(), more.begin(), more.end());
                       }
                       warn(*call->exchange, call->warnings);
                       if (!verdict && background) call->app.responses().remove(call->exchange->context().tenant, id);
                       if (!verdict) return refuse(*call, verdict.error());
                       prompts->front().constraint = *verdict;
                       start();
                     });
}

void answer(App& app, const ExchangeRef& exchange, codec::Api api, Json body, std::vector<std::string> warnings = {},
            std::optional<KeptResponse> kept = std::nullopt) {
  const auto call = std::make_shared<Call>(Call{app,
                                                *app.service(),
                                                exchange,
                                                start_timeline(app, *exchange, route_of(api)),
                                                api,
                                                std::move(body),
                                                std::move(warnings),
                                                std::move(kept),
                                                {},
                                                {},
                                                {},
                                                0});
  if (const auto read = read_call(*call); !read) return refuse(*call, read.error());
  with_images(app, exchange->context().tenant, std::move(call->rendered.image_sources), [call](const Images& images) {
    if (!images) return refuse(*call, images.error());
    submit(call, *images);
  });
}

// The name that the format of Messages had before.
void rename_output_format(Json& body) {
  const Json* format = body.find_value("output_format");
  const Json* config = body.find_value("output_config");
  if (format == nullptr || (config != nullptr && (!config->is_object() || config->find_value("format") != nullptr)))
    return;
  Json outer = config == nullptr ? Json(Json::Object{}) : *config;
  outer.set("format", *format);
  body.set("output_format", Json());
  body.set("output_config", std::move(outer));
}

void handle(App& app, const ExchangeRef& exchange, codec::Api api) {
  if (const std::optional<ApiFailure> refusal = app.refusal()) return app.reply_error(*exchange, *refusal);
  const codec::CodecOptions& options = app.service()->codec;
  auto body = parse_body(api, exchange->request().body, options);
  if (!body) return app.reply_error(*exchange, body.error());
  if (api == codec::Api::kMessages && options.policy == codec::ApiPolicy::kExtended) rename_output_format(*body);
  answer(app, exchange, api, *std::move(body));
}

}  // namespace

void handle_chat_completions(App& app, const ExchangeRef& exchange) {
  handle(app, exchange, codec::Api::kChat);
}

void handle_messages(App& app, const ExchangeRef& exchange) {
  handle(app, exchange, codec::Api::kMessages);
}

void handle_responses(App& app, const ExchangeRef& exchange) {
  if (const std::optional<ApiFailure> refusal = app.refusal()) return app.reply_error(*exchange, *refusal);
  auto body = parse_body(codec::Api::kResponses, exchange->request().body, app.service()->codec);
  if (!body) return app.reply_error(*exchange, body.error());
  if (app.service()->codec.policy == codec::ApiPolicy::kOfficial)
    return answer(app, exchange, codec::Api::kResponses, *std::move(body));

  auto stored = join_previous(app, exchange->context().tenant, *body);
  if (!stored) return app.reply_error(*exchange, stored.error());
  std::optional<KeptResponse> kept;
  if (stored->keep) kept = KeptResponse{std::move(stored->input), stored->background};
  answer(app, exchange, codec::Api::kResponses, *std::move(body), std::move(stored->warnings), std::move(kept));
}

}  // namespace di::server
