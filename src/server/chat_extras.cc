#include "server/chat_extras.h"

#include <cmath>

namespace di::server {
namespace {

using Failure = std::unexpected<ApiFailure>;

Failure wrong(std::string_view field, std::string_view expected, const Json& found,
              std::string_view code = "invalid_type") {
  const std::string message = fmt::format("{}: expected {}, found {}", field, expected, describe_json(found));
  return Failure(ApiFailure{ErrorKind::kInvalidRequest, message, std::string(code), std::string(field), 0});
}

// Integers are accepted as 4 or 4.0.
std::optional<int64_t> integer(const Json& value) {
  if (const std::optional<int64_t> i = value.to_i64()) return i;
  const std::optional<double> d = value.to_double();
  if (d && std::floor(*d) == *d && std::abs(*d) < 9e15) return static_cast<int64_t>(*d);
  return std::nullopt;
}

std::expected<std::vector<int32_t>, ApiFailure> token_ids(const Json& body, std::string_view field) {
  std::vector<int32_t> out;
  const Json* value = body.find_value(field);
  if (value == nullptr) return out;
  if (!value->is_array()) return wrong(field, "a list of token ids", *value);
  for (const Json& item : value->as_array()) {
    const std::optional<int64_t> id = integer(item);
    if (!id || *id < 0 || *id > INT32_MAX) return wrong(field, "a list of token ids", item);
    out.push_back(static_cast<int32_t>(*id));
  }
  return out;
}

// Off: absent, null, false, 0, "", [] or {}.
bool is_off(const Json* value) {
  if (value == nullptr || value->is_null()) return true;
  if (const bool* b = value->if_bool()) return !*b;
  if (const std::string* s = value->if_string()) return s->empty();
  if (value->is_number()) return value->to_double() == 0.0;
  return value->size() == 0;
}

std::expected<void, ApiFailure> refuse_unsupported(const Json& body) {
  for (const std::string_view field : {"prompt_logprobs", "logprob_token_ids", "echo"}) {
    if (is_off(body.find(field))) continue;
    return Failure(ApiFailure{ErrorKind::kInvalidRequest, fmt::format("{} is not supported by this server", field),
                              "unsupported_parameter", std::string(field), 0});
  }
  return {};
}

std::expected<void, ApiFailure> read_bad_words(const Json& body, const codec::Tokenizer& tokenizer,
                                               ChatExtras& extras) {
  const Json* words = body.find_value("bad_words");
  if (words == nullptr) return {};
  if (!words->is_array()) return wrong("bad_words", "a list of strings", *words);
  for (const Json& item : words->as_array()) {
    const std::string* word = item.if_string();
    if (word == nullptr || word->empty()) return wrong("bad_words", "a list of strings that are not empty", item);
    extras.bad_words.push_back(tokenizer.encode_plain(*word));
    extras.bad_words.push_back(tokenizer.encode_plain(" " + *word));
  }
  return {};
}

}  // namespace

std::expected<ChatExtras, ApiFailure> read_chat_extras(const Json& body, const codec::Tokenizer& tokenizer) {
  ChatExtras extras;
  DI_TRY(refuse_unsupported(body));
  extras.stop_token_ids = DI_TRY(token_ids(body, "stop_token_ids"));
  extras.allowed_token_ids = DI_TRY(token_ids(body, "allowed_token_ids"));
  DI_TRY(read_bad_words(body, tokenizer, extras));
  if (const Json* value = body.find_value("ignore_eos")) {
    if (!value->is_bool()) return wrong("ignore_eos", "true or false", *value);
    extras.ignore_eos = value->as_bool();
  }
  if (const Json* value = body.find_value("min_tokens")) {
    const std::optional<int64_t> n = integer(*value);
    if (!n || *n < 0)
      return wrong("min_tokens", "an integer of at least 0", *value, n ? "invalid_value" : "invalid_type");
    extras.min_tokens = *n;
  }
  if (const Json* value = body.find_value("repetition_penalty")) {
    const std::optional<double> r = value->to_double();
    if (!r || !(*r > 0))
      return wrong("repetition_penalty", "a number above 0", *value, r ? "invalid_value" : "invalid_type");
    extras.repetition_penalty = *r;
  }
  return extras;
}

}  // namespace di::server
