// Token texts of a folder's tokenizer.json, as the model's Engram tables want them.
#pragma once

#include <string>
#include <vector>

#include "codec/tokenizer/spelling.h"
#include "codec/tokenizer/tokenizer.h"
#include "model/engram.h"

namespace di::test {

inline Result<std::vector<model::TokenText>> token_texts(const std::string& dir) {
  const codec::TokenizerRef tokenizer = DI_TRY(codec::Tokenizer::load(dir));
  std::vector<model::TokenText> texts;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    texts.push_back({tokenizer->decode(std::span(&id, 1)), codec::token_spelling(*tokenizer, id)});
  }
  return texts;
}

}  // namespace di::test
