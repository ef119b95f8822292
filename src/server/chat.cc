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
  ChatJob::Form form;
};

std::expected<void, ApiFailure> check_ids(const codec::ConvertedRequest& request, int32_t vocab_size) {
  if (request.largest_biased_id < vocab_size) return {};
  return invalid_field("logit_bias", fmt::format("logit_bias: token id {} is outside the vocabulary of {} tokens",
                                                 request.largest_biased_id, vocab_size));
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

// What the assistant said last, where nobody spoke after it (`echo`).
std::string last_assistant_text(const codec::Conversation& conversation) {
  if (conversation.messages.empty()) return {};
  const codec::Message& last = conversation.messages.back();
  return last.role == codec::Message::Role::kAssistant ? last.content.text : std::string();
}

// Whether the deltas of a stream are padded.
std::expected<bool, ApiFailure> wants_obfuscation(const Json& body, bool always) {
  const Json* options = body.find_value("stream_options");
  if (options == nullptr || !options->is_object()) return always;
  return DI_TRY(bool_field(*options, "include_obfuscation")).value_or(false) || always;
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

// Members of a Responses request that its response repeats, where they are of the right type (server.md §6).
std::expected<Json, ApiFailure> repeated_members(const Json& body) {
  Json out(Json::Object{});
  const auto repeat = [&](std::string_view key, bool (*fits)(const Json&)) {
    const Json* value = body.find_value(key);
    if (value != nullptr && fits(*value)) out.set(std::string(key), *value);
  };
  for (const std::string_view key : {"prompt_cache_key", "prompt_cache_retention", "safety_identifier", "truncation"})
    repeat(key, [](const Json& v) { return v.is_string(); });
  repeat("metadata", [](const Json& v) { return v.is_object(); });
  repeat("parallel_tool_calls", [](const Json& v) { return v.is_bool(); });
  repeat("max_tool_calls", [](const Json& v) { return v.is_integer(); });
  if (const auto kind = DI_TRY(string_field(body, "truncation")); kind && *kind != "auto" && *kind != "disabled")
    return invalid_field("truncation", "truncation: expected auto or disabled");
  return out;
}

// The conversation without its oldest `turns`: a turn begins with what a user says after others spoke. What the system
// says before the first turn stays. Nothing: there are not more turns than that.
std::optional<codec::Conversation> without_oldest(const codec::Conversation& whole, std::size_t turns) {
  using Role = codec::Message::Role;
  const std::vector<codec::Message>& messages = whole.messages;
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const bool answer_before =
        i > 0 && (messages[i - 1].role == Role::kAssistant || messages[i - 1].role == Role::kTool);
    if (messages[i].role == Role::kUser && (starts.empty() || answer_before)) starts.push_back(i);
  }
  if (starts.size() <= turns) return std::nullopt;
  codec::Conversation out = whole;
  out.messages.erase(out.messages.begin() + static_cast<std::ptrdiff_t>(starts[0]),
                     out.messages.begin() + static_cast<std::ptrdiff_t>(starts[turns]));
  return out;
}

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
  std::string previous;  // the response that it goes on from
  codec::ConvertedRequest request;
  ChatExtras extras;
  codec::RenderedPrompt rendered;
  int64_t parsed_ns = 0;
  int64_t rendered_ns = 0;
};

// Reads the body, as far as it needs no images.
std::expected<void, ApiFailure> read_call(Call& call) {
  const codec::CodecOptions& options = call.service.codec;
  const std::optional<Json> plain = without_structural_tag(call.body);
  Json repeated(Json::Object{});
  if (call.api == codec::Api::kResponses && options.policy == codec::ApiPolicy::kExtended)
    repeated = DI_TRY(repeated_members(call.body));
  call.request =
      DI_TRY(convert_body(call.app, call.exchange->context().tenant, call.api, plain ? *plain : call.body, options));
  if (options.policy == codec::ApiPolicy::kExtended)
    call.extras = DI_TRY(read_chat_extras(call.body, *call.service.tokenizer,
                                          call.api == codec::Api::kChat ? AnswerKind::kChat : AnswerKind::kOther));
  if (!call.extras.logprob_token_ids.empty() && !call.request.sampling.logprobs)
    return invalid_field("logprob_token_ids", "logprob_token_ids: log probabilities are not asked for");
  if (!call.previous.empty()) repeated.set("previous_response_id", Json(call.previous));
  if (call.kept) repeated.set("store", Json(true));
  call.request.echo.repeated = std::move(repeated);
  call.request.parsing.include_stop_text = call.extras.include_stop_text;
  DI_TRY(check_ids(call.request, call.service.engine->info().vocab_size));
  call.parsed_ns = call.app.clock().now_ns();
  call.timeline->span(Stage::kParse, call.exchange->request().received_ns, call.parsed_ns);
  call.rendered = codec::render_conversation(call.request.conversation, call.request.version, options.special);
  call.rendered_ns = call.app.clock().now_ns();
  call.timeline->span(Stage::kRender, call.parsed_ns, call.rendered_ns);
  return {};
}

// Where the request asks for it, why it found less in the cache than an earlier one; and what later ones compare with.
void diagnose_cache(Call& call, std::span<const TokenId> prompt, const std::string& response_id) {
  PromptHistory& history = call.app.prompts();
  const std::string& tenant = call.exchange->context().tenant;
  PromptMarks marks;
  if (history.enabled()) marks = prompt_marks(call.body, prompt);
  const Json* options = call.body.find_value("prompt_cache_options");
  if (options != nullptr && options->is_object()) {
    Json& repeated = call.request.echo.repeated;
    const Json* mode = options->find_value("mode");
    const Json* ttl = options->find_value("ttl");
    Json said = *options;
    if (mode == nullptr) said.set("mode", Json("implicit"));
    if (ttl == nullptr) said.set("ttl", Json("30m"));
    repeated.set("prompt_cache_options", std::move(said));
    const Json* other = options->find_value("comparison_response_id");
    if (other != nullptr && other->is_string()) {
      Json verdict(Json::Object{});
      const auto earlier = history.get(tenant, other->as_string());
      if (earlier) {
        verdict = cache_diagnosis(*earlier, marks);
      } else {
        verdict.set("type", Json(history.enabled() ? "comparison_response_not_found" : "unavailable"));
      }
      repeated.set("prompt_cache_diagnostics", std::move(verdict));
    }
  }
  if (history.enabled()) history.put(response_id, tenant, std::move(marks));
}

// Tokens that the model may think, where that is enforced (server.md §7); -1: any number.
std::expected<int64_t, ApiFailure> thinking_budget(const Call& call) {
  const Json* thinking = call.body.find_value("thinking");
  if (!call.app.config().enforce_thinking_budget || thinking == nullptr || !thinking->is_object()) return -1;
  const auto& start = call.request.parsing.thinking_start;
  if (!start || *start == codec::ThinkingStart::kContentContinuation) return -1;
  return DI_TRY(int_field(*thinking, "budget_tokens", 0, INT64_MAX)).value_or(-1);
}

struct Fitted {
  EncodedPrompt prompt;
  codec::ApiResult<uint32_t> max_tokens;
};

// The prompt and how long its answer may be. With `truncation: auto` the oldest turns go until both fit (as few as a
// search by halves finds), as long as one turn is left.
std::expected<Fitted, ApiFailure> fit(Call& call, std::span<const codec::ResolvedImage> images) {
  const Service& service = call.service;
  const auto context = static_cast<uint64_t>(service.engine->info().max_model_len);
  const auto encode = [&](const codec::RenderedPrompt& rendered,
                          std::span<const codec::ResolvedImage> of_it) -> std::expected<Fitted, ApiFailure> {
    EncodedPrompt prompt = DI_TRY(encode_rendered(rendered, *service.tokenizer, service.codec, of_it));
    auto max_tokens = codec::resolve_max_tokens(call.request, prompt.ids.size(), context);
    return Fitted{std::move(prompt), std::move(max_tokens)};
  };
  Fitted out = DI_TRY(encode(call.rendered, images));
  const Json* kind = call.request.echo.repeated.find_value("truncation");
  if (out.max_tokens || kind == nullptr || kind->as_string() != "auto") return out;
  // Fewest turns that are known to be enough, and most that are known not to be.
  std::size_t enough = 0;
  std::size_t too_few = 0;
  for (std::size_t turns = 1; enough == 0 || enough - too_few > 1;
       turns = enough == 0 ? turns * 2 : too_few + (enough - too_few) / 2) {
    auto shorter = without_oldest(call.request.conversation, turns);
    while (!shorter && turns > too_few + 1) shorter = without_oldest(call.request.conversation, --turns);
    if (!shorter) return out;
    const codec::RenderedPrompt rendered =
        codec::render_conversation(*shorter, call.request.version, service.codec.special);
    // Images go with their turns, oldest first.
    Fitted tried = DI_TRY(encode(rendered, images.last(std::min(images.size(), rendered.image_sources.size()))));
    (tried.max_tokens ? enough : too_few) = turns;
    if (tried.max_tokens) out = std::move(tried);
  }
  call.warnings.push_back(fmt::format("truncated;{} turns", enough));
  return out;
}

std::expected<Prepared, ApiFailure> prepare(Call& call, std::span<const codec::ResolvedImage> images) {
  App& app = call.app;
  const Service& service = call.service;
  Prepared out;
  out.record = start_record(app, *call.exchange, route_of(call.api), std::string(id_prefix(call.api)) + random_hex32());
  out.record.model = call.request.model;
  out.record.stream = call.request.stream;
  const int64_t begun = app.clock().now_ns();  // images may have taken their time before
  Fitted fitted = DI_TRY(fit(call, images));
  EncodedPrompt& prompt = fitted.prompt;
  const int64_t tokenized = app.clock().now_ns();
  call.timeline->span(Stage::kTokenize, begun, tokenized);
  out.record.parse_ns = call.parsed_ns - call.exchange->request().received_ns;
  out.record.render_ns = call.rendered_ns - call.parsed_ns;
  out.record.tokenize_ns = tokenized - begun;
  const auto& max_tokens = fitted.max_tokens;
  if (!max_tokens) return std::unexpected(from_api_error(max_tokens.error()));

  if (call.api == codec::Api::kResponses && service.codec.policy == codec::ApiPolicy::kExtended)
    diagnose_cache(call, prompt.ids, out.record.response_id);
  out.form.answer_start = answer_start(app, service, call.request, prompt.ids);
  out.form.tokens_as_ids = call.extras.tokens_as_ids;
  if (call.extras.token_ids) out.form.prompt_ids = prompt.ids;
  if (call.extras.echo) out.form.echo = last_assistant_text(call.request.conversation);
  out.form.obfuscation =
      call.api != codec::Api::kMessages && DI_TRY(wants_obfuscation(call.body, app.config().stream_obfuscation));
  engine::GenerateRequest& g = out.generate;
  g = DI_TRY(engine_request(app, *call.exchange, call.body));
  g.prompt = std::move(prompt.ids);
  g.media = std::move(prompt.media);
  g.sampling = sampling_params(call.request.sampling, call.extras);
  g.sampling.thinking_budget = DI_TRY(thinking_budget(call));
  g.sampling.think_end = service.tokenizer->added_id(service.codec.special.think_end).value_or(-1);
  if (g.sampling.think_end < 0) g.sampling.thinking_budget = -1;
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
  ChatJob::Form form = std::move(prepared->form);
  form.background = background;
  if (kept) {
    form.on_body = [&app, input = kept->input, tenant = exchange->context().tenant, id, background](Json response) {
      if (!background) return app.responses().put(tenant, input, std::move(response));
      response.set("background", Json(true));
      app.responses().update(tenant, id, std::move(response));
    };
  }
  const auto job = std::make_shared<ChatJob>(app, service, background ? detached : exchange, std::move(call->request),
                                             std::move(prepared->record), timeline, std::move(form));
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
            std::optional<KeptResponse> kept = std::nullopt, std::string previous = {}) {
  const auto call = std::make_shared<Call>(Call{app,
                                                *app.service(),
                                                exchange,
                                                start_timeline(app, *exchange, route_of(api)),
                                                api,
                                                std::move(body),
                                                std::move(warnings),
                                                std::move(kept),
                                                std::move(previous),
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
  if (options.policy == codec::ApiPolicy::kExtended) take_request_id(*exchange, *body);
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

  take_request_id(*exchange, *body);
  auto stored = join_previous(app, exchange->context().tenant, *body);
  if (!stored) return app.reply_error(*exchange, stored.error());
  std::optional<KeptResponse> kept;
  if (stored->keep) kept = KeptResponse{std::move(stored->input), stored->background};
  answer(app, exchange, codec::Api::kResponses, *std::move(body), std::move(stored->warnings), std::move(kept),
         std::move(stored->previous));
}

}  // namespace di::server
