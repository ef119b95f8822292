// Fields of a chat request beyond the official API (server.md §4.1): what vLLM's and SGLang's clients and benchmark
// tools send. The codec reads the rest.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "codec/tokenizer/tokenizer.h"
#include "server/errors.h"

namespace di::server {

struct ChatExtras {
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_text = false;
  int32_t prompt_logprobs = -1;  // alternatives per prompt token; -1: none
  int64_t min_tokens = 0;
  double repetition_penalty = 1.0;
  std::vector<int32_t> allowed_token_ids;
  std::vector<std::vector<int32_t>> bad_words;  // each word alone and after a space
  std::vector<int32_t> logprob_token_ids;       // at most kMaxLogprobTokenIds
  bool token_ids = false;                       // return_token_ids: the answer has the ids of prompt and output
  bool tokens_as_ids = false;  // return_tokens_as_token_ids: log probabilities name tokens by their ids
  bool echo = false;           // Chat: the message that the answer goes on with is part of it
};

inline constexpr size_t kMaxLogprobTokenIds = 128;

// What an API's answers can show.
enum class AnswerKind : uint8_t { kChat, kCompletion, kOther };

// Errors name the field. Fields that are known, would change the answer and are not offered are refused.
std::expected<ChatExtras, ApiFailure> read_chat_extras(const Json& body, const codec::Tokenizer& tokenizer,
                                                       AnswerKind kind);

}  // namespace di::server
