// Engines without a model, for tests and load runs (server.md §18): `--engine mock[:KEY=VALUE,…]` makes text from a
// hash of the prompt, `--engine scripted:FILE` answers from a file. docs/server.md describes both.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "codec/tokenizer/tokenizer.h"
#include "engine/scripted.h"

namespace di::cli {

struct EngineChoice {
  enum class Kind : uint8_t { kReal, kMock, kScripted };
  Kind kind = Kind::kReal;
  std::string argument;  // the mock's settings, or the script's file
};

// Errors: neither `real`, `mock`, `mock:…` nor `scripted:FILE`.
Result<EngineChoice> parse_engine_choice(const std::string& text);

// What the runner does: answers, times and faults. Sizes of pools and context are the caller's. Errors name the
// setting, or the script's file and line.
Result<engine::ScriptedOptions> test_engine_options(const EngineChoice& choice, codec::TokenizerRef tokenizer);

}  // namespace di::cli
