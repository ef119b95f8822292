#include "server/chat_extras.h"

#include <cmath>

#include "server/fields.h"

namespace di::server {
namespace {

// Off: absent, null, false, 0, "", [] or {}.
bool is_off(const Json* value) {
  if (value == nullptr || value->is_null()) return true;
  if (const bool* b = value->if_bool()) return !*b;
  if (const std::string* s = value->if_string()) return s->empty();
  if (value->is_number()) return value->to_double() == 0.0;
  return value->size() == 0;
}

std::expected<void, ApiFailure> refuse_unsupported(const Json& body, AnswerKind kind) {
  const auto refuse = [&](std::string_view field) -> std::expected<void, ApiFailure> {
    if (is_off(body.find(field))) return {};
    return invalid_field(field, fmt::format("{} is not supported by this route", field), "unsupported_parameter");
  };
  DI_TRY(refuse("kv_transfer_params"));
  if (kind == AnswerKind::kOther) {
    for (const std::string_view field : {"echo", "return_token_ids", "return_tokens_as_token_ids"})
      DI_TRY(refuse(field));
  }
  return {};
}

// The forms of an answer's tokens.
std::expected<void, ApiFailure> read_forms(const Json& body, int32_t vocab, AnswerKind kind, ChatExtras& out) {
  constexpr std::string_view kIds = "logprob_token_ids";
  out.logprob_token_ids = DI_TRY(token_ids_field(body, kIds, vocab));
  if (body.find_value(kIds) != nullptr && out.logprob_token_ids.empty())
    return invalid_field(kIds, "logprob_token_ids: the list is empty, expected at least one token id");
  if (out.logprob_token_ids.size() > kMaxLogprobTokenIds) {
    return invalid_field(kIds, fmt::format("logprob_token_ids: {} ids are given, at most {} are accepted",
                                           out.logprob_token_ids.size(), kMaxLogprobTokenIds));
  }
  if (kind == AnswerKind::kOther) return {};
  out.token_ids = DI_TRY(bool_field(body, "return_token_ids")).value_or(false);
  out.tokens_as_ids = DI_TRY(bool_field(body, "return_tokens_as_token_ids")).value_or(false);
  out.echo = DI_TRY(bool_field(body, "echo")).value_or(false);
  return {};
}

}  // namespace

std::expected<ChatExtras, ApiFailure> read_chat_extras(const Json& body, const codec::Tokenizer& tokenizer,
                                                       AnswerKind kind) {
  ChatExtras extras;
  DI_TRY(refuse_unsupported(body, kind));
  const int32_t vocab = tokenizer.vocab_size();
  DI_TRY(read_forms(body, vocab, kind, extras));
  extras.stop_token_ids = DI_TRY(token_ids_field(body, "stop_token_ids", vocab));
  extras.allowed_token_ids = DI_TRY(token_ids_field(body, "allowed_token_ids", vocab));
  const std::vector<std::string> bad_words = DI_TRY(strings_field(body, "bad_words"));
  for (size_t i = 0; i < bad_words.size(); ++i) {
    if (bad_words[i].empty()) return invalid_field(fmt::format("bad_words[{}]", i), "bad_words: a word is empty");
    extras.bad_words.push_back(tokenizer.encode_plain(bad_words[i]));
    extras.bad_words.push_back(tokenizer.encode_plain(" " + bad_words[i]));
  }
  extras.ignore_eos = DI_TRY(bool_field(body, "ignore_eos")).value_or(false);
  extras.include_stop_text = DI_TRY(bool_field(body, "include_stop_str_in_output")).value_or(false);
  extras.prompt_logprobs = static_cast<int32_t>(DI_TRY(int_field(body, "prompt_logprobs", 0, 20)).value_or(-1));
  if (extras.prompt_logprobs >= 0 && DI_TRY(bool_field(body, "stream")).value_or(false))
    return invalid_field("prompt_logprobs", "prompt_logprobs: not available in a stream");
  extras.min_tokens = DI_TRY(int_field(body, "min_tokens", 0, INT64_MAX)).value_or(0);
  if (const Json* value = body.find_value("repetition_penalty")) {
    const std::optional<double> r = value->to_double();
    if (!r || !(*r > 0))
      return field_error("repetition_penalty", "a number above 0", *value, r ? "invalid_value" : "invalid_type");
    extras.repetition_penalty = *r;
  }
  return extras;
}

}  // namespace di::server
