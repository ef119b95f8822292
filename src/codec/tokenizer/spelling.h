// The raw vocabulary entry of a token: bytes as the printable stand-ins of the byte-level alphabet, added tokens as
// written. Engram's compressed vocabulary keys tokens that are no whole UTF-8 by it (model.md §5.10).
#pragma once

#include <string>

#include "codec/tokenizer/tokenizer.h"

namespace di::codec {

// Empty when the id is unknown.
std::string token_spelling(const Tokenizer& tokenizer, TokenId id);

}  // namespace di::codec
