// Routes that run the codec only (server.md §7 count_tokens, §6 input_tokens, §8.2): they answer while the model loads.
#include <memory>

#include "server/app.h"
#include "server/fields.h"
#include "server/prepare.h"

namespace di::server {
namespace {

// The codec's part of the service; replies and returns null while there is none.
const Codec* codec_or_refuse(App& app, Exchange& exchange) {
  const Codec* codec = app.codec();
  if (codec == nullptr) app.reply_error(exchange, {ErrorKind::kNotReady, "the tokenizer is still loading", {}, {}, 1});
  return codec;
}

struct Rendered {
  codec::ConvertedRequest request;
  codec::RenderedPrompt prompt;
  EncodedPrompt encoded;
};

// Goes on with the prompt of a body; a body that has none is answered with its error.
void render(App& app, const ExchangeRef& exchange, const Codec& codec, codec::Api api, const Json& body,
            const std::function<void(const Rendered&)>& then) {
  const std::string& tenant = exchange->context().tenant;
  auto request = convert_body(app, tenant, api, body, codec.options);
  if (!request) return app.reply_error(*exchange, request.error());
  const auto rendered = std::make_shared<Rendered>();
  rendered->request = *std::move(request);
  rendered->prompt =
      codec::render_conversation(rendered->request.conversation, rendered->request.version, codec.options.special);
  with_images(app, tenant, rendered->prompt.image_sources,
              [&app, &codec, exchange, rendered, then](const Images& images) {
                if (!images) return app.reply_error(*exchange, images.error());
                auto encoded = encode_rendered(rendered->prompt, *codec.tokenizer, codec.options, *images);
                if (!encoded) return app.reply_error(*exchange, encoded.error());
                rendered->encoded = *std::move(encoded);
                then(*rendered);
              });
}

void count(App& app, const ExchangeRef& exchange, codec::Api api, std::string_view object) {
  const Codec* codec = codec_or_refuse(app, *exchange);
  if (codec == nullptr) return;
  const auto body = parse_body(api, exchange->request().body, codec->options);
  if (!body) return app.reply_error(*exchange, body.error());
  render(app, exchange, *codec, api, *body, [&app, exchange, object](const Rendered& rendered) {
    std::string out;
    JsonWriter w(out);
    w.begin_object();
    if (!object.empty()) w.key("object").value(object);
    w.key("input_tokens").value(rendered.encoded.ids.size()).end_object();
    app.reply_json(*exchange, std::move(out));
  });
}

// Which API a body is written for.
codec::Api api_of(const Json& body) {
  if (body.find_value("input") != nullptr) return codec::Api::kResponses;
  for (const std::string_view field : {"system", "stop_sequences", "output_config"}) {
    if (body.find_value(field) != nullptr) return codec::Api::kMessages;
  }
  if (const Json* tools = body.find_value("tools"); tools != nullptr && tools->is_array() && tools->size() > 0 &&
                                                    tools->as_array()[0].find_value("input_schema") != nullptr)
    return codec::Api::kMessages;
  return codec::Api::kChat;
}

// Of a body without messages.
std::expected<std::vector<TokenId>, ApiFailure> tokens_of_text(const Codec& codec, const Json& body) {
  std::optional<std::string> text = DI_TRY(string_field(body, "prompt"));
  if (!text) text = DI_TRY(string_field(body, "content"));
  if (!text) return invalid_field("prompt", "missing field `prompt`", "missing_field");
  const bool add_special = DI_TRY(bool_field(body, "add_special_tokens")).value_or(true);
  const bool parse_special = DI_TRY(bool_field(body, "parse_special")).value_or(true);
  std::vector<TokenId> out;
  if (const auto bos = codec.tokenizer->added_id(codec.options.special.bos); add_special && bos) out.push_back(*bos);
  const std::vector<TokenId> ids =
      parse_special ? codec.tokenizer->encode_full(*text) : codec.tokenizer->encode_plain(*text);
  out.insert(out.end(), ids.begin(), ids.end());
  return out;
}

// Of a body with messages or with text.
void encode_any(App& app, const ExchangeRef& exchange, const Codec& codec, Json& body,
                const std::function<void(const EncodedPrompt&)>& then) {
  if (body.find_value("messages") != nullptr) {
    if (body.find_value("model") == nullptr) body.set("model", Json(app.config().served_model_names[0]));
    return render(app, exchange, codec, api_of(body), body,
                  [then](const Rendered& rendered) { then(rendered.encoded); });
  }
  auto tokens = tokens_of_text(codec, body);
  if (!tokens) return app.reply_error(*exchange, tokens.error());
  then({*std::move(tokens), {}});
}

void write_tokens(JsonWriter& w, const std::vector<TokenId>& tokens) {
  w.begin_array();
  for (const TokenId id : tokens) w.value(id);
  w.end_array();
}

}  // namespace

void handle_count_tokens(App& app, const ExchangeRef& exchange) {
  count(app, exchange, codec::Api::kMessages, {});
}

void handle_input_tokens(App& app, const ExchangeRef& exchange) {
  count(app, exchange, codec::Api::kResponses, "response.input_tokens");
}

void handle_tokenize(App& app, const ExchangeRef& exchange) {
  const Codec* codec = codec_or_refuse(app, *exchange);
  if (codec == nullptr) return;
  auto body = parse_body(codec::Api::kChat, exchange->request().body, codec->options);
  if (!body) return app.reply_error(*exchange, body.error());
  if (!body->is_object())
    return app.reply_error(*exchange, invalid_field("", "expected a JSON object", "invalid_type").error());
  const auto strings = bool_field(*body, "return_token_strs");
  if (!strings) return app.reply_error(*exchange, strings.error());
  const auto reply = [&app, exchange, codec, with_strings = strings->value_or(false)](const std::vector<TokenId>& ids) {
    std::string out;
    JsonWriter w(out);
    w.begin_object().key("count").value(ids.size()).key("max_model_len");
    if (app.service() == nullptr) {
      w.null();
    } else {
      w.value(app.service()->engine->info().max_model_len);
    }
    w.key("tokens");
    write_tokens(w, ids);
    if (with_strings) {
      w.key("token_strs").begin_array();
      for (const TokenId id : ids) w.value(codec->tokenizer->decode(std::span(&id, 1)));
      w.end_array();
    }
    w.end_object();
    app.reply_json(*exchange, std::move(out));
  };
  encode_any(app, exchange, *codec, *body, [reply](const EncodedPrompt& prompt) { reply(prompt.ids); });
}

void handle_cache_lookup(App& app, const ExchangeRef& exchange) {
  if (const auto refusal = app.refusal()) return app.reply_error(*exchange, *refusal);
  const Codec& codec = *app.codec();
  auto body = parse_body(codec::Api::kChat, exchange->request().body, codec.options);
  if (!body) return app.reply_error(*exchange, body.error());
  if (!body->is_object())
    return app.reply_error(*exchange, invalid_field("", "expected a JSON object", "invalid_type").error());
  auto request = engine_request(app, *exchange, *body);
  if (!request) return app.reply_error(*exchange, request.error());
  encode_any(app, exchange, codec, *body, [&app, exchange, request = *request](const EncodedPrompt& prompt) mutable {
    request.prompt = prompt.ids;
    request.media = prompt.media;
    const auto answer = [&app, exchange, tokens = prompt.ids.size()](const engine::CacheLookup& found) {
      std::string out;
      JsonWriter w(out);
      w.begin_object().key("prompt_tokens").value(tokens).key("matched").begin_object();
      w.key("device").value(found.block_tokens).end_object();
      w.key("window").value(kv::to_string(found.window)).end_object();
      app.reply_json(*exchange, std::move(out));
    };
    app.service()->engine->look_up(request, answer);
  });
}

void handle_detokenize(App& app, const ExchangeRef& exchange) {
  const Codec* codec = codec_or_refuse(app, *exchange);
  if (codec == nullptr) return;
  const auto body = parse_body(codec::Api::kChat, exchange->request().body, codec->options);
  if (!body) return app.reply_error(*exchange, body.error());
  if (body->find_value("tokens") == nullptr) {
    return app.reply_error(*exchange,
                           {ErrorKind::kInvalidRequest, "missing field `tokens`", "missing_field", "tokens", 0});
  }
  const auto ids = token_ids_field(*body, "tokens", codec->tokenizer->vocab_size());
  if (!ids) return app.reply_error(*exchange, ids.error());
  const std::string text = codec->tokenizer->decode(*ids);
  std::string out;
  JsonWriter(out).begin_object().key("prompt").value(text).key("content").value(text).end_object();
  app.reply_json(*exchange, std::move(out));
}

namespace {

void write_rendered(JsonWriter& w, const Rendered& rendered) {
  const codec::ConvertedRequest& request = rendered.request;
  w.begin_object().key("prompt").value(rendered.prompt.text).key("token_ids");
  write_tokens(w, rendered.encoded.ids);
  // The parts of the text that are single special tokens, as byte ranges.
  w.key("segments").begin_array();
  for (const auto& [begin, end] : rendered.prompt.special_ranges) w.begin_array().value(begin).value(end).end_array();
  w.end_array().key("stop").begin_array();
  for (const std::string& stop : request.parsing.stop_sequences) w.value(stop);
  w.end_array().key("inference_options").begin_object();
  w.key("temperature").value(request.sampling.temperature).key("top_p").value(request.sampling.top_p);
  w.key("max_tokens").value(request.sampling.max_tokens).key("thinking").value(request.conversation.thinking_mode);
  w.key("constraint");
  if (request.sampling.constraint) {
    w.value(codec::to_string(request.sampling.constraint->kind));
  } else {
    w.null();
  }
  w.end_object().end_object();
}

}  // namespace

void handle_render(App& app, const ExchangeRef& exchange) {
  const Codec* codec = codec_or_refuse(app, *exchange);
  if (codec == nullptr) return;
  const auto body = parse_body(codec::Api::kChat, exchange->request().body, codec->options);
  if (!body) return app.reply_error(*exchange, body.error());
  render(app, exchange, *codec, api_of(*body), *body, [&app, exchange](const Rendered& rendered) {
    std::string out;
    JsonWriter w(out);
    write_rendered(w, rendered);
    app.reply_json(*exchange, std::move(out));
  });
}

}  // namespace di::server
