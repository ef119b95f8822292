// Chat Completions, Responses and Messages: from the body of a request to its answer under way (server.md §4, §6, §7).
// chat_job.h is the other half.
#include <algorithm>

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
  codec::ConvertedRequest request;
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

std::expected<Prepared, ApiFailure> prepare(App& app, const Service& service, Exchange& exchange, codec::Api api,
                                            const Json& body, RequestTimeline& timeline) {
  const int64_t begun = exchange.request().received_ns;
  Prepared out;
  out.record = start_record(app, exchange, route_of(api), std::string(id_prefix(api)) + random_hex32());
  const std::optional<Json> plain = without_structural_tag(body);
  out.request = DI_TRY(convert_body(app, exchange.context().tenant, api, plain ? *plain : body, service.codec));
  const codec::ConvertedRequest& request = out.request;
  const bool extended = service.codec.policy == codec::ApiPolicy::kExtended;
  ChatExtras extras;
  if (extended) extras = DI_TRY(read_chat_extras(body, *service.tokenizer));
  DI_TRY(check_ids(request.sampling, service.engine->info().vocab_size));
  out.record.model = request.model;
  out.record.stream = request.stream;
  const int64_t parsed = app.clock().now_ns();
  timeline.span(Stage::kParse, begun, parsed);
  out.record.parse_ns = parsed - begun;

  std::vector<TokenId> prompt = DI_TRY(encode_request(request, *service.tokenizer, service.codec));
  const int64_t tokenized = app.clock().now_ns();
  timeline.span(Stage::kTokenize, parsed, tokenized);
  out.record.tokenize_ns = tokenized - parsed;
  const auto context = static_cast<uint64_t>(service.engine->info().max_model_len);
  const auto max_tokens = codec::resolve_max_tokens(request, prompt.size(), context);
  if (!max_tokens) return std::unexpected(from_api_error(max_tokens.error()));

  out.answer_start = answer_start(app, service, request, prompt);
  engine::GenerateRequest& g = out.generate;
  g = DI_TRY(engine_request(app, exchange, body));
  g.prompt = std::move(prompt);
  g.sampling = sampling_params(request.sampling, extras);
  g.n = static_cast<int32_t>(request.sampling.n);
  g.max_tokens = *max_tokens;
  g.min_tokens = extras.min_tokens;
  g.ignore_eos = extras.ignore_eos;
  g.stop_token_ids = extras.stop_token_ids;
  if (api == codec::Api::kChat) g.prompt_logprobs = extras.prompt_logprobs;
  out.constraint = DI_TRY(wanted_constraint(api, body, request));
  if (service.constraints != nullptr)
    g.constrained_prompt_tokens = constrained_prompt_tokens(request, *service.constraints->vocabulary(), g.prompt);
  return out;
}

// The header that says what was ignored (server.md §6) and what a constraint leaves open.
void warn(Exchange& exchange, const std::vector<std::string>& warnings) {
  if (warnings.empty()) return;
  exchange.context().answer_headers.emplace_back("deepinfer-warnings",
                                                 header_text(fmt::format("{}", fmt::join(warnings, ", "))));
}

// A response that goes into the store.
struct KeptResponse {
  Json input;  // the items that led to it
  bool background = false;
};

void answer(App& app, const ExchangeRef& exchange, codec::Api api, const Json& body,
            std::vector<std::string> warnings = {}, const std::optional<KeptResponse>& kept = std::nullopt) {
  const Service& service = *app.service();
  const TimelineRef timeline = start_timeline(app, *exchange, route_of(api));
  const auto refuse = [&app, exchange, timeline](const ApiFailure& failure) {
    timeline->finish({http_status(failure.kind), "error"}, app.clock().now_ns());
    app.reply_error(*exchange, failure);
  };
  auto prepared = prepare(app, service, *exchange, api, body, *timeline);
  if (!prepared) return refuse(prepared.error());
  timeline->prompt_tokens(static_cast<int64_t>(prepared->generate.prompt.size()));
  warnings.insert(warnings.end(), prepared->request.warnings.begin(), prepared->request.warnings.end());
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
  const auto job = std::make_shared<ChatJob>(app, service, background ? detached : exchange,
                                             std::move(prepared->request), std::move(prepared->record), timeline,
                                             std::move(prepared->answer_start), std::move(on_body));
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
  // The answer's head waits for the verdict; this thread does not.
  compile_constraint(
      app, service, std::move(*prepared->constraint),
      [refuse, start, prompts, &app, exchange, id, background, warnings](const ConstraintVerdict& verdict) mutable {
        if (verdict) {
          const std::vector<std::string>& more = (*verdict)->warnings();
          warnings.insert(warnings.end(), more.begin(), more.end());
        }
        warn(*exchange, warnings);
        if (!verdict && background) app.responses().remove(exchange->context().tenant, id);
        if (!verdict) return refuse(verdict.error());
        prompts->front().constraint = *verdict;
        start();
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
  answer(app, exchange, api, *body);
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
    return answer(app, exchange, codec::Api::kResponses, *body);

  auto stored = join_previous(app, exchange->context().tenant, *body);
  if (!stored) return app.reply_error(*exchange, stored.error());
  std::optional<KeptResponse> kept;
  if (stored->keep) kept = KeptResponse{std::move(stored->input), stored->background};
  answer(app, exchange, codec::Api::kResponses, *body, std::move(stored->warnings), kept);
}

}  // namespace di::server
