// Structured output in requests (structured-output.md §8): which constraint the fields of a body ask for, and the way
// from there to a compiled one. Fields of OpenAI's, vLLM's, SGLang's and llama.cpp's clients are read; more than one
// constraint in a request is an error.
#pragma once

#include <expected>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "codec/codec.h"
#include "server/app.h"
#include "structured/compile_pool.h"

namespace di::server {

struct WantedConstraint {
  structured::ConstraintSpec spec;
  std::string param;                  // the field that errors name, as "response_format.json_schema.schema"
  bool openai_strict = false;         // schemas have to fit the profile of structured-output.md §8.2
  std::vector<std::string> warnings;  // `code;field`
};

// Nothing: the output is free. `body` is the request as sent (its schemas are those to enforce), `request` the codec's
// reading of it.
std::expected<std::optional<WantedConstraint>, ApiFailure> read_constraint(const Json& body,
                                                                           const codec::ConvertedRequest& request);

// The codec does not know response_format of type structural_tag: the body without it, when it has one.
std::optional<Json> without_structural_tag(const Json& body);

// How many of the prompt's last tokens belong to the constrained text: the opening of a forced tool call.
int32_t constrained_prompt_tokens(const codec::ConvertedRequest& request, const structured::Vocabulary& vocabulary,
                                  const std::vector<int32_t>& prompt);

// Compiles on the service's pool, then goes on with the verdict on one of the app's workers; the calling thread does
// not wait.
using ConstraintVerdict = std::expected<structured::CompiledRef, ApiFailure>;
void compile_constraint(App& app, const Service& service, WantedConstraint wanted,
                        std::function<void(const ConstraintVerdict&)> then);

// The tokenizer's tokens as the constraint library wants them. Added tokens count as control tokens.
structured::VocabularyRef make_vocabulary(const codec::Tokenizer& tokenizer);

}  // namespace di::server
