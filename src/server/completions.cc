// Completions (server.md §5): text and fill-in-the-middle, from the body of a request to its answer under way.
#include <algorithm>
#include <charconv>

#include "base/rng.h"
#include "server/app.h"
#include "server/completion_job.h"
#include "server/constraint.h"
#include "server/fields.h"
#include "server/prepare.h"

namespace di::server {
namespace {

constexpr size_t kMaxPrompts = 64;
constexpr int64_t kOpenAiDefault = 16;
constexpr int64_t kBetaDefault = 4096;

struct Prompts {
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::string> texts;
};

std::expected<void, ApiFailure> add_text(const std::string& text, bool parse_special, const std::string& suffix,
                                         bool fill_in, const codec::Tokenizer& tokenizer, const Service& service,
                                         Prompts& out) {
  std::vector<TokenId> ids;
  const auto special = [&](std::string_view spelling) {
    if (const auto id = tokenizer.added_id(spelling)) ids.push_back(*id);
  };
  const auto plain = [&](const std::string& part) {
    const std::vector<TokenId> more = parse_special ? tokenizer.encode_full(part) : tokenizer.encode_plain(part);
    ids.insert(ids.end(), more.begin(), more.end());
  };
  special(service.codec.special.bos);
  if (fill_in) {
    special("<｜fim▁begin｜>");
    plain(text);
    special("<｜fim▁hole｜>");
    plain(suffix);
    special("<｜fim▁end｜>");
  } else {
    plain(text);
  }
  out.tokens.push_back(std::move(ids));
  out.texts.push_back(text);
  return {};
}

std::expected<std::vector<TokenId>, ApiFailure> ids_of(const Json& list, const std::string& field, int32_t vocab) {
  Json wrapper(Json::Object{});
  wrapper.set(field, list);
  return token_ids_field(wrapper, field, vocab);
}

std::expected<Prompts, ApiFailure> read_prompts(const Json& body, const Service& service) {
  const codec::Tokenizer& tokenizer = *service.tokenizer;
  const Json* prompt = body.find_value("prompt");
  if (prompt == nullptr) return invalid_field("prompt", "missing field `prompt`", "missing_field");
  const bool parse_special = DI_TRY(bool_field(body, "parse_special")).value_or(true);
  const std::optional<std::string> suffix = DI_TRY(string_field(body, "suffix"));
  Prompts out;
  const auto text = [&](const std::string& t) {
    return add_text(t, parse_special, suffix.value_or(""), suffix.has_value(), tokenizer, service, out);
  };
  const auto ids = [&](const Json& list, const std::string& field) -> std::expected<void, ApiFailure> {
    std::vector<TokenId> tokens = DI_TRY(ids_of(list, field, tokenizer.vocab_size()));
    if (tokens.empty()) return invalid_field(field, fmt::format("{}: the list of token ids is empty", field));
    out.texts.push_back(tokenizer.decode(tokens));
    out.tokens.push_back(std::move(tokens));
    return {};
  };
  if (prompt->is_string()) {
    DI_TRY(text(prompt->as_string()));
    return out;
  }
  if (!prompt->is_array()) return field_error("prompt", "a string, or a list of strings or token ids", *prompt);
  const Json::Array& list = prompt->as_array();
  if (list.empty()) return invalid_field("prompt", "prompt: the list is empty");
  if (list[0].is_number()) {
    DI_TRY(ids(*prompt, "prompt"));
    return out;
  }
  if (list.size() > kMaxPrompts)
    return invalid_field(
        "prompt", fmt::format("prompt: {} prompts are given, at most {} are accepted", list.size(), kMaxPrompts));
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string field = fmt::format("prompt[{}]", i);
    if (list[i].is_string()) {
      DI_TRY(text(list[i].as_string()));
    } else if (list[i].is_array()) {
      DI_TRY(ids(list[i], field));
    } else {
      return field_error(field, "a string or a list of token ids", list[i]);
    }
  }
  return out;
}

std::expected<void, ApiFailure> read_stop(const Json& body, const ServerConfig& config, std::vector<std::string>& out) {
  const Json* stop = body.find_value("stop");
  if (stop == nullptr) return {};
  if (stop->is_string()) {
    out.push_back(stop->as_string());
  } else {
    out = DI_TRY(strings_field(body, "stop"));
  }
  if (out.size() > 16)
    return invalid_field("stop", fmt::format("stop: {} strings, at most 16 are accepted", out.size()));
  for (const std::string& text : out) {
    if (text.empty()) return invalid_field("stop", "stop: a stop string is empty");
    if (static_cast<int64_t>(text.size()) > config.max_stop_bytes)
      return invalid_field("stop", fmt::format("stop: a stop string has {} bytes, at most {} are accepted", text.size(),
                                               config.max_stop_bytes));
  }
  return {};
}

std::expected<void, ApiFailure> read_bias(const Json& body, int32_t vocab, engine::SamplingParams& out) {
  const Json* bias = body.find_value("logit_bias");
  if (bias == nullptr) return {};
  if (!bias->is_object()) return field_error("logit_bias", "an object of token ids and biases", *bias);
  for (const JsonMember& member : bias->as_object()) {
    int32_t id = -1;
    const char* end = member.key.data() + member.key.size();
    const auto parsed = std::from_chars(member.key.data(), end, id);
    const std::optional<double> value = member.value.to_double();
    if (parsed.ptr != end || id < 0 || id >= vocab || !value || *value < -100 || *value > 100)
      return invalid_field("logit_bias",
                           fmt::format("logit_bias: expected token ids below {} and biases in [-100, 100]", vocab));
    out.logit_bias.emplace_back(id, static_cast<float>(*value));
  }
  return {};
}

std::expected<engine::SamplingParams, ApiFailure> read_sampling(const Json& body, const ChatExtras& extras,
                                                                int32_t vocab) {
  engine::SamplingParams p;
  p.temperature = DI_TRY(number_field(body, "temperature", 0, 2)).value_or(1.0);
  p.top_p = DI_TRY(number_field(body, "top_p", 0, 1)).value_or(1.0);
  if (p.top_p <= 0) return invalid_field("top_p", "top_p: expected a number in (0, 1], found 0");
  p.min_p = DI_TRY(number_field(body, "min_p", 0, 1)).value_or(0.0);
  const int64_t top_k = DI_TRY(int_field(body, "top_k", -1, INT32_MAX)).value_or(-1);
  p.top_k = top_k <= 0 ? -1 : static_cast<int32_t>(top_k);
  p.frequency_penalty = DI_TRY(number_field(body, "frequency_penalty", -2, 2)).value_or(0.0);
  p.presence_penalty = DI_TRY(number_field(body, "presence_penalty", -2, 2)).value_or(0.0);
  p.repetition_penalty = extras.repetition_penalty;
  p.allowed_token_ids = extras.allowed_token_ids;
  p.bad_words = extras.bad_words;
  p.logprob_token_ids = extras.logprob_token_ids;
  const auto seed = DI_TRY(int_field(body, "seed", 0, INT64_MAX));
  p.seed = seed ? static_cast<uint64_t>(*seed) : random_u64();
  p.seed_given = seed.has_value();
  DI_TRY(read_bias(body, vocab, p));
  return p;
}

std::expected<void, ApiFailure> check_model(App& app, const Json& body, std::string& out) {
  const std::optional<std::string> model = DI_TRY(string_field(body, "model"));
  if (!model) return invalid_field("model", "missing field `model`", "missing_field");
  const std::vector<std::string>& names = app.config().served_model_names;
  if (std::find(names.begin(), names.end(), *model) == names.end()) {
    return std::unexpected(ApiFailure{ErrorKind::kModelNotFound,
                                      fmt::format("the model `{}` does not exist", model->substr(0, 200)),
                                      {},
                                      "model",
                                      0});
  }
  out = *model;
  return {};
}

struct Prepared {
  CompletionSpec spec;
  std::vector<engine::GenerateRequest> prompts;
  RequestRecord record;
  std::optional<WantedConstraint> constraint;  // of every prompt's completion
};

std::expected<void, ApiFailure> read_options(App& app, const Json& body, Prepared& out) {
  CompletionSpec& spec = out.spec;
  DI_TRY(check_model(app, body, spec.model));
  out.record.stream = DI_TRY(bool_field(body, "stream")).value_or(false);
  if (const Json* options = body.find_value("stream_options")) {
    if (!options->is_object()) return field_error("stream_options", "an object", *options);
    if (!out.record.stream)
      return invalid_field("stream_options", "stream_options should be set along with stream = true");
    spec.include_usage = DI_TRY(bool_field(*options, "include_usage")).value_or(false);
    spec.continuous_usage = DI_TRY(bool_field(*options, "continuous_usage_stats")).value_or(false);
  }
  spec.n = static_cast<int32_t>(DI_TRY(int_field(body, "n", 1, app.config().max_n)).value_or(1));
  const auto best_of = DI_TRY(int_field(body, "best_of", 1, app.config().max_n));
  if (best_of && *best_of != spec.n)
    return invalid_field("best_of", fmt::format("best_of is {}, it must equal n ({})", *best_of, spec.n));
  spec.echo = DI_TRY(bool_field(body, "echo")).value_or(false);
  spec.logprobs = static_cast<int32_t>(DI_TRY(int_field(body, "logprobs", 0, 20)).value_or(-1));
  return read_stop(body, app.config(), spec.stop);
}

std::expected<Prepared, ApiFailure> prepare(App& app, const Service& service, Exchange& exchange, const Json& body,
                                            RequestTimeline& timeline) {
  const int64_t begun = exchange.request().received_ns;
  if (!body.is_object()) return invalid_field("", "expected a JSON object", "invalid_type");
  Prepared out;
  out.record = start_record(app, exchange, "/v1/completions", "cmpl-" + random_hex32());
  DI_TRY(read_options(app, body, out));
  CompletionSpec& spec = out.spec;
  out.record.model = spec.model;
  for (const std::string_view field : {"tools", "messages"}) {
    if (body.find_value(field) != nullptr)
      return invalid_field(field, fmt::format("{} is not supported by completions", field), "unsupported_parameter");
  }
  Json rest = body;  // echo is ours here
  rest.set("echo", Json());
  rest.set("prompt_logprobs", Json());
  const ChatExtras extras = DI_TRY(read_chat_extras(rest, *service.tokenizer, AnswerKind::kCompletion));
  spec.include_stop_text = extras.include_stop_text;
  spec.token_ids = extras.token_ids;
  spec.tokens_as_ids = extras.tokens_as_ids;
  if (!extras.logprob_token_ids.empty() && spec.logprobs < 0)
    return invalid_field("logprob_token_ids", "logprob_token_ids: log probabilities are not asked for");
  engine::SamplingParams sampling = DI_TRY(read_sampling(body, extras, service.tokenizer->vocab_size()));
  sampling.logprobs = spec.logprobs >= 0;
  sampling.top_logprobs = std::max(0, spec.logprobs);
  const bool beta = exchange.request().path.starts_with("/beta/");
  const int64_t most = service.codec.thinking_max_tokens_upper_bound;
  const int64_t max_tokens =
      DI_TRY(int_field(body, "max_tokens", spec.echo ? 0 : 1, most)).value_or(beta ? kBetaDefault : kOpenAiDefault);
  const int64_t parsed = app.clock().now_ns();
  timeline.span(Stage::kParse, begun, parsed);
  out.record.parse_ns = parsed - begun;
  Prompts prompts = DI_TRY(read_prompts(body, service));
  const int64_t tokenized = app.clock().now_ns();
  timeline.span(Stage::kTokenize, parsed, tokenized);
  out.record.tokenize_ns = tokenized - parsed;
  const int64_t context = service.engine->info().max_model_len;
  for (std::vector<TokenId>& tokens : prompts.tokens) {
    const auto length = static_cast<int64_t>(tokens.size());
    if (length + max_tokens > context) {
      return std::unexpected(
          ApiFailure{ErrorKind::kContextLength,
                     fmt::format("This model's maximum context length is {} tokens. However, you requested {} tokens "
                                 "({} in the prompt, {} in the completion).",
                                 context, length + max_tokens, length, max_tokens),
                     {},
                     "prompt",
                     0});
    }
    engine::GenerateRequest g = DI_TRY(engine_request(app, exchange, body));
    g.prompt = tokens;
    g.sampling = sampling;
    g.n = spec.n;
    g.max_tokens = max_tokens;
    g.min_tokens = extras.min_tokens;
    g.ignore_eos = extras.ignore_eos;
    if (spec.echo) g.prompt_logprobs = spec.logprobs;
    g.stop_token_ids = extras.stop_token_ids;
    out.prompts.push_back(std::move(g));
  }
  out.constraint = DI_TRY(read_constraint(body, codec::ConvertedRequest()));
  if (const Json* format = body.find_value("response_format"); format != nullptr && !out.constraint) {
    const Json* type = format->find_value("type");
    if (type == nullptr || !type->is_string() || type->as_string() != "text") {
      return invalid_field("response_format",
                           "response_format: expected the type text, json_object, json_schema with its schema, regex "
                           "with its regex, or structural_tag",
                           "invalid_value");
    }
  }
  spec.prompt_texts = std::move(prompts.texts);
  spec.prompt_tokens = std::move(prompts.tokens);
  return out;
}

}  // namespace

void handle_completions(App& app, const ExchangeRef& exchange) {
  if (const std::optional<ApiFailure> refusal = app.refusal()) return app.reply_error(*exchange, *refusal);
  const Service& service = *app.service();
  const auto body = parse_body(codec::Api::kChat, exchange->request().body, service.codec);
  if (!body) return app.reply_error(*exchange, body.error());
  take_request_id(*exchange, *body);
  const TimelineRef timeline = start_timeline(app, *exchange, "/v1/completions");
  const auto refuse = [&app, exchange, timeline](const ApiFailure& failure) {
    timeline->finish({http_status(failure.kind), "error"}, app.clock().now_ns());
    app.reply_error(*exchange, failure);
  };
  auto prepared = prepare(app, service, *exchange, *body, *timeline);
  if (!prepared) return refuse(prepared.error());
  for (const engine::GenerateRequest& g : prepared->prompts)
    timeline->prompt_tokens(static_cast<int64_t>(g.prompt.size()));
  const auto job = std::make_shared<CompletionJob>(app, service, exchange, std::move(prepared->spec),
                                                   std::move(prepared->record), timeline);
  const auto prompts = std::make_shared<std::vector<engine::GenerateRequest>>(std::move(prepared->prompts));
  if (!prepared->constraint) return job->start(std::move(*prompts));
  compile_constraint(app, service, std::move(*prepared->constraint),
                     [refuse, job, prompts](const ConstraintVerdict& verdict) {
                       if (!verdict) return refuse(verdict.error());
                       for (engine::GenerateRequest& g : *prompts) g.constraint = *verdict;
                       job->start(std::move(*prompts));
                     });
}

}  // namespace di::server
