#include "engine/sequence.h"

#include <algorithm>

#include "engine/constraint.h"
#include "engine/sampler.h"

namespace di::engine {
namespace {

template <class... Args>
std::unexpected<Rejection> reject(RejectReason reason, fmt::format_string<Args...> format, Args&&... args) {
  return std::unexpected(
      Rejection{reason, Error{Errc::kInvalidRequest, fmt::format(format, std::forward<Args>(args)...)}, 0});
}

}  // namespace

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "abort";
    case FinishReason::kPreempted:
      return "preempted";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

bool StopRules::is_stop(int32_t token) const {
  return token == eos_token_id ||
         std::find(stop_token_ids.begin(), stop_token_ids.end(), token) != stop_token_ids.end();
}

SequenceSpecRef sequence_spec(const GenerateRequest& request, int32_t choice, const EngineInfo& info) {
  auto spec = std::make_shared<SequenceSpec>();
  spec->sampling = request.sampling;
  spec->sampling.seed += static_cast<uint64_t>(choice);
  spec->stop.eos_token_id = info.eos_token_id;
  spec->stop.ignore_eos = request.ignore_eos;
  spec->stop.stop_token_ids = request.stop_token_ids;
  spec->stop.min_tokens = request.min_tokens;
  // The other engine goes on behind the first token.
  spec->stop.max_tokens = request.send == nullptr ? request.max_tokens : 1;
  spec->stop.max_model_len = info.max_model_len;
  spec->prompt_tokens = static_cast<int32_t>(request.prompt.size());
  spec->prompt_logprobs = choice == 0 ? request.prompt_logprobs : -1;
  spec->constraint = request.constraint;
  spec->constrained_prompt_tokens = request.constrained_prompt_tokens;
  return spec;
}

FinishReason check_stop(const StopRules& rules, int32_t token, int64_t prompt_tokens, int64_t output_tokens_with_it) {
  if (!rules.ignore_eos && rules.is_stop(token)) return FinishReason::kStop;
  if (prompt_tokens + output_tokens_with_it > rules.max_model_len) return FinishReason::kLength;
  if (output_tokens_with_it >= rules.max_tokens) return FinishReason::kLength;
  return FinishReason::kNone;
}

std::vector<int32_t> ruled_out_tokens(const StopRules& rules, int64_t output_tokens) {
  if (output_tokens >= rules.min_tokens) return {};
  std::vector<int32_t> out = rules.stop_token_ids;
  if (rules.eos_token_id >= 0) out.push_back(rules.eos_token_id);
  return out;
}

std::expected<void, Rejection> check_request(const GenerateRequest& request, const EngineInfo& info) {
  if (request.prompt.empty()) return reject(RejectReason::kInvalid, "the prompt has no tokens");
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length > info.max_model_len) {
    return reject(RejectReason::kContextLength,
                  "This model's maximum context length is {} tokens. However, your prompt has {} tokens.",
                  info.max_model_len, length);
  }
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= info.vocab_size) {
      return reject(RejectReason::kInvalid, "prompt token {} has id {}, token ids are 0 to {}", i, request.prompt[i],
                    info.vocab_size - 1);
    }
  }
  const int64_t blocks = blocks_for(length, info.block_tokens);
  if (blocks > info.n_blocks) {
    return reject(RejectReason::kContextLength, "the prompt of {} tokens needs {} KV blocks, the pool has {}", length,
                  blocks, info.n_blocks);
  }
  if (request.max_tokens < 0)
    return reject(RejectReason::kInvalid, "max_tokens is {}, expected at least 0", request.max_tokens);
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens) {
    return reject(RejectReason::kInvalid, "min_tokens is {}, expected 0 to max_tokens = {}", request.min_tokens,
                  request.max_tokens);
  }
  if (request.prompt_logprobs < -1 || request.prompt_logprobs > 1000) {
    return reject(RejectReason::kInvalid, "prompt_logprobs is {}, expected -1 to 1000", request.prompt_logprobs);
  }
  if (request.constrained_prompt_tokens < 0 || request.constrained_prompt_tokens > length) {
    return reject(RejectReason::kInvalid, "constrained_prompt_tokens is {}, the prompt has {} tokens",
                  request.constrained_prompt_tokens, length);
  }
  const auto opening = std::span(request.prompt).last(static_cast<size_t>(request.constrained_prompt_tokens));
  if (const auto ok = make_matcher(request.constraint, request.stop_token_ids, opening); !ok) {
    return reject(RejectReason::kInvalid, "the end of the prompt: {}", ok.error().message);
  }
  if (request.send != nullptr || request.receive != nullptr) {
    if (!info.transfer_compat) {
      return reject(RejectReason::kInvalid, "the engine `{}` hands no requests over", info.backend);
    }
    if (request.n != 1 || request.max_tokens < 1 || (request.send != nullptr && request.receive != nullptr)) {
      return reject(RejectReason::kInvalid,
                    "a request that is handed over has n = 1, at least 1 token and one other engine; n is {}, "
                    "max_tokens {}",
                    request.n, request.max_tokens);
    }
  }
  if (request.n < 1) return reject(RejectReason::kInvalid, "n is {}, expected at least 1", request.n);
  for (const int32_t token : request.stop_token_ids) {
    if (token < 0 || token >= info.vocab_size) {
      return reject(RejectReason::kInvalid, "stop_token_ids names token {}, token ids are 0 to {}", token,
                    info.vocab_size - 1);
    }
  }
  if (const Result<void> ok = check_sampling(request.sampling, info.vocab_size); !ok) {
    return std::unexpected(Rejection{RejectReason::kInvalid, ok.error(), 0});
  }
  return {};
}

}  // namespace di::engine
